//! The detectors of one worker: one for each set of rules that its run has, made ready when a target asks for it.
//!
//! Most runs have one set. Where targets bring their own, a worker has few of them in hand at a time: it goes from shard to shard,
//! and shards of one target lie together. What it knows of clean text belongs to the rules it was found with, and is kept
//! and forgotten with their detector.

use std::sync::Arc;

use tessera_detect::{Detector, Options, RuleError};

use crate::read::distinct::CleanChunks;
use crate::read::edited::Edited;
use crate::read::rules::Rules;

/// Most detectors that are kept ready.
const READY_MAX: usize = 4;

/// Detectors for the sets of rules of a run.
#[derive(Debug)]
pub struct Detectors {
    sets: Arc<[Rules]>,
    options: Options,
    /// The one that was used last is the last; never empty.
    ready: Vec<Ready>,
}

/// A detector, and what was learned with it.
#[derive(Debug)]
pub(crate) struct Ready {
    number: u16,
    pub(crate) detector: Detector,
    pub(crate) known: Option<Known>,
}

/// What is known of text that was searched before.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) edited: Edited,
    pub(crate) chunks: CleanChunks,
}

/// Why a target cannot be searched.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DetectorsError {
    /// Its description names a set of rules that the job does not have.
    #[error("the target names the set of rules {number}, and the run's job has {sets}")]
    NoSuchSet {
        /// The number it names.
        number: u16,
        /// How many there are.
        sets: usize,
    },
    /// The rules contradict one another.
    #[error("the rules cannot be used: {0}")]
    Rules(#[from] RuleError),
}

impl Detectors {
    /// Detectors for these sets of rules, of which there is at least one.
    pub fn new(sets: Vec<Rules>, options: Options) -> Result<Self, RuleError> {
        let detector = Detector::with_options(sets[0].set(), options.clone())?;
        let ready = vec![Ready { number: 0, detector, known: None }];
        Ok(Self { sets: sets.into(), options, ready })
    }

    /// Others with the same rules, for another worker.
    pub fn fork(&self) -> Self {
        let current = self.current_ref();
        let ready = vec![Ready { number: current.number, detector: current.detector.fork(), known: None }];
        Self { sets: Arc::clone(&self.sets), options: self.options.clone(), ready }
    }

    /// Uses the set of rules with this number from now on.
    pub(crate) fn choose(&mut self, number: u16) -> Result<(), DetectorsError> {
        if self.current_ref().number == number {
            return Ok(());
        }
        if let Some(at) = self.ready.iter().position(|ready| ready.number == number) {
            let chosen = self.ready.remove(at);
            self.ready.push(chosen);
            return Ok(());
        }
        let missing = DetectorsError::NoSuchSet { number, sets: self.sets.len() };
        let rules = self.sets.get(usize::from(number)).ok_or(missing)?;
        let detector = Detector::with_options(rules.set(), self.options.clone())?;
        if self.ready.len() == READY_MAX {
            self.ready.remove(0);
        }
        self.ready.push(Ready { number, detector, known: None });
        Ok(())
    }

    /// All sets of rules, by number.
    pub(crate) fn sets(&self) -> &[Rules] {
        &self.sets
    }

    fn current_ref(&self) -> &Ready {
        self.ready.last().expect("one is always ready")
    }

    /// The detector in use.
    pub(crate) fn current(&mut self) -> &mut Ready {
        self.ready.last_mut().expect("one is always ready")
    }
}

/// One set of rules, for every target that names none.
impl From<Detector> for Detectors {
    fn from(detector: Detector) -> Self {
        Self {
            sets: Arc::new([]),
            options: Options::default(),
            ready: vec![Ready { number: 0, detector, known: None }],
        }
    }
}

impl Ready {
    /// Remembers from now on which text is clean.
    pub(crate) fn remember_clean_text(&mut self, seed: u64) {
        if self.known.is_none() {
            self.known = Edited::new(&self.detector)
                .zip(CleanChunks::new(&self.detector, seed))
                .map(|(edited, chunks)| Known { edited, chunks });
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_detect::Source;

    use super::*;

    fn rules(word: usize) -> Rules {
        let text = format!("[[rules]]\nid = 'r{word}'\nregex = 'w{word}_[a-z]{{8}}'\nkeywords = ['w{word}_']\n");
        Rules::from_gitleaks(&text, &mut |_| Err(String::new())).unwrap()
    }

    fn found(detectors: &mut Detectors, word: usize) -> u64 {
        let text = format!("w{word}_abcdefgh");
        detectors.current().detector.scan_bytes(Source::path("f"), text.as_bytes(), |_| {}).findings
    }

    #[test]
    fn each_set_is_used_when_it_is_chosen_however_many_there_are() {
        let mut detectors = Detectors::new((0..9).map(rules).collect(), Options::default()).unwrap();
        for number in [0, 3, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0, 8] {
            detectors.choose(number as u16).unwrap();
            for word in 0..9 {
                assert_eq!(found(&mut detectors, word), u64::from(word == number), "rules {number}, word {word}");
            }
            assert!(detectors.ready.len() <= READY_MAX);
        }
        let mut fork = detectors.fork();
        assert_eq!((found(&mut fork, 8), found(&mut fork, 0)), (1, 0));
        assert_eq!(detectors.choose(9), Err(DetectorsError::NoSuchSet { number: 9, sets: 9 }));
    }

    #[test]
    fn what_is_known_of_text_is_of_the_rules_it_was_learned_with() {
        let mut detectors = Detectors::new((0..2).map(rules).collect(), Options::default()).unwrap();
        let text = "w1_abcdefgh and more\n".repeat(1_000);
        let mut is_clean = |number: u16| {
            detectors.choose(number).unwrap();
            let ready = detectors.current();
            ready.remember_clean_text(7);
            let Ready { detector, known, .. } = ready;
            known.as_mut().unwrap().chunks.is_clean(detector, b"f", text.as_bytes())
        };
        assert_eq!([0, 1, 0].map(&mut is_clean), [true, false, true]);
    }
}
