//! `tessera worker`: take part in a fleet's runs until told to stop.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use tessera_scan::clock::calendar::utc;
use tessera_scan::clock::wall_clock;
use tessera_scan::fleet::state::ServingState;
use tessera_scan::fleet::{Serving, serve};
use tessera_scan::report::human::bytes;
use tessera_scan::sweep::worker::WorkerProgress;

use super::scan::jobs;
use crate::tell::{count, shown};
use crate::worker_http::{Served, count_panics, findings_problem, listen};
use crate::{fleet, signals};

/// Take part in the runs of a fleet until told to stop
///
/// Every thread claims shards of any run of the tenant, searches them, and writes its findings to a file of its own in the
/// folder for findings. On SIGTERM or Ctrl-C shards are handed back at once, and other workers go on from their cursors.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera worker --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans
  tessera worker --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans --until-done -j 4
  tessera worker --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans --http 127.0.0.1:9090 --log json --name rack3-b

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

    /// Serve metrics for Prometheus at http://ADDR/metrics, and /health and /ready
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,

    /// How logs and metrics name this worker; the host's name and the process id by default
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// How to write what the worker has to say, line by line, to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log: LogFormat,

    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// What the worker has to say.
struct Log {
    format: LogFormat,
    name: String,
    is_quiet: bool,
}

impl Log {
    fn info(&self, text: &str) {
        if !self.is_quiet {
            self.write("info", text);
        }
    }

    fn write(&self, level: &str, text: &str) {
        let text = shown(text).to_string();
        match (self.format, level) {
            (LogFormat::Text, "info") => tell!("{text}"),
            (LogFormat::Text, level) => tell!("{level}: {text}"),
            (LogFormat::Json, level) => {
                let time = utc(wall_clock());
                tell!("{}", json!({"time": time, "level": level, "worker": self.name, "message": text}));
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let name = args.name.clone().unwrap_or_else(default_name);
    let log = Log { format: args.log, name, is_quiet: args.quiet };
    match work(args, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.write("error", &error);
            ExitCode::from(2)
        }
    }
}

/// Tells workers of a fleet apart, and one that was started again from the one before.
fn default_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

fn work(args: &Args, log: &Log) -> Result<(), String> {
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
    let state = Arc::new(ServingState::default());
    count_panics();
    if let Some(problem) = findings_problem(&serving.findings) {
        log.write("warning", &problem);
    }
    if let Some(at) = args.http {
        let (name, findings) = (log.name.clone(), serving.findings.clone());
        let served = Served { name, state: Arc::clone(&state), findings, threads, started: Instant::now() };
        let address = listen(at, served)?;
        log.info(&format!("metrics at http://{address}/metrics, and /health and /ready"));
    }
    log.info(&welcome(threads, &args.fleet.tenant));
    let timed = fleet::TimedFleet { fleet: &fleet, state: Arc::clone(&state) };
    let end = serve(&serving, &timed, &stop, &state, &|text| log.write("warning", text));
    log.info(&searched(&state.progress));
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
