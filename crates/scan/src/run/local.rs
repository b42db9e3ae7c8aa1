//! Runs that survive this process: a coordinator in a file of the run's folder.
//!
//! One process at a time works on such a run ([`RunLock`]). A second one for the same run attaches: it shows how far the first
//! has come, and when the first has finished, it reports the same, unless the input has changed since the first read it: then
//! it scans anew. If the first dies or is stopped, the second goes on with the run.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::ShardFilter;
use tessera_coordination::{CoordinatorRuntimeConfig, RunManagement};
use tessera_coordination_local::LocalCoordinator;

use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::watch::Watch;
use crate::fleet::collect::Collected;
use crate::op_ids::random_incarnation;
use crate::run::conclude::for_each_shard;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::finished::still_true;
use crate::run::folder::{RunFolder, incarnations_in, remove_dir, run_dir, runs_in};
use crate::run::job::Job;
use crate::run::label::{RunKey, RunLabel};
use crate::run::prepare::moved_on;
use crate::run::request::ScanRequest;
use crate::run::run_lock::{LockAttempt, RunLock};
use crate::run::{Attached, Control, Origin, Progress, SHARDS_MAX, ScanReport, execute};

/// The coordinator's file in the folder of a run.
const COORDINATOR_FILE: &str = "coordinator.redb";

/// Between two tries for the lock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs `request`, goes on where it was interrupted, or waits for the process that runs it.
pub(crate) fn scan_kept(
    request: &ScanRequest,
    paths: &[PathBuf],
    state_dir: &Path,
    fresh: bool,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let run = request.run_id(&CoordinatorName::Local, paths, 0);
    let (started, started_at) = (Instant::now(), wall_clock());
    let (_lock, has_waited) = wait_for_lock(state_dir, run, control, started)?;
    let mut backend = open(state_dir, run)?;
    let record = backend.get_run(request.tenant, run).ok();
    // Without its folder, what a run has found is lost: then it is begun anew.
    let known = record.filter(|_| !fresh).and_then(|record| Some((folder_of(state_dir, &record)?, record)));
    if let Some((folder, record)) = &known
        && let Some(report) = still_true(request, paths, run, &mut backend, folder)
    {
        // A run that ended while this process waited for it is what this process was asked for, unless its input has changed
        // since the other process read it.
        let is_awaited = has_waited && record.completed_at.is_some_and(|at| at >= started_at);
        return Ok(if is_awaited { ScanReport { ended: None, elapsed: started.elapsed(), ..report } } else { report });
    }
    let active = known.filter(|(_, record)| record.status == RunStatus::Active).map(|(folder, _)| folder);
    let because = active.as_ref().and_then(|folder| moved_on(request, folder.path(), paths));
    let folder = match active.filter(|_| because.is_none()) {
        Some(folder) => folder,
        // A run that ended and is not true any more is begun anew, and so is one that was interrupted before it had shards.
        // What else is there belongs to no run that goes on.
        None => {
            drop(backend);
            remove_dir(&run_dir(state_dir, run))?;
            backend = open(state_dir, run)?;
            let key = RunKey::new(run, random_incarnation());
            let (coordinator, created_at) = (CoordinatorName::Local, wall_clock());
            RunFolder::create(state_dir, RunLabel { coordinator, tenant: request.tenant, key, created_at })?
        }
    };
    Job::of(request).store(folder.path())?;
    let clock = clock_after_leases(&mut backend, request.tenant, run)?;
    let report = execute(request, paths, backend, &folder, clock, control)?;
    Ok(match because {
        Some(because) => ScanReport { origin: Origin::ScannedAnew { because }, ..report },
        None => report,
    })
}

fn folder_of(state_dir: &Path, record: &RunRecord) -> Option<RunFolder> {
    RunFolder::of_run(state_dir, CoordinatorName::Local, record).ok()
}

/// Takes the lock of a run, and meanwhile shows how far its holder has come. Tells whether it had to wait.
fn wait_for_lock(
    state_dir: &Path,
    run: RunId,
    control: &mut Control<'_>,
    started: Instant,
) -> Result<(RunLock, bool), ScanError> {
    let failed = |source| ScanError::Folder { path: state_dir.to_path_buf(), source };
    let (mut watch, mut has_waited) = (Watch::default(), false);
    loop {
        let holder = match RunLock::try_acquire(state_dir, run).map_err(failed)? {
            LockAttempt::Locked(lock) => return Ok((lock, has_waited)),
            LockAttempt::HeldBy(holder) => holder,
        };
        has_waited = true;
        if control.stop.load(Ordering::Relaxed) {
            return Err(ScanError::Busy { run, holder });
        }
        // For the bar alone: what cannot be read now is read at the end, and errors show then.
        for incarnation in incarnations_in(state_dir, run).unwrap_or_default() {
            let _ = watch.look(&run_dir(state_dir, run).join(incarnation.to_string()).join("findings"));
        }
        (control.progress)(&Progress {
            items: watch.tally.enumerated(),
            bytes: watch.tally.scanned_bytes,
            findings: watch.findings,
            attached: Some(Attached { pid: holder.pid }),
            elapsed: started.elapsed(),
            ..Progress::default()
        });
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// A run of this machine that no other process uses meanwhile.
#[derive(Debug)]
pub struct HeldRun {
    /// Its coordinator.
    pub backend: LocalCoordinator,
    state_dir: PathBuf,
    run: RunId,
    lock: RunLock,
}

impl HeldRun {
    /// Opens the run if there is one. An error if another process works on it.
    pub fn open(state_dir: &Path, run: RunId) -> Result<Option<Self>, ScanError> {
        let is_begun = || run_dir(state_dir, run).join(COORDINATOR_FILE).exists();
        // A process that has only just taken the lock has made nothing else yet.
        if !is_begun() && !RunLock::exists(state_dir, run) {
            return Ok(None);
        }
        let attempt = RunLock::try_acquire(state_dir, run)
            .map_err(|source| ScanError::Folder { path: state_dir.to_path_buf(), source })?;
        let lock = match attempt {
            LockAttempt::Locked(lock) => lock,
            LockAttempt::HeldBy(holder) => return Err(ScanError::Busy { run, holder }),
        };
        if !is_begun() {
            return Ok(None);
        }
        Ok(Some(Self { backend: open(state_dir, run)?, state_dir: state_dir.to_path_buf(), run, lock }))
    }

    /// The folder of the run as the coordinator knows it.
    pub fn folder(&mut self, tenant: TenantId) -> Result<RunFolder, ScanError> {
        let record = self.backend.get_run(tenant, self.run).map_err(ScanError::coordinator)?;
        Ok(RunFolder::of_run(&self.state_dir, CoordinatorName::Local, &record)?)
    }

    /// Forgets the run and all it found.
    pub fn remove(self) -> Result<(), ScanError> {
        let Self { backend, state_dir, run, lock } = self;
        drop(backend);
        // The coordinator's file lies in it, so that both go at one stroke.
        remove_dir(&run_dir(&state_dir, run))?;
        lock.remove().map_err(|source| ScanError::Folder { path: state_dir, source })
    }
}

/// Removes what scans left that died before their run began, and that are older than `created_before`.
pub fn collect(state_dir: &Path, created_before: LogicalTime, dry_run: bool) -> Result<Collected, ScanError> {
    let failed = |path: &Path, source| ScanError::Folder { path: path.to_path_buf(), source };
    let mut collected = Collected::default();
    for run in runs_in(state_dir).map_err(|source| failed(state_dir, source))? {
        // A run that another process works on has begun.
        let attempt = RunLock::try_acquire(state_dir, run).map_err(|source| failed(state_dir, source))?;
        let LockAttempt::Locked(lock) = attempt else { continue };
        let dir = run_dir(state_dir, run);
        let labels = labels_in(state_dir, run).map_err(|source| failed(&dir, source))?;
        if has_begun(state_dir, run, &labels)? {
            continue;
        }
        let made_at = labels.iter().map(|label| label.created_at).max();
        let created_at = made_at.map_or_else(|| modified_at(&dir), Ok).map_err(|source| failed(&dir, source))?;
        if created_at < created_before {
            if !dry_run {
                remove_dir(&dir)?;
                lock.remove().map_err(|source| failed(&dir, source))?;
            }
            collected.removed.push(dir);
        }
    }
    Ok(collected)
}

fn labels_in(state_dir: &Path, run: RunId) -> io::Result<Vec<RunLabel>> {
    let dir = run_dir(state_dir, run);
    let folders = incarnations_in(state_dir, run)?.into_iter().map(|incarnation| dir.join(incarnation.to_string()));
    Ok(folders.filter_map(|folder| RunLabel::load(&folder).ok()).collect())
}

/// Whether a run has shards, so that there is something to go on with or to report. Its folder is labelled before that.
fn has_begun(state_dir: &Path, run: RunId, labels: &[RunLabel]) -> Result<bool, ScanError> {
    if labels.is_empty() || !run_dir(state_dir, run).join(COORDINATOR_FILE).exists() {
        return Ok(false);
    }
    let mut backend = open(state_dir, run)?;
    let record_of = |label: &RunLabel| backend.get_run(label.tenant, run);
    Ok(labels.iter().map(record_of).any(|record| record.is_ok_and(|record| record.status != RunStatus::Initializing)))
}

fn modified_at(dir: &Path) -> io::Result<LogicalTime> {
    let since = std::fs::metadata(dir)?.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(LogicalTime::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// Opens the coordinator of a run.
fn open(state_dir: &Path, run: RunId) -> Result<LocalCoordinator, ScanError> {
    let dir = run_dir(state_dir, run);
    let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    created.map_err(|source| ScanError::Folder { path: dir.clone(), source })?;
    let config = CoordinatorRuntimeConfig::for_shards(SHARDS_MAX);
    LocalCoordinator::open(dir.join(COORDINATOR_FILE), config).map_err(ScanError::coordinator)
}

/// A clock that is past every lease in the file.
///
/// This process holds the run's lock, so every worker that has a lease in the file is dead. Instead of waiting for the leases
/// to end, time goes on after the last of them.
fn clock_after_leases(
    backend: &mut LocalCoordinator,
    tenant: TenantId,
    run: RunId,
) -> Result<impl Fn() -> LogicalTime + Clone + Send + use<>, ScanError> {
    let mut last = 0;
    if backend.get_run(tenant, run).is_ok() {
        for_each_shard(backend, tenant, run, &ShardFilter::active(), |_, shard| {
            last = last.max(shard.lease_deadline().map_or(0, LogicalTime::get));
            Ok(())
        })?;
    }
    let ahead = last.saturating_sub(wall_clock().get());
    Ok(move || LogicalTime::new(wall_clock().get() + ahead))
}
