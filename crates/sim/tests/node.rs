//! Whole nodes of the DHT in virtual time: whatever their lanes go through, what was acknowledged is found.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use tessera_sim::node::broken::Defect;
use tessera_sim::node::{Config, Report, simulate};

fn config(seed: u64) -> Config {
    Config { seed, steps: 200, without: Vec::new() }
}

#[test]
fn whatever_lanes_go_through_what_was_acknowledged_is_found() {
    let mut sum = Report::default();
    for seed in 0..8 {
        let report =
            simulate(&config(seed), Defect::None).unwrap_or_else(|violation| panic!("seed {seed}: {violation:#?}"));
        sum = sum.plus(&report);
    }
    assert!(sum.stored > 100 && sum.lookups > 300, "{sum:?}");
    assert!(sum.kept > 1_000, "{sum:?}");
    assert!(sum.births > 0 && sum.deaths > 0 && sum.changes > 0 && sum.power_failures > 0, "all was met: {sum:?}");
}

#[test]
fn a_world_of_nodes_is_a_function_of_its_seed() {
    let first = simulate(&config(3), Defect::None).unwrap();
    assert_eq!(simulate(&config(3), Defect::None).unwrap(), first);
    assert!(first.datagrams > 0);
}

#[test]
fn every_defect_of_a_lane_is_noticed_by_the_property_that_is_there_for_it() {
    for defect in Defect::ALL {
        let mut worlds = (0..5).map(|seed| Config { steps: 40, ..config(seed) });
        let found = worlds.find_map(|config| simulate(&config, defect).err());
        let found = found.unwrap_or_else(|| panic!("five worlds lived with {defect:?}"));
        assert_eq!(found.property, defect.caught_by(), "{defect:?}: {}", found.what);
    }
}
