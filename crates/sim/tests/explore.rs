//! Every state of the model's small worlds, reached through the real decisions.

use std::fs;
use std::path::Path;

use tessera_sim::explore::{Bounds, explore};

/// Explores the world of a model's configuration and holds it to the model's number of states.
fn same_states_as_the_model(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../specs/coordination").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    let bounds = Bounds::from_config(&text).expect("the configuration is understood");
    let explored = explore(&bounds).unwrap_or_else(|violation| panic!("{name}: {violation:#?}"));
    println!("{name}: {explored:?}");
    let modelled = bounds.distinct.expect("the configuration states its number of states");
    assert_eq!(explored.states, modelled, "{name}: the code reaches another number of states than the model");
    assert!(modelled > 5_000, "{name}: a world this small proves little");
}

#[test]
fn leases_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_lease.cfg");
}

#[test]
fn skewed_clocks_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_clocks.cfg");
}

#[test]
fn unparking_reaches_the_states_of_the_model() {
    same_states_as_the_model("MC_unpark.cfg");
}

#[test]
fn a_run_that_is_created_again_reaches_the_states_of_the_model() {
    same_states_as_the_model("MC_incarnation.cfg");
}

#[test]
fn shards_that_workers_cannot_reach_take_the_states_of_the_model() {
    same_states_as_the_model("MC_unreachable.cfg");
}

#[test]
fn replacing_splits_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_replace.cfg");
}

#[test]
fn residual_splits_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_residual.cfg");
}

#[test]
fn all_operations_at_once_with_takeovers_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_everything.cfg");
}

#[test]
fn all_operations_with_an_op_log_of_two_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_large_log_of_two.cfg");
}

#[test]
fn all_operations_of_many_owners_reach_the_states_of_the_model() {
    same_states_as_the_model("MC_large_owners.cfg");
}
