//! The DHT's lane as `dht-node` runs it, in virtual time: [`DhtLane`] on lanes, rings, logs and hand-overs that ship.
//!
//! [`dht`](crate::dht) simulates the pure core by the thousand; here are a few nodes, each as a whole: several lanes that forward to one
//! another, logs on a disk that can lose power, lanes that are born, die, hang and retire, slots that are lent, and a number of
//! lanes that changes while records are written and read. When the trouble stops, each acknowledged value must be found, from
//! everywhere, and each change must have come to its end.
//!
//! [`DhtLane`]: tessera_dht_node::simulated::DhtLane

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;

pub mod broken;
mod world;

pub use world::{Config, KINDS, Report, Violation, simulate};

use self::broken::Defect;
use crate::coordination::{fresh_seed, world_seeds};

/// What `tessera-sim node` is asked to do.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// The seed of the first world; a fresh one is drawn and printed if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// How many worlds.
    #[arg(long, default_value_t = 10)]
    worlds: u64,
    /// Steps of a tenth of a second before the trouble of a world stops.
    #[arg(long, default_value_t = 300)]
    world_steps: u64,
    /// Switch off one kind of trouble; can be repeated.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    without: Vec<String>,
    /// Go on for so many seconds and ignore --worlds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Simulate one world only: the one of --seed.
    #[arg(long)]
    one: bool,
    /// Break a rule on purpose; see docs/MUTANTS.md.
    #[arg(long, value_name = "DEFECT", default_value = "none")]
    defect: Defect,
}

/// Runs worlds until enough were simulated or a property is broken.
pub fn run(args: &Args) -> ExitCode {
    let first = args.seed.unwrap_or_else(fresh_seed);
    println!("node: seed {first}");
    let start = Instant::now();
    let deadline = args.seconds.map(|seconds| start + Duration::from_secs(seconds));
    let (mut sum, mut worlds) = (Report::default(), 0);
    for seed in world_seeds(first) {
        let config = Config { seed, steps: args.world_steps, without: args.without.clone() };
        match simulate(&config, args.defect) {
            Ok(report) => sum = sum.plus(&report),
            Err(violation) => {
                println!("\n{} is broken: {}", violation.property, violation.what);
                let without: String = config.without.iter().map(|kind| format!(" --without {kind}")).collect();
                let defect = match clap::ValueEnum::to_possible_value(&args.defect) {
                    Some(value) if args.defect != Defect::None => format!(" --defect {}", value.get_name()),
                    _ => String::new(),
                };
                println!(
                    "again: cargo run --release -p tessera-sim -- node --one --seed {seed} --world-steps {}{defect}{without}",
                    config.steps
                );
                return ExitCode::FAILURE;
            }
        }
        worlds += 1;
        if args.one || deadline.map_or(worlds >= args.worlds, |deadline| Instant::now() >= deadline) {
            break;
        }
    }
    println!(
        "{worlds} worlds, {} values stored, {} lookups, {} lanes born, {} died, {} changes of lanes, {} power failures, no violation",
        sum.stored, sum.lookups, sum.births, sum.deaths, sum.changes, sum.power_failures
    );
    ExitCode::SUCCESS
}
