//! The sweep that ships, in worlds that fail; and each defect that was put into it is noticed.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;

use tessera_sim::sweep::broken::Defect;
use tessera_sim::sweep::checker::PROPERTIES;
use tessera_sim::sweep::config::{At, Config, KINDS, Trouble};
use tessera_sim::sweep::{Report, shrink, simulate};

const STEPS: u64 = 3_000;

#[test]
fn whatever_fails_the_report_is_what_was_planted() {
    let mut sum = Report::default();
    for seed in 0..60 {
        let config = Config::new(seed, STEPS);
        let report = simulate(&config, Defect::None);
        sum = sum.plus(&report.unwrap_or_else(|violation| panic!("seed {seed}: {violation:#?}")));
    }
    assert_eq!(sum.met.never(), Vec::<&str>::new(), "each kind of trouble happens: {sum:?}");
    assert!(sum.deaths > 0 && sum.splits > 0 && sum.superseded > 0 && sum.returns > 0, "{sum:?}");
}

#[test]
fn files_that_are_missing_behind_the_last_item_count_once_when_their_owner_loses_the_shard() {
    let stays = ["disk", "skew", "splits", "yields", "mounts"];
    let without = KINDS.iter().filter(|kind| !stays.contains(kind)).map(|kind| (*kind).to_owned()).collect();
    let config = Config { without, ..Config::new(8_292_157_550_310_171_704, 1_185) };
    assert!(simulate(&config, Defect::None).unwrap().returns > 0);
}

/// A small world in which nothing fails: its configuration, and what happens in it.
fn calm_worlds() -> impl Iterator<Item = (Config, Report)> {
    (0..3).map(|seed| {
        let config = Config::calm(seed);
        let report = simulate(&config, Defect::None).unwrap_or_else(|violation| panic!("seed {seed}: {violation:#?}"));
        assert_eq!((report.splits, report.deaths, report.met.never().len()), (0, 0, KINDS.len()), "{report:?}");
        (config, report)
    })
}

/// All that happens in calm worlds when this trouble comes before each of their actions in turn.
fn struck_everywhere(trouble: Trouble) -> (u64, Report) {
    let (mut worlds, mut sum) = (0, Report::default());
    for (config, calm) in calm_worlds() {
        for action in 0..calm.actions {
            let config = Config { at: Some(At { action, trouble }), ..config.clone() };
            let report = simulate(&config, Defect::None);
            let report = report.unwrap_or_else(|violation| panic!("{config:?}: {violation:#?}"));
            (worlds, sum) = (worlds + 1, sum.plus(&report));
        }
    }
    (worlds, sum)
}

#[test]
fn a_power_cut_between_any_two_actions_leaves_the_report_whole() {
    let (worlds, sum) = struck_everywhere(Trouble::PowerCut);
    assert!(worlds > 200 && sum.deaths == worlds && sum.met.of("power") == worlds, "{worlds} worlds: {sum:?}");
    assert!(sum.superseded > 0, "some segments are done again: {sum:?}");
}

#[test]
fn a_split_that_is_asked_for_before_any_action_leaves_the_report_whole() {
    let (worlds, sum) = struck_everywhere(Trouble::Split);
    assert!(worlds > 200 && sum.met.of("splits") > worlds / 2, "{worlds} worlds: {sum:?}");
    assert!(sum.splits > 0, "{sum:?}");
}

#[test]
fn a_pause_that_outlasts_the_lease_before_any_action_leaves_the_report_whole() {
    let (worlds, sum) = struck_everywhere(Trouble::Pause);
    assert!(worlds > 200 && sum.met.of("pauses") == worlds, "{worlds} worlds: {sum:?}");
    assert!(sum.superseded > 0, "workers that were taken for dead write on: {sum:?}");
}

#[test]
fn every_defect_is_noticed_by_the_property_that_is_there_for_it_and_every_property_has_one() {
    let mut caught = BTreeSet::new();
    for defect in Defect::ALL {
        let mut worlds = (0..400).map(|seed| Config::new(seed, STEPS));
        let found = worlds.find_map(|config| simulate(&config, defect).err());
        let found = found.unwrap_or_else(|| panic!("400 worlds lived with {defect:?}"));
        assert_eq!(found.property, defect.caught_by(), "{defect:?}: {}", found.what);
        caught.insert(found.property);
    }
    assert_eq!(caught, BTreeSet::from(PROPERTIES), "every property has a defect");
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
