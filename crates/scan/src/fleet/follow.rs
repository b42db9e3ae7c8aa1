//! Submitting a run to a fleet, and following it to its end.
//!
//! The same request follows its own run if that is still going on. A run that ended stays known to the coordinator, so the
//! next one of the same request has another number; a small file in the findings folder remembers which, so that it need
//! not be searched for.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_contracts::{RunId, RunIncarnation, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::{GetRunError, RunTransitionError};
use tessera_coordination::run::status::RunStatus;

use super::pause;
use super::run_look::RunLook;
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::watch::Watch;
use crate::op_ids::{OpIds, random_incarnation};
use crate::run::conclude::{conclude_against, may_complete};
use crate::run::coordinator_name::CoordinatorName;
use crate::run::finished::still_true;
use crate::run::folder::RunFolder;
use crate::run::job::Job;
use crate::run::label::{RunKey, RunLabel};
use crate::run::prepare::{self, NewRun, Preparation, Prepared, prepare};
use crate::run::request::ScanRequest;
use crate::run::{Again, Control, LookedAgain, Origin, Progress, ScanReport, look_again};

/// How a run is submitted.
#[derive(Debug, Clone)]
pub struct Following {
    /// The coordinator that is asked.
    pub coordinator: CoordinatorName,
    /// The folder that all machines reach under this path.
    pub findings: PathBuf,
    /// Begin anew even if the run is going on.
    pub fresh: bool,
    /// How long a lease lasts, in milliseconds.
    pub lease_duration: u64,
    /// Items of an earlier command that the submitter reads again by itself if they have changed. If there are more, the fleet
    /// scans anew.
    pub read_again_max: u64,
}

/// How often to look into the findings folder.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// When a submitter that went on with a run asks whether any worker has a part of it in hand, if none has written anything.
const ASK_WHO_WORKS_AFTER: Duration = Duration::from_secs(3);

/// How often a submitter lets others go first before it gives up.
const SUBMISSIONS_MAX: u32 = 16;

/// Most runs of one request that the coordinator still knows.
const ATTEMPTS_MAX: u64 = 100_000;

/// How often a run is found to be out of date and another one is begun. Commands given elsewhere at the same time can make it
/// more than one.
const ROUNDS_MAX: u32 = 3;

/// Items that a submitter reads again by itself, unless told otherwise: a minute's work.
pub const READ_AGAIN_MAX: u64 = 10_000;

/// Submits what `request` says and waits for the fleet to do it. A run of the same request that is going on is followed, and
/// the report of one that is finished is given again, if they are about what is there now.
pub fn follow<B: RunManagement>(
    request: &ScanRequest,
    following: &Following,
    backend: &mut B,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let started = Instant::now();
    let paths = request.canonical_paths()?;
    let (mut because, mut round, mut first) = (None, 0, 0);
    loop {
        round += 1;
        let mut submitted = match submit(request, &paths, following, backend, first)? {
            Submission::Run(submitted) => submitted,
            Submission::Finished(report) => return Ok(*report),
        };
        because = submitted.moved_on.take().or(because);
        first = submitted.number + 1;
        let items_max = (round < ROUNDS_MAX).then_some(following.read_again_max);
        match follow_run(request, submitted, items_max, backend, control, started)? {
            Followed::ToItsEnd(report) => {
                let origin = match because {
                    Some(because) if !report.is_resumed() => Origin::ScannedAnew { because },
                    _ => report.origin.clone(),
                };
                return Ok(ScanReport { origin, ..*report });
            }
            Followed::OutOfDate(changed) => because = Some(changed),
        }
    }
}

/// How following a run ended.
enum Followed {
    ToItsEnd(Box<ScanReport>),
    /// Too much has changed since it was read: why it cannot go on.
    OutOfDate(String),
}

fn follow_run<B: RunManagement>(
    request: &ScanRequest,
    submitted: Submitted,
    items_max: Option<u64>,
    backend: &mut B,
    control: &mut Control<'_>,
    started: Instant,
) -> Result<Followed, ScanError> {
    let Submitted { folder, mut prepared, .. } = submitted;
    let (folder, run) = (&folder, folder.key().run);
    wait(&prepared, folder, backend, control, started)?;
    let again = Again { items_max, is_one_of_many: true };
    let read_before = match look_again(request, &mut prepared, again, backend, folder, control)? {
        LookedAgain::Done(read_before) => read_before,
        LookedAgain::TooMuch { items } => {
            return Ok(Followed::OutOfDate(format!("{items} items have changed since they were read")));
        }
    };
    let targets = prepared.targets();
    let plan = Ok(prepared.plan.record().clone());
    let (findings, receipt) = conclude_against(&plan, backend, request.tenant, run, folder, &targets)?;
    if may_complete(&receipt) {
        complete(backend, request.tenant, run).map_err(ScanError::coordinator)?;
    }
    let origin = if prepared.is_resumed { Origin::Resumed(read_before) } else { Origin::Scanned };
    let elapsed = started.elapsed();
    Ok(Followed::ToItsEnd(Box::new(ScanReport {
        run,
        further_runs: Vec::new(),
        origin,
        ended: None,
        targets,
        findings,
        receipt,
        elapsed,
    })))
}

/// Ends a run that goes on, if it has not ended.
fn end<B: RunManagement>(backend: &mut B, tenant: TenantId, run: RunId) -> Result<(), ScanError> {
    match backend.cancel_run(wall_clock(), tenant, run, OpIds::random().next_id()) {
        Ok(_) | Err(RunTransitionError::Illegal { .. }) => Ok(()),
        Err(error) => Err(ScanError::coordinator(error)),
    }
}

/// A run that workers see.
pub(super) struct Submitted {
    pub(super) folder: RunFolder,
    prepared: Prepared,
    /// Which of the runs of the request it is.
    number: u64,
    /// Why a run that was going on cannot.
    moved_on: Option<String>,
}

pub(super) enum Submission {
    Run(Submitted),
    /// It was done before, and nothing has changed since.
    Finished(Box<ScanReport>),
}

/// Finds the run of this request that goes on, or makes the next one, folder first; none before the one with the number `first`.
pub(super) fn submit<B: RunManagement>(
    request: &ScanRequest,
    paths: &[PathBuf],
    following: &Following,
    backend: &mut B,
    mut first: u64,
) -> Result<Submission, ScanError> {
    let lease_duration = following.lease_duration;
    let new = NewRun { workers: request.worker_count(), lease_duration, is_one_of_many: true };
    let (mut attempt, mut not_all_here) = (1, None);
    loop {
        let (number, run, known, moved_on) = match choose_run(request, paths, following, backend, first)? {
            Chosen::Run { number, run, known, moved_on } => (number, run, known, moved_on),
            Chosen::Finished(report) => return Ok(Submission::Finished(report)),
        };
        let incarnation = known.map_or_else(random_incarnation, |(incarnation, _)| incarnation);
        let label = RunLabel {
            coordinator: following.coordinator.clone(),
            tenant: request.tenant,
            key: RunKey::new(run, incarnation),
            created_at: wall_clock(),
        };
        let folder = match known {
            Some((_, RunStatus::Active)) => RunFolder::open(&following.findings, label)?,
            _ => {
                let folder = RunFolder::create(&following.findings, label)?;
                Job::of(request).store(folder.path())?;
                folder
            }
        };
        match prepare(request, paths, backend, &folder, wall_clock(), new) {
            // The same command was given elsewhere at the same time, and was faster: this folder is no run's.
            Err(ScanError::OtherIncarnation { .. }) if attempt < SUBMISSIONS_MAX => {
                if known.is_none() {
                    folder.remove()?;
                }
                attempt += 1;
            }
            Ok(Preparation::Ready(prepared)) => {
                let moved_on = moved_on.or(not_all_here);
                return Ok(Submission::Run(Submitted { folder, prepared, number, moved_on }));
            }
            Ok(Preparation::NotAllHere { because }) => {
                first = number + 1;
                not_all_here = Some(left_alone(&because, run));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Why a run that goes on is not this command's, and that it was not ended: another submitter may follow it.
fn left_alone(because: &str, run: RunId) -> String {
    format!("{because}, and run {run} is left to its submitter")
}

/// Settles a run as done, unless another process was faster.
pub(super) fn complete<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
) -> Result<(), RunTransitionError> {
    match backend.complete_run(wall_clock(), tenant, run, OpIds::random().next_id()) {
        Ok(_) | Err(RunTransitionError::Illegal { .. } | RunTransitionError::ShardsOpen { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What is to be done about a request.
enum Chosen {
    /// This run is to be followed, and begun if it has not been.
    Run {
        /// Which of the runs of this request it is.
        number: u64,
        run: RunId,
        /// Which creation of it is there, and whether it has its shards; `None` if there is none yet.
        known: Option<(RunIncarnation, RunStatus)>,
        /// Why a run that was going on cannot.
        moved_on: Option<String>,
    },
    /// It was done before, and nothing has changed since.
    Finished(Box<ScanReport>),
}

/// The run of this request that goes on, a finished one that is still true, or the next that has not been; none before the one
/// with the number `first`. A run that is not of what is here now goes on without this command, unless it was asked to begin anew.
fn choose_run<B: RunManagement>(
    request: &ScanRequest,
    paths: &[PathBuf],
    following: &Following,
    backend: &mut B,
    first: u64,
) -> Result<Chosen, ScanError> {
    let note =
        following.findings.join(format!("{:016x}.latest", request.run_id(&following.coordinator, paths, 0).get()));
    let noted: u64 = std::fs::read_to_string(&note).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let (mut moved_on, mut done) = (None, None);
    for attempt in noted.max(first)..noted.saturating_add(ATTEMPTS_MAX) {
        let run = request.run_id(&following.coordinator, paths, attempt);
        let record = match backend.get_run(request.tenant, run) {
            Ok(record) => Some(record),
            Err(GetRunError::RunNotFound(_)) => None,
            Err(error) => return Err(ScanError::coordinator(error)),
        };
        let known = record.as_ref().map(|record| (record.incarnation, record.status));
        let folder =
            record.as_ref().map(|record| RunFolder::of_run(&following.findings, following.coordinator.clone(), record));
        match known.map(|(_, status)| status) {
            None | Some(RunStatus::Initializing) => {}
            Some(RunStatus::Active) if following.fresh && attempt == noted => {
                end(backend, request.tenant, run)?;
                continue;
            }
            Some(RunStatus::Active) => {
                // A folder that is not there is told when it is opened: the run may be another submitter's.
                let moved = |folder: RunFolder| prepare::moved_on(request, folder.path(), paths);
                moved_on = folder.and_then(Result::ok).and_then(moved).map(|because| left_alone(&because, run));
                if moved_on.is_some() {
                    continue;
                }
            }
            Some(RunStatus::Done) => {
                done = folder.and_then(Result::ok).map(|folder| (run, folder));
                continue;
            }
            Some(_) => continue,
        }
        let is_new = !matches!(known, Some((_, RunStatus::Active)));
        let finished = done.take().filter(|_| is_new && !following.fresh);
        if let Some((run, folder)) = finished
            && let Some(report) = still_true(request, paths, run, backend, &folder)
        {
            return Ok(Chosen::Finished(Box::new(report)));
        }
        if attempt != noted {
            // Only a hint: a submitter that finds none searches from the start.
            let _ = remember(&following.findings, &note, attempt);
        }
        return Ok(Chosen::Run { number: attempt, run, known, moved_on });
    }
    Err(ScanError::TooManyRuns(ATTEMPTS_MAX))
}

fn remember(dir: &Path, note: &Path, attempt: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let staging = note.with_extension(format!("{:016x}", crate::op_ids::random_u64()));
    std::fs::write(&staging, attempt.to_string())?;
    std::fs::rename(staging, note)
}

/// Waits until nothing is left to do in a run, and shows how far it is.
///
/// How far it is, the findings folder tells. The coordinator is only asked whether the run is over, with requests that cost it the
/// same however many shards the run has ([`RunLook`]).
fn wait<B: RunManagement>(
    prepared: &Prepared,
    folder: &RunFolder,
    backend: &mut B,
    control: &mut Control<'_>,
    started: Instant,
) -> Result<(), ScanError> {
    let mut watch = Watch::default();
    let mut look = RunLook::new(folder, prepared.is_resumed);
    let (items_total, bytes_total) = prepared.totals();
    // In a new run nothing was written before; in one that goes on, the last owner may write again only much later.
    let mut is_idle = (!prepared.is_resumed).then_some(true);
    while !control.stop.load(Ordering::Relaxed) {
        let is_over = look.is_over(backend, Instant::now())?;
        // For the bar alone: what cannot be read now is read at the end, and errors show then.
        let _ = watch.look(&folder.findings());
        if is_idle.is_none() && !watch.has_grown() && started.elapsed() > ASK_WHO_WORKS_AFTER {
            // Once: it costs the coordinator a look at every shard.
            let progress = backend.get_run_progress(wall_clock(), folder.label().tenant, folder.key().run);
            is_idle = Some(progress.map_err(ScanError::coordinator)?.leased == 0);
        }
        (control.progress)(&Progress {
            items: watch.tally.enumerated(),
            bytes: watch.tally.scanned_bytes,
            findings: watch.findings,
            items_total,
            bytes_total,
            is_resumed: prepared.is_resumed,
            is_waiting: is_idle == Some(true) && !watch.has_grown(),
            attached: None,
            elapsed: started.elapsed(),
        });
        if is_over {
            return Ok(());
        }
        pause(LOOK_INTERVAL, control.stop);
    }
    Ok(())
}
