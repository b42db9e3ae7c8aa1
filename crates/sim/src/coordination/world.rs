//! One world: workers, an operator and a network around a backend, stepped in virtual time until the run has settled.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tessera_contracts::ids::LogicalTime;

use super::call::{Answer, Backend, Call, Caller, Request};
use super::checkers;
use super::config::{Config, Rates};
use super::dice::Dice;
use super::marks::Marks;
use super::sessions::SessionWorker;
use super::sink::{ResultWrite, Sink};
use super::stage::{BEGINNING, Stage, Violation};
use super::trace::{Recorder, Step};
use super::vandal::Vandal;
use super::watch::{Checker, Ending};
use super::worker::{Act, PATIENCE, Waiting, Worker};

mod operator;

use operator::Recreation;

/// The outcome of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Steps taken, calm ones included.
    pub steps: u64,
    /// Calls that reached the backend.
    pub calls: u64,
    /// Paths taken.
    pub marks: Marks,
    /// Differs between worlds in which anything differs: the same seed gives the same one.
    pub trace_hash: u64,
}

#[derive(Debug)]
enum Happening {
    Wake(usize),
    Operate,
    Deliver { ticket: u64, call: Call, again: bool },
    Reply { worker: usize, ticket: u64, answer: Answer },
}

/// A world around a backend.
#[derive(Debug)]
pub struct World<B> {
    config: Config,
    rates: Rates,
    dice: Dice,
    now: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    happenings: u64,
    tickets: u64,
    ops: u64,
    workers: Vec<Worker>,
    /// Of the first workers, those that work through a session.
    sessions: Vec<SessionWorker>,
    lives: u64,
    vandal: Vandal,
    stage: Rc<RefCell<Stage<B>>>,
    recorder: Option<Recorder>,
    steps: u64,
    unparks: VecDeque<Request>,
    recreation: Recreation,
    /// Nothing gets through before this time.
    overloaded_until: u64,
    /// The latest request that arrived from each worker, by its own clock.
    newest_arrival: Vec<LogicalTime>,
    trace_hash: u64,
}

impl<B: Backend + 'static> World<B> {
    /// A world whose run is registered and whose workers are about to begin.
    pub fn new(config: Config, backend: B, sink: Sink) -> Self {
        Self::watched_by(checkers::all(), config, backend, sink)
    }

    /// The same, watched by these checkers only.
    pub fn watched_by(checkers: Vec<Box<dyn Checker>>, config: Config, backend: B, sink: Sink) -> Self {
        Self::around(Stage::new(checkers, config.clone(), backend, sink), config)
    }

    /// A world around a stage on which nothing has happened yet.
    pub fn around(stage: Stage<B>, config: Config) -> Self {
        let mut dice = Dice::new(config.seed);
        let workers: Vec<Worker> = config
            .clock_offsets()
            .into_iter()
            .enumerate()
            .map(|(number, clock_offset)| Worker::new(number, clock_offset, &config, &mut dice))
            .collect();
        let mut world = Self {
            rates: config.rates,
            dice,
            now: BEGINNING,
            agenda: BTreeMap::new(),
            happenings: 0,
            tickets: 0,
            ops: 1,
            workers,
            sessions: Vec::new(),
            lives: 0,
            vandal: Vandal::new(&config),
            stage: Rc::new(RefCell::new(stage)),
            recorder: None,
            steps: 0,
            unparks: VecDeque::new(),
            recreation: Recreation::default(),
            overloaded_until: 0,
            newest_arrival: vec![LogicalTime::new(1); config.workers as usize],
            trace_hash: config.seed,
            config,
        };
        for worker in 0..world.workers.len() {
            world.schedule(1, Happening::Wake(worker));
        }
        world.sessions = (0..world.config.sessions as usize).map(|worker| world.session_worker(worker)).collect();
        world.schedule(operator::PACE, Happening::Operate);
        world
    }

    /// Runs the storm, then the calm, until the run has settled.
    pub fn run(mut self) -> Result<Report, Violation> {
        self.run_to_end()
    }

    /// Runs it and writes down its steps in the model's terms; checkers do not stop it.
    pub fn told(mut self) -> Recorder {
        assert!(self.config.as_modelled, "only a world that is shaped like the model's can be told in its terms");
        self.recorder = Some(Recorder::new(&self.config));
        let _ = self.run_to_end();
        self.recorder.expect("it was put there above")
    }

    fn run_to_end(&mut self) -> Result<Report, Violation> {
        while self.steps < self.config.steps && !self.is_over() {
            self.step()?;
        }
        self.rates = self.config.calmed();
        for worker in &mut self.workers {
            worker.paused_until = self.now;
        }
        let storm_steps = self.steps;
        let calm_steps_max = 4_000 + 400 * u64::from(self.config.keys) + 400 * self.config.shards_max as u64;
        while self.steps < storm_steps + calm_steps_max && !self.is_settled() {
            self.step()?;
        }
        // A little longer, so that requests still under way meet a settled run.
        for _ in 0..self.config.afterwards {
            self.step()?;
        }
        let calm_steps = self.steps - storm_steps;
        let mut stage = self.stage.borrow_mut();
        let run = stage.run().map(|run| run.status);
        stage.end(&Ending { run, calm_steps, calm_steps_max })?;
        let (calls, marks) = (stage.calls(), stage.marks().clone());
        Ok(Report { steps: self.steps, calls, marks, trace_hash: self.trace_hash })
    }

    fn is_settled(&mut self) -> bool {
        self.stage.borrow_mut().run().is_some_and(|run| run.status.is_terminal())
    }

    /// Whether the run has settled and is not to be created again.
    fn is_over(&mut self) -> bool {
        self.is_settled() && !self.may_recreate()
    }

    fn is_calm(&self) -> bool {
        self.rates == self.config.calmed()
    }

    fn note(&mut self, mark: &'static str) {
        self.stage.borrow_mut().marks().note(mark);
    }

    fn schedule(&mut self, delay: u64, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((self.now + delay, self.happenings), happening);
    }

    fn step(&mut self) -> Result<(), Violation> {
        let Some(((time, order), happening)) = self.agenda.pop_first() else { return Ok(()) };
        self.steps += 1;
        if time > self.now {
            self.stage.borrow_mut().pass_to(time);
            let passed = time - self.now;
            self.now = time;
            self.tell(|| Step::Time(passed));
        }
        self.trace_hash = Dice::new(self.trace_hash ^ time ^ (order << 32)).roll();
        let happened = match happening {
            Happening::Wake(worker) => self.wake(worker),
            Happening::Operate => self.operate(),
            Happening::Deliver { ticket, call, again } => {
                self.note_arrival(&call, again);
                self.deliver(ticket, call)
            }
            Happening::Reply { worker, ticket, answer } => {
                self.workers[worker].hear(ticket, &answer);
                Ok(())
            }
        };
        self.tell_workers_that_forgot();
        happened
    }

    fn tell_workers_that_forgot(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.forget_what(|worker| self.workers[worker].held.is_none());
        }
    }

    /// Writes a step down, if this world is recorded.
    fn tell(&mut self, step: impl FnOnce() -> Step) {
        if let Some(recorder) = &mut self.recorder {
            let mut stage = self.stage.borrow_mut();
            let run = stage.run().expect("a traced run is never retired").status;
            recorder.note(step(), self.now, run, stage.records());
        }
    }

    fn session_worker(&mut self, number: usize) -> SessionWorker {
        self.lives += 1;
        let dice = Dice::new(self.config.seed ^ (self.lives << 40));
        let out_of_reach = self.config.out_of_reach(number);
        SessionWorker::new(&self.stage, number, self.lives, self.config.lease, out_of_reach, dice)
    }

    /// A worker starts anew, knowing nothing.
    fn crash(&mut self, number: usize) {
        self.workers[number].forget();
        if number < self.sessions.len() {
            self.sessions[number] = self.session_worker(number);
        }
    }

    /// A session worker does its next deed; repeated requests arrive later.
    fn go_on(&mut self, number: usize) -> Result<(), Violation> {
        let (is_calm, rates) = (self.is_calm(), self.rates);
        let worker = &mut self.workers[number];
        if self.now < worker.paused_until {
            return Ok(());
        }
        let session = &mut self.sessions[number];
        {
            let mut air = session.air.borrow_mut();
            (air.now, air.rates, air.is_calm) = (worker.clock(self.now), rates, is_calm);
            air.draining |= std::mem::take(&mut worker.draining);
            air.oblivious |= std::mem::take(&mut worker.oblivious);
        }
        session.take_a_turn();
        let (late, broken) = {
            let mut air = session.air.borrow_mut();
            (std::mem::take(&mut air.late), air.broken.take())
        };
        for call in late {
            let delay = self.dice.between(1, 20 * self.config.lease);
            self.schedule(delay, Happening::Deliver { ticket: 0, call, again: true });
        }
        broken.map_or(Ok(()), Err)
    }

    fn wake(&mut self, number: usize) -> Result<(), Violation> {
        let Rates { pause, crash, restart, claim_burst, .. } = self.rates;
        let pace = self.dice.between(1, 4);
        self.schedule(pace, Happening::Wake(number));
        if self.vandal.is_up_to_something(self.config.rates.vandal) {
            self.do_wrong()?;
        }
        if self.dice.happens(crash) {
            self.crash(number);
        }
        if self.dice.happens(pause) {
            let length = self.dice.between(1, 2 * self.config.lease);
            self.workers[number].paused_until = self.now + length;
            self.workers[number].oblivious = self.dice.below(2) == 0;
        }
        let is_session = number < self.sessions.len();
        if self.dice.happens(restart) && (is_session || self.workers[number].held.is_some()) {
            self.workers[number].draining = true;
        }
        if self.dice.happens(claim_burst) {
            // Everybody starts over at the same moment.
            self.note("everybody claimed at once");
            for worker in 0..self.workers.len() {
                self.crash(worker);
            }
        }
        if is_session {
            return self.go_on(number);
        }
        // A worker that crashed may hold another shard before this step is over.
        self.tell_workers_that_forgot();
        let worker = &mut self.workers[number];
        match worker.act(self.now, self.config.lease, &self.rates, &mut self.dice, &mut self.ops) {
            Act::Rest => Ok(()),
            Act::Write => self.write(number),
            Act::Ask(request) => {
                self.tickets += 1;
                let ticket = self.tickets;
                worker.waiting = Some(Waiting { request: request.clone(), ticket, since: self.now, attempts: 1 });
                let call = worker.call(self.now, request);
                self.tell(|| Step::Sent(call.clone()));
                self.dispatch(ticket, call)
            }
            Act::AskAgain => {
                let now = self.now;
                let Some(waiting) = &mut worker.waiting else { return Ok(()) };
                waiting.since = now;
                waiting.attempts += 1;
                let (ticket, request) = (waiting.ticket, waiting.request.clone());
                let call = worker.call(now, request);
                self.dispatch(ticket, call)
            }
        }
    }

    /// The vandal sends a wrong request, and is refused.
    fn do_wrong(&mut self) -> Result<(), Violation> {
        let mut stage = self.stage.borrow_mut();
        // It must be wrong when it arrives, so nothing may change on the way.
        let may_lose = stage.may_lose_holders();
        let stormy = !self.is_calm() && !may_lose;
        stage.look_for_late_changes()?;
        let Some(run) = stage.run() else { return Ok(()) };
        let Some((way, call)) = self.vandal.ask(self.now, stage.records(), &run, may_lose) else {
            return Ok(());
        };
        let answer = stage.perform(&call, stormy)?;
        if matches!(answer, Answer::Refused(_) | Answer::NoShard) {
            stage.marks().note(way);
        }
        Ok(())
    }

    fn write(&mut self, number: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let Some(held) = &mut worker.held else { return Ok(()) };
        let result = ResultWrite::under(&held.lease, number, held.next);
        let accepted = self.stage.borrow_mut().write(&result)?;
        if accepted {
            held.next += 1;
        } else {
            worker.forget();
            self.note("a zombie's result was refused");
        }
        self.tell(|| Step::Wrote { worker: number, accepted });
        Ok(())
    }

    fn dispatch(&mut self, ticket: u64, call: Call) -> Result<(), Violation> {
        if self.config.as_modelled && matches!(call.request, Request::Claim | Request::Renew { .. }) {
            return self.deliver(ticket, call);
        }
        self.send(ticket, call);
        Ok(())
    }

    fn send(&mut self, ticket: u64, call: Call) {
        if self.dice.happens(self.rates.duplicate) {
            // Some come so late that the op-log has forgotten.
            let leases = if self.dice.below(4) == 0 { 20 } else { 3 };
            let delay = self.dice.between(1, leases * self.config.lease);
            self.schedule(delay, Happening::Deliver { ticket, call: call.clone(), again: true });
        }
        if !self.dice.happens(self.rates.lose_request) {
            let delay = self.latency();
            self.schedule(delay, Happening::Deliver { ticket, call, again: false });
        }
    }

    /// Proof that the network repeats and reorders.
    fn note_arrival(&mut self, call: &Call, again: bool) {
        let Caller::Worker(worker) = call.caller else { return };
        if again {
            self.note("a request arrived once more");
        } else if call.at < self.newest_arrival[worker] {
            self.note("a request arrived after a later one");
        }
        self.newest_arrival[worker] = self.newest_arrival[worker].max(call.at);
    }

    fn latency(&mut self) -> u64 {
        if self.now < self.overloaded_until {
            return self.overloaded_until - self.now;
        }
        if self.dice.happens(self.rates.delay) {
            self.dice.between(PATIENCE / 2, 2 * self.config.lease)
        } else {
            self.dice.between(1, 4)
        }
    }

    fn deliver(&mut self, ticket: u64, mut call: Call) -> Result<(), Violation> {
        if self.config.as_modelled
            && let Caller::Worker(worker) = call.caller
        {
            call.at = self.workers[worker].clock(self.now);
        }
        if self.dice.happens(self.rates.fail_before) {
            self.reply(ticket, &call, Answer::Failed);
            return Ok(());
        }
        let stormy = !self.is_calm();
        let answer = self.stage.borrow_mut().perform(&call, stormy)?;
        let mut heard = !self.dice.happens(self.rates.lose_reply);
        if self.dice.happens(self.rates.fail_after) {
            self.note("a store failed after the effect");
            heard = false;
        }
        self.tell(|| Step::Delivered { call: call.clone(), answer: answer.clone(), heard });
        if heard {
            self.reply(ticket, &call, answer);
        }
        Ok(())
    }

    fn reply(&mut self, ticket: u64, call: &Call, answer: Answer) {
        let Caller::Worker(worker) = call.caller else { return };
        if self.config.as_modelled {
            self.workers[worker].hear(ticket, &answer);
        } else {
            let delay = self.latency();
            self.schedule(delay, Happening::Reply { worker, ticket, answer });
        }
    }
}
