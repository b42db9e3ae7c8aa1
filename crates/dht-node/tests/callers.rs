//! Faults of the program around a node: executors that panic, calls that are dropped or too many, and several threads that stop it at
//! once.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::future::Future;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_core::Stream as _;
use support::{builder, network, until};
use tessera_dht_node::{Call, ContentId, Node, PeerAddr};

/// A waker of an executor that is gone, as many a small one has it.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("an executor is at fault");
    }
}

/// Has calls wait by a waker that panics; those that are done at once are left out.
fn begun<T>(mut calls: Vec<Call<T>>) -> Vec<Call<T>> {
    let waker = Waker::from(Arc::new(Panicking));
    calls.retain_mut(|call| Pin::new(call).poll(&mut Context::from_waker(&waker)).is_pending());
    calls
}

fn failures(node: &Node) -> Vec<String> {
    node.take_events().into_iter().map(|event| event.what).filter(|what| what.contains("panicked")).collect()
}

#[test]
fn a_waker_that_panics_does_not_take_the_lane_with_it() {
    let nodes = network(3, 1);
    let film = ContentId::of_immutable(b"a film");
    nodes[0].announce([film]).wait().unwrap();
    until("it is announced", || nodes[2].status().wait().unwrap().held("providers") == 1);
    for _ in 0..20 {
        let calls = begun((0..5).map(|_| nodes[1].status()).collect());
        calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().lanes.len(), 1));
        let mut found = nodes[1].find_providers(film, 1);
        let waker = Waker::from(Arc::new(Panicking));
        // No other poll comes before the search is over.
        let first = Pin::new(&mut found).poll_next(&mut Context::from_waker(&waker));
        until("the search is over", || nodes[1].status().wait().unwrap().lanes[0].commands_waiting == 0);
        assert!(if let Poll::Ready(first) = first { first } else { found.wait_next() }.is_some());
    }
    assert_eq!(failures(&nodes[1]), [""; 0]);
}

#[test]
fn callers_whose_wakers_panic_do_not_keep_a_lane_that_died_from_coming_back() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = PeerAddr::new([4; 32], silent.local_addr().unwrap());
    for share_threads in [true, false] {
        let node = builder().lanes(1).share_threads(share_threads).bootstrap([silent]).test_hooks(true);
        let node = node.start().unwrap();
        // It has no contacts yet, and keeps them waiting.
        let mut calls = begun((0..20_u8).map(|n| node.get(ContentId::of_immutable(&[n]))).collect());
        assert!(node.inject_panic(0));
        until("the lane is back", || node.status().wait().unwrap().lanes.len() == 1);
        assert_eq!(failures(&node).len(), 1, "by order");
        let ended = |call: &mut Call<_>| Pin::new(call).poll(&mut Context::from_waker(Waker::noop()));
        until("they end", || {
            calls.retain_mut(|call| matches!(ended(call), Poll::Pending));
            calls.is_empty()
        });
    }
}

#[test]
fn of_several_callers_that_stop_a_node_none_returns_before_it_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let start = || builder().lanes(2).share_threads(false).test_hooks(true).data_dir(dir.path()).start();
    let node = start().unwrap();
    // It has to be waited for.
    assert!(node.inject_stall(0, Duration::from_secs(2)));
    let other = node.clone();
    let first = std::thread::spawn(move || other.shutdown());
    until("a thread stops it", || node.runtime_snapshot().lanes.is_empty());
    node.shutdown();
    let again = start().map(|_| ());
    assert!(again.is_ok(), "its folder is free: {again:?}");
    first.join().unwrap();
}

/// A node that expects a first contact, and keeps calls waiting until then.
fn starting() -> (Node, UdpSocket) {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let peer = PeerAddr::new([4; 32], silent.local_addr().unwrap());
    (builder().lanes(1).bootstrap([peer]).start().unwrap(), silent)
}

fn under_way(node: &Node) -> usize {
    node.status().wait().unwrap().lanes[0].commands_waiting
}

fn poll<T>(call: &mut Call<T>) -> Poll<T> {
    Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_call_that_is_dropped_is_given_up_by_its_lane() {
    let (node, _silent) = starting();
    let mut calls: Vec<_> = (0..20_u8).map(|n| node.get(ContentId::of_immutable(&[n]))).collect();
    calls.retain_mut(|call| poll(call).is_pending());
    drop(calls);
    // A lane takes commands in order: the cancelled calls come before the request for its status.
    assert_eq!(under_way(&node), 0);
}

#[test]
fn calls_that_a_starting_lane_keeps_waiting_have_a_bound_and_all_end() {
    let (node, _silent) = starting();
    let (mut calls, mut most) = (Vec::new(), 0);
    for first in (0..1_200_u32).step_by(100) {
        let mut some: Vec<_> =
            (first..first + 100).map(|n| node.get(ContentId::of_immutable(&n.to_le_bytes()))).collect();
        some.retain_mut(|call| poll(call).is_pending());
        calls.append(&mut some);
        most = most.max(under_way(&node));
    }
    assert!(most <= 1_024, "{most}");
    until("they end", || {
        calls.retain_mut(|call| poll(call).is_pending());
        calls.is_empty()
    });
}
