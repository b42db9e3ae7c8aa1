//! Eight nodes in one process on loopback: every node finds the values, providers and names of the others.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use support::network;
use tessera_dht_node::mutable::MutableKey;
use tessera_dht_node::{ContentId, Node, NodeError, PutMutable};

#[test]
fn every_node_gets_a_value_that_one_puts() {
    let nodes = network(8, 2);
    for (n, writer) in nodes.iter().enumerate() {
        let value = format!("value {n}").into_bytes();
        let stored = writer.put(value.clone()).wait().unwrap();
        assert_eq!(stored.id, ContentId::of_immutable(&value));
        assert_eq!((stored.replicas, stored.holders), (7, 7), "all others hold it: {stored:?}");
        for reader in &nodes {
            let got = reader.get(stored.id).wait().unwrap();
            assert_eq!(got.bytes, value);
        }
    }
}

#[test]
fn where_the_kernel_does_not_steer_lanes_hand_datagrams_to_their_owners() {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..4 {
        let seed = nodes.first().map(Node::address);
        nodes.push(support::builder().lanes(3).kernel_steering(false).bootstrap(seed).start().unwrap());
    }
    let knows_all = |node: &Node| node.status().wait().is_ok_and(|status| status.contacts() == 3);
    support::until("they know each other", || nodes.iter().all(knows_all));
    // A lane that starts before another may get datagrams for that one, and can only drop them.
    let dropped = |node: &Node| node.runtime_snapshot().total("misrouted_dropped");
    let dropped_at_start: Vec<u64> = nodes.iter().map(dropped).collect();
    for n in 0..20 {
        let value = format!("unsteered {n}").into_bytes();
        let stored = nodes[n % 4].put(value.clone()).wait().unwrap();
        assert_eq!((stored.replicas, stored.holders), (3, 3), "{stored:?}");
        assert_eq!(nodes[(n + 1) % 4].get(stored.id).wait().unwrap().bytes, value);
    }
    for (node, dropped_at_start) in nodes.iter().zip(dropped_at_start) {
        assert!(!node.status().wait().unwrap().kernel_steering);
        assert!(node.runtime_snapshot().total("misrouted") > 0, "lanes got datagrams of others");
        assert_eq!(dropped(node), dropped_at_start, "none since all lanes are there");
    }
}

#[test]
fn a_value_that_others_refuse_for_now_is_stored_a_little_later_and_not_called_stored_before() {
    let sparing = support::builder().lanes(1).address_diversity(true).configure(|config| {
        config.abuse.per_peer_per_sec = 20; // A value costs five, and forty may be spent at once.
    });
    let holder = sparing.start().unwrap();
    let writer = support::builder().lanes(1).bootstrap([holder.address()]).start().unwrap();
    support::until("they know each other", || writer.status().wait().unwrap().contacts() == 1);
    for n in 0..14 {
        let stored = writer.put(format!("value {n}").into_bytes()).wait().unwrap();
        assert_eq!((stored.replicas, stored.holders), (1, 1), "value {n}: {stored:?}");
    }
}

#[test]
fn values_larger_than_a_datagram_come_back_whole_and_tell_their_progress() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tessera_dht_node::values::Put;

    let nodes = network(5, 1);
    let steps = Arc::new(AtomicUsize::new(0));
    let seen = steps.clone();
    let put = Put {
        progress: Some(Arc::new(move |done, total| {
            assert!(done <= total);
            seen.fetch_max(done, Ordering::Relaxed);
        })),
        ..Put::default()
    };
    let value: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8 ^ (n >> 10) as u8).collect();
    let stored = nodes[1].put_with(value.clone(), put).wait().unwrap();
    assert!(stored.records > 300, "{stored:?}");
    assert_eq!(steps.load(Ordering::Relaxed), stored.records);
    let got = nodes[4].get(stored.id).wait().unwrap();
    assert!(got.bytes == value, "all {} bytes, in order", value.len());
    // Pieces that are all alike are one record, wanted again and again.
    let alike = vec![7; 100_000];
    let stored = nodes[1].put(alike.clone()).wait().unwrap();
    assert!(nodes[3].get(stored.id).wait().unwrap().bytes == alike);
    // A short value that reads as a manifest must not be taken for one.
    let manifest = tessera_dht::chunk::cut(&[7; 2000], 60).unwrap();
    let record = tessera_dht::record::RecordView::read(manifest.records.last().unwrap()).unwrap();
    let stored = nodes[1].put(record.value.to_vec()).wait().unwrap();
    assert_eq!(nodes[2].get(stored.id).wait().unwrap().bytes, record.value);
}

#[test]
fn a_record_in_no_store_is_not_found_and_the_error_names_the_peers_asked() {
    let nodes = network(4, 1);
    let error = nodes[2].get(ContentId::of_immutable(b"never stored")).wait().unwrap_err();
    let NodeError::NotFound { explain, .. } = &error else { panic!("{error}") };
    assert_eq!(explain.stats.answers, 3, "{explain}");
    assert!(error.to_string().contains("3 nodes answered"), "{error}");
}

#[test]
fn versions_grow_readers_see_the_newest_and_a_deletion_is_told() {
    let nodes = network(6, 2);
    let first = nodes[1].put_mutable(b"one".to_vec(), PutMutable::named("motd")).wait().unwrap();
    let key = MutableKey::named(nodes[1].address().key(), "motd");
    assert_eq!(first.key, key);
    assert_eq!(nodes[3].get_mutable(key).wait().unwrap().value, b"one");
    let second = nodes[1].put_mutable(b"two".to_vec(), PutMutable::named("motd")).wait().unwrap();
    assert_eq!(second.sequence, first.sequence + 1);
    assert_eq!(nodes[4].get_mutable(key).wait().unwrap().value, b"two");
    let old = PutMutable { sequence: Some(1), ..PutMutable::named("motd") };
    let refused = nodes[1].put_mutable(b"other".to_vec(), old).wait();
    assert!(matches!(refused, Err(NodeError::Outdated { current: 2, asked: 1 })), "{refused:?}");
    nodes[1].delete(PutMutable::named("motd")).wait().unwrap();
    let gone = nodes[5].get_mutable(key).wait();
    assert!(matches!(gone, Err(NodeError::Deleted { sequence: 3, .. })), "{gone:?}");
}

#[test]
fn providers_are_found_by_all_as_a_stream_and_as_a_list() {
    let nodes = network(8, 2);
    let id = ContentId::of_immutable(b"a film");
    for node in &nodes[..3] {
        node.announce([id]).wait().unwrap();
    }
    let mut expected: Vec<_> = nodes[..3].iter().map(|node| node.address()).collect();
    expected.sort_by_key(|peer| peer.key());
    for node in &nodes {
        support::until("all three providers are found", || {
            let mut found: Vec<_> =
                node.find_providers(id, 10).wait_all().unwrap().iter().map(|provider| provider.peer).collect();
            found.sort_by_key(|peer| peer.key());
            found == expected
        });
    }
    let mut one = nodes[7].find_providers(id, 1);
    assert!(one.wait_next().is_some());
}

#[test]
fn pings_peers_and_lookups_tell_where_others_are() {
    let nodes = network(8, 1);
    assert!(nodes[0].ping(nodes[5].address()).wait().unwrap().is_some());
    let wrong_key = tessera_dht_node::PeerAddr::new(nodes[4].address().key(), nodes[5].listen_addr());
    assert_eq!(nodes[0].ping(wrong_key).wait().unwrap(), None, "a node without the key cannot even read the question");
    let (nearest, explain) = nodes[2].find_node(nodes[6].id()).wait().unwrap();
    assert_eq!(nearest[0], nodes[6].address(), "{explain}");
    support::until("all nodes know each other", || nodes[3].peers().wait().unwrap().len() == 7);
}

#[test]
fn calls_can_be_awaited_on_a_foreign_executor_and_cancelled_by_dropping() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    let nodes = network(3, 1);
    let stored = nodes[0].put(b"polled".to_vec()).wait().unwrap();
    // The simplest executor there is: polls without ever being woken.
    let mut call = pin!(nodes[1].get(stored.id));
    let mut cx = Context::from_waker(Waker::noop());
    let value = loop {
        match call.as_mut().poll(&mut cx) {
            Poll::Ready(value) => break value.unwrap(),
            Poll::Pending => std::thread::yield_now(),
        }
    };
    assert_eq!(value.bytes, b"polled");
    {
        // No process answers there, so a lane that is quicker than this thread has to wait all the same.
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let silent = tessera_dht_node::PeerAddr::new(nodes[2].address().key(), silent.local_addr().unwrap());
        let mut begin = |_| {
            let mut call = Box::pin(nodes[1].ping(silent));
            call.as_mut().poll(&mut cx).is_pending().then_some(call)
        };
        let pending: Vec<_> = (0..50).filter_map(&mut begin).collect();
        assert_eq!(pending.len(), 50);
    }
    support::until("the lane has let go of it", || {
        nodes[1].status().wait().unwrap().lanes.iter().all(|lane| lane.commands_waiting == 0)
    });
}

#[test]
fn a_node_is_up_when_it_is_connected_both_ways_and_not_before() {
    let alone = network(1, 2).remove(0);
    let status = alone.status().wait().unwrap();
    assert!(!status.is_up());
    assert_eq!(status.trouble(), Some("no live contacts"));
    let nodes = network(4, 2);
    for node in &nodes {
        support::until("every node is up", || node.status().wait().unwrap().is_up());
    }
}

#[test]
fn peers_of_a_node_that_stops_are_told() {
    let mut nodes = network(5, 1);
    let leaver = nodes.pop().unwrap();
    let id = leaver.id();
    let knows = |node: &tessera_dht_node::Node| node.peers().wait().unwrap().iter().any(|live| live.peer.id() == id);
    support::until("all know it", || nodes.iter().all(knows));
    let timeouts = |node: &tessera_dht_node::Node| {
        node.status().wait().unwrap().lanes.iter().map(|lane| lane.counters.request_timeouts).sum::<u64>()
    };
    let before: u64 = nodes.iter().map(timeouts).sum();
    leaver.shutdown();
    support::until("all have dropped it", || !nodes.iter().any(knows));
    assert_eq!(nodes.iter().map(timeouts).sum::<u64>(), before, "no node found out by a timeout");
}
