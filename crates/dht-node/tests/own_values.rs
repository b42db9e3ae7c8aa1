//! A node keeps values for its own user: it reads them back from itself, however large, and drops them when they are forgotten.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use support::{builder, value};
use tessera_dht::record::immutable_record;
use tessera_dht_node::values::{Put, Stored};
use tessera_dht_node::{Call, ContentId, Node, NodeError, PeerAddr, PutMutable};

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
fn a_record_that_found_no_room_to_be_held_is_given_to_a_node_that_joins_and_asks() {
    let first = builder().lanes(1).configure(|config| config.records.records_max = 4).start().unwrap();
    let large = value(100_000, 2);
    let stored = first.put(large.clone()).wait().unwrap();
    assert!(first.get(stored.id).wait().unwrap().bytes == large);
    let second = builder().lanes(1).bootstrap([first.address()]).start().unwrap();
    second.joined(Duration::from_secs(600)).wait().unwrap();
    assert!(second.get(stored.id).wait().unwrap().bytes == large);
}

#[test]
fn a_value_that_no_node_can_keep_is_not_called_stored() {
    let full = builder().lanes(1).configure(|config| config.records.records_max = 2).start().unwrap();
    let passing = Put { keep_alive: false, ..Put::default() };
    let refused = full.put_with(value(10_000, 3), passing).wait().unwrap_err();
    assert_eq!(refused, NodeError::NoRoom);
}

#[test]
fn a_large_value_that_finds_no_room_leaves_nothing_behind() {
    let node = builder().lanes(2).configure(|config| config.kept_alive_bytes_max = 60_000).start().unwrap();
    let (small, large) = (value(40_000, 4), value(1_000_000, 5));
    let stored = node.put(small.clone()).wait().unwrap();
    let before = kept_alive(&node);
    assert_eq!(node.put(large).wait().unwrap_err(), NodeError::NoRoom);
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
    full.joined(Duration::from_secs(600)).wait().unwrap();
    support::until("it is known", || node.status().wait().unwrap().contacts() == 1);
    for again in [kept.clone(), value(20_000, 11)] {
        let refused = node.put(again).wait().unwrap_err();
        assert!(matches!(refused, NodeError::NotStored { .. }), "{refused}");
        assert_eq!(kept_alive(&node), before);
    }
    assert!(node.get(stored.id).wait().unwrap().bytes == kept);
}

/// Two nodes that know each other; the second takes so many whole parts of the first, and nothing more.
fn with_holder_of(parts: u32) -> [Node; 2] {
    let node = builder().lanes(1).start().unwrap();
    let part = immutable_record(&[0; PART_BYTES], 60).unwrap().len() as u32;
    let holder = builder().lanes(1).configure(move |config| config.records.bytes_per_giver_max = parts * part);
    let holder = holder.bootstrap([node.address()]).start().unwrap();
    support::until("they know each other", || node.status().wait().unwrap().contacts() == 1);
    [node, holder]
}

#[test]
fn a_large_value_of_which_only_the_root_is_refused_leaves_nothing() {
    // All parts and not the root, which comes last.
    let [node, holder] = with_holder_of(20);
    let refused = node.put(value(20 * PART_BYTES, 51)).wait().unwrap_err();
    assert!(matches!(refused, NodeError::NotStored { .. }), "{refused}");
    assert_eq!(holder.status().wait().unwrap().held("records"), 20);
    assert_eq!(kept_alive(&node), 0, "no caller was told an id");
}

#[test]
fn a_large_value_that_is_given_up_while_its_root_is_on_its_way_leaves_nothing_unless_it_was_stored_before() {
    let [node, _holder] = with_holder_of(30);
    let large = value(20 * PART_BYTES, 52);
    // With the last part done the root is given to the lane, and the call is dropped before the answer.
    let call = stored_in_part(&node, large.clone(), 20);
    assert!(kept_alive(&node) > 20 * (PART_BYTES + 32), "the root too");
    drop(call);
    support::until("nothing is left", || kept_alive(&node) == 0);
    // A value stored before stays until it is forgotten: the forget waits for calls that store it.
    let stored = node.put(large.clone()).wait().unwrap();
    drop(stored_in_part(&node, large, 20));
    assert_eq!(node.forget(stored.id).wait(), Ok(()));
    assert_eq!(kept_alive(&node), 0);
}

/// Stores `bytes` up to so many parts, and no further until the call is polled again. A value of which all was stored at one look is
/// forgotten, and stored again.
fn stored_in_part(node: &Node, bytes: Vec<u8>, parts: usize) -> Call<Result<Stored, NodeError>> {
    for _ in 0..1_000 {
        match try_to_store_in_part(node, bytes.clone(), parts) {
            Ok(call) => return call,
            Err(stored) => node.forget(stored.unwrap().id).wait().unwrap(),
        }
    }
    panic!("each time all of it was stored at one look");
}

/// The same, or what came of all of it: lanes may answer as fast as they are asked, and then one look at the call goes on to its end.
fn try_to_store_in_part(
    node: &Node,
    bytes: Vec<u8>,
    parts: usize,
) -> Result<Call<Result<Stored, NodeError>>, Result<Stored, NodeError>> {
    let done = Arc::new(AtomicUsize::new(0));
    let told = done.clone();
    let progress = move |done: usize, _: usize| told.store(done, Ordering::Relaxed);
    let mut call = node.put_with(bytes, Put { progress: Some(Arc::new(progress)), ..Put::default() });
    let mut ended = None;
    support::until("parts are stored", || {
        if let Poll::Ready(stored) = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())) {
            ended = Some(stored);
        }
        ended.is_some() || done.load(Ordering::Relaxed) >= parts
    });
    ended.map_or(Ok(call), Err)
}

/// So long is a part of a large value, but for the last one.
const PART_BYTES: usize = 896;

#[test]
fn a_value_that_is_given_up_takes_no_parts_from_one_that_is_still_being_stored() {
    let node = builder().lanes(2).start().unwrap();
    let shared = value(200 * PART_BYTES, 13);
    let given_up = [&value(20 * PART_BYTES, 14)[..], &shared].concat();
    let other = [&shared[..], &value(300 * PART_BYTES, 19)].concat();
    let first = stored_in_part(&node, given_up, 60);
    let second = stored_in_part(&node, other.clone(), 60);
    let before = kept_alive(&node);
    drop(first);
    support::until("what only the first one had is gone", || kept_alive(&node) + 20 * PART_BYTES <= before);
    let stored = second.wait().unwrap();
    let read = node.get(stored.id).wait().map(|read| read.bytes == other);
    assert!(matches!(read, Ok(true)), "{read:?}");
    node.forget(stored.id).wait().unwrap();
    assert_eq!(kept_alive(&node), 0, "of neither is anything left");
}

#[test]
fn a_value_that_is_forgotten_takes_no_parts_from_one_that_is_still_being_stored() {
    let node = builder().lanes(2).start().unwrap();
    let shared = value(200 * PART_BYTES, 21);
    let other = [&shared[..], &value(300 * PART_BYTES, 17)].concat();
    let first = node.put(shared).wait().unwrap();
    let second = stored_in_part(&node, other.clone(), 250);
    node.forget(first.id).wait().unwrap();
    let stored = second.wait().unwrap();
    let read = node.get(stored.id).wait().map(|read| read.bytes == other);
    assert!(matches!(read, Ok(true)), "{read:?}");
}

#[test]
fn a_value_is_not_forgotten_in_the_middle_of_being_stored_again() {
    let node = builder().lanes(2).start().unwrap();
    let bytes = value(500 * PART_BYTES, 22);
    let stored = node.put(bytes.clone()).wait().unwrap();
    let again = stored_in_part(&node, bytes, 60);
    let mut forgotten = node.forget(stored.id);
    for _ in 0..20 {
        let polled = Pin::new(&mut forgotten).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "its parts are being stored: {polled:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(again.wait().unwrap().id, stored.id);
    forgotten.wait().unwrap();
    assert_eq!(kept_alive(&node), 0, "no part without a name is left");
}

#[test]
fn of_two_values_that_share_parts_and_are_given_up_at_once_nothing_is_left() {
    let node = builder().lanes(2).start().unwrap();
    let shared = value(2900 * PART_BYTES, 33);
    // So far that some manifests are stored as well, and the root is not. They differ between the two.
    let under_way = [(3, 41), (5, 43)].map(|(before, seed)| {
        let bytes = [&value(before * PART_BYTES, seed), &shared[..]].concat();
        let mut tries = (0..20).map(|_| try_to_store_in_part(&node, bytes.clone(), 2930));
        let begun = tries.find_map(|tried| match tried {
            Ok(call) => Some(call),
            Err(stored) => {
                assert_eq!(node.forget(stored.unwrap().id).wait(), Ok(()));
                None
            }
        });
        begun.expect("one of twenty is seen before its end")
    });
    drop(under_way);
    support::until("of neither is anything left", || kept_alive(&node) == 0);
}

#[test]
fn the_rest_of_a_value_whose_node_ended_while_storing_it_is_gone_after_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let unfinished = || std::fs::read_dir(dir.path().join("unfinished")).unwrap().count();
    let start = |lanes: usize| builder().lanes(lanes).data_dir(dir.path()).start().unwrap();
    let node = start(2);
    let shared = value(100 * PART_BYTES, 31);
    let kept = node.put(shared.clone()).wait().unwrap();
    let before = kept_alive(&node);
    let both = [&shared[..], &value(300 * PART_BYTES, 32)].concat();
    // Without a word to the call, as if it were killed.
    let cut_off = stored_in_part(&node, both.clone(), 250);
    assert_eq!(unfinished(), 1, "of two, one is stored");
    node.shutdown();
    drop(cut_off);
    assert_eq!(unfinished(), 1);
    let node = start(3);
    support::until("what it had alone is gone", || kept_alive(&node) == before);
    support::until("and is not looked for any more", || unfinished() == 0);
    assert!(node.get(kept.id).wait().unwrap().bytes == shared);
    // A value stored before stays, however often it is stored again in vain.
    let stored = node.put(both.clone()).wait().unwrap();
    let cut_off = stored_in_part(&node, both.clone(), 250);
    node.shutdown();
    drop(cut_off);
    let node = start(1);
    support::until("it is not looked for any more", || unfinished() == 0);
    assert!(node.get(stored.id).wait().unwrap().bytes == both);
}

#[test]
fn a_value_that_is_given_up_while_a_lane_hangs_leaves_nothing_when_the_lane_is_back() {
    // A lane that hangs holds up those on its thread, and other tests have theirs.
    let node = builder().lanes(2).share_threads(false).test_hooks(true).start().unwrap();
    let call = stored_in_part(&node, value(500 * PART_BYTES, 18), 60);
    assert!(node.inject_stall(0, Duration::from_secs(120)));
    drop(call);
    let lanes = || node.status().wait().unwrap().lanes.len();
    support::until("the lane is back and nothing is left", || lanes() == 2 && kept_alive(&node) == 0);
    // A lane's successor is given published values again, and not those that were given up.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(kept_alive(&node), 0);
}

#[test]
fn a_lifetime_that_no_node_accepts_is_refused_with_the_bound() {
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
    // A lane that hangs holds up those on its thread, and other tests have theirs.
    let node = builder().lanes(2).share_threads(false).test_hooks(true).start().unwrap();
    // Longer than any test waits for anything.
    assert!(node.inject_stall(0, Duration::from_secs(3600)));
    let status = node.status().wait().unwrap();
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
    support::until("it has a contact", || reader.status().wait().unwrap().contacts() > 0);
    writer.shutdown();
    assert!(reader.get(stored.id).wait().unwrap().bytes == large);
    let counters = holder.status().wait().unwrap().lanes[0].counters;
    assert!(counters.requests_limited > 0 && counters.requests_quarantined == 0, "{counters:?}");
}
