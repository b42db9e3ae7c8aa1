//! The coordination protocol under attack.
//!
//! A world has workers with clocks of their own, an operator, a network that loses, repeats, delays and reorders, and a
//! backend that ships. Everything that happens in it follows from one seed. After every call each checker looks at it; when
//! the faults stop, the run must settle.

use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::builder::PossibleValuesParser;
use clap::{Args as ClapArgs, ValueEnum};
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator};

pub mod broken;
pub mod call;
pub mod checkers;
pub mod config;
pub mod dice;
mod due;
pub mod etcd;
mod forged;
mod link;
pub mod local;
pub mod marks;
pub mod refusal;
mod sessions;
pub mod sink;
pub mod stage;
pub mod story;
pub mod trace;
pub mod vandal;
pub mod watch;
pub mod worker;
pub mod world;

use self::broken::{Broken, Rule};
use self::config::{Config, Level};
use self::dice::Dice;
use self::marks::Marks;
use self::sink::Sink;
use self::stage::{Deed, Stage, Violation};
use self::world::{Report, World};

/// How often the progress line is written anew.
const PROGRESS_PACE: Duration = Duration::from_millis(250);

/// What `tessera-sim coordination` is asked to do.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// The seed of the first world; a fresh one is drawn and printed if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulate at least this many steps.
    #[arg(long, default_value_t = 300_000)]
    steps: u64,
    /// Steps of each world before its faults stop.
    #[arg(long, default_value_t = 3_000)]
    world_steps: u64,
    /// How hostile: sunny, breezy, stormy or radioactive.
    #[arg(long, default_value_t = Level::Stormy)]
    level: Level,
    /// Let every seed draw which faults and operations are on.
    #[arg(long)]
    swarm: bool,
    /// Switch off one kind of fault or deed; can be repeated.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Config::all_kinds()))]
    without: Vec<String>,
    /// Go on for so many minutes and ignore --steps; 0 is one world.
    #[arg(long)]
    minutes: Option<u32>,
    /// Show the progress line even without a terminal.
    #[arg(long)]
    progress: bool,
    /// Break a rule on purpose (results of old fences are accepted), to see a violation found, shrunk and told.
    #[arg(long)]
    rehearse: bool,
    /// The backend under attack: memory, local on a disk that loses its power, or etcd over its simulated store.
    #[arg(long, default_value = "memory")]
    backend: BackendName,
    /// Simulate one world only: the one of --seed.
    #[arg(long)]
    one: bool,
    /// Write a violation that is found to this file, as a story of the conformance suite.
    #[arg(long, value_name = "FILE")]
    save_story: Option<PathBuf>,
    /// Write the steps of one small world to this file, for TLC to judge; see specs/coordination/README.md.
    #[arg(long, value_name = "FILE")]
    export_trace: Option<PathBuf>,
    /// Export a world around a coordinator that breaks this rule, and in which that shows; see docs/MUTANTS.md.
    #[arg(long, value_name = "RULE", requires = "export_trace", default_value = "none")]
    broken: Rule,
}

/// Which backend a world is built around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// The in-memory coordinator.
    Memory,
    /// The coordinator in one file, on a disk that loses its power.
    Local,
    /// The coordinator on etcd, over the simulated store, which fails in its own ways.
    Etcd,
}

impl BackendName {
    fn simulate(self, config: &Config, level: Level) -> Result<Report, Violation> {
        match self {
            Self::Memory => simulate(config),
            Self::Local => local::simulate(config, level),
            Self::Etcd => etcd::simulate(config, level),
        }
    }

    /// Plays a script on a fresh backend.
    fn play(self, config: &Config, level: Level, script: &[Deed]) -> Result<(), Violation> {
        match self {
            Self::Memory => stage(config).play(script),
            Self::Local => local::stage(config, level).play(script),
            Self::Etcd => etcd::stage(config, level).play(script),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Local => "local",
            Self::Etcd => "etcd",
        }
    }
}

/// Runs worlds until enough was simulated or a property is broken.
pub fn run(args: &Args) -> ExitCode {
    let first = args.seed.unwrap_or_else(fresh_seed);
    if let Some(path) = &args.export_trace {
        return export_trace(first, args.broken, path);
    }
    println!("coordination: seed {first}, level {}{}", args.level, if args.swarm { ", swarm" } else { "" });
    let start = Instant::now();
    let deadline = args.minutes.map(|minutes| start + Duration::from_secs(60 * u64::from(minutes)));
    let (mut steps, mut calls, mut worlds, mut marks) = (0, 0, 0_u64, Marks::default());
    let mut seeds = world_seeds(first);
    let shows_progress = args.progress || std::io::stderr().is_terminal();
    let mut last_shown = start;
    loop {
        let config = args.config(seeds.next().unwrap_or(first));
        match args.backend.simulate(&config, args.level) {
            Ok(report) => {
                steps += report.steps;
                calls += report.calls;
                marks.add(&report.marks);
            }
            Err(violation) => {
                explain(args, &config, &violation);
                return ExitCode::FAILURE;
            }
        }
        worlds += 1;
        let seconds = start.elapsed().as_secs_f64();
        let (rate, call_rate) = (steps as f64 / seconds, calls as f64 / seconds);
        let enough = args.one || deadline.map_or(steps >= args.steps, |deadline| Instant::now() >= deadline);
        if shows_progress && (enough || last_shown.elapsed() >= PROGRESS_PACE) {
            last_shown = Instant::now();
            eprint!("\r{worlds} worlds, {steps} steps, {rate:.0} steps/s, {calls} calls, {call_rate:.0} calls/s ");
            let _ = std::io::stderr().flush();
        }
        if enough {
            if shows_progress {
                eprintln!();
            }
            println!(
                "{worlds} worlds, {steps} steps, {calls} calls, no violation ({rate:.0} steps/s, {call_rate:.0} calls/s)"
            );
            let missing = marks.missing();
            if !missing.is_empty() {
                println!("never seen here: {}", missing.join("; "));
            }
            return ExitCode::SUCCESS;
        }
    }
}

/// Writes down one small world in the model's terms.
fn export_trace(seed: u64, rule: Rule, path: &Path) -> ExitCode {
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("Exported");
    let Some(seed) = telling_seed(seed, rule) else {
        eprintln!("{rule:?} does not show in {TELLING_WORLDS} small worlds from seed {seed}");
        return ExitCode::FAILURE;
    };
    let text = traced(seed, rule, name);
    match std::fs::write(path, text.module) {
        Ok(()) => {
            println!("coordination: seed {seed}, {} steps written to {}", text.steps, path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// How many small worlds are tried for one in which a broken rule shows.
const TELLING_WORLDS: u64 = 400;

/// The first seed from this one on in whose small world the broken rule is noticed by the checker that is there for it.
fn telling_seed(first: u64, rule: Rule) -> Option<u64> {
    let mut seeds = std::iter::once(first).chain((1..TELLING_WORLDS).map(|at| first.wrapping_add(at)));
    seeds.find(|seed| {
        let config = Config::modelled(*seed);
        let mut judges = checkers::all();
        judges.retain(|checker| checker.name() == rule.caught_by());
        let backend = Broken::new(coordinator(&config), rule);
        rule == Rule::None || World::watched_by(judges, config, backend, rule.sink()).run().is_err()
    })
}

/// A trace for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The TLA+ module.
    pub module: String,
    /// How many steps it has.
    pub steps: usize,
}

/// One small world around the in-memory coordinator, in the model's terms, as a module of this name. No checker looks: faults
/// are written down like the rest, and the model is to find them.
pub fn traced(seed: u64, rule: Rule, name: &str) -> Trace {
    let config = Config::modelled(seed);
    let backend = Broken::new(coordinator(&config), rule);
    let recorder = World::watched_by(Vec::new(), config, backend, rule.sink()).told();
    Trace { module: recorder.module(name), steps: recorder.len() }
}

impl Args {
    fn config(&self, seed: u64) -> Config {
        let mut config = Config::draw(seed, self.world_steps, self.level, self.swarm);
        config.rehearsal = self.rehearse;
        self.without.iter().fold(config, |config, kind| config.without(kind))
    }
}

/// One world around the in-memory coordinator.
pub fn simulate(config: &Config) -> Result<Report, Violation> {
    World::around(stage(config), config.clone()).run()
}

/// The stage of such a world.
pub fn stage(config: &Config) -> Stage<InMemoryCoordinator> {
    Stage::new(checkers::all(), config.clone(), coordinator(config), Sink::of(config))
}

/// The coordinator that a world's configuration asks for.
pub fn coordinator(config: &Config) -> InMemoryCoordinator {
    InMemoryCoordinator::new(runtime_config(config)).expect("a simulated configuration is legal")
}

fn runtime_config(config: &Config) -> CoordinatorRuntimeConfig {
    CoordinatorRuntimeConfig {
        claim_cooldown_interval: config.cooldown,
        clock_skew_allowance: config.skew_allowance,
        max_shards_per_tenant: config.shards_max,
        max_total_shards: config.shards_max,
        slab_capacity: 1 << 18,
        ..CoordinatorRuntimeConfig::default()
    }
}

/// The smallest world found in which the same property still breaks: fewer steps, fewer kinds of trouble.
pub fn shrink(
    config: &Config,
    violation: &Violation,
    mut simulate: impl FnMut(&Config) -> Result<Report, Violation>,
) -> (Config, Violation) {
    let (mut least, mut broken) = (config.clone(), violation.clone());
    let mut attempt = |candidate: Config, least: &mut Config, broken: &mut Violation| match simulate(&candidate) {
        Err(again) if again.property == broken.property => (*least, *broken) = (candidate, again),
        _ => {}
    };
    // The vandal first, which comes last in the list: a violation without it can be told as a story.
    for kind in config.kinds().into_iter().rev() {
        attempt(least.without(kind), &mut least, &mut broken);
    }
    for _ in 0..16 {
        let fewer = Config { steps: least.steps * 3 / 4, ..least.clone() };
        attempt(fewer, &mut least, &mut broken);
    }
    (least, broken)
}

fn explain(args: &Args, config: &Config, violation: &Violation) {
    let (least, broken) = shrink(config, violation, |config| args.backend.simulate(config, args.level));
    let broken = shorten(&broken, |script| args.backend.play(&least, args.level, script));
    println!("\n{} is broken: {}", broken.property, broken.what);
    println!("in the world with seed {}; the last calls of the {} deeds that do it:", least.seed, broken.script.len());
    for call in &broken.calls {
        println!("  {call}");
    }
    let swarm = if args.swarm { " --swarm" } else { "" };
    let rehearse = if args.rehearse { " --rehearse" } else { "" };
    let backend = args.backend.name();
    let without: String = least.without.iter().map(|kind| format!(" --without {kind}")).collect();
    println!(
        "again: cargo run --release -p tessera-sim -- coordination --one --seed {} --level {} --world-steps {} --backend {backend}{swarm}{rehearse}{without}",
        least.seed, args.level, least.steps
    );
    if let Some(path) = &args.save_story {
        let saved = story::of(&least, &broken).map_err(|failures| failures.to_string());
        match saved.and_then(|text| std::fs::write(path, text).map_err(|error| error.to_string())) {
            Ok(()) => println!("as a story: {}", path.display()),
            Err(problem) => println!("no story could be written to {}: {problem}", path.display()),
        }
    }
}

/// The same violation with the shortest script that was found for it; as it was, if playing its script does not break the
/// same property (then it needs more than the requests to the backend).
pub fn shorten(violation: &Violation, mut play: impl FnMut(&[Deed]) -> Result<(), Violation>) -> Violation {
    let property = violation.property;
    let mut still = |script: &[Deed]| play(script).err().filter(|again| again.property == property);
    let Some(mut broken) = still(&violation.script) else { return violation.clone() };
    story::shorten(&violation.script, |script| match still(script) {
        Some(again) => {
            broken = again;
            true
        }
        None => false,
    });
    broken
}

/// The worlds of a run: first the one of its seed, then others, which neighbouring seeds do not share.
pub(crate) fn world_seeds(first: u64) -> impl Iterator<Item = u64> {
    let mut dice = Dice::new(first);
    std::iter::once(first).chain(std::iter::repeat_with(move || dice.roll()))
}

/// The clock and the process id, stirred; printed, so that it can be had again.
pub(crate) fn fresh_seed() -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    Dice::new(nanos ^ (u64::from(std::process::id()) << 32)).roll() >> 24
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn neighbouring_seeds_share_no_world() {
        let worlds: Vec<u64> = (0..100).flat_map(|seed| world_seeds(seed).take(100)).collect();
        assert_eq!(worlds.iter().collect::<BTreeSet<_>>().len(), worlds.len());
        assert_eq!(world_seeds(7).next(), Some(7), "and the first is the one to be had again");
    }
}
