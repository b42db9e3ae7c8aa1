//! `tessera shards RUN`: where the parts of a run stand, and what keeps them.

use std::path::PathBuf;
use std::process::ExitCode;

use tessera_contracts::{OpId, RunId, ShardId, ShardKey, WorkerId};
use tessera_coordination::RunManagement;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardSummary};
use tessera_scan::local;
use tessera_scan::run::{for_each_shard, local_tenant, now, random_u64};

use super::rules::print;
use super::runs::existing;
use crate::state_dir;

/// Show the shards of a run as a table and as a bar, and act on them
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera shards 00c0ffee00c0ffee
  tessera shards 00c0ffee00c0ffee --explain                    why is nothing claimable?
  tessera shards 00c0ffee00c0ffee --history 0000000000000001   who held it, when, and why it moved
  tessera shards 00c0ffee00c0ffee --unpark 0000000000000001    try a parked one again")]
pub(crate) struct Args {
    /// The run
    run: RunId,

    /// Where runs are kept
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Tell what stands between a worker and a shard
    #[arg(long)]
    explain: bool,

    /// Tell who held a shard
    #[arg(long, value_name = "SHARD")]
    history: Option<ShardId>,

    /// Revive a parked shard
    #[arg(long, value_name = "SHARD")]
    unpark: Option<ShardId>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match act(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn act(args: &Args) -> Result<(), String> {
    let dir = state_dir::of(args.state_dir.as_deref())?;
    let mut backend = local::open(&existing(&dir, args.run)?).map_err(|error| error.to_string())?;
    let (tenant, run) = (local_tenant(), args.run);
    if args.explain {
        let explained =
            backend.explain_claim(now(), tenant, run, WorkerId::new(1)).map_err(|error| error.to_string())?;
        return print(&format!("{explained}\n"));
    }
    if let Some(shard) = args.history {
        let record = backend.get_shard(tenant, ShardKey::new(run, shard)).map_err(|error| error.to_string())?;
        let mut text = String::new();
        for held in record.state.history.iter() {
            text.push_str(&format!(
                "fence {:>4}  worker {}  from {}  {}\n",
                held.fence, held.worker, held.since, held.reason
            ));
        }
        return print(&text);
    }
    if let Some(shard) = args.unpark {
        let key = ShardKey::new(run, shard);
        let record = backend.get_shard(tenant, key).map_err(|error| error.to_string())?;
        let fence = record.state.head.fence;
        backend
            .unpark_shard(now(), tenant, key, fence, OpId::new(random_u64()))
            .map_err(|error| format!("cannot unpark shard {shard}: {error}"))?;
        return print(&format!("shard {shard} is open again; run the same scan to go on\n"));
    }
    let mut shards: Vec<ShardSummary> = Vec::new();
    for_each_shard(&mut backend, tenant, run, &ShardFilter::all(), |_, shard| {
        shards.push(shard.clone());
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    print(&table(shards))
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
    let rest = tessera_scan::key::split(key).map_or(key, |(_, rest)| rest);
    let path = tessera_scan::key::display_path(rest);
    match String::from_utf8(path) {
        Ok(path) if !path.is_empty() && !path.chars().any(char::is_control) && !path.starts_with('/') => path,
        _ => rest.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
