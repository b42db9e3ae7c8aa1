//! A scan on one machine, from request to report.
//!
//! A run that was finished is not continued but begun anew, since the files may have changed. Everything of a run lies in one
//! folder outside of what is scanned: the coordinator's file, the findings, the lists of objects.
//!
//! [`execute`] works with any coordinator; [`scan`] chooses one: in memory if nothing is to be kept, else a file in the
//! run's folder. A fleet does the same steps on several machines, see [`crate::fleet`].

pub mod conclude;
pub mod coordinator_name;
pub mod ended;
mod facade;
pub(crate) mod finished;
pub mod folder;
pub mod glance;
pub mod job;
pub mod label;
pub mod left_out;
pub mod local;
pub mod locked;
pub mod parts;
pub mod prepare;
pub(crate) mod register;
pub mod request;
pub mod run_lock;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::{LogicalTime, RunId, WorkerId};
use tessera_coordination::{CoordinationFacade, CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement};

use crate::backoff::Backoff;
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::FileSink;
use crate::op_ids::{OpIds, random_incarnation, random_u64};
use crate::plan::target::Target;
use crate::report::finding::Finding;
use crate::report::receipt::Receipt;
use crate::run::conclude::{conclude_against, may_complete};
use crate::run::coordinator_name::CoordinatorName;
use crate::run::ended::RunEnd;
use crate::run::folder::RunFolder;
use crate::run::job::Job;
use crate::run::label::{RunKey, RunLabel};
use crate::run::locked::Locked;
use crate::run::prepare::{NewRun, Preparation, Prepared, prepare};
use crate::run::request::ScanRequest;
use crate::sweep::WorkerConfig;
use crate::sweep::recheck::Recheck;
use crate::sweep::worker::{Equipment, Worker, WorkerProgress};

pub use facade::Scan;

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
    /// Whether another process of this machine does the work, and this one waits for its report.
    pub attached: Option<Attached>,
    /// Since this program began.
    pub elapsed: Duration,
}

/// The process whose report is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Its process id, if it is known.
    pub pid: Option<u32>,
}

/// What a scan found.
#[derive(Debug)]
pub struct ScanReport {
    /// The run, or the first of several under this report.
    pub run: RunId,
    /// Further runs under it, if there was too much for one.
    pub further_runs: Vec<RunId>,
    /// Where what it says comes from.
    pub origin: Origin,
    /// How and when the run ended, if that was before the report was asked for.
    pub ended: Option<RunEnd>,
    /// What was scanned, in the order of its numbers.
    pub targets: Vec<Target>,
    /// Secrets and where they are.
    pub findings: Vec<Finding>,
    /// What became of everything else.
    pub receipt: Receipt,
    /// How long this process took.
    pub elapsed: Duration,
}

/// Where a report comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This command had everything read.
    Scanned,
    /// This command had everything read, although there was an interrupted scan: that one could not go on.
    ScannedAnew {
        /// Why not, as the end of a sentence.
        because: String,
    },
    /// This command went on with an interrupted scan.
    Resumed(ReadBefore),
    /// An earlier scan was finished, and what it read is still what it was.
    Known,
}

/// What became of items that were read before a command went on with their scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadBefore {
    /// Items that are still what they were.
    pub same: u64,
    /// Items that were read again, because they or their neighbours are not, or might not be.
    pub read_again: u64,
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
    /// Whether the scan went on from an interrupted one.
    pub fn is_resumed(&self) -> bool {
        matches!(self.origin, Origin::Resumed(_))
    }

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
    match keeping {
        Keeping::Nothing => {
            let run = request.run_id(&CoordinatorName::Memory, &paths, 0);
            let key = RunKey::new(run, random_incarnation());
            let (coordinator, created_at) = (CoordinatorName::Memory, wall_clock());
            let folder = RunFolder::temporary(RunLabel { coordinator, tenant: request.tenant, key, created_at })?;
            let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(SHARDS_MAX));
            let backend = Locked::new(memory.map_err(ScanError::coordinator)?);
            execute(request, &paths, backend, &folder, wall_clock, control)
        }
        Keeping::In { state_dir, fresh } => crate::run::local::scan_kept(request, &paths, state_dir, *fresh, control),
    }
}

/// Runs or resumes the run of `folder` on any backend, with all workers in this process.
pub fn execute<B: CoordinationFacade + Clone + Send>(
    request: &ScanRequest,
    paths: &[PathBuf],
    mut backend: B,
    folder: &RunFolder,
    clock: impl Fn() -> LogicalTime + Clone + Send,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let (started, run) = (Instant::now(), folder.key().run);
    let new = NewRun { workers: request.worker_count(), lease_duration: LEASE_DURATION, is_one_of_many: false };
    let mut prepared = match prepare(request, paths, &mut backend, folder, clock(), new)? {
        Preparation::Ready(prepared) => prepared,
        Preparation::NotAllHere { .. } => unreachable!("on one machine a file that is not here is not anywhere"),
    };
    work(request, &prepared, &backend, folder, &clock, &mut Watched { control, started })?;
    let again = Again { items_max: None, is_one_of_many: false };
    let looked = look_again(request, &mut prepared, again, &mut backend, folder, control)?;
    let targets = prepared.targets();
    let plan = Ok(prepared.plan.record().clone());
    let (findings, receipt) = conclude_against(&plan, &mut backend, request.tenant, run, folder, &targets)?;
    if may_complete(&receipt) {
        backend
            .complete_run(clock(), request.tenant, run, OpIds::random().next_id())
            .map_err(ScanError::coordinator)?;
    }
    let origin = match looked {
        LookedAgain::Done(read_before) if prepared.is_resumed => Origin::Resumed(read_before),
        _ => Origin::Scanned,
    };
    Ok(ScanReport {
        run,
        further_runs: Vec::new(),
        origin,
        ended: None,
        targets,
        findings,
        receipt,
        elapsed: started.elapsed(),
    })
}

/// How a command looks again at what was read before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Again {
    /// Items that it reads again by itself. If there are more, another run has to read them; `None` if there can be none.
    pub(crate) items_max: Option<u64>,
    /// Whether other machines may see files that are not here.
    pub(crate) is_one_of_many: bool,
}

/// What became of what was read before a command.
pub(crate) enum LookedAgain {
    Done(ReadBefore),
    /// So many items changed, or such that only workers ever saw, that another run has to read them.
    TooMuch {
        items: u64,
    },
}

/// Compares what was read before this command with what is there now, once all shards are done, and reads again what
/// changed, as far as `again` allows.
pub(crate) fn look_again<B: RunManagement>(
    request: &ScanRequest,
    prepared: &mut Prepared,
    again: Again,
    backend: &mut B,
    folder: &RunFolder,
    control: &Control<'_>,
) -> Result<LookedAgain, ScanError> {
    let run = folder.key().run;
    let counts = backend.get_run_progress(wall_clock(), request.tenant, run).map_err(ScanError::coordinator)?.counts;
    let has_other_plan = prepared.adopt_plan(folder)?;
    if counts.active > 0 || !(prepared.is_resumed || has_other_plan) {
        return Ok(LookedAgain::Done(ReadBefore::default()));
    }
    let job = Job::of(request);
    let recheck = Recheck {
        plan: &prepared.plan,
        sources: &prepared.sources,
        folder,
        job: &job,
        workers: request.worker_count(),
        is_one_of_many: again.is_one_of_many,
        stop: control.stop,
    };
    let looked = recheck.look(backend, request.tenant, run)?;
    if again.items_max.is_some_and(|max| looked.changed_items > max || looked.unplanned_items > 0) {
        return Ok(LookedAgain::TooMuch { items: looked.changed_items + looked.unplanned_items });
    }
    let read_again = recheck.read_again(&looked)?;
    Ok(LookedAgain::Done(ReadBefore { same: looked.same_items, read_again }))
}

/// Who watches a scan, and since when.
struct Watched<'w, 'c> {
    control: &'w mut Control<'c>,
    started: Instant,
}

/// Lets as many workers as the request asks for work on the run of `folder` until nothing is left.
fn work<B: CoordinationFacade + Clone + Send>(
    request: &ScanRequest,
    prepared: &Prepared,
    backend: &B,
    folder: &RunFolder,
    clock: &(impl Fn() -> LogicalTime + Clone + Send),
    watched: &mut Watched<'_, '_>,
) -> Result<(), ScanError> {
    let Watched { control, started } = watched;
    let job = Job::of(request);
    let detectors = job.detectors().map_err(ScanError::Rules)?;
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
            attached: None,
            elapsed: started.elapsed(),
        }
    };
    // One worker that cannot go on stops all: the same disk or coordinator would stop them one by one.
    let (stop_all, fails) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let end = std::thread::scope(|scope| -> Result<(), ScanError> {
        let mut threads = Vec::new();
        for progress in &progress {
            let worker = WorkerId::new(random_u64());
            let sink = FileSink::create(&folder.findings(), folder.key(), worker, random_u64())?;
            let equipment = Equipment {
                reader: job.reader(detectors.fork()),
                sources: prepared.sources.clone(),
                dir: folder.path().to_path_buf(),
                plan: Some(Arc::clone(&prepared.plan)),
                progress: Arc::clone(progress),
            };
            let config = WorkerConfig::new(request.tenant, folder.key().run, worker);
            let mut worker = Worker::new(config, clock.clone(), equipment, Box::new(sink), stop_all);
            let mut backend = backend.clone();
            threads.push(scope.spawn(move || {
                let end = worker.run(&mut backend);
                if end.is_err() {
                    fails.store(true, Ordering::Relaxed);
                }
                end
            }));
        }
        let mut looks = Backoff::new(Duration::from_millis(1));
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(looks.next(Duration::from_millis(100)));
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
