//! The part of a world that is judged: the backend and the result store, with every checker looking on.
//!
//! Workers, operator and network decide on requests and their times. A [`Deed`] is one request, so that a list of them can be
//! played again without workers, and shortened.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use tessera_contracts::ids::{FenceEpoch, LogicalTime, RunId, RunIncarnation, ShardId, WorkerId};
use tessera_coordination::Lease;
use tessera_coordination::error::GetRunError;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::AcquireScratch;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;

use super::call::{Answer, Backend, Call, Caller, INCARNATION, RUN, Request, TENANT, perform, worker_id};
use super::config::Config;
use super::marks::Marks;
use super::sink::{ResultWrite, Sink};
use super::watch::{Checker, Ending, Mirror, Sight};

/// Worlds begin at this time, so that a clock that is behind still shows a positive one.
pub const BEGINNING: u64 = 1_000;
/// A run without shards, beside the simulated one.
pub const UNREGISTERED: RunId = RunId::new(2);
/// Every so many calls all records are read again, to notice a change that no call should have made.
const SWEEP_PACE: u64 = 32;
/// How many of the last calls a violation shows.
const SHOWN_CALLS: usize = 24;

/// A property that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub property: &'static str,
    /// The observation.
    pub what: String,
    /// The last calls before it, oldest first.
    pub calls: Vec<String>,
    /// All that led to it, oldest first.
    pub script: Vec<Deed>,
}

/// One thing that was done to the backend or the result store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A call, at this true time; the last word says whether the store was allowed to fail.
    Call(u64, Call, bool),
    /// A result.
    Write(ResultWrite),
}

/// A worker, its shard, the run's incarnation and the fence.
type Hold = (WorkerId, ShardId, RunIncarnation, FenceEpoch);

fn held(lease: &Lease) -> Hold {
    (lease.owner(), lease.shard(), lease.incarnation(), lease.fence())
}

/// The particular world of a backend: a store that fails in its own ways, and time that it has to be told.
pub trait Weather<B>: std::fmt::Debug {
    /// Faults of the store may happen, or may not: not while the checkers read.
    fn set_faults(&mut self, may_happen: bool);

    /// A call is over. True if the backend had to be started again from its store.
    fn restart_if_down(&mut self, _backend: &mut B) -> bool {
        false
    }

    /// The shards whose holder the store vouches for; none if the records alone tell.
    fn vouched(&mut self) -> Option<Rc<BTreeSet<ShardId>>> {
        None
    }

    /// The workers that have a live session; none if the backend knows no sessions.
    fn present(&mut self) -> Option<Rc<BTreeSet<WorkerId>>> {
        None
    }

    /// Whether a compare-and-set missed since this was last asked.
    fn missed(&mut self) -> bool {
        false
    }

    /// A number that changes whenever something is stored, also by requests that arrive late and leases that run out between two calls.
    fn version(&self) -> u64 {
        0
    }

    /// What time it is in the store, where time passes in a call.
    fn time(&self) -> Duration {
        Duration::ZERO
    }

    /// So many ticks have passed.
    fn pass(&mut self, ticks: u64);
}

/// A backend without a store.
#[derive(Debug)]
struct Indoors;

impl<B> Weather<B> for Indoors {
    fn set_faults(&mut self, _: bool) {}

    fn pass(&mut self, _: u64) {}
}

/// The backend under test, and its checkers.
#[derive(Debug)]
pub struct Stage<B> {
    config: Config,
    backend: B,
    weather: Box<dyn Weather<B>>,
    scratch: AcquireScratch,
    mirror: Mirror,
    /// The store's version when its records were last read.
    version: u64,
    /// The run as last read, and the store's version then.
    run: Option<(u64, Option<Rc<RunRecord>>)>,
    /// The incarnation whose records the mirror has.
    incarnation: Option<RunIncarnation>,
    sink: Sink,
    checkers: Vec<Box<dyn Checker>>,
    clock_offsets: Vec<i64>,
    marks: Marks,
    now: u64,
    calls: u64,
    answers: Vec<Answer>,
    script: Vec<Deed>,
}

impl<B: Backend> Stage<B> {
    /// A stage on which the run is registered and nothing else has happened.
    pub fn new(checkers: Vec<Box<dyn Checker>>, config: Config, mut backend: B, sink: Sink) -> Self {
        let now = LogicalTime::new(BEGINNING);
        let mut scratch = AcquireScratch::default();
        let start = Call { at: now, caller: Caller::Operator, request: Request::start(&config, INCARNATION) };
        let started = perform(&mut backend, &start, &mut scratch);
        assert!(
            matches!(started, Answer::Accepted { .. }),
            "the simulated manifest is legal and nothing fails yet: {started}"
        );
        backend
            .create_run(now, TENANT, UNREGISTERED, INCARNATION, RunConfig::default())
            .expect("there is room for a second run");
        let mut stage = Self {
            clock_offsets: config.clock_offsets(),
            config,
            backend,
            weather: Box::new(Indoors),
            scratch,
            mirror: Mirror::default(),
            version: 0,
            run: None,
            incarnation: None,
            sink,
            checkers,
            marks: Marks::default(),
            now: BEGINNING,
            calls: 0,
            answers: Vec::new(),
            script: Vec::new(),
        };
        stage.meet_run();
        stage.mirror.read_all(&mut stage.backend);
        stage
    }

    /// The same stage, with a store that has weather of its own.
    #[must_use]
    pub fn with_weather(mut self, weather: Box<dyn Weather<B>>) -> Self {
        self.weather = weather;
        self
    }

    /// Time goes on.
    pub fn pass_to(&mut self, now: u64) {
        if now > self.now {
            self.weather.pass(now - self.now);
            self.now = now;
        }
    }

    /// Asks the backend, and lets every checker look.
    pub fn perform(&mut self, call: &Call, store_may_fail: bool) -> Result<Answer, Violation> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let answered = self.perform_as(call, store_may_fail, |backend| {
            let answer = perform(backend, call, &mut scratch);
            (answer.clone(), answer)
        });
        self.scratch = scratch;
        answered
    }

    /// The same, for a caller that wants the backend's own answer: `ask` gives that, and its plain form.
    pub fn perform_as<T>(
        &mut self,
        call: &Call,
        store_may_fail: bool,
        ask: impl FnOnce(&mut B) -> (T, Answer),
    ) -> Result<T, Violation> {
        self.script.push(Deed::Call(self.now, call.clone(), store_may_fail));
        self.look_for_late_changes()?;
        let run_before = self.run();
        let vouched_before = self.weather.vouched();
        let present_before = self.weather.present();
        self.weather.set_faults(store_may_fail);
        let asked_at = self.weather.time();
        let (own, answer) = ask(&mut self.backend);
        self.run = None;
        let waited = self.weather.time() > asked_at;
        self.weather.set_faults(false);
        if self.weather.restart_if_down(&mut self.backend) {
            self.marks.note("a store lost its power and came back");
            self.checkers.iter_mut().for_each(|checker| checker.after_restart());
        }
        let granted = matches!(answer, Answer::Accepted { .. } | Answer::Granted { .. } | Answer::Renewed(_));
        if self.weather.missed() && granted {
            self.marks.note("a call went through after a compare-and-set had missed");
        }
        self.calls += 1;
        self.answers.push(answer.clone());
        let may_park = self.config.retries > 0 || self.config.rates.unreachable > 0;
        let parks_unseen = may_park && matches!(call.request, Request::Claim | Request::Acquire { .. });
        let vouched = self.weather.vouched();
        let present = present_before.zip(self.weather.present()).map(|(before, after)| &*before & &*after);
        // With a session, a store loses the renewals of all that it held.
        let lost =
            vouched_before.as_ref().zip(vouched.as_ref()).is_some_and(|(before, after)| !before.is_subset(after));
        let everything = self.meet_run() || parks_unseen || lost || self.calls.is_multiple_of(SWEEP_PACE);
        let run = self.run();
        let changes = match &run {
            Some(_) => self.mirror.read_after(&mut self.backend, call, &answer, everything),
            None => Vec::new(),
        };
        // Writes of this call are read above; later ones of the store itself are not.
        self.version = self.weather.version();
        let sight = Sight {
            config: &self.config,
            now: self.now,
            call,
            answer: &answer,
            changes: &changes,
            records: &self.mirror.records,
            run_before: run_before.as_deref(),
            run: run.as_deref(),
            sink: &self.sink,
            clock_offsets: &self.clock_offsets,
            vouched_before: vouched_before.as_deref(),
            vouched: vouched.as_deref(),
            present: present.as_ref(),
            waited,
        };
        self.marks.see(&sight);
        let mut said = self.checkers.iter_mut().map(|checker| (checker.name(), checker.after_call(&sight)));
        match said.find_map(|(name, said)| Some((name, said.err()?))) {
            Some((property, what)) => Err(self.violation(property, what)),
            None => Ok(own),
        }
    }

    /// A store may carry out old requests now: the records are read again before they are relied on.
    pub fn look_for_late_changes(&mut self) -> Result<(), Violation> {
        let version = self.weather.version();
        if std::mem::replace(&mut self.version, version) == version {
            return Ok(());
        }
        self.meet_run();
        if self.incarnation.is_none() {
            return Ok(());
        }
        let changes = self.mirror.read_all(&mut self.backend);
        let vouched = self.weather.vouched();
        let late = |checker: &mut Box<dyn Checker>| (checker.name(), checker.after_late(&changes, vouched.as_deref()));
        let mut said = self.checkers.iter_mut().map(late);
        match said.find_map(|(name, said)| Some((name, said.err()?))) {
            Some((property, what)) => Err(self.violation(property, what)),
            None => Ok(()),
        }
    }

    /// Offers a result to the result store, and lets every checker look if it was accepted.
    pub fn write(&mut self, result: &ResultWrite) -> Result<bool, Violation> {
        self.script.push(Deed::Write(*result));
        if !self.sink.write(result) {
            return Ok(false);
        }
        let records = &self.mirror.records;
        let mut said = self.checkers.iter_mut().map(|checker| (checker.name(), checker.after_result(result, records)));
        match said.find_map(|(name, said)| Some((name, said.err()?))) {
            Some((property, what)) => Err(self.violation(property, what)),
            None => Ok(true),
        }
    }

    /// The world ends.
    pub fn end(&mut self, ending: &Ending) -> Result<(), Violation> {
        let mut said = self.checkers.iter_mut().map(|checker| (checker.name(), checker.at_end(ending)));
        match said.find_map(|(name, said)| Some((name, said.err()?))) {
            Some((property, what)) => Err(self.violation(property, what)),
            None => Ok(()),
        }
    }

    /// Does all of it again. Deeds with a lease that no worker was given this time, or on a shard that was not made, are
    /// left out: only a vandal would do them.
    pub fn play(mut self, script: &[Deed]) -> Result<(), Violation> {
        let mut granted = BTreeSet::new();
        for deed in script {
            if !self.would_be_done(deed, &granted) {
                continue;
            }
            match deed {
                Deed::Call(now, call, store_may_fail) => {
                    self.pass_to(*now);
                    if let Answer::Granted { lease, .. } = self.perform(call, *store_may_fail)? {
                        granted.insert(held(&lease));
                    }
                }
                Deed::Write(result) => {
                    self.write(result)?;
                }
            }
        }
        Ok(())
    }

    fn would_be_done(&self, deed: &Deed, granted: &BTreeSet<Hold>) -> bool {
        match deed {
            Deed::Call(_, Call { caller: Caller::Vandal | Caller::Stranger, .. }, _) => true,
            Deed::Call(_, call, _) => {
                call.request.lease().is_none_or(|lease| granted.contains(&held(lease)))
                    && call.request.shard().is_none_or(|shard| self.records().contains_key(&shard))
            }
            Deed::Write(result) => {
                let ResultWrite { worker, shard, incarnation, fence, .. } = *result;
                granted.contains(&(worker_id(worker), shard, incarnation, fence))
            }
        }
    }

    fn violation(&self, property: &'static str, what: String) -> Violation {
        let calls = self.script.iter().filter_map(|deed| match deed {
            Deed::Call(now, call, _) => Some((now, call)),
            Deed::Write(_) => None,
        });
        let shown = calls.zip(&self.answers).map(|((now, call), answer)| format!("{now}: {call} -> {answer}"));
        let calls = shown.skip(self.answers.len().saturating_sub(SHOWN_CALLS)).collect();
        Violation { property, what, calls, script: self.script.clone() }
    }

    /// The run as the backend has it; read anew only after a call, and where the store has changed. A run that has not got
    /// its shards yet is not there.
    pub fn run(&mut self) -> Option<Rc<RunRecord>> {
        let version = self.weather.version();
        match &self.run {
            Some((then, run)) if *then == version => run.clone(),
            _ => {
                let run = match self.backend.get_run(TENANT, RUN) {
                    Ok(run) => Some(run).filter(|run| run.status != RunStatus::Initializing).map(Rc::new),
                    Err(GetRunError::RunNotFound(_)) => None,
                    Err(error) => panic!("the run cannot be read although nothing fails: {error}"),
                };
                self.run = Some((version, run.clone()));
                run
            }
        }
    }

    /// Whether there is another run than before, or none: then nothing that was read or recorded counts any more.
    fn meet_run(&mut self) -> bool {
        let incarnation = self.run().map(|run| run.incarnation);
        if self.incarnation == incarnation {
            return false;
        }
        self.incarnation = incarnation;
        self.mirror.records.clear();
        self.sink.open(incarnation);
        true
    }

    /// All records as last read.
    pub fn records(&self) -> &BTreeMap<ShardId, ShardRecord> {
        &self.mirror.records
    }

    /// Whether the store can lose sight of a holder.
    pub fn may_lose_holders(&mut self) -> bool {
        self.weather.vouched().is_some()
    }

    /// Paths taken so far.
    pub fn marks(&mut self) -> &mut Marks {
        &mut self.marks
    }

    /// Calls that reached the backend so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }
}
