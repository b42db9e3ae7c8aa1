//! The DHT, by the thousand: the lane state machine that ships, in a virtual network.

#[cfg(test)]
mod broken_bounds;
mod checkers;
mod crypto;
mod measure;
mod outsider;
mod report;
mod scenario;
mod sybil;
#[cfg(test)]
mod tests;
mod world;

pub(crate) use crypto::SimCrypto;
pub(crate) use scenario::node_config;

use std::process::ExitCode;

use clap::ValueEnum;

/// Which story to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// A network at rest: lookups of random nodes for random records.
    Steady,
    /// Thirty per cent of the nodes are replaced every minute.
    Churn,
    /// Three islands, and healing.
    Partition,
    /// Every node stops and starts again from its log.
    Restart,
    /// Hostile nodes, one in five, crowd around targets; with and without defences.
    Sybil,
    /// The same attack at two shares of hostile nodes and with three seeds.
    Sybils,
    /// Uniform and targeted attackers that steer lookups: made-up contacts, late lies, silence.
    Minority,
    /// Some of these attacks with each defence of lookups switched off by itself
    Matrix,
    /// One node is flooded with new identities, forgeries and replays.
    Flood,
    /// Windows wiped, strangers without end, forged good-byes, full stores, relays taken; with and without the defence against each.
    Admission,
    /// Many lanes per node: balance, misrouting, lane death, changes of their number.
    Lanes,
    /// One node announces a hundred thousand ids.
    Sweep,
    /// Slow and stalling nodes, relays, blind lookups, stems, chunked values.
    Odd,
}

/// A simulation of the DHT.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many nodes; at least 40.
    #[arg(long, default_value_t = 1000, value_parser = enough_nodes)]
    nodes: usize,
    /// What happens to them.
    #[arg(long, value_enum, default_value = "steady")]
    scenario: Scenario,
    /// Where all randomness comes from; drawn from the clock if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Compute every agreement and signature for real; slow.
    #[arg(long)]
    real_crypto: bool,
    /// Share of datagrams that the network loses, from 0 to 1; one in a hundred if absent.
    #[arg(long, value_parser = share)]
    loss: Option<f64>,
    /// Share of hostile nodes in the scenario `sybil`, from 0 to 0.5; one in five if absent.
    #[arg(long, value_parser = minority, conflicts_with = "report")]
    hostile: Option<f64>,
    /// Run all scenarios at their usual sizes and write the table to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "loss")]
    report: Option<std::path::PathBuf>,
    /// With --report: ten thousand nodes besides; twice as long.
    #[arg(long, requires = "report")]
    full: bool,
    /// No progress lines.
    #[arg(long)]
    quiet: bool,
}

/// The smallest network accepted: twice as many nodes as hold a record. Every scenario runs to its end in it.
const NODES_MIN: usize = 40;

fn enough_nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(nodes) if nodes >= NODES_MIN => Ok(nodes),
        Ok(_) => Err(format!("too few for any scenario; give at least {NODES_MIN}")),
        Err(error) => Err(format!("not a number of nodes: {error}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("not a number from 0 to 1".into()),
    }
}

fn minority(text: &str) -> Result<f64, String> {
    share(text).ok().filter(|share| *share <= 0.5).ok_or_else(|| "not a number from 0 to 0.5".into())
}

/// Runs one, and says by its exit code whether every property held.
pub fn run(args: &Args) -> ExitCode {
    let seed = args.seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.as_nanos() as u64 % 1_000_000)
    });
    if let Some(path) = &args.report {
        return report::write(path, seed, args.quiet, args.full);
    }
    let Args { nodes, real_crypto, loss, quiet, .. } = *args;
    let hostile = args.hostile.unwrap_or(scenario::HOSTILE);
    let setup = scenario::Setup { nodes, seed, real_crypto, loss, hostile, quiet };
    let findings = scenario::run(args.scenario, &setup);
    print!("{}", findings.table());
    println!("replay: {}", findings.replay);
    if findings.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
