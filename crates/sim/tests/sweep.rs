//! The sweep that ships, in worlds that fail; and each defect that was put into it is noticed.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use tessera_sim::sweep::broken::Defect;
use tessera_sim::sweep::config::{Config, KINDS};
use tessera_sim::sweep::{shrink, simulate};

const STEPS: u64 = 3_000;

#[test]
fn whatever_fails_the_report_is_what_was_planted() {
    for seed in 0..60 {
        let config = Config::new(seed, STEPS);
        simulate(&config, Defect::None).unwrap_or_else(|violation| panic!("seed {seed}: {violation:#?}"));
    }
}

#[test]
fn every_defect_is_noticed_by_the_property_that_is_there_for_it() {
    for defect in Defect::ALL {
        let mut worlds = (0..400).map(|seed| Config::new(seed, STEPS));
        let found = worlds.find_map(|config| simulate(&config, defect).err());
        let found = found.unwrap_or_else(|| panic!("400 worlds lived with {defect:?}"));
        assert_eq!(found.property, defect.caught_by(), "{defect:?}: {}", found.what);
    }
}

#[test]
fn a_world_is_a_function_of_its_seed() {
    for seed in [3, 14] {
        let config = Config::new(seed, STEPS);
        let first = simulate(&config, Defect::None).unwrap();
        assert_eq!(simulate(&config, Defect::None).unwrap(), first, "seed {seed}");
        assert!(first.items > 0);
    }
}

#[test]
fn a_violation_shrinks_to_a_smaller_world_with_the_same_violation() {
    let defect = Defect::CheckpointFirst;
    let worlds = (0..400).map(|seed| Config::new(seed, STEPS));
    let (config, violation) = worlds
        .filter_map(|config| simulate(&config, defect).err().map(|violation| (config, violation)))
        .next()
        .unwrap();
    let (least, again) = shrink(&config, &violation, defect);
    assert_eq!(again.property, violation.property);
    assert!(least.without.len() > KINDS.len() / 2, "most kinds of trouble were not needed: {least:?}");
    assert_eq!(simulate(&least, defect), Err(again), "and it can be had again");
}
