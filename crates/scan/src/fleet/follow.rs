//! Submitting a run to a fleet, and following it to its end.
//!
//! The same request follows its own run if that is still going on. A run that ended stays known to the coordinator, so the
//! next one of the same request has another number; a small file in the findings folder remembers which, so that it need
//! not be searched for.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_contracts::{RunId, TenantId};
use tessera_coordination::CoordinationFacade;
use tessera_coordination::error::{GetRunError, RunTransitionError};
use tessera_coordination::run::progress::{RunTerminalEvaluation, evaluate_run_terminal};
use tessera_coordination::run::status::RunStatus;

use super::{Patience, pause};
use crate::clock::wall_clock;
use crate::conclude::conclude;
use crate::error::ScanError;
use crate::folder::RunFolder;
use crate::job::Job;
use crate::op_ids::OpIds;
use crate::prepare::{NewRun, Prepared, prepare};
use crate::request::ScanRequest;
use crate::run::{Control, Progress, ScanReport};
use crate::sink::watch::Watch;

/// How a run is submitted.
#[derive(Debug, Clone)]
pub struct Following {
    /// The folder that all machines reach under this path.
    pub findings: PathBuf,
    /// Begin anew even if the run is going on.
    pub fresh: bool,
    /// How long a lease lasts, in milliseconds.
    pub lease_duration: u64,
    /// How long the coordinator may be away.
    pub give_up_after: Duration,
}

/// How often to look.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Most runs of one request that the coordinator still knows.
const ATTEMPTS_MAX: u64 = 100_000;

/// Submits what `request` says, unless it is going on already, and waits for the fleet to do it.
pub fn follow<B: CoordinationFacade>(
    request: &ScanRequest,
    following: &Following,
    backend: &mut B,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let started = Instant::now();
    let paths = request.canonical_paths()?;
    let run = choose_run(request, &paths, following, backend)?;
    let folder = RunFolder::kept(&following.findings, run)?;
    Job::of(request).store(folder.path())?;
    let new = NewRun { workers: request.worker_count(), lease_duration: following.lease_duration };
    let prepared = prepare(request, &paths, run, backend, &folder, wall_clock(), new)?;
    wait(request.tenant, run, &prepared, following, &folder, backend, control, started)?;
    let targets = prepared.targets();
    let (findings, receipt) = conclude(backend, request.tenant, run, &folder, &targets)?;
    if evaluate_run_terminal(&receipt.shards) == RunTerminalEvaluation::AllDone {
        complete(backend, request.tenant, run)?;
    }
    let is_resumed = prepared.is_resumed;
    Ok(ScanReport { run, is_resumed, targets, findings, receipt, elapsed: started.elapsed() })
}

/// Settles a run as done, unless somebody was faster.
pub(super) fn complete<B: CoordinationFacade>(backend: &mut B, tenant: TenantId, run: RunId) -> Result<(), ScanError> {
    match backend.complete_run(wall_clock(), tenant, run, OpIds::random().next_id()) {
        Ok(_) | Err(RunTransitionError::Illegal { .. } | RunTransitionError::ShardsOpen { .. }) => Ok(()),
        Err(error) => Err(ScanError::coordinator(error)),
    }
}

/// The run of this request that goes on, or the next that has not been.
fn choose_run<B: CoordinationFacade>(
    request: &ScanRequest,
    paths: &[PathBuf],
    following: &Following,
    backend: &mut B,
) -> Result<RunId, ScanError> {
    let note = following.findings.join(format!("{:016x}.latest", request.run_id(paths, 0).get()));
    let noted: u64 = std::fs::read_to_string(&note).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    for attempt in noted..noted.saturating_add(ATTEMPTS_MAX) {
        let run = request.run_id(paths, attempt);
        let status = match backend.get_run(request.tenant, run) {
            Ok(record) => Some(record.status),
            Err(GetRunError::RunNotFound(_)) => None,
            Err(error) => return Err(ScanError::coordinator(error)),
        };
        match status {
            None | Some(RunStatus::Initializing) => {}
            Some(RunStatus::Active) if following.fresh && attempt == noted => {
                let cancelled = backend.cancel_run(wall_clock(), request.tenant, run, OpIds::random().next_id());
                cancelled.map_err(ScanError::coordinator)?;
                continue;
            }
            Some(RunStatus::Active) => {}
            Some(_) => continue,
        }
        if attempt != noted {
            // Only a hint: whoever finds none searches from the start.
            let _ = remember(&following.findings, &note, attempt);
        }
        return Ok(run);
    }
    Err(ScanError::Coordinator(
        "it remembers too many runs of this scan; retire some with `tessera runs retire`".into(),
    ))
}

fn remember(dir: &Path, note: &Path, attempt: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let staging = note.with_extension(format!("{:016x}", crate::op_ids::random_u64()));
    std::fs::write(&staging, attempt.to_string())?;
    std::fs::rename(staging, note)
}

#[expect(clippy::too_many_arguments, reason = "all of a run comes together here")]
fn wait<B: CoordinationFacade>(
    tenant: TenantId,
    run: RunId,
    prepared: &Prepared,
    following: &Following,
    folder: &RunFolder,
    backend: &mut B,
    control: &mut Control<'_>,
    started: Instant,
) -> Result<(), ScanError> {
    let mut watch = Watch::default();
    let mut patience = Patience::new(following.give_up_after);
    let (items_total, bytes_total) = prepared.totals();
    while !control.stop.load(Ordering::Relaxed) {
        let now = wall_clock();
        let looked = backend
            .get_run(tenant, run)
            .and_then(|record| backend.get_run_progress(now, tenant, run).map(|progress| (record.status, progress)));
        let (status, progress) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                patience.failed(&error.to_string(), control.stop)?;
                continue;
            }
        };
        patience.succeeded();
        // For the bar alone: what cannot be read now is read at the end, and errors show then.
        let _ = watch.look(&folder.findings());
        (control.progress)(&Progress {
            items: watch.tally.enumerated(),
            bytes: watch.tally.scanned_bytes,
            findings: watch.findings,
            items_total,
            bytes_total,
            is_resumed: prepared.is_resumed,
            is_waiting: progress.leased == 0,
            elapsed: started.elapsed(),
        });
        let is_over = evaluate_run_terminal(&progress.counts) != RunTerminalEvaluation::StillActive;
        if is_over || status != RunStatus::Active {
            return Ok(());
        }
        pause(LOOK_INTERVAL, control.stop);
    }
    Ok(())
}
