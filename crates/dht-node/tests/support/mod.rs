//! Networks of nodes on loopback.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

pub(crate) mod made_up;
pub(crate) mod stranger;

use std::time::{Duration, Instant};

use tessera_dht_node::{Node, NodeBuilder};

/// Settings that suit a busy test machine: a peer that was too slow while joining is met a moment later, not in an hour.
pub(crate) fn builder() -> NodeBuilder {
    Node::builder().configure(|config| {
        config.tick_ms = 100;
        config.refresh_ms = 5_000;
        config.ping_idle_ms = 5_000;
    })
}

/// `count` nodes that have joined by the first one.
pub(crate) fn network(count: usize, lanes: usize) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..count {
        let seeds = nodes.first().map(Node::address);
        nodes.push(builder().lanes(lanes).bootstrap(seeds).start().unwrap());
    }
    for node in nodes.iter().filter(|_| count > 1) {
        node.joined(Duration::from_secs(600)).wait().unwrap();
    }
    until("all nodes know each other", || {
        nodes.iter().all(|node| {
            let status = node.status().wait().unwrap();
            status.lanes.iter().all(|lane| lane.health.live_peers == count - 1)
        })
    });
    nodes
}

/// A value; no two pieces of it are alike.
pub(crate) fn value(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ (state >> 29)).to_le_bytes()
    };
    std::iter::repeat_with(&mut word).flatten().take(bytes).collect()
}

/// Waits for something that must come, with a bound that only a broken node reaches.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(600);
    while !holds() {
        assert!(Instant::now() < deadline, "after ten minutes still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
