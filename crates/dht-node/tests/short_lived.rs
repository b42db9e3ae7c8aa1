//! Clients that are soon gone: they ask as soon as they know somebody.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::time::{Duration, Instant};

use support::network;
use tessera_dht_node::Node;

#[test]
fn a_client_asks_as_soon_as_somebody_answered_it() {
    let nodes = network(3, 1);
    let stored = nodes[1].put(b"hello".to_vec()).wait().unwrap();
    // Of several the fastest: this machine may be busy with other things.
    let took = (0..5).map(|_| {
        let begun = Instant::now();
        // With the pace that nodes have unless they are told another one.
        let client = Node::builder().client(true).lanes(1).bootstrap([nodes[0].address()]).start().unwrap();
        client.joined(Duration::from_secs(10)).wait().unwrap();
        assert_eq!(client.get(stored.id).wait().unwrap().bytes, b"hello");
        client.shutdown();
        begun.elapsed()
    });
    let took: Vec<Duration> = took.collect();
    assert!(took.iter().min() < Some(&Duration::from_millis(300)), "{took:?}");
}

#[test]
fn whoever_waits_for_ever_to_join_waits_and_does_not_panic() {
    let nodes = network(2, 1);
    nodes[1].joined(Duration::MAX).wait().unwrap();
}
