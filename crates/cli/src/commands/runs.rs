//! `tessera runs`: finished and unfinished scans, on this machine or by a fleet.

mod end;
mod list;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tessera_contracts::{RunId, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::GetRunError;
use tessera_coordination::run::record::RunRecord;
use tessera_scan::clock::wall_clock;
use tessera_scan::error::ScanError;
use tessera_scan::op_ids::OpIds;
use tessera_scan::run::ExitStatus;
use tessera_scan::run::folder::RunFolder;
use tessera_scan::run::local::HeldRun;

use self::report::{print_report, show, show_running};
use crate::fleet::{self, Fleet, failure};
use crate::report::ReportArgs;
use crate::tell::{print, shown};
use crate::{hint, signals, state_dir};

/// List, show, report, cancel and forget runs, those of this machine or of a fleet
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera runs                          all of them, and how far they came
  tessera runs show 00c0ffee00c0ffee    what one has found so far, also while it is scanned elsewhere on this machine
  tessera runs show 00c0ffee00c0ffee --by repository
                                        how it stands with each repository
  tessera runs report 00c0ffee00c0ffee  the report of one that has ended, as the scan printed it
  tessera runs cancel 00c0ffee00c0ffee  it will not be continued
  tessera runs retire 00c0ffee00c0ffee  forget it with its findings
  tessera runs collect --older-than 1d  remove what never began
  tessera runs --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans retire --older-than 30")]
pub(crate) struct Args {
    /// Where runs of this machine are kept
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "coordinator")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    fleet: fleet::FleetArgs,

    /// List the runs as JSON
    #[arg(long)]
    json: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the findings of a run so far, and its receipt
    Show {
        /// The run
        run: RunId,

        /// Show each repository or other target with its numbers, instead of the findings
        #[arg(long, value_name = "WHAT")]
        by: Option<By>,

        #[command(flatten)]
        report: ReportArgs,
    },
    /// Print the report of a run that has ended, as the scan did
    ///
    /// With the run's end time, and with the exit code of the scan: 0 clean and complete, 1 secrets found, 3 incomplete.
    #[command(after_help = "EXAMPLES
  tessera runs report 00c0ffee00c0ffee
  tessera runs report 00c0ffee00c0ffee --format sarif -o out.sarif
  tessera runs report 00c0ffee00c0ffee --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans

EXIT CODES
  0  the run found no secret, and everything was read except files skipped on purpose
  1  the run found secrets
  2  there is no report: the run is unknown, or has not ended
  3  the run found no secret, but did not read everything; a run that was cancelled or failed is one of these")]
    Report {
        /// The run
        run: RunId,

        /// Leave out findings that an earlier report (tessera's or gitleaks' JSON) names
        #[arg(long, value_name = "FILE")]
        baseline: Vec<PathBuf>,

        #[command(flatten)]
        report: ReportArgs,
    },
    /// Call a run off
    Cancel {
        /// The run
        run: RunId,
    },
    /// Forget a run of this machine, or ended runs of a fleet by age, with everything they found
    #[command(after_help = "EXAMPLES
  tessera runs retire 00c0ffee00c0ffee
  tessera runs retire --older-than 30 --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans

The findings folder goes first, the run after it; a retirement that was interrupted is finished by the same command.")]
    Retire(end::RetireArgs),
    /// Remove runs that never got their shards, and folders that no run names
    ///
    /// A submitter that dies while it prepares a run leaves a folder, or a run without shards. Nothing that was found is removed:
    /// a folder with findings whose run is unknown is named and kept.
    #[command(after_help = "EXAMPLES
  tessera runs collect --older-than 12h --dry-run
  tessera runs collect --older-than 12h --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans

Runs without shards are collected for all tenants of the namespace, folders for the tenant that --tenant names.")]
    Collect(end::CollectArgs),
}

/// What a run is shown by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Repository,
}

impl Args {
    /// The flags that say where, for a hint.
    fn place(&self) -> Vec<String> {
        let mut place = hint::path_flag("--state-dir", self.state_dir.as_deref());
        place.extend(self.fleet.flags());
        place
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match act(args) {
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => {
            tell!("error: {}", shown(&error));
            ExitCode::from(ExitStatus::Error as u8)
        }
    }
}

fn act(args: &Args) -> Result<ExitStatus, String> {
    let tenant = args.fleet.tenant();
    if let Some(Command::Report { run, baseline, report }) = &args.command {
        return print_report(args, tenant, *run, baseline, report);
    }
    act_on_runs(args, tenant).map(|()| ExitStatus::CleanComplete)
}

fn act_on_runs(args: &Args, tenant: TenantId) -> Result<(), String> {
    if let Some(fleet) = args.fleet.fleet()? {
        let stop = signals::stop_flag()?;
        let mut backend = fleet.patient(&stop)?;
        return match &args.command {
            None => list::list_fleet(&mut backend, tenant, &fleet, args.json),
            Some(Command::Show { run, by, report }) => {
                let record = known(&mut backend, tenant, *run, &fleet)?;
                let folder = RunFolder::of_run(fleet.findings()?, fleet.name(), &record);
                show(&mut backend, tenant, *run, &folder.map_err(|error| error.to_string())?, *by, report)
            }
            Some(Command::Report { .. }) => unreachable!("it has an exit code of its own"),
            Some(Command::Cancel { run }) => {
                known(&mut backend, tenant, *run, &fleet)?;
                cancel(&mut backend, tenant, *run)
            }
            Some(Command::Retire(retire)) => end::retire_fleet(&mut backend, tenant, &fleet, retire),
            Some(Command::Collect(collect)) => end::collect_fleet(&mut backend, tenant, &fleet, collect),
        };
    }
    let dir = state_dir::of(args.state_dir.as_deref())?;
    let open = |run: RunId| open_local(&dir, run, args.state_dir.as_deref());
    match &args.command {
        None => list::list_local(&dir, tenant, args.json),
        Some(Command::Show { run, by, report }) => {
            if let Some(pid) = worked_on_by(&dir, *run) {
                return show_running(&dir, *run, pid, *by, report);
            }
            let mut held = open(*run)?;
            let folder = held.folder(tenant).map_err(|error| error.to_string())?;
            show(&mut held.backend, tenant, *run, &folder, *by, report)
        }
        Some(Command::Report { .. }) => unreachable!("it has an exit code of its own"),
        Some(Command::Cancel { run }) => cancel(&mut open(*run)?.backend, tenant, *run),
        Some(Command::Collect(collect)) => end::collect_local(args.state_dir.as_deref(), collect),
        Some(Command::Retire(retire)) => {
            let run = retire.run.ok_or("name the run; --older-than is for fleets, with --coordinator")?;
            open(run)?.remove().map_err(|error| error.to_string())?;
            print(format!("run {run} is forgotten\n"))
        }
    }
}

fn cancel(backend: &mut impl RunManagement, tenant: TenantId, run: RunId) -> Result<(), String> {
    backend
        .cancel_run(wall_clock(), tenant, run, OpIds::random().next_id())
        .map_err(|error| format!("cannot cancel run {run}: {}", failure(error)))?;
    print(format!("run {run} is cancelled; the same scan begins anew\n"))
}

/// The run as the fleet knows it; if it does not, says where it was looked for.
pub(crate) fn known(
    backend: &mut impl RunManagement,
    tenant: TenantId,
    run: RunId,
    fleet: &Fleet,
) -> Result<RunRecord, String> {
    match backend.get_run(tenant, run) {
        Ok(record) => Ok(record),
        Err(GetRunError::RunNotFound(_)) => {
            let list = hint::command(&["runs"], &fleet.flags);
            Err(format!("{} knows no run {run} of this tenant; {list} lists its runs", fleet.place()))
        }
        Err(error) => Err(failure(error)),
    }
}

/// The process that works on a run of this machine, if one does; its id need not be known.
fn worked_on_by(dir: &Path, run: RunId) -> Option<Option<u32>> {
    match HeldRun::open(dir, run) {
        Err(ScanError::Busy { holder, .. }) => Some(holder.pid),
        _ => None,
    }
}

/// Opens a run of this machine. `flag` is how the user named `dir`.
pub(crate) fn open_local(dir: &Path, run: RunId, flag: Option<&Path>) -> Result<HeldRun, String> {
    match HeldRun::open(dir, run).map_err(|error| error.to_string())? {
        Some(held) => Ok(held),
        None => {
            let list = hint::command(&["runs"], &hint::path_flag("--state-dir", flag));
            let dir = dir.display();
            Err(format!(
                "there is no run {run} of this machine in {dir}; {list} lists its runs, and --coordinator names a fleet"
            ))
        }
    }
}
