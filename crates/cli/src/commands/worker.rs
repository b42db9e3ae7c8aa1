//! `tessera worker`: take part in a fleet's runs until told to stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_scan::fleet::{Serving, serve};
use tessera_scan::report::human::bytes;
use tessera_scan::sweep::worker::WorkerProgress;

use super::scan::jobs;
use crate::tell::{count, shown};
use crate::{fleet, signals};

/// Take part in the runs of a fleet until told to stop
///
/// Every thread claims shards of any run of the tenant, searches them, and writes its findings to a file of its own in the
/// folder for findings. On SIGTERM or Ctrl-C shards are handed back at once, and other workers go on from their cursors.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera worker --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans
  tessera worker --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans --until-done -j 4

EXIT CODES
  0  told to stop, or nothing is left with --until-done
  2  cannot go on: the coordinator is away for too long, or findings cannot be written")]
pub(crate) struct Args {
    #[command(flatten)]
    fleet: fleet::FleetArgs,

    /// Worker threads; one a core by default
    #[arg(short, long, default_value_t = 0, hide_default_value = true, value_name = "N", value_parser = jobs())]
    jobs: usize,

    /// End when no run has anything left, instead of waiting for the next
    #[arg(long)]
    until_done: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match work(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {}", shown(&error));
            ExitCode::from(2)
        }
    }
}

fn work(args: &Args) -> Result<(), String> {
    let fleet = args.fleet.fleet()?.ok_or("name the fleet with --coordinator etcd://HOST:2379/NAMESPACE")?;
    let threads = match args.jobs {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        jobs => jobs,
    };
    let serving = Serving {
        coordinator: fleet.name(),
        tenant: args.fleet.tenant(),
        findings: fleet.findings()?.to_path_buf(),
        threads,
        give_up_after: fleet.give_up_after,
        until_done: args.until_done,
    };
    let stop = signals::stop_flag()?;
    let progress = Arc::new(WorkerProgress::default());
    let say = |text: &str| {
        if !args.quiet {
            tell!("{text}");
        }
    };
    say(&welcome(threads, &args.fleet.tenant));
    let end = serve(&serving, &fleet, &stop, &progress, &|text| tell!("warning: {}", shown(text)));
    say(&searched(&progress));
    end.map_err(|error| error.to_string())
}

fn welcome(threads: usize, tenant: &str) -> String {
    let (workers, take, they) = (
        count(threads as u64, "worker"),
        if threads == 1 { "takes" } else { "take" },
        if threads == 1 { "it holds" } else { "they hold" },
    );
    format!("{workers} {take} part in the runs of {tenant}; SIGTERM hands back what {they}")
}

fn searched(progress: &WorkerProgress) -> String {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (items, shards) = (count(of(&progress.items), "item"), count(of(&progress.shards), "shard"));
    format!("searched {items}, {}, and finished {shards}", bytes(of(&progress.bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_told_as_many() {
        assert_eq!(welcome(1, "me"), "1 worker takes part in the runs of me; SIGTERM hands back what it holds");
        assert_eq!(welcome(2, "me"), "2 workers take part in the runs of me; SIGTERM hands back what they hold");
        let progress = WorkerProgress::default();
        assert_eq!(searched(&progress), "searched 0 items, 0 B, and finished 0 shards");
        for counter in [&progress.items, &progress.bytes, &progress.shards] {
            counter.store(1, Ordering::Relaxed);
        }
        assert_eq!(searched(&progress), "searched 1 item, 1 B, and finished 1 shard");
    }
}
