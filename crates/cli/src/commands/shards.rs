//! `tessera shards RUN`: the progress of a run's shards, and the reasons why one waits.

use std::path::PathBuf;
use std::process::ExitCode;

use tessera_contracts::{RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::RunManagement;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardSummary};
use tessera_scan::clock::calendar::utc;
use tessera_scan::clock::wall_clock;
use tessera_scan::op_ids::OpIds;
use tessera_scan::run::conclude::for_each_shard;

use super::runs::{known, open_local};
use crate::fleet::failure;
use crate::tell::{print, shown};
use crate::{fleet, hint, signals, state_dir};

/// Show the shards of a run as a table and as a bar, and act on them
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "EXAMPLES
  tessera shards 00c0ffee00c0ffee
  tessera shards explain 00c0ffee00c0ffee                    why is nothing claimable?
  tessera shards history 00c0ffee00c0ffee 0000000000000001   who held it, when, and why it moved
  tessera shards unpark 00c0ffee00c0ffee 0000000000000001    try a parked one again"
)]
pub(crate) struct Args {
    /// The run
    #[arg(required = true)]
    run: Option<RunId>,

    #[command(flatten)]
    place: Place,

    #[command(subcommand)]
    command: Option<Command>,
}

/// Where the run is.
#[derive(Debug, Clone, clap::Args)]
struct Place {
    /// Where runs of this machine are kept
    #[arg(long, value_name = "DIR", conflicts_with = "coordinator", global = true)]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    fleet: fleet::FleetArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Tell why no worker gets a shard
    Explain {
        /// The run
        run: RunId,
    },
    /// Tell which workers held a shard, when, and why it moved
    History {
        /// The run
        run: RunId,
        /// The shard
        shard: ShardId,
    },
    /// Revive a parked shard
    Unpark {
        /// The run
        run: RunId,
        /// The shard
        shard: ShardId,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match act(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {}", shown(&error));
            ExitCode::from(2)
        }
    }
}

fn act(args: &Args) -> Result<(), String> {
    let run = match (&args.command, args.run) {
        (Some(Command::Explain { run } | Command::History { run, .. } | Command::Unpark { run, .. }), _) => *run,
        (None, Some(run)) => run,
        (None, None) => {
            let mut place = hint::path_flag("--state-dir", args.place.state_dir.as_deref());
            place.extend(args.place.fleet.flags());
            return Err(format!("name the run; {} lists them", hint::command(&["runs"], &place)));
        }
    };
    let tenant = args.place.fleet.tenant();
    if let Some(fleet) = args.place.fleet.fleet()? {
        let stop = signals::stop_flag()?;
        let mut backend = fleet.patient(&stop)?;
        known(&mut backend, tenant, run, &fleet)?;
        return act_on(&mut backend, tenant, run, args.command.as_ref(), "the fleet's workers go on with it");
    }
    let dir = state_dir::of(args.place.state_dir.as_deref())?;
    let mut held = open_local(&dir, run, args.place.state_dir.as_deref())?;
    act_on(&mut held.backend, tenant, run, args.command.as_ref(), "run the same scan to go on")
}

fn act_on(
    backend: &mut impl RunManagement,
    tenant: TenantId,
    run: RunId,
    command: Option<&Command>,
    goes_on: &str,
) -> Result<(), String> {
    match command {
        None => {
            let mut shards: Vec<ShardSummary> = Vec::new();
            for_each_shard(backend, tenant, run, &ShardFilter::all(), |_, shard| {
                shards.push(shard.clone());
                Ok(())
            })
            .map_err(|error| error.to_string())?;
            print(table(shards))
        }
        Some(Command::Explain { .. }) => {
            let explained = backend.explain_claim(wall_clock(), tenant, run, WorkerId::new(1));
            print(format!("{}\n", explained.map_err(failure)?.words(utc)))
        }
        Some(Command::History { shard, .. }) => {
            let key = ShardKey::new(run, *shard);
            let record = backend.get_shard(tenant, key).map_err(failure)?;
            let mut text = String::new();
            for held in record.state.history.iter() {
                text.push_str(&format!(
                    "fence {:>4}  worker {}  from {}  {}\n",
                    held.fence,
                    held.worker,
                    utc(held.since),
                    held.reason
                ));
            }
            print(&text)
        }
        Some(Command::Unpark { shard, .. }) => {
            let key = ShardKey::new(run, *shard);
            let seen = backend.get_shard(tenant, key).map_err(failure)?.epoch();
            backend
                .unpark_shard(wall_clock(), tenant, key, seen, OpIds::random().next_id())
                .map_err(|error| format!("cannot unpark shard {shard}: {}", failure(error)))?;
            print(format!("shard {shard} is open again; {goes_on}\n"))
        }
    }
}

fn table(mut shards: Vec<ShardSummary>) -> String {
    shards.sort_by(|a, b| a.start.expose().cmp(&b.start.expose()));
    let bar: String = shards.iter().filter(|shard| shard.status != ShardStatus::Split).map(mark).collect();
    let mut text = format!("[{bar}]  # done  > begun  . waiting  ! parked\n");
    text.push_str("shard             status  fence  owner             progress\n");
    for shard in &shards {
        let owner = shard.lease.map_or_else(|| "-".repeat(16), |lease| lease.owner.to_string());
        let progress = match (shard.park, shard.last_key.expose()) {
            (Some(park), _) => park.reason.to_string(),
            (None, Some(key)) => format!("up to {}", shown_key(key)),
            (None, None) => "nothing yet".into(),
        };
        text.push_str(&format!(
            "{}  {:<6}  {:>5}  {owner}  {progress}\n",
            shard.shard,
            shard.status.as_str(),
            shard.fence.get()
        ));
    }
    text
}

fn mark(shard: &ShardSummary) -> char {
    match (shard.status, shard.last_key.expose()) {
        (ShardStatus::Done | ShardStatus::Split, _) => '#',
        (ShardStatus::Parked, _) => '!',
        (ShardStatus::Active, Some(_)) => '>',
        (ShardStatus::Active, None) => '.',
    }
}

/// A key for people: the path in it, or hex if it is none.
fn shown_key(key: &[u8]) -> String {
    let rest = tessera_scan::plan::key::split(key).map_or(key, |(_, rest)| rest);
    let path = tessera_scan::plan::key::display_path(rest);
    match String::from_utf8(path) {
        Ok(path) if !path.is_empty() && !path.chars().any(char::is_control) && !path.starts_with('/') => path,
        _ => rest.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
