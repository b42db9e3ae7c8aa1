//! The model's larger worlds, reached through the real decisions: three million states.

use std::fs;
use std::path::Path;

use tessera_sim::explore::{Bounds, explore};

/// Explores a larger world and holds it to the number of states that TLC found.
fn same_states_as_the_model(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../specs/coordination").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    let bounds = Bounds::from_config(&text).expect("the configuration is understood");
    let explored = explore(&bounds).unwrap_or_else(|violation| panic!("{name}: {violation:#?}"));
    let modelled = bounds.distinct.expect("the configuration states its number of states");
    assert_eq!(explored.states, modelled, "{name}: the code reaches another number of states than the model");
    assert!(modelled > 300_000, "{name}: this is meant to be the larger world");
}

#[test]
fn leases_with_two_keys_and_one_more_takeover_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_large_lease.cfg");
}

#[test]
fn residual_splits_with_three_operations_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_large_residual.cfg");
}

#[test]
fn all_operations_at_once_with_many_takeovers_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_large_everything.cfg");
}
