//! Many nodes in one process: that fail, stop and start at once, and that share one block of addresses.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use support::{builder, until};
use tessera_dht_node::Node;

fn restarts(node: &Node) -> u64 {
    node.runtime_snapshot().total("incarnations")
}

#[test]
fn nodes_whose_lanes_all_panic_at_once_find_each_other_again_and_those_that_stop_are_not_missed() {
    const NODES: usize = 16;
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..NODES {
        // Two seeds: a node does not take its own address.
        let seeds: Vec<_> = nodes.iter().take(2).map(Node::address).collect();
        nodes.push(builder().lanes(1).test_hooks(true).bootstrap(seeds).start().unwrap());
    }
    let know = |nodes: &[Node], most: usize| {
        nodes.iter().all(|node| node.status().wait().is_ok_and(|status| status.contacts() >= most))
    };
    until("they know each other", || know(&nodes, NODES / 2));
    for round in 2..4 {
        for node in &nodes {
            assert!(node.inject_panic(0));
        }
        until("all lanes are back", || nodes.iter().all(|node| restarts(node) == round));
        until("they know each other again", || know(&nodes, NODES / 2));
    }
    let stored = nodes[1].put(b"after the storm".to_vec()).wait().unwrap();
    assert!(stored.replicas > 0, "{stored:?}");
    let leaving = nodes.split_off(NODES / 2);
    let late = std::thread::scope(|scope| {
        for node in leaving {
            scope.spawn(move || node.shutdown());
        }
        let seed = nodes[0].address();
        let late = scope.spawn(move || builder().lanes(1).bootstrap([seed]).start().unwrap());
        late.join().unwrap()
    });
    until("the late node has contacts", || know(std::slice::from_ref(&late), 3));
    until("it finds what was put before it came", || late.get(stored.id).wait().is_ok());
}

#[test]
fn nodes_that_listen_everywhere_know_all_others_of_their_private_network_and_store_with_them() {
    const NODES: usize = 12;
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..NODES {
        let everywhere = builder().lanes(1).listen("0.0.0.0:0".parse().unwrap());
        let seed = nodes.first().map(|first| first.address().to_string().replace("0.0.0.0", "127.0.0.1"));
        nodes.push(everywhere.bootstrap(seed.map(|seed| seed.parse().unwrap())).start().unwrap());
    }
    until("all nodes know each other", || {
        nodes.iter().all(|node| node.status().wait().is_ok_and(|status| status.contacts() == NODES - 1))
    });
    let stored = nodes[3].put(b"with all of them".to_vec()).wait().unwrap();
    assert_eq!(usize::from(stored.replicas), NODES - 1, "{stored:?}");
    for node in &nodes {
        assert!(node.get(stored.id).wait().is_ok());
    }
}
