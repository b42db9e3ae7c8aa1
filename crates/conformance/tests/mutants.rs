//! The suite notices: a simple backend passes, and with any one fault built in it does not.

mod naive;

use naive::{FAULTS, Fault, Naive};
use tessera_conformance::{BackendConfig, BackendFactory, Need, Suite, compare_seeds, run_story, stories};
use tessera_contracts::WorkerId;

/// Makes the naive backend, with a fault or without.
struct Faulty(Option<Fault>);

impl BackendFactory for Faulty {
    type Backend = Naive;

    fn create(&self, config: &BackendConfig) -> Naive {
        Naive::new(config, self.0)
    }

    fn offers(&self, need: Need) -> bool {
        match need {
            Need::RunLimit | Need::Cooldown | Need::ClockSkew | Need::LostSessions | Need::ExactHints => true,
            Need::ByteLimit | Need::NoSessions => false,
        }
    }

    fn lose_session(&self, backend: &mut Naive, worker: WorkerId) {
        backend.lose_session(worker);
    }
}

#[test]
fn a_backend_that_loads_asks_and_stores_passes() {
    let report = Suite { seeds: (100..104).collect(), steps: 300 }.run(&Faulty(None)).unwrap();
    let skipped: Vec<Need> = report.skipped.iter().map(|(_, need)| *need).collect();
    assert!(
        !skipped.is_empty() && skipped.iter().all(|need| matches!(need, Need::ByteLimit | Need::NoSessions)),
        "all else was tried: {skipped:?}"
    );
}

#[test]
fn every_fault_is_found_by_a_story() {
    for fault in FAULTS {
        let noticed = stories().rev().any(|(name, text)| run_story(&Faulty(Some(fault)), name, text).is_err());
        assert!(noticed, "no story notices a backend that {fault:?}");
    }
}

#[test]
fn every_fault_is_found_by_chance_too() {
    // The stories aim; the dice do not, and still find everything within a few hundred throws.
    let found = |fault| (1..=12).any(|seed| compare_seeds(&Faulty(Some(fault)), &[seed], 400).is_err());
    let unlucky: Vec<Fault> = FAULTS.into_iter().filter(|fault| !found(*fault)).collect();
    assert!(unlucky.is_empty(), "not found by chance: {unlucky:?}");
}

#[test]
fn a_failure_names_the_line_or_the_seed_and_shows_a_story() {
    let (name, text) = stories().find(|(name, _)| *name == "zombie_after_takeover").expect("it is there");
    let told = run_story(&Faulty(Some(Fault::IgnoresFence)), name, text).unwrap_err().to_string();
    assert!(told.contains("stories/zombie_after_takeover.txt:6: at 12 w1 checkpoints 1 at d op 8"), "{told}");
    let random = compare_seeds(&Faulty(Some(Fault::DropsTokens)), &[1], 400).unwrap_err().to_string();
    assert!(random.contains("TESSERA_CONFORMANCE_SEED=0x1"), "{random}");
    let story = &random[random.find("# Say here").expect("a story follows")..];
    assert!(story.lines().count() < 12, "cut down to a few lines:\n{story}");
}
