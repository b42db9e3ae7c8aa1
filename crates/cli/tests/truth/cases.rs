//! Seeded random cases.
//!
//! Every run draws a fresh seed and prints it. `TESSERA_SEED=N` replays it, `TESSERA_CASE=N` replays one case of it, and
//! `TESSERA_CASES=N` sets the number of cases; `TESSERA_PROGRAM` names another build of the program. The folder of a case that fails is kept, with the commands that were run in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::random::{Random, mixed};

/// The verdict of a case: `Ok`, or the difference from the truth.
pub(crate) type Outcome = Result<(), String>;

/// Failing cases that are described in full; further ones are counted.
const DESCRIBED_MAX: usize = 5;

/// One case.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) number: u64,
    pub(crate) random: Random,
    dir: PathBuf,
}

impl Case {
    /// An empty folder of this case.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The folder in which everything of this case lies.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, and is {text:?}")))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    mixed(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 16
}

/// Runs so many cases, unless the environment asks for another number, and fails if one of them does.
pub(crate) fn run(default: u64, body: impl Fn(&mut Case) -> Outcome) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let seed = number("TESSERA_SEED").unwrap_or_else(fresh_seed);
    let numbers = match number("TESSERA_CASE") {
        Some(one) => one..one + 1,
        None => 0..number("TESSERA_CASES").unwrap_or(default),
    };
    let (count, mut failed, mut described) = (numbers.end - numbers.start, Vec::new(), String::new());
    let replay = |case: u64| format!("TESSERA_SEED={seed} TESSERA_CASE={case} cargo test -p tessera-cli {test}");
    for number in numbers {
        let dir = tempfile::Builder::new().prefix("truth-").tempdir().unwrap();
        let name = test.bytes().fold(seed, |hash, byte| mixed(hash ^ u64::from(byte)));
        let mut case =
            Case { number, random: Random::new(mixed(name ^ mixed(number))), dir: dir.path().canonicalize().unwrap() };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut case)));
        let problem = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(problem)) => problem,
            Err(panic) => message_of(panic.as_ref()),
        };
        failed.push(number);
        if failed.len() <= DESCRIBED_MAX {
            let kept = dir.keep();
            described += &format!("\ncase {number}, kept in {}\n  {}\n{problem}\n", kept.display(), replay(number));
        }
    }
    println!("{test}: {count} cases, seed {seed}, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {count} cases with seed {seed} failed: {failed:?}\n{described}", failed.len());
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a message"))
}
