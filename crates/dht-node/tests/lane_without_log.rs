//! A lane dies in a node without a data folder: the program's published values live on.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use support::{builder, network, until};
use tessera_dht_node::{ContentId, Node, NodeError, PutMutable};

fn held(node: &Node) -> [usize; 3] {
    let status = node.status().wait().unwrap();
    ["published", "records", "kept alive bytes"].map(|name| status.held(name))
}

fn restarts(node: &Node, lane: u8) {
    let alive = |node: &Node| node.status().wait().unwrap().lanes.iter().any(|status| status.lane == usize::from(lane));
    assert!(node.inject_panic(lane));
    until("the lane is back", || alive(node));
}

#[test]
fn published_values_are_given_to_a_dead_lanes_successor_and_withdrawn_ones_are_not() {
    let others = network(2, 1);
    let seeds = others.iter().map(Node::address);
    let node = builder().lanes(2).test_hooks(true).bootstrap(seeds).start().unwrap();
    node.joined(std::time::Duration::from_secs(600)).wait().unwrap();
    let films: Vec<ContentId> = (0..20_u8).map(|n| ContentId::of_immutable(&[n])).collect();
    node.announce(films.clone()).wait().unwrap();
    node.unannounce(films[15..].to_vec()).wait().unwrap();
    let values: Vec<ContentId> =
        (0..20_u8).map(|n| node.put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    for id in &values[15..] {
        node.forget(*id).wait().unwrap();
    }
    let version = node.put_mutable(b"one".to_vec(), PutMutable::named("motd")).wait().unwrap();
    let before = held(&node);
    assert!(before[0] == 15 && before[1] >= 16 && before[2] > 0, "{before:?}");
    for lane in [0, 1, 1] {
        restarts(&node, lane);
        until("all of it is there again", || held(&node) == before);
    }
    for id in &values[..15] {
        assert_eq!(node.get(*id).wait().unwrap().explain.finish, None, "from its own store");
    }
    assert_eq!(node.get_mutable(version.key).wait().unwrap().sequence, 1);
    let told = || node.take_events().into_iter().filter(|event| event.what.contains("given again")).count();
    let mut count = 0;
    until("each time is told", || {
        count += told();
        count == 3
    });
}

#[test]
fn published_values_are_given_to_the_successor_of_a_lane_that_still_hangs() {
    // It would hold up lanes of other tests that share its thread.
    let node = builder().lanes(2).share_threads(false).test_hooks(true).start().unwrap();
    node.announce((0..20_u8).map(|n| ContentId::of_immutable(&[n]))).wait().unwrap();
    for n in 0..20_u8 {
        node.put(format!("kept {n}").into_bytes()).wait().unwrap();
    }
    let before = held(&node);
    // Longer than any wait in this test.
    assert!(node.inject_stall(0, std::time::Duration::from_secs(600)));
    until("the lane is given up", || held(&node) != before);
    until("its successor has all of it", || held(&node) == before);
}

#[test]
fn a_value_that_was_forgotten_while_its_lane_was_down_stays_forgotten() {
    let node = builder().lanes(1).test_hooks(true).start().unwrap();
    let id = node.put(b"soon forgotten".to_vec()).wait().unwrap().id;
    let kept = node.put(b"kept".to_vec()).wait().unwrap().id;
    assert!(node.inject_panic(0));
    // The forget works whether the successor has nothing yet or has it again.
    node.forget(id).wait().unwrap();
    until("what is kept was given again", || node.take_events().iter().any(|event| event.what.contains("given again")));
    assert!(matches!(node.get(id).wait(), Err(NodeError::NotFound { .. })));
    assert!(node.get(kept).wait().is_ok());
}

#[test]
fn a_version_that_no_node_took_is_named_and_given_to_a_dead_lanes_successor() {
    let node = builder().lanes(1).test_hooks(true).start().unwrap();
    let full = builder().lanes(1).configure(|config| config.records.bytes_max = 0);
    let _full = full.bootstrap([node.address()]).start().unwrap();
    until("they know each other", || node.status().wait().unwrap().contacts() == 1);
    let refused = node.put_mutable(b"one".to_vec(), PutMutable::named("motd")).wait().unwrap_err();
    let NodeError::KeptHere { id, why } = &refused else { panic!("{refused:?}") };
    assert!(matches!(**why, NodeError::NotStored { .. }) && refused.to_string().contains(&id.to_string()), "{refused}");
    let before = held(&node);
    assert!(before[2] > 0, "{before:?}");
    assert!(node.inject_panic(0));
    until("it was given again", || node.take_events().iter().any(|event| event.what.contains("given again")));
    assert_eq!(held(&node)[2], before[2]);
}

#[test]
fn lanes_that_come_and_go_by_order_are_watched_like_the_others() {
    let node = builder().lanes(1).test_hooks(true).start().unwrap();
    let films: Vec<ContentId> = (0..20_u8).map(|n| ContentId::of_immutable(&[n])).collect();
    node.announce(films).wait().unwrap();
    for lanes in [3, 1, 3] {
        node.set_lanes(lanes).unwrap();
        assert_eq!(held(&node)[0], 20);
    }
    for lane in 0..3 {
        restarts(&node, lane);
        until("all of it is there again", || held(&node)[0] == 20);
    }
}
