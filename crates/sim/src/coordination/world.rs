//! One world: workers, an operator, a network and a backend, stepped in virtual time until the run has settled.

use std::collections::{BTreeMap, VecDeque};

use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::record::snapshot::AcquireScratch;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;

use super::call::{Answer, Backend, Call, Caller, RUN, Request, TENANT, key_bytes, perform};
use super::checkers;
use super::config::{Config, Rates};
use super::dice::Dice;
use super::marks::Marks;
use super::sink::{ResultWrite, Sink};
use super::watch::{Checker, Ending, Mirror, Sight};
use super::worker::{Act, PATIENCE, Waiting, Worker};

/// Worlds begin at this time, so that a clock that is behind still shows a positive one.
const BEGINNING: u64 = 1_000;
/// How often the operator looks.
const OPERATOR_PACE: u64 = 20;
/// Every so many calls all records are read again, to notice a change that no call should have made.
const SWEEP_PACE: u64 = 32;

/// What a world came to.
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

/// A property that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub property: &'static str,
    /// What was seen.
    pub what: String,
    /// At which step.
    pub step: u64,
    /// The last calls before it, oldest first.
    pub calls: Vec<String>,
}

/// How many of its past requests to unpark the operator may repeat.
const REMEMBERED_UNPARKS: usize = 8;
/// How many of the last calls a violation shows.
const SHOWN_CALLS: usize = 24;

#[derive(Debug)]
enum Happening {
    Wake(usize),
    Operate,
    Deliver { ticket: u64, call: Call },
    Reply { worker: usize, ticket: u64, answer: Answer },
}

/// What is particular about a backend's own world: a store that fails in its own ways, and time that it has to be told.
pub trait Weather: std::fmt::Debug {
    /// Faults of the store may happen, or may not: not while the checkers read.
    fn set_faults(&mut self, may_happen: bool);

    /// So many ticks have passed.
    fn pass(&mut self, ticks: u64);
}

/// A backend without a store.
#[derive(Debug)]
struct Indoors;

impl Weather for Indoors {
    fn set_faults(&mut self, _: bool) {}

    fn pass(&mut self, _: u64) {}
}

/// A world around a backend.
#[derive(Debug)]
pub struct World<B> {
    weather: Box<dyn Weather>,
    config: Config,
    rates: Rates,
    dice: Dice,
    now: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    happenings: u64,
    tickets: u64,
    ops: u64,
    workers: Vec<Worker>,
    clock_offsets: Vec<i64>,
    backend: B,
    scratch: AcquireScratch,
    mirror: Mirror,
    sink: Sink,
    checkers: Vec<Box<dyn Checker>>,
    marks: Marks,
    steps: u64,
    calls: u64,
    unparks: VecDeque<Request>,
    recent: VecDeque<(u64, Call, Answer)>,
    trace_hash: u64,
}

impl<B: Backend> World<B> {
    /// A world whose run is registered and whose workers are about to begin.
    pub fn new(config: Config, backend: B, sink: Sink) -> Self {
        Self::watched_by(checkers::all(), config, backend, sink)
    }

    /// The same, watched by these checkers only.
    pub fn watched_by(checkers: Vec<Box<dyn Checker>>, config: Config, mut backend: B, sink: Sink) -> Self {
        let run_config =
            RunConfig { lease_duration: Some(config.lease), max_shard_retries: config.retries, ..RunConfig::default() };
        let edge = |at: u64| key_bytes((u64::from(config.keys) * at / config.roots) as u16);
        let edges: Vec<[u8; 2]> = (0..=config.roots).map(edge).collect();
        let shards: Vec<InitialShardInput<'_>> = (0..config.roots as usize)
            .map(|at| InitialShardInput {
                metadata: b"simulated",
                ..InitialShardInput::new(ShardId::new(at as u64 + 1), &edges[at], &edges[at + 1])
            })
            .collect();
        let now = LogicalTime::new(BEGINNING);
        backend
            .create_run_with_shards(now, TENANT, RUN, run_config, &shards, OpId::new(1))
            .expect("the simulated manifest is legal and nothing fails yet");
        let mut dice = Dice::new(config.seed);
        let skew = config.skew;
        let clock_offsets: Vec<i64> =
            (0..config.workers).map(|_| dice.below(2 * skew + 1) as i64 - skew as i64).collect();
        let workers: Vec<Worker> = clock_offsets
            .iter()
            .enumerate()
            .map(|(number, offset)| Worker {
                number,
                clock_offset: *offset,
                paused_until: 0,
                held: None,
                waiting: None,
                checkpoint_pace: dice.between(1, 6),
                oblivious: false,
                draining: false,
            })
            .collect();
        let mut world = Self {
            weather: Box::new(Indoors),
            rates: config.rates,
            dice,
            now: BEGINNING,
            agenda: BTreeMap::new(),
            happenings: 0,
            tickets: 0,
            ops: 1,
            workers,
            clock_offsets,
            backend,
            scratch: AcquireScratch::default(),
            mirror: Mirror::default(),
            sink,
            checkers,
            marks: Marks::default(),
            steps: 0,
            calls: 0,
            unparks: VecDeque::new(),
            recent: VecDeque::new(),
            trace_hash: config.seed,
            config,
        };
        let ids: Vec<ShardId> = (1..=world.config.roots).map(ShardId::new).collect();
        for shard in ids {
            let record =
                world.backend.get_shard(TENANT, ShardKey::new(RUN, shard)).expect("a registered shard is there");
            world.mirror.records.insert(shard, record);
        }
        for worker in 0..world.workers.len() {
            world.schedule(1, Happening::Wake(worker));
        }
        world.schedule(OPERATOR_PACE, Happening::Operate);
        world
    }

    /// The same world, with a store that has weather of its own.
    #[must_use]
    pub fn with_weather(mut self, weather: impl Weather + 'static) -> Self {
        self.weather = Box::new(weather);
        self
    }

    /// Runs the storm, then the calm, until the run has settled.
    pub fn run(mut self) -> Result<Report, Violation> {
        while self.steps < self.config.steps && !self.is_settled() {
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
        // A little longer, so that what is still under way meets a settled run.
        for _ in 0..800 {
            self.step()?;
        }
        let calm_steps = self.steps - storm_steps;
        let run = self.run_record().status;
        let ending = Ending { run, calm_steps, calm_steps_max };
        for at in 0..self.checkers.len() {
            let said = self.checkers[at].at_end(&ending);
            self.judge(at, said)?;
        }
        Ok(Report { steps: self.steps, calls: self.calls, marks: self.marks, trace_hash: self.trace_hash })
    }

    fn run_record(&mut self) -> tessera_coordination::run::record::RunRecord {
        self.backend.get_run(TENANT, RUN).expect("the simulated run is there")
    }

    fn is_settled(&mut self) -> bool {
        self.run_record().status.is_terminal()
    }

    fn is_calm(&self) -> bool {
        self.rates == self.config.calmed()
    }

    fn schedule(&mut self, delay: u64, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((self.now + delay, self.happenings), happening);
    }

    fn step(&mut self) -> Result<(), Violation> {
        let Some(((time, order), happening)) = self.agenda.pop_first() else { return Ok(()) };
        self.steps += 1;
        if time > self.now {
            self.weather.pass(time - self.now);
            self.now = time;
        }
        self.trace_hash = Dice::new(self.trace_hash ^ time ^ (order << 32)).roll();
        match happening {
            Happening::Wake(worker) => self.wake(worker),
            Happening::Operate => {
                self.operate();
                Ok(())
            }
            Happening::Deliver { ticket, call } => self.deliver(ticket, &call),
            Happening::Reply { worker, ticket, answer } => {
                self.workers[worker].hear(ticket, &answer);
                Ok(())
            }
        }
    }

    fn wake(&mut self, number: usize) -> Result<(), Violation> {
        let Rates { pause, crash, restart, claim_burst, .. } = self.rates;
        let pace = self.dice.between(1, 4);
        self.schedule(pace, Happening::Wake(number));
        if self.dice.happens(crash) {
            self.workers[number].forget();
        }
        if self.dice.happens(pause) {
            let length = self.dice.between(1, 2 * self.config.lease);
            self.workers[number].paused_until = self.now + length;
            self.workers[number].oblivious = self.dice.below(2) == 0;
        }
        if self.dice.happens(restart) && self.workers[number].held.is_some() {
            self.workers[number].draining = true;
        }
        if self.dice.happens(claim_burst) {
            // Everybody starts over at the same moment.
            for worker in &mut self.workers {
                worker.forget();
            }
        }
        let worker = &mut self.workers[number];
        match worker.act(self.now, self.config.lease, &self.rates, &mut self.dice, &mut self.ops) {
            Act::Rest => Ok(()),
            Act::Write => self.write(number),
            Act::Ask(request) => {
                self.tickets += 1;
                let ticket = self.tickets;
                worker.waiting = Some(Waiting { request: request.clone(), ticket, since: self.now, attempts: 1 });
                let call = worker.call(self.now, request);
                self.send(ticket, call);
                Ok(())
            }
            Act::AskAgain => {
                let now = self.now;
                let Some(waiting) = &mut worker.waiting else { return Ok(()) };
                waiting.since = now;
                waiting.attempts += 1;
                let (ticket, request) = (waiting.ticket, waiting.request.clone());
                let call = worker.call(now, request);
                self.send(ticket, call);
                Ok(())
            }
        }
    }

    fn write(&mut self, number: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let Some(held) = &mut worker.held else { return Ok(()) };
        let result =
            ResultWrite { worker: number, shard: held.lease.shard(), fence: held.lease.fence(), key: held.next };
        if !self.sink.write(&result) {
            worker.forget();
            self.marks.note("a zombie's result was refused");
            return Ok(());
        }
        held.next += 1;
        for at in 0..self.checkers.len() {
            let said = self.checkers[at].after_result(&result, &self.mirror.records);
            self.judge(at, said)?;
        }
        Ok(())
    }

    fn send(&mut self, ticket: u64, call: Call) {
        if self.dice.happens(self.rates.duplicate) {
            // Some come so late that the op-log has forgotten.
            let leases = if self.dice.below(4) == 0 { 20 } else { 3 };
            let delay = self.dice.between(1, leases * self.config.lease);
            self.schedule(delay, Happening::Deliver { ticket, call: call.clone() });
        }
        if !self.dice.happens(self.rates.lose_request) {
            let delay = self.latency();
            self.schedule(delay, Happening::Deliver { ticket, call });
        }
    }

    fn latency(&mut self) -> u64 {
        if self.dice.happens(self.rates.delay) {
            self.dice.between(PATIENCE / 2, 2 * self.config.lease)
        } else {
            self.dice.between(1, 4)
        }
    }

    fn deliver(&mut self, ticket: u64, call: &Call) -> Result<(), Violation> {
        let mut heard = Answer::Failed;
        if !self.dice.happens(self.rates.fail_before) {
            let answer = self.perform(call)?;
            if self.dice.happens(self.rates.fail_after) {
                self.marks.note("a store failed after the effect");
            } else {
                heard = answer;
            }
        }
        let Caller::Worker(worker) = call.caller else { return Ok(()) };
        if !self.dice.happens(self.rates.lose_reply) {
            let delay = self.latency();
            self.schedule(delay, Happening::Reply { worker, ticket, answer: heard });
        }
        Ok(())
    }

    /// Asks the backend, and lets every checker look.
    fn perform(&mut self, call: &Call) -> Result<Answer, Violation> {
        let run_before = self.run_record().status;
        let stormy = !self.is_calm();
        self.weather.set_faults(stormy);
        let answer = perform(&mut self.backend, call, &mut self.scratch);
        self.weather.set_faults(false);
        self.calls += 1;
        if self.recent.len() == SHOWN_CALLS {
            self.recent.pop_front();
        }
        self.recent.push_back((self.now, call.clone(), answer.clone()));
        let parks_unseen = self.config.retries > 0 && matches!(call.request, Request::Claim);
        let everything = parks_unseen || self.calls.is_multiple_of(SWEEP_PACE);
        let changes = self.mirror.read_after(&mut self.backend, call, &answer, everything);
        let run = self.run_record();
        let sight = Sight {
            config: &self.config,
            now: self.now,
            call,
            answer: &answer,
            changes: &changes,
            records: &self.mirror.records,
            run_before,
            run: &run,
            sink: &self.sink,
            clock_offsets: &self.clock_offsets,
        };
        self.marks.see(&sight);
        let said: Vec<_> = self.checkers.iter_mut().map(|checker| checker.after_call(&sight)).collect();
        for (at, said) in said.into_iter().enumerate() {
            self.judge(at, said)?;
        }
        Ok(answer)
    }

    fn judge(&self, checker: usize, said: Result<(), String>) -> Result<(), Violation> {
        said.map_err(|what| Violation {
            property: self.checkers[checker].name(),
            what,
            step: self.steps,
            calls: self.recent.iter().map(|(now, call, answer)| format!("{now}: {call} -> {answer}")).collect(),
        })
    }

    /// The operator looks at the run: revives what is parked, asks holders for something, ends what is finished.
    fn operate(&mut self) {
        self.schedule(OPERATOR_PACE, Happening::Operate);
        let heads: Vec<(ShardId, _)> =
            self.mirror.records.values().map(|record| (record.key.shard, record.state.head)).collect();
        let open = |status: ShardStatus| matches!(status, ShardStatus::Active | ShardStatus::Parked);
        if heads.iter().all(|(_, head)| !open(head.status)) {
            let op = self.next_op();
            self.operator_sends(Request::CompleteRun { op });
            return;
        }
        for (shard, head) in heads {
            let key = ShardKey::new(RUN, shard);
            if head.status == ShardStatus::Parked && (self.is_calm() || self.dice.happens(self.rates.unpark)) {
                let op = self.next_op();
                let unpark = Request::Unpark { key, fence: head.fence, op };
                if self.unparks.len() == REMEMBERED_UNPARKS {
                    self.unparks.pop_front();
                }
                self.unparks.push_back(unpark.clone());
                self.operator_sends(unpark);
            }
            if head.lease.is_some() && self.dice.happens(self.rates.order_yield) {
                self.operator_sends(Request::Order { key, fence: head.fence, order: OrderRequest::Yield });
            }
            if head.lease.is_some() && self.dice.happens(self.rates.order_split) {
                let order = OrderRequest::Split(Fraction::HALF);
                self.operator_sends(Request::Order { key, fence: head.fence, order });
            }
        }
        if self.rates.duplicate > 0 && !self.unparks.is_empty() && self.dice.below(3) == 0 {
            // A script that repeats itself, long after.
            let at = self.dice.below(self.unparks.len() as u64) as usize;
            self.operator_sends(self.unparks[at].clone());
        }
        if self.dice.happens(self.rates.cancel) {
            let op = self.next_op();
            self.operator_sends(Request::CancelRun { op });
        }
    }

    fn next_op(&mut self) -> OpId {
        self.ops += 1;
        OpId::new(self.ops)
    }

    fn operator_sends(&mut self, request: Request) {
        let call = Call { at: LogicalTime::new(self.now), caller: Caller::Operator, request };
        self.send(0, call);
    }
}
