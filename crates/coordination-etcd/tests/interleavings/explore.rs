//! Schedules: which operations, from which start, and where each of them pauses for the next.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::audit::audit;
use crate::calls::{self, Call, FIRST_CALLER, Operation, RUN};
use crate::contents::Contents;
use crate::judge::{Judge, Span};
use crate::player::Side;
use crate::starts::{self, Coordinators, Desk, Etcd, MadeStore, STARTS, Start, World};
use crate::store::{Gate, Run, Stop};

/// What becomes of those that have paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// They go on, the last that paused first.
    LastFirst,
    /// They go on, the first that paused first.
    FirstFirst,
    /// The first is never heard of again.
    Crash,
    /// The first goes on, and those that paused after it are never heard of again.
    LastDies,
}

/// Operations, each of which runs until it pauses and makes room for the next. The last does not pause.
#[derive(Clone)]
pub struct Schedule {
    pub start: &'static Start,
    pub coordinators: Coordinators,
    pub operations: Vec<Operation>,
    /// The pause point of each operation but the last. Zero is before it begins; what is more than it has is behind its end.
    pub stops: Vec<usize>,
    pub ending: Ending,
}

impl fmt::Display for Schedule {
    /// As [`Schedule::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let coordinators = match self.coordinators {
            Coordinators::Cold => "cold",
            Coordinators::Warm => "warm",
            Coordinators::WarmSwapped => "warm-swapped",
        };
        write!(f, "{} {coordinators}", self.start.name)?;
        for (index, (name, _)) in self.operations.iter().enumerate() {
            write!(f, " {name}")?;
            if let Some(stop) = self.stops.get(index) {
                write!(f, "@{stop}")?;
            }
        }
        match self.ending {
            Ending::LastFirst => Ok(()),
            Ending::FirstFirst => f.write_str(" first-first"),
            Ending::Crash => f.write_str(" crash"),
            Ending::LastDies => f.write_str(" last-dies"),
        }
    }
}

impl Schedule {
    /// Reads what [`Schedule`] displays.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let start = starts::start(words.next()?)?;
        let coordinators = match words.next()? {
            "cold" => Coordinators::Cold,
            "warm" => Coordinators::Warm,
            "warm-swapped" => Coordinators::WarmSwapped,
            _ => return None,
        };
        let mut ending = Ending::LastFirst;
        let (mut operations, mut stops) = (Vec::new(), Vec::new());
        for word in words {
            match word {
                "crash" => ending = Ending::Crash,
                "first-first" => ending = Ending::FirstFirst,
                "last-dies" => ending = Ending::LastDies,
                word => {
                    let (name, stop) = word.split_once('@').map_or((word, None), |(name, stop)| (name, Some(stop)));
                    operations.push(calls::operation(name)?);
                    stops.extend(stop.map(|stop| stop.parse::<usize>()).transpose().ok()?);
                }
            }
        }
        Some(Self { start, coordinators, operations, stops, ending })
    }

    fn world(&self, store: &MadeStore) -> World {
        match self.coordinators {
            Coordinators::Cold => Start::cold(store),
            Coordinators::Warm => self.start.world(),
            Coordinators::WarmSwapped => {
                let World { kv, one, two } = self.start.world();
                World { kv, one: two, two: one }
            }
        }
    }

    /// Whether the operation is made by the coordinator that opened the sessions of the start.
    fn has_sessions(&self, operation: usize) -> bool {
        match self.coordinators {
            Coordinators::Cold => false,
            Coordinators::Warm => operation == 0,
            Coordinators::WarmSwapped => operation == 1,
        }
    }

    /// What the first operation takes if nobody comes in between.
    fn effort(&self, store: &MadeStore) -> Effort {
        let mut world = self.world(store);
        world.one.gate.set(None);
        let log = Log::default();
        let mut operation = log.play(&mut world.one.side, self.operations[0], self.has_sessions(0));
        match world.one.gate.run(operation.as_mut()) {
            Run::Ended(()) => Effort { points: world.one.gate.points(), writes: world.one.gate.writes() },
            Run::Stopped => unreachable!("the gate is open"),
        }
    }

    /// Runs it and checks what came of it.
    ///
    /// # Errors
    /// What is wrong with that. A coordinator that panics or asks without end is.
    pub fn check(&self, store: &MadeStore, judge: &mut Judge<'_>) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| self.try_check(store, judge))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!("panicked: {}", words.or_else(|| panic.downcast_ref().copied()).unwrap_or("without words")))
        })
    }

    fn try_check(&self, store: &MadeStore, judge: &mut Judge<'_>) -> Result<(), String> {
        let World { kv, one, two } = self.world(store);
        let mut desks = vec![one, two];
        for _ in desks.len()..self.operations.len() {
            desks.push(Desk::new(&kv, store.leases.clone()));
        }
        let log = Log::default();
        let places = self.run(&mut desks, &log);
        let history = log.spans.into_inner();
        let told = |problem: String| match places.is_empty() {
            true => problem,
            false => format!("paused {}: {problem}", places.join(", and ")),
        };
        let contents = Contents::read(&kv).map_err(told)?;
        audit(&contents).map_err(told)?;
        let shards = contents.runs.get(&RUN).map(|run| run.colds.keys().copied().collect()).unwrap_or_default();
        judge.explain(&history, shards, &contents.visible()).map_err(told)
    }

    /// Where the operations paused.
    fn run(&self, desks: &mut [Desk], log: &Log) -> Vec<String> {
        let mut paused: Vec<(Gate, Playing<'_>)> = Vec::new();
        let mut places = Vec::new();
        let mut not_begun = Vec::new();
        for (index, desk) in desks.iter_mut().enumerate() {
            let Some(operation) = self.operations.get(index) else { break };
            let stop = self.stops.get(index).copied();
            let gate = desk.gate.clone();
            gate.set(stop.map(Stop::At));
            desk.side.caller = FIRST_CALLER + 1 + index;
            let mut played = log.play(&mut desk.side, *operation, self.has_sessions(index));
            if stop == Some(0) {
                not_begun.push((gate, played));
                continue;
            }
            match gate.run(played.as_mut()) {
                Run::Ended(()) => {}
                Run::Stopped => {
                    places.push(format!("{} {}", operation.0, gate.place()));
                    paused.push((gate, played));
                }
            }
        }
        match self.ending {
            Ending::LastFirst => paused.reverse(),
            Ending::FirstFirst => {}
            // What it had begun and not finished is dropped with it.
            Ending::Crash => drop(paused.drain(..)),
            Ending::LastDies => drop(paused.drain(1.min(paused.len())..)),
        }
        not_begun.reverse();
        for (gate, mut played) in paused.into_iter().chain(not_begun) {
            gate.open();
            match gate.run(played.as_mut()) {
                Run::Ended(()) => {}
                Run::Stopped => unreachable!("the gate is open"),
            }
        }
        places
    }
}

/// How many pause points an operation has, and which of them lie behind requests that write.
struct Effort {
    points: usize,
    writes: Vec<usize>,
}

impl Effort {
    fn behind_requests(&self) -> impl Iterator<Item = usize> {
        (2..=self.points).step_by(2)
    }
}

/// An operation under way.
type Playing<'l> = Pin<Box<dyn Future<Output = ()> + 'l>>;

/// The calls of a schedule as their callers saw them.
#[derive(Default)]
struct Log {
    time: Cell<u64>,
    spans: RefCell<Vec<Span>>,
}

impl Log {
    /// Plays an operation, call by call.
    fn play<'l>(&'l self, side: &'l mut Side<Etcd>, operation: Operation, has_sessions: bool) -> Playing<'l> {
        Box::pin(async move {
            for call in operation.1 {
                let seen = match call {
                    // A coordinator that opened no session ends none.
                    Call::EndSession { .. } if !has_sessions => Call::EndSession { worker: 0 },
                    other => *other,
                };
                let (caller, began) = (side.caller, self.tick());
                let index = {
                    let mut spans = self.spans.borrow_mut();
                    spans.push(Span { caller, call: seen, began, ended: u64::MAX, answer: None });
                    spans.len() - 1
                };
                let answer = side.play(*call).await;
                let ended = self.tick();
                let span = &mut self.spans.borrow_mut()[index];
                (span.ended, span.answer) = (ended, Some(answer));
            }
        })
    }

    fn tick(&self) -> u64 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }
}

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every pair of operations: the second runs whole behind every request of the first, and the first goes on; behind a
    /// write it may also die. If one of them writes more than once, both pause: the second behind each of its writes, and it
    /// goes on when the first has ended; the first behind each of its requests, or, if the second writes once, of its writes.
    Pairs,
    /// Every pair at every pause point, also before requests, where the store is as it was behind the request before.
    EveryPoint,
    /// Every pair: both pause behind every request, and the first ends first; the second ends after it, or dies.
    TwoSwitches,
    /// Every three operations: each runs behind every request of the one before it.
    ThreeOperations,
}

/// What was explored.
#[derive(Default)]
pub struct Report {
    pub schedules: usize,
    pub by_start: Vec<(&'static str, usize)>,
    pub failures: Vec<(Schedule, String)>,
}

/// Explores all starts that `among` admits.
pub fn explore(depth: Depth, among: impl Fn(&Start) -> bool) -> Report {
    let mut report = Report::default();
    for start in STARTS.iter().filter(|start| among(start)) {
        let world = start.world();
        let store = MadeStore { snapshot: world.kv.snapshot(), leases: world.one.side.leases.clone() };
        if let Err(problem) = Contents::read(&world.kv).and_then(|contents| audit(&contents)) {
            panic!("the start `{}` is broken: {problem}", start.name);
        }
        let found = explore_start(start, &store, depth);
        report.schedules += found.schedules;
        report.by_start.push((start.name, found.schedules));
        report.failures.extend(found.failures);
    }
    report
}

/// All that begins with the same two operations.
type Task = (Coordinators, Operation, Operation);

fn explore_start(start: &'static Start, store: &MadeStore, depth: Depth) -> Report {
    let mut tasks: Vec<Task> = Vec::new();
    for coordinators in start.coordinators {
        for first in start.operations {
            tasks.extend(start.operations.iter().map(|second| (*coordinators, *first, *second)));
        }
    }
    let (next, report) = (AtomicUsize::new(0), Mutex::new(Report::default()));
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Report::default();
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    explore_task(start, store, depth, *task, &mut own);
                }
                let mut report = report.lock().expect("no explorer panicked");
                report.schedules += own.schedules;
                report.failures.append(&mut own.failures);
            });
        }
    });
    report.into_inner().expect("no explorer panicked")
}

fn explore_task(start: &'static Start, store: &MadeStore, depth: Depth, task: Task, report: &mut Report) {
    let (coordinators, first, second) = task;
    let mut judge = Judge::new(start, store);
    let alone = |operation| Schedule {
        start,
        coordinators,
        operations: vec![operation],
        stops: vec![],
        ending: Ending::LastFirst,
    };
    let one = alone(first).effort(store);
    let mut check = |operations: Vec<Operation>, stops: Vec<usize>, ending| {
        let schedule = Schedule { start, coordinators, operations, stops, ending };
        report.schedules += 1;
        if let Err(problem) = schedule.check(store, &mut judge) {
            report.failures.push((schedule, problem));
        }
    };
    // What the second takes if it is the first to come.
    let other = || Schedule { coordinators: coordinators.the_other_way_round(), ..alone(second) }.effort(store);
    let writes = |operation: Operation, effort: &Effort| {
        !effort.writes.is_empty() || operation.1.iter().any(|call| matches!(call, Call::ExpireSession { .. }))
    };
    match depth {
        Depth::Pairs if !writes(first, &one) && !writes(second, &other()) => {
            // Neither changes anything, wherever they meet.
            check(vec![first, second], vec![0], Ending::LastFirst);
        }
        Depth::Pairs => {
            // Behind the last request nothing is left to come between.
            for stop in [0].into_iter().chain(one.behind_requests().filter(|stop| *stop < one.points)) {
                check(vec![first, second], vec![stop], Ending::LastFirst);
            }
            check(vec![first, second], vec![one.points + 1], Ending::LastFirst);
            // Dying behind a read is dying behind the write before it.
            for stop in &one.writes {
                check(vec![first, second], vec![*stop], Ending::Crash);
            }
            // Between the writes of one that writes more than once, the other may act on what it has read.
            let other = other();
            let stops = match (one.writes.len(), other.writes.len()) {
                (_, 2..) => one.behind_requests().collect(),
                (2.., _) => one.writes.clone(),
                _ => Vec::new(),
            };
            for stops in every_two(&stops, &other.writes) {
                check(vec![first, second], stops, Ending::FirstFirst);
            }
        }
        Depth::EveryPoint => {
            for stop in 0..=one.points + 1 {
                check(vec![first, second], vec![stop], Ending::LastFirst);
            }
            for stop in 1..=one.points {
                check(vec![first, second], vec![stop], Ending::Crash);
            }
        }
        Depth::TwoSwitches => {
            let (one, other) =
                (one.behind_requests().collect::<Vec<_>>(), other().behind_requests().collect::<Vec<_>>());
            for stops in every_two(&one, &other) {
                check(vec![first, second], stops.clone(), Ending::FirstFirst);
                check(vec![first, second], stops, Ending::LastDies);
            }
        }
        Depth::ThreeOperations => {
            let (one, other) =
                (one.behind_requests().collect::<Vec<_>>(), other().behind_requests().collect::<Vec<_>>());
            for third in start.operations {
                for stops in every_two(&one, &other) {
                    check(vec![first, second, *third], stops, Ending::LastFirst);
                }
            }
        }
    }
}

/// Every two stops, one of each.
fn every_two(first: &[usize], second: &[usize]) -> Vec<Vec<usize>> {
    first.iter().flat_map(|first| second.iter().map(|second| vec![*first, *second])).collect()
}

/// Replays one schedule.
///
/// # Errors
/// What is wrong with what came of it.
pub fn replay(schedule: &Schedule) -> Result<(), String> {
    let world = schedule.start.world();
    let store = MadeStore { snapshot: world.kv.snapshot(), leases: world.one.side.leases.clone() };
    schedule.check(&store, &mut Judge::new(schedule.start, &store))
}
