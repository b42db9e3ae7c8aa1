//! A worker: claims shards of a run and sweeps them, one after the other, until nothing is left.
//!
//! For each shard: read a page, search its items, and at a *safe point* make findings durable and then move the cursor,
//! in this order and never the other. Only there are orders answered (yield, split, stop), because only there everything up
//! to the cursor is done. In between the lease is renewed, also in the middle of a large file.
//!
//! Whatever ends a shard early, nothing of it counts beyond the last safe point: the next owner goes on from there.
//!
//! Workers are threads, not lanes: a lane is an event loop that must never wait, and a worker's whole job is to wait for
//! disks. They share nothing but their coordinator.
//!
//! Here: claiming, waiting, asking others to share. [`config`] says how, `sweep` does a shard, `safe_point` is where
//! it becomes durable.

mod blobs;
pub mod config;
mod safe_point;
mod sweep;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::{FenceEpoch, ShardId, ShardKey};
use tessera_coordination::error::{ClaimError, GetRunError};
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{AcquireScratch, CoordinationFacade, WorkerSession};

use crate::clock::Clock;
use crate::op_ids::OpIds;
use crate::read::Reader;
use crate::sink::{FindingsSink, SinkError};
use crate::source::Source;
use blobs::Blobs;
pub use config::WorkerConfig;
use sweep::{ShardEnd, Sweep};

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
    /// The run was settled by someone else.
    RunSettled,
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

impl WorkerError {
    fn coordinator(error: &dyn std::fmt::Display, is_transient: bool) -> Self {
        Self::Coordinator { message: error.to_string(), is_transient }
    }
}

/// One worker with everything it owns but the coordinator, which is lent to it.
pub struct Worker<'w, C> {
    clock: C,
    config: WorkerConfig,
    reader: Reader,
    sink: Box<dyn FindingsSink + Send>,
    stop: &'w AtomicBool,
    progress: Arc<WorkerProgress>,
    sources: Vec<Arc<Source>>,
    /// Where lists of objects lie.
    dir: PathBuf,
    blobs: Blobs,
    op_ids: OpIds,
    /// Owners who were asked to share, and when.
    asked: HashMap<(ShardId, FenceEpoch), u64>,
}

/// How often a call that fails for now is tried again.
const ATTEMPTS_MAX: u32 = 6;
const IDLE_WAIT_MIN: Duration = Duration::from_millis(5);
/// Shards looked at to find one to share.
const ASK_AMONG: usize = 100;

impl<'w, C: Clock> Worker<'w, C> {
    /// A worker that searches with `reader`, writes to `sink` and ends soon after `stop` is set. `sources` are those
    /// prepared already; others are made from the metadata of shards, with their lists in `dir`.
    #[expect(clippy::too_many_arguments, reason = "each is another thing a worker owns")]
    pub fn new(
        clock: C,
        config: WorkerConfig,
        reader: Reader,
        sink: Box<dyn FindingsSink + Send>,
        sources: Vec<Arc<Source>>,
        dir: PathBuf,
        stop: &'w AtomicBool,
        progress: Arc<WorkerProgress>,
        op_ids: OpIds,
    ) -> Self {
        let (asked, blobs) = (HashMap::new(), Blobs::default());
        Self { clock, config, reader, sink, stop, progress, sources, dir, blobs, op_ids, asked }
    }

    /// Works until nothing is left, or until told to stop.
    pub fn run<B: CoordinationFacade>(&mut self, backend: &mut B) -> Result<WorkerEnd, WorkerError> {
        let mut scratch = AcquireScratch::new();
        let mut wait = IDLE_WAIT_MIN;
        let mut failures = 0;
        let mut idle_since = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(WorkerEnd::Stopped);
            }
            let WorkerConfig { tenant, run, worker, .. } = self.config;
            match backend.claim_next_available(self.clock.now(), tenant, run, worker, &mut scratch) {
                Ok(acquired) => {
                    (wait, failures) = (IDLE_WAIT_MIN, 0);
                    let session = WorkerSession::from_acquire_result(backend, &acquired);
                    match self.sweep().shard(session)? {
                        ShardEnd::Done => {
                            self.progress.shards.fetch_add(1, Ordering::Relaxed);
                        }
                        ShardEnd::RunSettled => return Ok(WorkerEnd::RunSettled),
                        ShardEnd::HandedBack | ShardEnd::Parked | ShardEnd::Replaced | ShardEnd::Lost => {}
                    }
                    idle_since = Instant::now();
                }
                Err(ClaimError::NoneAvailable { .. } | ClaimError::Throttled { .. }) => {
                    if self.is_finished(backend)? {
                        return Ok(WorkerEnd::Finished);
                    }
                    if self.config.patience.is_some_and(|patience| idle_since.elapsed() >= patience) {
                        return Ok(WorkerEnd::Idle);
                    }
                    if self.config.sharing.asks {
                        self.ask_to_share(backend);
                    }
                    std::thread::sleep(wait);
                    wait = (wait * 2).min(self.config.idle_wait_max);
                }
                Err(ClaimError::RunNotActive { .. } | ClaimError::RunNotFound(_)) => return Ok(WorkerEnd::RunSettled),
                Err(ClaimError::BackendError(error)) if error.is_transient() && failures < ATTEMPTS_MAX => {
                    failures += 1;
                    std::thread::sleep(backoff(failures));
                }
                Err(error) => return Err(WorkerError::coordinator(&error, error.is_transient())),
            }
        }
    }

    /// Everything a shard needs, lent beside the backend.
    fn sweep(&mut self) -> Sweep<'_, C> {
        Sweep {
            clock: &self.clock,
            config: &self.config,
            reader: &mut self.reader,
            sink: &mut *self.sink,
            stop: self.stop,
            progress: &self.progress,
            sources: &mut self.sources,
            dir: &self.dir,
            blobs: &mut self.blobs,
            op_ids: &mut self.op_ids,
        }
    }

    fn is_finished<B: CoordinationFacade>(&self, backend: &mut B) -> Result<bool, WorkerError> {
        match backend.get_run_progress(self.clock.now(), self.config.tenant, self.config.run) {
            Ok(progress) => Ok(progress.counts.active == 0),
            Err(GetRunError::BackendError(error)) => Err(WorkerError::coordinator(&error, error.is_transient())),
            Err(error) => Err(WorkerError::coordinator(&error, false)),
        }
    }

    /// Asks one owner to share. It is a wish: whoever is asked may have nothing left to share.
    fn ask_to_share<B: CoordinationFacade>(&mut self, backend: &mut B) {
        let now = self.clock.now();
        let WorkerConfig { tenant, run, worker, sharing, .. } = self.config;
        let mut shards = Vec::new();
        let page = ShardPage::first(ASK_AMONG);
        if backend.list_shards_into(now, tenant, run, &ShardFilter::active(), page, &mut shards).is_err() {
            return;
        }
        let is_held =
            |shard: &ShardSummary| shard.lease.is_some_and(|lease| lease.owner != worker && lease.deadline > now);
        shards.retain(is_held);
        if shards.is_empty() {
            return;
        }
        self.asked.retain(|_, asked_at| now.get().saturating_sub(*asked_at) < sharing.ask_interval);
        // Those who wait begin at different owners.
        let first = worker.get() as usize % shards.len();
        shards.rotate_left(first);
        let not_asked = |shard: &&ShardSummary| !self.asked.contains_key(&(shard.shard, shard.fence));
        if let Some(shard) = shards.iter().find(not_asked) {
            self.asked.insert((shard.shard, shard.fence), now.get());
            let key = ShardKey::new(run, shard.shard);
            let half = tessera_contracts::keyspace::Fraction::HALF;
            // Refused if it has just changed hands or ended: then there is another one to ask next time.
            let _ = backend.request_split(now, tenant, key, shard.fence, half);
        }
    }
}

fn backoff(failures: u32) -> Duration {
    Duration::from_millis(20) * (1 << failures.min(6))
}

impl<C> std::fmt::Debug for Worker<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("config", &self.config).finish_non_exhaustive()
    }
}
