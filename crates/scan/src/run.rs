//! A scan on one machine, from request to report.
//!
//! A run that was finished is not continued but begun anew, since the files may have changed. Everything of a run lies in one
//! folder outside of what is scanned: the coordinator's file, the findings, the lists of objects.
//!
//! [`execute`] works with any coordinator; [`scan`] chooses one: in memory if nothing is to be kept, else a file in the
//! run's folder. A fleet does the same steps on several machines, see [`crate::fleet`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::{LogicalTime, RunId, WorkerId};
use tessera_coordination::run::progress::{RunTerminalEvaluation, evaluate_run_terminal};
use tessera_coordination::{CoordinationFacade, CoordinatorRuntimeConfig, InMemoryCoordinator};

use crate::clock::wall_clock;
use crate::conclude::conclude;
use crate::error::ScanError;
use crate::finding::Finding;
use crate::folder::RunFolder;
use crate::job::Job;
use crate::locked::Locked;
use crate::op_ids::{OpIds, random_u64};
use crate::prepare::{NewRun, Prepared, prepare};
use crate::receipt::Receipt;
use crate::request::ScanRequest;
use crate::sink::FileSink;
use crate::target::Target;
use crate::worker::{Worker, WorkerConfig, WorkerProgress};

/// What is kept of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeping {
    /// Nothing: it cannot be resumed.
    Nothing,
    /// Everything, in a folder of its own below this one.
    In {
        /// The folder of all runs.
        state_dir: PathBuf,
        /// Begin anew even if there is an interrupted run.
        fresh: bool,
    },
}

/// How far a scan has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Items met, since this program watches.
    pub items: u64,
    /// Bytes searched, since this program watches.
    pub bytes: u64,
    /// Occurrences found, since this program watches.
    pub findings: u64,
    /// Items of the whole run, if they are known.
    pub items_total: Option<u64>,
    /// Bytes of the whole run, if they are known.
    pub bytes_total: Option<u64>,
    /// Whether the run goes on from an earlier one.
    pub is_resumed: bool,
    /// Whether there is work and nobody does it.
    pub is_waiting: bool,
    /// Since this program began.
    pub elapsed: Duration,
}

/// What a scan found.
#[derive(Debug)]
pub struct ScanReport {
    /// The run.
    pub run: RunId,
    /// Whether it went on from an interrupted one.
    pub is_resumed: bool,
    /// What was scanned, by number.
    pub targets: Vec<Target>,
    /// Secrets and where they are.
    pub findings: Vec<Finding>,
    /// What became of everything else.
    pub receipt: Receipt,
    /// How long this process took.
    pub elapsed: Duration,
}

/// How a scan ended, as an exit code tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Everything was read and nothing found.
    CleanComplete = 0,
    /// Something was found.
    Findings = 1,
    /// The scan could not be done.
    Error = 2,
    /// Nothing was found, but not everything was read.
    Incomplete = 3,
}

impl ScanReport {
    /// How the scan ended.
    pub fn exit_status(&self) -> ExitStatus {
        if !self.findings.is_empty() {
            ExitStatus::Findings
        } else if self.receipt.is_complete() {
            ExitStatus::CleanComplete
        } else {
            ExitStatus::Incomplete
        }
    }
}

/// Looks from outside at a scan that goes on.
pub struct Control<'c> {
    /// Set to make workers hand back what they hold and end.
    pub stop: &'c AtomicBool,
    /// Told now and then.
    pub progress: &'c mut dyn FnMut(&Progress),
}

impl std::fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// Most shards of one run on one machine, with all that splits add.
pub(crate) const SHARDS_MAX: usize = 65_536;

/// A lease lasts this long, in milliseconds: a stuck worker's shard is free after it.
const LEASE_DURATION: u64 = 30_000;

/// Scans what `request` says.
pub fn scan(request: &ScanRequest, keeping: &Keeping, control: &mut Control<'_>) -> Result<ScanReport, ScanError> {
    let paths = request.canonical_paths()?;
    let run = request.run_id(&paths, 0);
    match keeping {
        Keeping::Nothing => {
            let folder = RunFolder::temporary(run)?;
            let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(SHARDS_MAX));
            let backend = Locked::new(memory.map_err(ScanError::coordinator)?);
            execute(request, &paths, run, backend, &folder, wall_clock, control)
        }
        Keeping::In { state_dir, fresh } => crate::local::scan_kept(request, &paths, run, state_dir, *fresh, control),
    }
}

/// Runs or resumes `run` on any backend, with all workers in this process.
pub fn execute<B: CoordinationFacade + Clone + Send>(
    request: &ScanRequest,
    paths: &[PathBuf],
    run: RunId,
    mut backend: B,
    folder: &RunFolder,
    clock: impl Fn() -> LogicalTime + Clone + Send,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let started = Instant::now();
    let new = NewRun { workers: request.worker_count(), lease_duration: LEASE_DURATION };
    let prepared = prepare(request, paths, run, &mut backend, folder, clock(), new)?;
    work(request, &prepared, run, &backend, folder, &clock, control, started)?;
    let targets = prepared.targets();
    let (findings, receipt) = conclude(&mut backend, request.tenant, run, folder, &targets)?;
    if evaluate_run_terminal(&receipt.shards) == RunTerminalEvaluation::AllDone {
        backend
            .complete_run(clock(), request.tenant, run, OpIds::random().next_id())
            .map_err(ScanError::coordinator)?;
    }
    let is_resumed = prepared.is_resumed;
    Ok(ScanReport { run, is_resumed, targets, findings, receipt, elapsed: started.elapsed() })
}

/// Lets as many workers as the request asks for work on a run until nothing is left.
#[expect(clippy::too_many_arguments, reason = "all of a run comes together here")]
fn work<B: CoordinationFacade + Clone + Send>(
    request: &ScanRequest,
    prepared: &Prepared,
    run: RunId,
    backend: &B,
    folder: &RunFolder,
    clock: &(impl Fn() -> LogicalTime + Clone + Send),
    control: &mut Control<'_>,
    started: Instant,
) -> Result<(), ScanError> {
    let job = Job::of(request);
    let detector = job.detector().map_err(ScanError::Rules)?;
    let progress: Vec<Arc<WorkerProgress>> = (0..request.worker_count()).map(|_| Arc::default()).collect();
    let (items_total, bytes_total) = prepared.totals();
    let shown = || {
        let sum = |field: fn(&WorkerProgress) -> &AtomicU64| {
            progress.iter().map(|worker| field(worker).load(Ordering::Relaxed)).sum()
        };
        Progress {
            items: sum(|worker| &worker.items),
            bytes: sum(|worker| &worker.bytes),
            findings: sum(|worker| &worker.findings),
            items_total,
            bytes_total,
            is_resumed: prepared.is_resumed,
            is_waiting: false,
            elapsed: started.elapsed(),
        }
    };
    // One worker that cannot go on stops all: the same disk or coordinator would stop them one by one.
    let (stop_all, fails) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let end = std::thread::scope(|scope| -> Result<(), ScanError> {
        let mut threads = Vec::new();
        for progress in &progress {
            let worker = WorkerId::new(random_u64());
            let sink = FileSink::create(&folder.findings(), worker, random_u64())?;
            let mut worker = Worker::new(
                clock.clone(),
                WorkerConfig::new(request.tenant, run, worker),
                job.reader(detector.fork()),
                Box::new(sink),
                prepared.sources.clone(),
                folder.path().to_path_buf(),
                stop_all,
                Arc::clone(progress),
                OpIds::random(),
            );
            let mut backend = backend.clone();
            threads.push(scope.spawn(move || {
                let end = worker.run(&mut backend);
                if end.is_err() {
                    fails.store(true, Ordering::Relaxed);
                }
                end
            }));
        }
        let mut pause = Duration::from_millis(1);
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
            if control.stop.load(Ordering::Relaxed) || fails.load(Ordering::Relaxed) {
                stop_all.store(true, Ordering::Relaxed);
            }
            (control.progress)(&shown());
        }
        for thread in threads {
            match thread.join() {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(ScanError::Coordinator("a worker panicked".into())),
            }
        }
        Ok(())
    });
    (control.progress)(&shown());
    end
}
