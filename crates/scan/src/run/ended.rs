//! The report of a run that has ended, made again from what it left: its folder and the coordinator's record.

use std::time::Duration;

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::run::status::RunStatus;

use crate::error::ScanError;
use crate::run::conclude::conclude;
use crate::run::folder::RunFolder;
use crate::run::job::Job;
use crate::run::prepare::stored_targets;
use crate::run::register::check_incarnation;
use crate::run::{Origin, ScanReport};

/// How and when a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunEnd {
    /// Done, failed or cancelled.
    pub status: RunStatus,
    /// When.
    pub at: LogicalTime,
}

/// A report with what is needed to write it.
#[derive(Debug)]
pub struct EndedRun {
    /// What the run found, and its account.
    pub report: ScanReport,
    /// What it looked for, and how it names what it found.
    pub job: Job,
}

/// The report of `run`, which has ended; an error if it has not.
pub fn report_of<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
) -> Result<EndedRun, ScanError> {
    let record = backend.get_run(tenant, run).map_err(ScanError::coordinator)?;
    check_incarnation(&record, folder)?;
    let Some(at) = record.completed_at else { return Err(ScanError::NotEnded { run, status: record.status }) };
    let job = Job::load(folder.path())?;
    let targets = stored_targets(backend, tenant, run)?;
    let (findings, receipt) = conclude(backend, tenant, run, folder, &targets)?;
    let elapsed = Duration::from_millis(at.get().saturating_sub(record.created_at.get()));
    let ended = Some(RunEnd { status: record.status, at });
    Ok(EndedRun {
        report: ScanReport {
            run,
            further_runs: Vec::new(),
            origin: Origin::Known,
            ended,
            targets,
            findings,
            receipt,
            elapsed,
        },
        job,
    })
}
