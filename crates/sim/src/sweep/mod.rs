//! The sweep that ships, under attack: the machine, its driver, findings files, the merge and the receipt.
//!
//! A world has targets with planted secrets, machines with workers, a disk that they share and the in-memory coordinator.
//! Workers die between any two actions, alone or with their machine; they stop for longer than their lease lasts and then
//! write on; they see targets that are empty, gone, flaky, away for a page or different; owners are asked to split and to yield at any point;
//! clocks differ; calls fail before or after they took effect; the disk tears, forgets and refuses ([`disk`]). When the
//! faults stop, the report is held against the planted secrets ([`checker`]). A small calm world instead meets one trouble, before an
//! action of choice ([`config::At`]).
//!
//! Everything follows from one seed. Reading content is not simulated: a machine knows at once the content of an item.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;

pub mod broken;
pub mod checker;
pub mod config;
pub mod disk;
mod faults;
mod site;
pub mod truth;
mod world;

pub use world::{Report, simulate};

use self::broken::Defect;
use self::checker::Violation;
use self::config::{At, Config, KINDS};
use crate::coordination::{fresh_seed, world_seeds};

/// What `tessera-sim sweep` is asked to do.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// The seed of the first world; a fresh one is drawn and printed if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulate at least this many items.
    #[arg(long, default_value_t = 1_000_000)]
    items: u64,
    /// Actions of each world before its faults stop.
    #[arg(long, default_value_t = 5_000)]
    world_steps: u64,
    /// Switch off one kind of trouble; can be repeated.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    without: Vec<String>,
    /// Go on for so many seconds and ignore --items.
    #[arg(long)]
    seconds: Option<u64>,
    /// Break a rule on purpose; see docs/MUTANTS.md.
    #[arg(long, value_name = "DEFECT", default_value = "none")]
    defect: Defect,
    /// Simulate one world only: the one of --seed.
    #[arg(long)]
    one: bool,
    /// Small worlds, whose workers reach a safe point every few items.
    #[arg(long)]
    small: bool,
    /// One power cut, split or pause just before this action of each world, as in 17:split.
    #[arg(long, value_name = "ACTION:TROUBLE")]
    at: Option<At>,
    /// End with 1 if fewer items are simulated in a second.
    #[arg(long, value_name = "ITEMS", default_value_t = 0.0)]
    rate_min: f64,
}

/// Runs worlds until enough was simulated or a property is broken.
pub fn run(args: &Args) -> ExitCode {
    let first = args.seed.unwrap_or_else(fresh_seed);
    println!("sweep: seed {first}");
    let start = Instant::now();
    let deadline = args.seconds.map(|seconds| start + Duration::from_secs(seconds));
    let (mut sum, mut worlds) = (Report::default(), 0_u64);
    for seed in world_seeds(first) {
        let mut config = Config::new(seed, args.world_steps);
        config.without.clone_from(&args.without);
        (config.is_small, config.at) = (args.small, args.at);
        match simulate(&config, args.defect) {
            Ok(report) => sum = sum.plus(&report),
            Err(violation) => {
                println!("found after {:.1} s and {} items", start.elapsed().as_secs_f64(), sum.items);
                explain(args, &config, &violation);
                return ExitCode::FAILURE;
            }
        }
        worlds += 1;
        if args.one || deadline.map_or(sum.items >= args.items, |deadline| Instant::now() >= deadline) {
            break;
        }
    }
    let rate = sum.items as f64 / start.elapsed().as_secs_f64();
    println!(
        "{worlds} worlds, {} items, {} actions, {} deaths, {} splits, {} segments done again, no violation ({rate:.0} items/s)",
        sum.items, sum.actions, sum.deaths, sum.splits, sum.superseded
    );
    if rate < args.rate_min {
        println!("too slow: {rate:.0} items/s, and {:.0} are demanded", args.rate_min);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The smallest world found in which the same property still breaks: fewer kinds of trouble, fewer actions.
pub fn shrink(config: &Config, violation: &Violation, defect: Defect) -> (Config, Violation) {
    let (mut least, mut broken) = (config.clone(), violation.clone());
    let attempt = |candidate: Config, least: &mut Config, broken: &mut Violation| match simulate(&candidate, defect) {
        Err(again) if again.property == broken.property => (*least, *broken) = (candidate, again),
        _ => {}
    };
    for kind in KINDS.iter().filter(|kind| config.has(kind)) {
        attempt(least.without(kind), &mut least, &mut broken);
    }
    for _ in 0..24 {
        let fewer = Config { steps: least.steps * 3 / 4, ..least.clone() };
        attempt(fewer, &mut least, &mut broken);
    }
    (least, broken)
}

fn explain(args: &Args, config: &Config, violation: &Violation) {
    let (least, broken) = shrink(config, violation, args.defect);
    println!("\n{} is broken: {}", broken.property, broken.what);
    let without: String = least.without.iter().map(|kind| format!(" --without {kind}")).collect();
    let defect = match args.defect {
        Defect::None => String::new(),
        defect => format!(" --defect {}", defect.name()),
    };
    let small = if least.is_small { " --small" } else { "" };
    let at = least.at.map_or_else(String::new, |at| format!(" --at {at}"));
    println!(
        "again: cargo run --release -p tessera-sim -- sweep --one --seed {} --world-steps {}{small}{at}{defect}{without}",
        least.seed, least.steps
    );
}
