//! `tessera runs`: what was scanned here, and what is unfinished.

use std::path::PathBuf;
use std::process::ExitCode;

use tessera_contracts::{OpId, RunId};
use tessera_coordination::RunManagement;
use tessera_detect::RuleSet;
use tessera_scan::report::{Format, Written};
use tessera_scan::run::{RunFolder, conclude, local_tenant, now, random_u64, stored_targets};
use tessera_scan::{local, run::ScanReport};

use super::rules::print;
use crate::state_dir;

/// List, show, cancel and forget runs kept on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera runs                          all of them, and how far they came
  tessera runs show 00c0ffee00c0ffee    what one has found so far
  tessera runs cancel 00c0ffee00c0ffee  it will not be continued
  tessera runs retire 00c0ffee00c0ffee  forget it with its findings")]
pub(crate) struct Args {
    /// Where runs are kept
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what a run has found so far, and its receipt
    Show {
        /// The run
        run: RunId,
    },
    /// Call a run off
    Cancel {
        /// The run
        run: RunId,
    },
    /// Forget a run with everything it found
    Retire {
        /// The run
        run: RunId,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = state_dir::of(args.state_dir.as_deref()).and_then(|dir| match &args.command {
        None => list(&dir),
        Some(Command::Show { run }) => show(&dir, *run),
        Some(Command::Cancel { run }) => cancel(&dir, *run),
        Some(Command::Retire { run }) => retire(&dir, *run),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn list(dir: &std::path::Path) -> Result<(), String> {
    let mut text = String::new();
    for run in kept_runs(dir)? {
        text.push_str(&line_of(dir, run).unwrap_or_else(|problem| format!("{run}  {problem}")));
        text.push('\n');
    }
    if text.is_empty() {
        text = format!("no runs are kept in {}\n", dir.display());
    }
    print(&text)
}

/// Runs with a folder of their own.
fn kept_runs(dir: &std::path::Path) -> Result<Vec<RunId>, String> {
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

fn line_of(dir: &std::path::Path, run: RunId) -> Result<String, String> {
    let folder = existing(dir, run)?;
    let mut backend = local::open(&folder).map_err(|error| error.to_string())?;
    let record = backend.get_run(local_tenant(), run).map_err(|error| error.to_string())?;
    let progress = backend.get_run_progress(now(), local_tenant(), run).map_err(|error| error.to_string())?;
    let targets = stored_targets(&mut backend, local_tenant(), run).map_err(|error| error.to_string())?;
    let paths: Vec<String> = targets.iter().map(|target| target.path.display().to_string()).collect();
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

fn show(dir: &std::path::Path, run: RunId) -> Result<(), String> {
    let folder = existing(dir, run)?;
    let mut backend = local::open(&folder).map_err(|error| error.to_string())?;
    let targets = stored_targets(&mut backend, local_tenant(), run).map_err(|error| error.to_string())?;
    let (findings, receipt) =
        conclude(&mut backend, local_tenant(), run, &folder, &targets).map_err(|error| error.to_string())?;
    let report = ScanReport { run, is_resumed: false, targets, findings, receipt, elapsed: std::time::Duration::ZERO };
    let mut out = Vec::new();
    Written { report: &report, rules: &RuleSet::builtin(), suppressed: 0, colours: false }
        .write(Format::Human, &mut out)
        .map_err(|error| error.to_string())?;
    print(&String::from_utf8_lossy(&out))
}

fn cancel(dir: &std::path::Path, run: RunId) -> Result<(), String> {
    let mut backend = local::open(&existing(dir, run)?).map_err(|error| error.to_string())?;
    backend
        .cancel_run(now(), local_tenant(), run, OpId::new(random_u64()))
        .map_err(|error| format!("cannot cancel run {run}: {error}"))?;
    print(&format!("run {run} is cancelled; the same scan begins anew\n"))
}

fn retire(dir: &std::path::Path, run: RunId) -> Result<(), String> {
    let folder = existing(dir, run)?;
    // Held while it is removed, so that a scan that uses it is not robbed.
    let backend = local::open(&folder).map_err(|error| error.to_string())?;
    std::fs::remove_dir_all(folder.path())
        .map_err(|error| format!("cannot remove {}: {error}", folder.path().display()))?;
    drop(backend);
    print(&format!("run {run} is forgotten\n"))
}

/// The folder of a run that is there.
pub(crate) fn existing(dir: &std::path::Path, run: RunId) -> Result<RunFolder, String> {
    let path = dir.join(format!("{:016x}", run.get()));
    if !path.join("coordinator.redb").exists() {
        return Err(format!("there is no run {run} in {}; `tessera runs` lists them", dir.display()));
    }
    RunFolder::kept(dir, run).map_err(|error| error.to_string())
}
