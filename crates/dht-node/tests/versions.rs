//! Versions of a mutable value: readers get the version that the node says it wrote.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::collections::BTreeSet;

use support::{builder, network, until};
use tessera_dht_node::mutable::Mutable;
use tessera_dht_node::{Node, NodeError, PutMutable};

fn write(node: &Node, sequence: u64, value: &[u8]) -> Result<Mutable, NodeError> {
    node.put_mutable(value, PutMutable { sequence: Some(sequence), ..PutMutable::named("motd") }).wait()
}

#[test]
fn a_version_that_is_not_kept_is_refused_also_by_a_node_that_is_alone() {
    for count in [1, 2] {
        let node = &network(count, 2)[0];
        let first = write(node, 5, b"v1").unwrap();
        assert_eq!(write(node, 5, b"v1").unwrap().sequence, 5, "the same again is no other value");
        let other = write(node, 5, b"v2").unwrap_err();
        assert_eq!(other, NodeError::Outdated { current: 5, asked: 5 });
        assert!(other.to_string().contains("another value"), "{other}");
        assert_eq!(write(node, 3, b"v3"), Err(NodeError::Outdated { current: 5, asked: 3 }));
        let read = node.get_mutable(first.key).wait().unwrap();
        assert_eq!((read.sequence, &read.value[..]), (5, &b"v1"[..]), "of {count} nodes");
        assert_eq!(write(node, 6, b"v4").unwrap().sequence, 6);
        node.delete(PutMutable { sequence: Some(7), ..PutMutable::named("motd") }).wait().unwrap();
        assert_eq!(write(node, 7, b"v5"), Err(NodeError::Outdated { current: 7, asked: 7 }), "it is deleted");
    }
}

#[test]
fn an_older_version_is_refused_though_a_holder_that_knows_no_newer_one_takes_it() {
    let nodes = network(2, 1);
    let owner = |sequence: u64| PutMutable {
        sequence: Some(sequence),
        seed: Some([7; 32].into()),
        keep_alive: false,
        ..PutMutable::named("motd")
    };
    let newer = nodes[0].put_mutable(b"newer", owner(5)).wait().unwrap();
    // These two have seen neither version, and one of them is given the older by the other.
    let [writer, _taker] = [1, 2].map(|_| builder().lanes(1).bootstrap([nodes[0].address()]).start().unwrap());
    until("they know all nodes", || writer.status().wait().unwrap().lanes[0].health.live_peers == 3);
    let before = writer.status().wait().unwrap().held("kept alive bytes");
    let older = PutMutable { keep_alive: true, ..owner(3) };
    assert_eq!(writer.put_mutable(b"older", older).wait(), Err(NodeError::Outdated { current: 5, asked: 3 }));
    assert_eq!(writer.status().wait().unwrap().held("kept alive bytes"), before, "it is not stored again later");
    let read = writer.get_mutable(newer.key).wait().unwrap();
    assert_eq!((read.sequence, &read.value[..]), (5, &b"newer"[..]));
    let same = PutMutable { keep_alive: true, ..owner(5) };
    assert_eq!(writer.put_mutable(b"other", same).wait(), Err(NodeError::Outdated { current: 5, asked: 5 }));
}

#[test]
fn versions_written_at_once_through_one_node_have_numbers_of_their_own() {
    const WRITERS: u8 = 6;
    for count in [1, 3] {
        let node = &network(count, 2)[0];
        let written: Vec<Mutable> = std::thread::scope(|scope| {
            let write = |n: u8| node.put_mutable(vec![n], PutMutable::named("motd")).wait();
            let writers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(move || write(n))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap().unwrap()).collect()
        });
        let sequences: BTreeSet<u64> = written.iter().map(|version| version.sequence).collect();
        assert_eq!(sequences, (1..=u64::from(WRITERS)).collect(), "of {count} nodes");
        let newest = written.iter().max_by_key(|version| version.sequence).unwrap();
        let read = node.get_mutable(newest.key).wait().unwrap();
        assert_eq!((read.sequence, &read.value), (newest.sequence, &newest.value));
    }
}
