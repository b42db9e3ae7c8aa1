//! Clients that are soon gone: they ask as soon as they have a contact.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::time::Duration;

use support::network;
use tessera_dht_node::Node;

#[test]
fn a_client_asks_as_soon_as_one_peer_answered_it() {
    let nodes = network(3, 1);
    let stored = nodes[1].put(b"hello".to_vec()).wait().unwrap();
    // A client that waited for the next tick would outlast any test.
    let client = Node::builder().client(true).lanes(1).configure(|config| config.tick_ms = 3_600_000);
    let client = client.bootstrap([nodes[0].address()]).start().unwrap();
    client.joined(Duration::from_secs(600)).wait().unwrap();
    assert_eq!(client.get(stored.id).wait().unwrap().bytes, b"hello");
}

#[test]
fn a_caller_may_wait_for_ever_to_join_without_a_panic() {
    let nodes = network(2, 1);
    nodes[1].joined(Duration::MAX).wait().unwrap();
}
