//! `tessera runs show` and `tessera runs report`: the findings of a run so far, and the report of one that has ended.

use std::path::{Path, PathBuf};

use tessera_contracts::{RunId, TenantId};
use tessera_coordination::RunManagement;
use tessera_scan::clock::calendar::utc;
use tessera_scan::error::ScanError;
use tessera_scan::run::conclude::conclude;
use tessera_scan::run::ended::report_of;
use tessera_scan::run::folder::RunFolder;
use tessera_scan::run::glance::{latest_folder, report_so_far};
use tessera_scan::run::job::Job;
use tessera_scan::run::prepare::stored_targets;
use tessera_scan::run::{ExitStatus, Origin, ScanReport};

use super::super::scan::suppressions;
use super::{Args, By, known, open_local};
use crate::{hint, report, signals, state_dir};

/// Prints the findings of a run so far.
pub(super) fn show(
    backend: &mut impl RunManagement,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
    by: Option<By>,
    how: &report::ReportArgs,
) -> Result<(), String> {
    let job = Job::load(folder.path()).map_err(|error| error.to_string())?;
    let targets = stored_targets(backend, tenant, run).map_err(|error| error.to_string())?;
    let (findings, receipt) = conclude(backend, tenant, run, folder, &targets).map_err(|error| error.to_string())?;
    let elapsed = std::time::Duration::ZERO;
    let (origin, further_runs) = (Origin::Scanned, Vec::new());
    let shown = ScanReport { run, further_runs, origin, ended: None, targets, findings, receipt, elapsed };
    write(by, how, &job, &shown)
}

/// The same of a run that another process of this machine works on.
pub(super) fn show_running(
    state_dir: &Path,
    run: RunId,
    pid: Option<u32>,
    by: Option<By>,
    how: &report::ReportArgs,
) -> Result<(), String> {
    let process = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    let folder = latest_folder(state_dir, run).ok_or_else(|| format!("{process} has only just begun run {run}"))?;
    let (shown, job) = report_so_far(&folder).map_err(|error| error.to_string())?;
    tell!("{process} works on run {run}: this is what it has found so far");
    write(by, how, &job, &shown)
}

fn write(by: Option<By>, how: &report::ReportArgs, job: &Job, shown: &ScanReport) -> Result<(), String> {
    match by {
        None => report::write(how, job, shown, 0, 0),
        Some(By::Repository) => report::write_by_target(how, job, shown),
    }
}

/// Prints the report of a run that has ended.
pub(super) fn print_report(
    args: &Args,
    tenant: TenantId,
    run: RunId,
    baselines: &[PathBuf],
    how: &report::ReportArgs,
) -> Result<ExitStatus, String> {
    let told = |error: ScanError| match error {
        ScanError::NotEnded { .. } => {
            let show = hint::command(&["runs", "show", &run.to_string()], &args.place());
            format!("{error}; {show} prints what it has found so far")
        }
        error => error.to_string(),
    };
    let mut ended = if let Some(fleet) = args.fleet.fleet()? {
        let stop = signals::stop_flag()?;
        let mut backend = fleet.patient(&stop)?;
        let record = known(&mut backend, tenant, run, &fleet)?;
        let folder = RunFolder::of_run(fleet.findings()?, fleet.name(), &record).map_err(|error| error.to_string())?;
        report_of(&mut backend, tenant, run, &folder).map_err(told)?
    } else {
        let dir = state_dir::of(args.state_dir.as_deref())?;
        let mut held = open_local(&dir, run, args.state_dir.as_deref())?;
        let folder = held.folder(tenant).map_err(|error| error.to_string())?;
        report_of(&mut held.backend, tenant, run, &folder).map_err(told)?
    };
    let paths: Vec<PathBuf> = ended.report.targets.iter().map(|target| target.path.clone()).collect();
    let suppressed = suppressions(&paths, baselines, ended.job.id_key, false)?.apply(&mut ended.report);
    if let Some(end) = ended.report.ended {
        // Not every format has a place for it.
        tell!("run {run} ended at {} ({})", utc(end.at), end.status);
    }
    report::write(how, &ended.job, &ended.report, suppressed, 0)?;
    Ok(ended.report.exit_status())
}
