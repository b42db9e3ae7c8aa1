#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use tessera_coordination::backend::BlockOn;

mod answer;
mod backend;
mod command;
mod differential;
mod line;
mod parse;
mod story;
mod telling;
mod text;
mod watch;
mod world;

pub use backend::{AsyncBackendFactory, BackendConfig, BackendFactory, InMemory, Need};
pub use telling::told;

use backend::OnExecutor;
use parse::Story;
use story::{Outcome, STORIES};

/// Names the one seed to replay; decimal, or hex after `0x`.
pub const SEED_VARIABLE: &str = "TESSERA_CONFORMANCE_SEED";

/// Runs everything on a backend, with the default effort.
pub fn run_all<F: BackendFactory>(factory: F) -> Result<Report, Failures> {
    Suite::default().run(&factory)
}

/// Runs everything on an async backend, with the default effort. `executor` runs its futures.
pub fn run_all_async<F, X>(factory: F, executor: X) -> Result<Report, Failures>
where
    F: AsyncBackendFactory,
    X: BlockOn + Clone,
{
    Suite::default().run_async(factory, executor)
}

/// How much is to be tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suite {
    /// Seeds of random sequences. By default a few fixed ones and a fresh one; with [`SEED_VARIABLE`] set, only that.
    pub seeds: Vec<u64>,
    /// Commands in each random sequence.
    pub steps: usize,
}

impl Default for Suite {
    fn default() -> Self {
        let replayed = std::env::var(SEED_VARIABLE).ok().map(|text| {
            let number = match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => text.parse(),
            };
            number.unwrap_or_else(|_| panic!("{SEED_VARIABLE} is {text:?}; it must be a number such as 7 or 0x7f"))
        });
        let seeds = match replayed {
            Some(seed) => vec![seed],
            None => (1..=15).chain([RandomState::new().build_hasher().finish()]).collect(),
        };
        Self { seeds, steps: 400 }
    }
}

impl Suite {
    /// All stories and no random sequences: for a backend that is slow, or to begin with.
    pub const fn stories_only() -> Self {
        Self { seeds: Vec::new(), steps: 0 }
    }

    /// Runs the suite on backends that `factory` makes: every story on a fresh one, then every seed.
    pub fn run<F: BackendFactory>(&self, factory: &F) -> Result<Report, Failures> {
        let (mut report, mut failures) = (Report::default(), Vec::new());
        for (name, text) in STORIES {
            match run_story(factory, name, text) {
                Ok(None) => report.passed.push((*name).into()),
                Ok(Some(need)) => report.skipped.push(((*name).into(), need)),
                Err(failure) => failures.extend(failure.0),
            }
        }
        match compare_seeds(factory, &self.seeds, self.steps) {
            Ok(steps) => report.random_steps = steps,
            Err(failure) => failures.extend(failure.0),
        }
        if failures.is_empty() { Ok(report) } else { Err(Failures(failures)) }
    }

    /// The same for an async backend.
    pub fn run_async<F, X>(&self, factory: F, executor: X) -> Result<Report, Failures>
    where
        F: AsyncBackendFactory,
        X: BlockOn + Clone,
    {
        self.run(&OnExecutor { factory, executor })
    }
}

/// Compares a backend with the in-memory coordinator on one random sequence of `steps` commands for each seed, and answers
/// how many commands that were.
pub fn compare_seeds<F: BackendFactory>(factory: &F, seeds: &[u64], steps: usize) -> Result<usize, Failures> {
    let problems: Vec<_> = seeds.iter().filter_map(|seed| differential::compare(factory, *seed, steps).err()).collect();
    if problems.is_empty() { Ok(seeds.len() * steps) } else { Err(Failures(problems)) }
}

/// Plays all stories and returns what they met: each operation with each verdict it was answered with, and `event` with each
/// event. It tells what the suite covers.
pub fn stories_seen<F: BackendFactory>(factory: &F) -> Result<BTreeSet<(&'static str, String)>, Failures> {
    let mut seen = BTreeSet::new();
    for (name, text) in STORIES {
        let played = Story::parse(name, text).map_err(|error| error.to_string());
        match played.and_then(|story| story::play(factory, &story)) {
            Ok(Outcome::Passed(met)) => seen.extend(met),
            Ok(Outcome::Skipped(_)) => {}
            Err(problem) => return Err(Failures(vec![problem])),
        }
    }
    Ok(seen)
}

/// The stories of this crate by name, for callers that want a test for each: play them with [`run_story`].
pub fn stories() -> impl DoubleEndedIterator<Item = (&'static str, &'static str)> {
    STORIES.iter().copied()
}

/// Plays one story, for scenarios of your own; failures call it `name`. Returns the need that the
/// backend does not meet, if the story was skipped for it.
pub fn run_story<F: BackendFactory>(factory: &F, name: &str, text: &str) -> Result<Option<Need>, Failures> {
    let played =
        Story::parse(name, text).map_err(|error| error.to_string()).and_then(|story| story::play(factory, &story));
    match played {
        Ok(Outcome::Passed(_)) => Ok(None),
        Ok(Outcome::Skipped(need)) => Ok(Some(need)),
        Err(problem) => Err(Failures(vec![problem])),
    }
}

/// The stories and seeds tried, when nothing failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Stories that went as told.
    pub passed: Vec<String>,
    /// Stories with a need that the backend does not meet.
    pub skipped: Vec<(String, Need)>,
    /// Random commands that were answered alike.
    pub random_steps: usize,
}

/// Failures: one text for each story and each seed, with all that is needed to try it again.
#[derive(Clone, PartialEq, Eq)]
pub struct Failures(Vec<String>);

impl Failures {
    /// The texts.
    pub fn texts(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed\n\n{}", self.0.len(), self.0.join("\n\n"))
    }
}

impl fmt::Debug for Failures {
    /// As `Display`: a person reads the output of `unwrap`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failures {}
