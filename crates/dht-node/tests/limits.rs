//! Limits that are set are limits, also where all nodes are one's own.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use support::{builder, until};
use tessera_dht::wire::message::ErrorCode;
use tessera_dht_node::{Node, NodeBuilder, NodeError};

/// A node with these settings, and a second one that has joined it.
fn pair(set: impl FnOnce(NodeBuilder) -> NodeBuilder) -> (Node, Node) {
    let holder = set(builder().lanes(1)).start().unwrap();
    let user = builder().lanes(1).bootstrap([holder.address()]).start().unwrap();
    user.joined(Duration::from_secs(600)).wait().unwrap();
    until("they know each other", || holder.status().wait().unwrap().contacts() == 1);
    (holder, user)
}

#[test]
fn a_limit_on_requests_holds_on_loopback_and_without_address_diversity() {
    for diversity in [None, Some(false)] {
        let (holder, user) = pair(|builder| {
            let limited = builder.configure(|config| {
                config.abuse.per_peer_per_sec = 1;
                config.abuse.burst_secs = 1;
            });
            diversity.into_iter().fold(limited, NodeBuilder::address_diversity)
        });
        // All at once, so that it is too much however slow the machine is; those that are limited are not waited for.
        let mut pings: Vec<_> = (0..40).map(|_| user.ping(holder.address())).collect();
        until(&format!("with {diversity:?} some are limited"), || {
            pings.retain_mut(|ping| Pin::new(ping).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            holder.status().wait().unwrap().lanes[0].counters.requests_limited > 0
        });
    }
}

#[test]
fn a_limit_on_what_one_giver_may_store_holds_on_loopback() {
    let (_holder, user) = pair(|builder| builder.configure(|config| config.records.bytes_per_giver_max = 2_000));
    let mut stored = 0;
    let refused = loop {
        match user.put(vec![stored; 800]).wait() {
            Ok(_) => stored += 1,
            Err(refused) => break refused,
        }
        assert!(stored < 10, "of 2000 bytes");
    };
    let full = |written: &[(ErrorCode, u16)]| written.iter().any(|(code, _)| *code == ErrorCode::Full);
    let NodeError::KeptHere { id, why } = &refused else { panic!("{refused:?}") };
    assert!(matches!(&**why, NodeError::NotStored { written, .. } if full(&written.refused)), "{refused:?}");
    assert_eq!(user.get(*id).wait().unwrap().bytes, vec![stored; 800], "it is here, and can be named");
    user.forget(*id).wait().unwrap();
    let said = refused.to_string();
    assert!(said.contains("as much of this giver as each of them is set to keep") && !said.contains("MB"), "{said}");
    assert!(stored > 0, "up to the limit it is taken");
}

#[test]
fn where_no_limit_is_set_nodes_of_ones_own_are_not_limited() {
    let (holder, user) = pair(|builder| builder.configure(|config| config.records.bytes_max = 8 << 20));
    let large: Vec<u8> = (0..5_000_000_u32).map(|n| (n ^ n >> 9) as u8).collect();
    let stored = user.put(large).wait().unwrap();
    assert_eq!((stored.replicas, stored.holders), (1, 1), "more than a stranger may give");
    assert_eq!(holder.status().wait().unwrap().lanes[0].counters.requests_limited, 0);
}
