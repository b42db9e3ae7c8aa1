//! Worlds repeat, and together they take every path.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use tessera_sim::coordination::config::{Config, Level};
use tessera_sim::coordination::marks::Marks;
use tessera_sim::coordination::{etcd, local, simulate};

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in [1, 77, 4_000_000_007] {
        let config = Config::draw(seed, 2_000, Level::Radioactive, true);
        let (first, second) = (simulate(&config).unwrap(), simulate(&config).unwrap());
        assert_eq!(first, second);
        let other = simulate(&Config::draw(seed + 1, 2_000, Level::Radioactive, true)).unwrap();
        assert_ne!(first.trace_hash, other.trace_hash);
    }
}

#[test]
fn every_interesting_path_is_taken() {
    let mut marks = Marks::default();
    let mut steps = 0;
    for seed in 0..3_000 {
        let level = Level::ALL[seed as usize % 4];
        let report = simulate(&Config::draw(seed, 3_000, level, seed % 3 == 0))
            .unwrap_or_else(|violation| panic!("seed {seed}, level {level}: {violation:#?}"));
        marks.add(&report.marks);
        steps += report.steps;
        if seed >= 300 && marks.missing().is_empty() {
            break;
        }
    }
    println!("{steps} steps");
    assert_eq!(marks.missing(), Vec::<&str>::new(), "{marks:#?}");
}

#[test]
fn the_backend_on_etcd_keeps_the_properties_over_a_failing_store() {
    let mut marks = Marks::default();
    for seed in 0..24 {
        let level = Level::ALL[seed as usize % 4];
        let config = Config::draw(seed, 1_500, level, seed % 3 == 0);
        let report = etcd::simulate(&config, level)
            .unwrap_or_else(|violation| panic!("seed {seed}, level {level}: {violation:#?}"));
        marks.add(&report.marks);
    }
    assert!(marks.count("a store lost sight of a live holder") > 0, "{marks:#?}");
    assert!(marks.count("a call went through after a compare-and-set had missed") > 24, "{marks:#?}");
}

#[test]
fn the_backend_in_a_file_keeps_the_properties_over_a_disk_that_loses_its_power() {
    let mut marks = Marks::default();
    for seed in 0..24 {
        let level = Level::ALL[seed as usize % 4];
        let config = Config::draw(seed, 1_200, level, seed % 3 == 0);
        let report = local::simulate(&config, level)
            .unwrap_or_else(|violation| panic!("seed {seed}, level {level}: {violation:#?}"));
        marks.add(&report.marks);
    }
    assert!(marks.count("a store lost its power and came back") >= 12, "{marks:#?}");
}
