//! `tessera runs retire` and `tessera runs collect`: forgetting runs that have ended, and leftovers of runs that never began.

use std::time::Duration;

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::EtcdCoordinator;
use tessera_scan::clock::wall_clock;
use tessera_scan::error::ScanError;
use tessera_scan::fleet::collect::{Collected, Collecting, collect};
use tessera_scan::fleet::{Patient, Retiring, retire};
use tessera_scan::run::local;

use crate::fleet::{Fleet, failure};
use crate::tell::{count, print};
use crate::{hint, state_dir};

/// Runs that one call collects.
const COLLECTED_AT_ONCE: usize = 1_000;

/// Which ended runs are forgotten.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RetireArgs {
    /// The run
    #[arg(required_unless_present = "older_than", conflicts_with = "older_than")]
    pub(super) run: Option<RunId>,

    /// All runs of the fleet that ended so long ago: days, or a duration such as 12h
    #[arg(long, value_name = "DAYS", value_parser = parse_days)]
    pub(super) older_than: Option<Duration>,

    /// Also runs whose findings folder is gone; without this, retire refuses, since --findings may name the wrong folder
    #[arg(long, requires = "older_than")]
    pub(super) without_folder: bool,
}

/// Which leftovers are removed.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct CollectArgs {
    /// Runs begun longer ago (such as 90m, 12h, 7d): long enough that no submitter still prepares them
    #[arg(long, value_name = "DURATION", value_parser = parse_age)]
    pub(super) older_than: Duration,

    /// List the runs that would be removed, and remove nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl CollectArgs {
    fn created_before(&self) -> LogicalTime {
        before(wall_clock(), self.older_than)
    }
}

fn before(now: LogicalTime, age: Duration) -> LogicalTime {
    LogicalTime::new(now.get().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
}

/// Forgets ended runs of a fleet with their findings, the folder first.
pub(super) fn retire_fleet(
    backend: &mut impl RunManagement,
    tenant: TenantId,
    fleet: &Fleet,
    args: &RetireArgs,
) -> Result<(), String> {
    let age = args.older_than.ok_or_else(|| {
        let retire = hint::command(&["runs", "retire", "--older-than", "30"], &fleet.flags);
        format!("a fleet forgets runs by age: {retire} forgets those that ended a month ago")
    })?;
    let retiring = Retiring {
        coordinator: fleet.name(),
        tenant,
        findings: fleet.findings()?.to_path_buf(),
        ended_until: before(wall_clock(), age),
        without_folder: args.without_folder,
    };
    let retired = retire(&retiring, backend).map_err(|error| match error {
        ScanError::FolderRefused(refused) => format!(
            "{refused}. Nothing was retired. If the folder is lost for good, --without-folder forgets the run all the same"
        ),
        error => error.to_string(),
    })?;
    print(format!("{} forgotten\n", count(retired.len() as u64, "run")))
}

/// Removes runs of a fleet that never got their shards, and folders that no run names.
pub(super) fn collect_fleet(
    backend: &mut Patient<'_, EtcdCoordinator>,
    tenant: TenantId,
    fleet: &Fleet,
    args: &CollectArgs,
) -> Result<(), String> {
    // Asked for before anything is removed.
    let findings = fleet.findings()?.to_path_buf();
    let created_before = args.created_before();
    let runs = stale_runs(backend, created_before, args.dry_run)?;
    let mut lines: Vec<String> = runs.iter().map(|(of, run)| line_of(tenant, *of, *run, args.dry_run)).collect();
    let dry_run = args.dry_run;
    let collecting = Collecting { coordinator: fleet.name(), tenant, findings, created_before, dry_run };
    match collect(&collecting, backend) {
        Ok(collected) => {
            lines.extend(told(&collected, dry_run));
            print(listed(&lines))
        }
        Err(error) => {
            // The runs are gone all the same.
            print(lines.concat())?;
            Err(error.to_string())
        }
    }
}

fn line_of(tenant: TenantId, of: TenantId, run: RunId, dry_run: bool) -> String {
    let whose = if of == tenant { String::new() } else { format!(" of tenant {of}") };
    format!("run {run}{whose} never got its shards: {}\n", removed(dry_run))
}

/// Stale runs of all tenants: removed, or only found.
fn stale_runs(
    backend: &mut Patient<'_, EtcdCoordinator>,
    created_before: LogicalTime,
    dry_run: bool,
) -> Result<Vec<(TenantId, RunId)>, String> {
    let (mut all, mut some) = (Vec::new(), Vec::new());
    loop {
        backend
            .ask(|etcd| {
                let coordinator = &etcd.backend;
                if dry_run {
                    let found = coordinator.stale_initializing_runs_into(created_before, COLLECTED_AT_ONCE, &mut some);
                    etcd.executor.block_on(found)
                } else {
                    let gone =
                        coordinator.gc_stale_initializing_runs_into(created_before, COLLECTED_AT_ONCE, &mut some);
                    etcd.executor.block_on(gone)
                }
            })
            .map_err(failure)?;
        let is_last = dry_run || some.len() < COLLECTED_AT_ONCE;
        all.append(&mut some);
        if is_last {
            return Ok(all);
        }
    }
}

/// Removes leftovers of scans on this machine that never began.
pub(super) fn collect_local(state: Option<&std::path::Path>, args: &CollectArgs) -> Result<(), String> {
    let dir = state_dir::of(state)?;
    let collected = local::collect(&dir, args.created_before(), args.dry_run).map_err(|error| error.to_string())?;
    print(listed(&told(&collected, args.dry_run)))
}

/// A line for each folder.
fn told(collected: &Collected, dry_run: bool) -> Vec<String> {
    let removed =
        collected.removed.iter().map(|path| format!("{}: no run names it: {}\n", path.display(), removed(dry_run)));
    let kept = collected.kept.iter();
    let kept = kept.map(|path| format!("{}: no run names it, but it holds findings: kept\n", path.display()));
    removed.chain(kept).collect()
}

fn listed(lines: &[String]) -> String {
    if lines.is_empty() { "there is nothing to collect\n".into() } else { lines.concat() }
}

fn removed(dry_run: bool) -> &'static str {
    if dry_run { "would be removed" } else { "removed" }
}

/// An age in days where it has no unit.
fn parse_days(text: &str) -> Result<Duration, String> {
    let has_unit = text.ends_with(|char: char| char.is_ascii_alphabetic());
    parse_age(&if has_unit { text.into() } else { format!("{text}d") }).map_err(|_| {
        format!("{text:?} is no age; write a number of days, or one with s, m, h or d after it, such as 12h")
    })
}

fn parse_age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write a number with s, m, h or d after it, such as 12h");
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_with_their_unit() {
        let seconds = |text| parse_age(text).map(|age| age.as_secs());
        assert_eq!((seconds("90s"), seconds("10m"), seconds("2h")), (Ok(90), Ok(600), Ok(7_200)));
        assert_eq!((seconds("7d"), seconds("0s")), (Ok(604_800), Ok(0)));
        for wrong in ["", "10", "d", "1w", "-1s", "99999999999999999d"] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
        let seconds = |text| parse_days(text).map(|age| age.as_secs());
        assert_eq!((seconds("30"), seconds("30d"), seconds("12h")), (Ok(2_592_000), Ok(2_592_000), Ok(43_200)));
        for wrong in ["", "d", "-1", "1w", "1.5", "99999999999999999"] {
            assert!(parse_days(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_before_the_beginning_is_the_beginning() {
        let now = LogicalTime::new(5_000);
        assert_eq!(before(now, Duration::from_secs(2)), LogicalTime::new(3_000));
        assert_eq!(before(now, Duration::from_secs(9)), LogicalTime::new(0));
    }
}
