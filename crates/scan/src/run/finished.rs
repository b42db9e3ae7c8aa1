//! The report of a finished run, given again while it is still true.
//!
//! It is true if a scan now would say the same: the run was complete, no head of a history moved, and no file of a tree is
//! another than it was. A report that lists something as unreadable is not given again: perhaps it can be read now.

use std::path::PathBuf;
use std::time::Instant;

use tessera_contracts::RunId;
use tessera_coordination::RunManagement;
use tessera_coordination::run::status::RunStatus;

use crate::error::ScanError;
use crate::plan::record::PlanRecord;
use crate::run::conclude::{account, found, merged_of};
use crate::run::ended::RunEnd;
use crate::run::folder::RunFolder;
use crate::run::prepare::{moved_on, stored_sources};
use crate::run::request::ScanRequest;
use crate::run::{Origin, ScanReport};
use crate::sweep::recheck::is_unchanged;

/// The report of `run`, if it is done and still true. What cannot be told is not.
pub(crate) fn still_true<B: RunManagement>(
    request: &ScanRequest,
    paths: &[PathBuf],
    run: RunId,
    backend: &mut B,
    folder: &RunFolder,
) -> Option<ScanReport> {
    let record = backend.get_run(request.tenant, run).ok().filter(|record| record.status == RunStatus::Done)?;
    if moved_on(request, folder.path(), paths).is_some() {
        return None;
    }
    let report = read(request, run, backend, folder).ok().flatten()?;
    let ended = record.completed_at.map(|at| RunEnd { status: record.status, at });
    Some(ScanReport { ended, ..report })
}

fn read<B: RunManagement>(
    request: &ScanRequest,
    run: RunId,
    backend: &mut B,
    folder: &RunFolder,
) -> Result<Option<ScanReport>, ScanError> {
    let started = Instant::now();
    let mut merged = merged_of(folder)?;
    let segments = std::mem::take(&mut merged.segments);
    let sources = stored_sources(backend, request.tenant, run, folder)?;
    if !is_unchanged(backend, request.tenant, run, folder.path(), &sources, segments)? {
        return Ok(None);
    }
    let targets: Vec<_> = sources.iter().map(|source| source.target().clone()).collect();
    // Every segment was just compared, whatever plan it was read under: none of them is a suspect.
    let plan = PlanRecord::load(folder.path());
    // What was left out then may be there now.
    if plan.as_ref().is_ok_and(|plan| plan.left_out != request.left_out) {
        return Ok(None);
    }
    let receipt = account(backend, request.tenant, run, &merged)?.against(&plan, &merged);
    if !receipt.is_complete() {
        return Ok(None);
    }
    let findings = found(merged, folder, &targets)?;
    let origin = Origin::Known;
    Ok(Some(ScanReport {
        run,
        further_runs: Vec::new(),
        origin,
        ended: None,
        targets,
        findings,
        receipt,
        elapsed: started.elapsed(),
    }))
}
