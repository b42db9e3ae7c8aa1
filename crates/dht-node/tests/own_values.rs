//! What a node keeps for its own user: it is read back from that very node, however large, and goes when it is forgotten.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::time::{Duration, Instant};

use support::builder;
use tessera_dht_node::values::Put;
use tessera_dht_node::{ContentId, Node, NodeError, PeerAddr, PutMutable};

/// No two pieces of it are alike.
fn value(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ (state >> 29)).to_le_bytes()
    };
    std::iter::repeat_with(&mut word).flatten().take(bytes).collect()
}

fn kept_alive(node: &Node) -> usize {
    node.status().wait().unwrap().held("kept alive bytes")
}

#[test]
fn the_largest_value_is_read_back_from_a_node_of_one_lane_that_is_alone_whatever_it_listens_on() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let node = builder().lanes(1).listen(listen.parse().unwrap()).start().unwrap();
        let large = value(64 << 20, 1);
        let stored = node.put(large.clone()).wait().unwrap();
        assert_eq!(stored.replicas, 0, "it is alone");
        assert!(node.get(stored.id).wait().unwrap().bytes == large, "{listen}");
        let small = node.put(b"and a short one".to_vec()).wait().unwrap();
        assert_eq!(node.get(small.id).wait().unwrap().bytes, b"and a short one", "{listen}");
        let motd = node.put_mutable(b"today", PutMutable::named("motd")).wait().unwrap();
        assert_eq!(node.get_mutable(motd.key).wait().unwrap().value, b"today", "{listen}");
    }
}

#[test]
fn what_found_no_room_to_be_held_is_given_to_whoever_joins_and_asks() {
    let first = builder().lanes(1).configure(|config| config.records.records_max = 4).start().unwrap();
    let large = value(100_000, 2);
    let stored = first.put(large.clone()).wait().unwrap();
    assert!(first.get(stored.id).wait().unwrap().bytes == large);
    let second = builder().lanes(1).bootstrap([first.address()]).start().unwrap();
    second.joined(Duration::from_secs(30)).wait().unwrap();
    assert!(second.get(stored.id).wait().unwrap().bytes == large);
}

#[test]
fn what_can_be_kept_nowhere_is_not_called_stored() {
    let full = builder().lanes(1).configure(|config| config.records.records_max = 2).start().unwrap();
    let passing = Put { keep_alive: false, ..Put::default() };
    let refused = full.put_with(value(10_000, 3), passing).wait().unwrap_err();
    assert_eq!(refused, NodeError::NoRoom);
}

#[test]
fn a_large_value_that_finds_no_room_leaves_nothing_behind_and_is_refused_at_once() {
    let node = builder().lanes(2).configure(|config| config.kept_alive_bytes_max = 60_000).start().unwrap();
    let (small, large) = (value(40_000, 4), value(1_000_000, 5));
    let stored = node.put(small.clone()).wait().unwrap();
    let before = kept_alive(&node);
    let begun = Instant::now();
    assert_eq!(node.put(large).wait().unwrap_err(), NodeError::NoRoom);
    assert!(begun.elapsed() < Duration::from_secs(15), "a bound that only one who tries again and again reaches");
    assert_eq!(kept_alive(&node), before);
    assert!(node.get(stored.id).wait().unwrap().bytes == small);
}

#[test]
fn a_value_is_forgotten_with_its_parts_but_not_with_those_of_others() {
    let node = builder().lanes(3).start().unwrap();
    let shared = value(400_000, 6);
    let (one, other) = ([&shared[..], &value(100_000, 7)].concat(), [&shared[..], &value(100_000, 8)].concat());
    let first = node.put(one.clone()).wait().unwrap();
    let before = kept_alive(&node);
    let second = node.put(other.clone()).wait().unwrap();
    let root_of_first = first.id;
    node.forget(first.id).wait().unwrap();
    assert_eq!(node.forget(root_of_first).wait(), Err(NodeError::NotHere { id: first.id }));
    assert!(node.get(second.id).wait().unwrap().bytes == other, "what they share stays");
    assert!(node.get(first.id).wait().is_err());
    node.forget(second.id).wait().unwrap();
    assert_eq!(kept_alive(&node), 0, "{before} bytes were kept of the first");
}

#[test]
fn storing_in_vain_is_undone_but_for_what_was_stored_before() {
    let node = builder().lanes(1).start().unwrap();
    let kept = value(50_000, 9);
    let stored = node.put(kept.clone()).wait().unwrap();
    let before = kept_alive(&node);
    let full = builder().lanes(1).configure(|config| config.records.bytes_max = 0);
    let full = full.bootstrap([node.address()]).start().unwrap();
    full.joined(Duration::from_secs(30)).wait().unwrap();
    support::until("it is known", || node.status().wait().unwrap().contacts() == 1);
    for again in [kept.clone(), value(20_000, 11)] {
        let refused = node.put(again).wait().unwrap_err();
        assert!(matches!(refused, NodeError::NotStored { .. }), "{refused}");
        assert_eq!(kept_alive(&node), before);
    }
    assert!(node.get(stored.id).wait().unwrap().bytes == kept);
}

#[test]
fn a_lifetime_that_nobody_accepts_is_refused_with_the_bound() {
    let node = builder().lanes(1).start().unwrap();
    for secs in [0, u64::MAX] {
        let put = Put { ttl: Duration::from_secs(secs), ..Put::default() };
        let refused = node.put_with(b"value".to_vec(), put).wait().unwrap_err();
        assert_eq!(refused, NodeError::Lifetime { secs });
        assert!(refused.to_string().contains("is not within"), "{refused}");
    }
}

#[test]
fn a_part_is_not_forgotten_from_under_its_value_and_what_is_not_here_is_said_to_be_not_here() {
    let node = builder().lanes(1).start().unwrap();
    let large = value(5_000, 10);
    let stored = node.put(large.clone()).wait().unwrap();
    let part = ContentId::of_immutable(&large[..896]);
    assert_eq!(node.forget(part).wait(), Err(NodeError::IsPart { id: part, of: stored.id }));
    let nothing = ContentId::of_immutable(b"never stored");
    assert_eq!(node.forget(nothing).wait(), Err(NodeError::NotHere { id: nothing }));
    assert!(node.get(stored.id).wait().unwrap().bytes == large);
}

#[test]
fn nothing_comes_after_the_highest_version() {
    let node = builder().lanes(1).start().unwrap();
    let last = PutMutable { sequence: Some(u64::MAX), ..PutMutable::named("motd") };
    node.put_mutable(b"the last word", last).wait().unwrap();
    let refused = node.put_mutable(b"another", PutMutable::named("motd")).wait().unwrap_err();
    assert_eq!(refused, NodeError::LastVersion);
}

#[test]
fn a_ping_of_oneself_is_answered_and_one_of_no_key_is_refused_at_once() {
    let node = builder().lanes(2).start().unwrap();
    assert!(node.ping(node.address()).wait().unwrap().is_some());
    let address = node.address().to_string();
    let (_, at) = address.split_once('@').unwrap();
    let no_key: PeerAddr = format!("{}@{at}", "00".repeat(32)).parse().unwrap();
    assert_eq!(node.ping(no_key).wait(), Err(NodeError::UnusableKey));
}

#[test]
fn a_lane_that_hangs_does_not_keep_others_from_saying_how_they_are() {
    let node = builder().lanes(2).test_hooks(true).start().unwrap();
    let hang = Duration::from_secs(14);
    let begun = Instant::now();
    assert!(node.inject_stall(0, hang));
    let status = node.status().wait().unwrap();
    assert!(begun.elapsed() < hang, "{:?}", begun.elapsed());
    assert!(status.lanes.iter().any(|lane| lane.lane == 1), "{status:?}");
}

#[test]
fn a_value_far_larger_than_its_holder_takes_at_once_is_stored_and_read_at_the_pace_that_the_holder_allows() {
    let limited = || {
        builder().lanes(1).address_diversity(true).configure(|config| {
            config.abuse.per_peer_per_sec = 1000;
            config.abuse.burst_secs = 1;
        })
    };
    let holder = limited().start().unwrap();
    let writer = limited().bootstrap([holder.address()]).start().unwrap();
    support::until("they know each other", || writer.status().wait().unwrap().contacts() == 1);
    let large = value(2_000_000, 12);
    let stored = writer.put(large.clone()).wait().unwrap();
    assert_eq!((stored.replicas, stored.holders), (1, 1), "{stored:?}");
    let reader = limited().bootstrap([holder.address()]).start().unwrap();
    support::until("it knows somebody", || reader.status().wait().unwrap().contacts() > 0);
    writer.shutdown();
    assert!(reader.get(stored.id).wait().unwrap().bytes == large);
    let counters = holder.status().wait().unwrap().lanes[0].counters;
    assert!(counters.requests_limited > 0 && counters.requests_quarantined == 0, "{counters:?}");
}
