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
use crate::tell::{clean, print, shown};
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
            let words = explained.map_err(failure)?.words(utc).to_string();
            print(words.lines().map(|line| legible(line) + "\n").collect::<String>())
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
                    legible(held.reason)
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
            (Some(park), _) => legible(park.reason),
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
    // The keys of a history are numbers of eight bytes, of which the first is zero; no path begins with a zero.
    match rest.first() {
        None | Some(0) => rest.iter().map(|byte| format!("{byte:02x}")).collect(),
        Some(_) => legible(String::from_utf8_lossy(&tessera_scan::plan::key::display_path(rest))),
    }
}

/// Words that may quote a scanned item: secrets in them are shortened, and nothing in them steers the terminal.
fn legible(words: impl std::fmt::Display) -> String {
    clean(shown(words).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_scan::plan::key::path_key;

    #[test]
    fn a_key_is_shown_as_a_path_without_secrets_and_marks_or_as_a_number() {
        let seed = &mut tessera_detect::template::Seed::new(1);
        let token = tessera_detect::template::expand("ghp_<<github 30>>", seed).unwrap();
        let path = |components: &[&str]| shown_key(&path_key(3, components.iter().map(|part| part.as_bytes())));
        assert_eq!(path(&["src", "main.rs"]), "src/main.rs");
        assert_eq!(path(&["src", &format!("zz-{token}")]), "src/zz-ghp_****");
        assert_eq!(path(&["a\u{202e}b", "\u{1b}[31m\n"]), "a\u{fffd}b/\u{fffd}[31m\u{fffd}");
        assert_eq!(shown_key(&[&path_key(3, [token.as_bytes()])[..], b"\xff"].concat()), "ghp_****\u{fffd}");
        let number = [&3_u32.to_be_bytes()[..], &258_u64.to_be_bytes()].concat();
        assert_eq!(shown_key(&number), "0000000000000102");
    }
}
