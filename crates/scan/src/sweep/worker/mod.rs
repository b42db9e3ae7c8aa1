//! A worker: a thread that sweeps shards of a run until nothing is left.
//!
//! What it does and in which order is decided by [`crate::sweep`]; [`driver`] carries it out. Workers are threads, not lanes:
//! a lane is an event loop that must never wait, and a worker's whole job is to wait for disks. They share nothing but
//! their coordinator.
//!
//! `calls` asks the coordinator, `site` reads files and repositories with `items`, `sources` and `blobs`, `open_site` what this
//! crate does not know; `reachable` knows what can be read from here, `caution` what must not be.

pub(crate) mod blobs;
mod calls;
pub(crate) mod caution;
pub mod driver;
pub(crate) mod items;
mod open_site;
pub mod reachable;
mod site;
mod sources;

pub use calls::BackendCalls;
pub use open_site::OpenSite;
pub use site::LocalSite;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_coordination::{AcquireScratch, CoordinationFacade};

use crate::clock::Clock;
use crate::findings::{Draft, FindingsSink, SinkError};
use crate::plan::ledger::OpenPlan;
use crate::read::Reader;
use crate::source::Source;
use crate::sweep::{CallFailure, ShardEnd, SweepEnd, WorkerConfig};
use driver::{Driver, Site, Stepped};

/// What a worker has done so far. It alone writes; others may look.
#[derive(Debug, Default)]
pub struct WorkerProgress {
    /// Items met.
    pub items: AtomicU64,
    /// Bytes searched.
    pub bytes: AtomicU64,
    /// Findings, also those that are redone later.
    pub findings: AtomicU64,
    /// Shards finished.
    pub shards: AtomicU64,
}

/// Why a worker stopped.
#[derive(Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// Nothing is left to do.
    Finished,
    /// There was nothing to do for longer than it has patience.
    Idle,
    /// It was asked to stop; what it held was handed back.
    Stopped,
    /// Its turn in the run is over; what it held was handed back.
    Yielded,
    /// The run was settled by someone else.
    RunSettled,
}

/// What a worker of several runs is told while it works on one of them.
pub trait Turn {
    /// Whether it is to give way to another run. Asked before each action.
    fn is_over(&self) -> bool;

    /// The run had a shard for it.
    fn found_work(&self);
}

/// The turn of a worker that has one run.
struct Endless;

impl Turn for Endless {
    fn is_over(&self) -> bool {
        false
    }

    fn found_work(&self) {}
}

/// A worker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Findings cannot be made durable.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The coordinator fails.
    #[error("the coordinator cannot be used: {message}")]
    Coordinator {
        /// What it says.
        message: String,
        /// Whether it may work later.
        is_transient: bool,
    },
}

/// What a worker reads with.
#[derive(Debug)]
pub struct Equipment {
    /// Searches items.
    pub reader: Reader,
    /// Sources that are prepared already; others are made from the metadata of shards.
    pub sources: Vec<Arc<Source>>,
    /// The run's folder, with its lists.
    pub dir: PathBuf,
    /// What its items are held against.
    pub plan: Option<Arc<OpenPlan>>,
    /// Where it says how far it is.
    pub progress: Arc<WorkerProgress>,
}

impl Equipment {
    /// A reader, and the folder of the run.
    pub fn new(reader: Reader, dir: PathBuf) -> Self {
        Self { reader, sources: Vec::new(), dir, plan: None, progress: Arc::default() }
    }
}

/// One worker with everything it owns but the coordinator, which is lent to it.
#[derive(Debug)]
pub struct Worker<'w, S, C> {
    driver: Driver<S, C>,
    progress: Arc<WorkerProgress>,
    stop: &'w AtomicBool,
}

impl<'w, C: Clock> Worker<'w, LocalSite<'w>, C> {
    /// A worker that reads with `equipment`, writes to `sink` and ends soon after `stop` is set.
    pub fn new(
        config: WorkerConfig,
        clock: C,
        equipment: Equipment,
        sink: Box<dyn FindingsSink + Send>,
        stop: &'w AtomicBool,
    ) -> Self {
        let progress = Arc::clone(&equipment.progress);
        let site = LocalSite::new(equipment, stop, config.is_one_of_many);
        Self::at(site, config, clock, sink, progress, stop)
    }
}

impl<'w, S: Site, C: Clock> Worker<'w, S, C> {
    /// A worker at `site`, which shows its shards in `progress`.
    pub fn at(
        site: S,
        config: WorkerConfig,
        clock: C,
        sink: Box<dyn FindingsSink + Send>,
        progress: Arc<WorkerProgress>,
        stop: &'w AtomicBool,
    ) -> Self {
        Self { driver: Driver::new(config, Draft::new(sink), site, clock), progress, stop }
    }

    /// Works until nothing is left, or until told to stop.
    pub fn run<B: CoordinationFacade>(&mut self, backend: &mut B) -> Result<WorkerEnd, WorkerError> {
        self.run_while(backend, &Endless)
    }

    /// The same, but only as long as its turn lasts. At its end the worker finishes the item it reads and hands back its shard, from
    /// which any worker goes on.
    pub fn run_while<B: CoordinationFacade>(
        &mut self,
        backend: &mut B,
        turn: &dyn Turn,
    ) -> Result<WorkerEnd, WorkerError> {
        let mut scratch = AcquireScratch::new();
        let mut calls = BackendCalls::new(backend, self.driver.config(), &mut scratch);
        let mut was_holding = false;
        loop {
            self.driver.give_way(turn.is_over());
            match self.driver.step(&mut calls, self.stop.load(Ordering::Relaxed)) {
                Stepped::Did => {}
                Stepped::Wait(pause) => std::thread::sleep(pause),
                Stepped::ShardOver(end) => {
                    let is_done = u64::from(end == ShardEnd::Done);
                    self.progress.shards.fetch_add(is_done, Ordering::Relaxed);
                }
                Stepped::End(end) => return ended(end),
            }
            let is_holding = self.driver.is_holding();
            if is_holding && !was_holding {
                turn.found_work();
            }
            was_holding = is_holding;
        }
    }
}

fn ended(end: SweepEnd) -> Result<WorkerEnd, WorkerError> {
    match end {
        SweepEnd::Finished => Ok(WorkerEnd::Finished),
        SweepEnd::Idle => Ok(WorkerEnd::Idle),
        SweepEnd::Stopped => Ok(WorkerEnd::Stopped),
        SweepEnd::GaveWay => Ok(WorkerEnd::Yielded),
        SweepEnd::RunSettled => Ok(WorkerEnd::RunSettled),
        SweepEnd::StoreFailed(error) => Err(WorkerError::Sink(error)),
        SweepEnd::CoordinatorFailed(CallFailure { message, is_transient }) => {
            Err(WorkerError::Coordinator { message, is_transient })
        }
    }
}
