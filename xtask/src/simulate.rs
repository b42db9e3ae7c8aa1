//! A short simulation with a new seed.
//!
//! `crates/sim/short-runs.txt` has one run per line: the arguments of `tessera-sim`, with `{seed}` where the seed goes.
//! The seed is printed, so that a failure here can be had again anywhere.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command::{Run, each_of};
use crate::repo::Repo;
use crate::report::{Failure, Progress, Proof, StepResult};

const RUNS: &str = "crates/sim/short-runs.txt";

/// Whether there is something to simulate yet.
pub(crate) fn exists(repo: &Repo) -> bool {
    repo.root.join(RUNS).is_file()
}

pub(crate) fn run(repo: &Repo, progress: &Progress) -> StepResult {
    let seed = fresh_seed();
    let text = repo.read(RUNS)?;
    let runs = parse(&text, seed);
    if runs.is_empty() {
        return Err(format!("{RUNS} names no run: one line of arguments per run is expected").into());
    }
    let simulator = simulator(repo, progress)?;
    let numbered: Vec<_> = runs.iter().enumerate().collect();
    each_of(&numbered, |(n, run)| {
        Run::new(&simulator, format!("simulate-{n}")).args(*run).must(repo, progress).map_err(|mut failure| {
            failure.said = format!("seed {seed}: tessera-sim {}", run.join(" "));
            failure
        })
    })?;
    Ok(Proof::of(format!("seed {seed}: {} runs without a violation", runs.len())))
}

/// Builds the simulator and says where it is. Built with the workspace and with a test it is the tests' step's own build;
/// by itself its dependencies have fewer features, and all of them would be compiled once more.
pub(crate) fn simulator(repo: &Repo, progress: &Progress) -> Result<PathBuf, Failure> {
    let args = ["build", "--quiet", "--locked", "--workspace", "--bin", "tessera-sim", "--test", "command"];
    Run::cargo("simulator", &args).must(repo, progress)?;
    Ok(repo.target.join("debug").join(format!("tessera-sim{}", std::env::consts::EXE_SUFFIX)))
}

fn parse(text: &str, seed: u64) -> Vec<Vec<String>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().map(|word| word.replace("{seed}", &seed.to_string())).collect()).collect()
}

/// The clock and the process id, stirred; the only randomness here, and it is printed.
pub(crate) fn fresh_seed() -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_nanos() as u64).unwrap_or_default();
    let mut seed = nanos ^ (u64::from(std::process::id()) << 32);
    seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // Short enough to be typed again.
    (seed ^ (seed >> 31)) >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_run_and_gets_the_seed() {
        let runs = parse("# comment\n\ncoordination --seed {seed} --steps 10\ndht --seed={seed}\n", 7);
        assert_eq!(runs, [vec!["coordination", "--seed", "7", "--steps", "10"], vec!["dht", "--seed=7"]]);
    }
}
