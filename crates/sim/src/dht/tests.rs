//! The scenarios at small sizes, so that each is known to run to its end and to meet its aims.

use tessera_dht::node::config::NodeConfig;

use super::Scenario;
use super::measure::Findings;
use super::scenario::admission::{ATTACKS, fight};
use super::scenario::minority::{ATTACKS as LOOKUP_ATTACKS, DEFENCES, fight as fight_lookups};
use super::scenario::{self, HOSTILE, Setup};

fn run(scenario: Scenario, nodes: usize, real_crypto: bool) -> Findings {
    scenario::run(scenario, &Setup { nodes, seed: 11, real_crypto, loss: None, hostile: HOSTILE, quiet: true })
}

fn passes(scenario: Scenario, nodes: usize) {
    let findings = run(scenario, nodes, false);
    assert!(findings.passed(), "{}", findings.table());
}

#[test]
fn a_network_at_rest_finds_everything() {
    passes(Scenario::Steady, 60);
}

#[test]
fn a_network_with_real_keys_does_too() {
    let findings = run(Scenario::Steady, 24, true);
    assert!(findings.passed(), "{}", findings.table());
}

#[test]
fn churn_is_survived() {
    passes(Scenario::Churn, 80);
}

#[test]
fn islands_heal() {
    passes(Scenario::Partition, 80);
}

#[test]
fn a_mass_restart_is_survived() {
    passes(Scenario::Restart, 80);
}

#[test]
fn a_flood_is_survived() {
    passes(Scenario::Flood, 60);
}

/// Every defence against an attack on admission holds, and the attack succeeds where that defence alone is switched off.
#[test]
fn each_attack_on_admission_fails_against_its_defence_and_succeeds_without() {
    let setup = Setup { nodes: 40, seed: 11, real_crypto: false, loss: None, hostile: HOSTILE, quiet: true };
    for attack in ATTACKS {
        for is_defended in [true, false] {
            let fought = fight(&setup, &attack, is_defended);
            assert_eq!(fought.is_held(&attack), is_defended, "{}: {}", attack.name, fought.says());
        }
    }
}

#[test]
fn lanes_die_and_change_without_loss() {
    passes(Scenario::Lanes, 80);
}

#[test]
fn many_ids_are_announced_by_few_lookups() {
    passes(Scenario::Sweep, 60);
}

#[test]
fn slow_nodes_relays_blinding_stems_and_paths_work() {
    passes(Scenario::Odd, 80);
}

#[test]
fn sybils_fail_against_the_defences_and_succeed_without() {
    passes(Scenario::Sybil, 300);
}

/// The defences of lookups hold against the attack that they are there for, and the attack succeeds where they are switched off.
#[test]
fn each_attack_on_lookups_fails_against_its_defence_and_succeeds_without() {
    let setup = Setup { nodes: 300, seed: 11, real_crypto: false, loss: None, hostile: HOSTILE, quiet: true };
    for defence in DEFENCES {
        for (configure, holds) in [((|_: &mut _| {}) as fn(&mut NodeConfig), true), (defence.off, false)] {
            let fought = fight_lookups(&setup, &defence.attack, configure);
            assert_eq!((defence.holds)(&fought), holds, "{}: {}", defence.name, fought.says());
        }
    }
}

/// Ground ids that are no crowd to see, a minority that does everything at once, and a share of all nodes: no reader is told that there is nothing.
#[test]
fn no_attack_on_lookups_makes_a_reader_believe_that_there_is_nothing() {
    let setup = Setup { nodes: 200, seed: 11, real_crypto: false, loss: None, hostile: HOSTILE, quiet: true };
    for attack in LOOKUP_ATTACKS.iter().filter(|attack| attack.is_hard()) {
        let fought = fight_lookups(&setup, attack, |_| {});
        assert_eq!(fought.false_not_found(), 0, "{}: {}", attack.name, fought.says());
        assert!(fought.right_share() >= 0.95, "{}: {}", attack.name, fought.says());
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let figures = |seed| {
        let setup = Setup { nodes: 40, seed, real_crypto: false, loss: None, hostile: HOSTILE, quiet: true };
        let findings = scenario::run(Scenario::Steady, &setup);
        let measured = findings.figures.iter().filter(|figure| figure.name != "datagrams");
        measured.map(|figure| figure.value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(figures(5), figures(5));
    assert_ne!(figures(5), figures(6));
}
