//! `tessera runs`: what was scanned, and what is unfinished, on this machine or by a fleet.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::RunSummary;
use tessera_coordination::{CoordinationFacade, RunManagement};
use tessera_detect::RuleSet;
use tessera_scan::clock::wall_clock;
use tessera_scan::conclude::conclude;
use tessera_scan::fleet::Connect;
use tessera_scan::folder::RunFolder;
use tessera_scan::local;
use tessera_scan::op_ids::OpIds;
use tessera_scan::prepare::stored_targets;
use tessera_scan::run::ScanReport;

use crate::fleet::{self, Fleet};
use crate::tell::{clean, count, print};
use crate::{report, state_dir};

/// List, show, cancel and forget runs, those of this machine or of a fleet
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera runs                          all of them, and how far they came
  tessera runs show 00c0ffee00c0ffee    what one has found so far
  tessera runs cancel 00c0ffee00c0ffee  it will not be continued
  tessera runs retire 00c0ffee00c0ffee  forget it with its findings
  tessera runs --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans retire --older-than 30")]
pub(crate) struct Args {
    /// Where runs of this machine are kept
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "coordinator")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    fleet: fleet::FleetArgs,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what a run has found so far, and its receipt
    Show {
        /// The run
        run: RunId,

        #[command(flatten)]
        report: report::ReportArgs,
    },
    /// Call a run off
    Cancel {
        /// The run
        run: RunId,
    },
    /// Forget a run of this machine, or ended runs of a fleet by age, with everything they found
    Retire {
        /// The run
        #[arg(required_unless_present = "older_than", conflicts_with = "older_than")]
        run: Option<RunId>,

        /// All runs of the fleet that ended so many days ago
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u64>,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match act(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn act(args: &Args) -> Result<(), String> {
    let tenant = args.fleet.tenant();
    if let Some(fleet) = args.fleet.fleet()? {
        let mut backend = fleet.connect()?;
        return match &args.command {
            None => list_fleet(&mut backend, tenant),
            Some(Command::Show { run, report }) => {
                let folder = RunFolder::kept(fleet.findings()?, *run).map_err(|error| error.to_string())?;
                show(&mut backend, tenant, *run, &folder, report)
            }
            Some(Command::Cancel { run }) => cancel(&mut backend, tenant, *run),
            Some(Command::Retire { older_than, .. }) => {
                let days = older_than.ok_or("a fleet forgets runs by age: use --older-than DAYS")?;
                retire_fleet(&mut backend, tenant, &fleet, days)
            }
        };
    }
    let dir = state_dir::of(args.state_dir.as_deref())?;
    let open = |run: RunId| -> Result<_, String> {
        let folder = existing(&dir, run)?;
        Ok((local::open(&folder).map_err(|error| error.to_string())?, folder))
    };
    match &args.command {
        None => list_local(&dir, tenant),
        Some(Command::Show { run, report }) => {
            let (mut backend, folder) = open(*run)?;
            show(&mut backend, tenant, *run, &folder, report)
        }
        Some(Command::Cancel { run }) => cancel(&mut open(*run)?.0, tenant, *run),
        Some(Command::Retire { run, .. }) => {
            let run = run.ok_or("name the run; --older-than is for fleets, with --coordinator")?;
            // Held while it is removed, so that a scan that uses it is not robbed.
            let (_held, folder) = open(run)?;
            remove(folder.path())?;
            print(format!("run {run} is forgotten\n"))
        }
    }
}

fn list_local(dir: &Path, tenant: TenantId) -> Result<(), String> {
    let mut text = String::new();
    for run in kept_runs(dir)? {
        let line = existing(dir, run).and_then(|folder| {
            let mut backend = local::open(&folder).map_err(|error| error.to_string())?;
            line_of(&mut backend, tenant, run)
        });
        text.push_str(&line.unwrap_or_else(|problem| format!("{run}  {problem}")));
        text.push('\n');
    }
    if text.is_empty() {
        text = format!("no runs are kept in {}\n", dir.display());
    }
    print(&text)
}

fn list_fleet(backend: &mut impl CoordinationFacade, tenant: TenantId) -> Result<(), String> {
    let mut text = String::new();
    for run in all_runs(backend, tenant)? {
        text.push_str(&line_of(backend, tenant, run.run).unwrap_or_else(|problem| format!("{}  {problem}", run.run)));
        text.push('\n');
    }
    if text.is_empty() {
        text = "the fleet has no runs of this tenant\n".into();
    }
    print(&text)
}

fn all_runs(backend: &mut impl RunManagement, tenant: TenantId) -> Result<Vec<RunSummary>, String> {
    let (mut all, mut page) = (Vec::new(), Vec::new());
    loop {
        let after = all.last().map(|run: &RunSummary| run.run);
        backend.list_runs_into(tenant, after, 1_000, &mut page).map_err(|error| error.to_string())?;
        if page.is_empty() {
            return Ok(all);
        }
        all.append(&mut page);
    }
}

/// Runs with a folder of their own.
fn kept_runs(dir: &Path) -> Result<Vec<RunId>, String> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot list {}: {error}", dir.display())),
    };
    let mut runs: Vec<RunId> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    runs.sort();
    Ok(runs)
}

fn line_of(backend: &mut impl CoordinationFacade, tenant: TenantId, run: RunId) -> Result<String, String> {
    let record = backend.get_run(tenant, run).map_err(|error| error.to_string())?;
    let progress = backend.get_run_progress(wall_clock(), tenant, run).map_err(|error| error.to_string())?;
    let targets = stored_targets(backend, tenant, run).map_err(|error| error.to_string())?;
    let paths: Vec<String> = targets.iter().map(|target| clean(&target.path.display().to_string())).collect();
    let counts = progress.counts;
    let settled = counts.done + counts.split;
    let parked = if counts.parked > 0 { format!(", {} parked", counts.parked) } else { String::new() };
    Ok(format!(
        "{run}  {:<10} {settled}/{} shards{parked}  {}",
        record.status.as_str(),
        counts.total(),
        paths.join(" ")
    ))
}

fn show(
    backend: &mut impl CoordinationFacade,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
    how: &report::ReportArgs,
) -> Result<(), String> {
    let targets = stored_targets(backend, tenant, run).map_err(|error| error.to_string())?;
    let (findings, receipt) = conclude(backend, tenant, run, folder, &targets).map_err(|error| error.to_string())?;
    let elapsed = std::time::Duration::ZERO;
    let shown = ScanReport { run, is_resumed: false, targets, findings, receipt, elapsed };
    report::write(how, &RuleSet::builtin(), &shown, 0)
}

fn cancel(backend: &mut impl RunManagement, tenant: TenantId, run: RunId) -> Result<(), String> {
    backend
        .cancel_run(wall_clock(), tenant, run, OpIds::random().next_id())
        .map_err(|error| format!("cannot cancel run {run}: {error}"))?;
    print(format!("run {run} is cancelled; the same scan begins anew\n"))
}

/// Forgets ended runs with their findings. The coordinator first: a run without findings would look clean.
fn retire_fleet(backend: &mut impl RunManagement, tenant: TenantId, fleet: &Fleet, days: u64) -> Result<(), String> {
    let findings = fleet.findings()?;
    let now = wall_clock();
    let until = LogicalTime::new(now.get().saturating_sub(days.saturating_mul(86_400_000)));
    let ended = |run: &RunSummary| {
        let is_over = !matches!(run.status, RunStatus::Active | RunStatus::Initializing);
        is_over && run.completed_at.is_some_and(|at| at <= until)
    };
    let before: Vec<RunId> = all_runs(backend, tenant)?.iter().filter(|run| ended(run)).map(|run| run.run).collect();
    backend.retire_runs(now, tenant, until, before.len()).map_err(|error| error.to_string())?;
    let left: Vec<RunId> = all_runs(backend, tenant)?.iter().map(|run| run.run).collect();
    let mut forgotten = 0;
    for run in before.into_iter().filter(|run| !left.contains(run)) {
        let folder = findings.join(format!("{:016x}", run.get()));
        if folder.exists() {
            remove(&folder)?;
        }
        forgotten += 1;
    }
    print(format!("{} forgotten\n", count(forgotten, "run")))
}

fn remove(folder: &Path) -> Result<(), String> {
    std::fs::remove_dir_all(folder).map_err(|error| format!("cannot remove {}: {error}", folder.display()))
}

/// The folder of a run that is there.
pub(crate) fn existing(dir: &Path, run: RunId) -> Result<RunFolder, String> {
    let path = dir.join(format!("{:016x}", run.get()));
    if !path.join("coordinator.redb").exists() {
        return Err(format!("there is no run {run} in {}; `tessera runs` lists them", dir.display()));
    }
    RunFolder::kept(dir, run).map_err(|error| error.to_string())
}
