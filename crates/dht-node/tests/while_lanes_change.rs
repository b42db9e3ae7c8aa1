//! Calls while lanes change: a record on its way from one lane to another is neither missed nor brought back.
//!
//! None of these can tell when exactly a slot is on its way. So each has much to move and many calls meanwhile, some of which come at a
//! bad moment in every run.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::thread::JoinHandle;
use std::time::Duration;

use support::{builder, until, value};
use tessera_dht_node::{ContentId, Node, PutMutable};

/// So long is a part of a large value, but for the last one.
const PART_BYTES: usize = 896;

/// Gives a node so much that a change of lanes takes a while.
fn fill(node: &Node) {
    node.put(value(6_000_000, 99)).wait().unwrap();
}

fn changes(node: &Node, lanes: &'static [usize]) -> JoinHandle<()> {
    let node = node.clone();
    std::thread::spawn(move || lanes.iter().for_each(|lanes| node.set_lanes(*lanes).unwrap()))
}

#[test]
fn every_version_follows_the_one_before_it() {
    let node = builder().lanes(1).start().unwrap();
    fill(&node);
    let names: Vec<String> = (0..16).map(|n| format!("name {n}")).collect();
    let write = |name: &str| node.put_mutable(name.as_bytes(), PutMutable::named(name)).wait();
    let mut newest = 0;
    for _ in 0..3 {
        newest += 1;
        names.iter().for_each(|name| assert_eq!(write(name).unwrap().sequence, newest));
    }
    let changing = changes(&node, &[4, 2, 3, 1]);
    while !changing.is_finished() {
        newest += 1;
        for name in &names {
            let written = write(name).map(|version| version.sequence);
            assert_eq!(written.as_ref(), Ok(&newest), "{written:?}");
        }
    }
    changing.join().unwrap();
}

#[test]
fn a_forgotten_value_stays_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    for with_log in [false, true] {
        let node = builder().lanes(1);
        let node = if with_log { node.data_dir(dir.path()) } else { node }.start().unwrap();
        fill(&node);
        let ids: Vec<ContentId> = (0..400_u32).map(|n| node.put(n.to_le_bytes().to_vec()).wait().unwrap().id).collect();
        let changing = changes(&node, &[4, 1, 3]);
        let mut forgotten = ids.iter().take_while(|id| {
            assert_eq!(node.forget(**id).wait(), Ok(()), "it is here");
            !changing.is_finished()
        });
        let count = forgotten.by_ref().count();
        changing.join().unwrap();
        let back = ids[..count].iter().filter(|id| node.get(**id).wait().is_ok()).count();
        assert_eq!(back, 0, "of {count}, with a log: {with_log}");
    }
}

#[test]
fn a_value_that_is_forgotten_takes_no_parts_from_one_that_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let node = builder().lanes(4).data_dir(dir.path()).start().unwrap();
    fill(&node);
    let pairs: Vec<[ContentId; 2]> = (0..48)
        .map(|n| {
            let (shared, other) = (value(5 * PART_BYTES, 2 * n), value(2 * PART_BYTES, 1000 + 2 * n));
            [[&other, &shared[..]].concat(), [&shared[..], &other].concat()].map(|v| node.put(v).wait().unwrap().id)
        })
        .collect();
    // Lanes that are about to leave keep many of the manifests.
    let changing = changes(&node, &[1]);
    std::thread::scope(|scope| {
        for (n, [_, gone]) in (0..).zip(&pairs) {
            let node = &node;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(n));
                assert_eq!(node.forget(*gone).wait(), Ok(()));
            });
        }
    });
    changing.join().unwrap();
    for [kept, gone] in pairs {
        assert!(node.get(kept).wait().is_ok(), "a part of it is missing");
        assert!(node.get(gone).wait().is_err());
    }
}

#[test]
fn a_new_lane_is_told_by_the_others_whom_they_know() {
    // Nothing happens by itself here, so that no lane finds contacts by another way.
    let quiet = || Node::builder().lanes(1).configure(|config| config.tick_ms = 3_600_000);
    let first = quiet().start().unwrap();
    let second = quiet().start().unwrap();
    let contacts =
        || first.status().wait().unwrap().lanes.iter().map(|lane| lane.health.live_peers).collect::<Vec<_>>();
    assert!(first.ping(second.address()).wait().unwrap().is_some());
    assert_eq!(contacts(), [1], "who answers is known");
    first.set_lanes(3).unwrap();
    until("all lanes know it", || contacts() == [1, 1, 1]);
}
