//! Faults of the network, the disk and the machine. In each case the node goes on, or names the fault and the remedy.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use support::stranger::Stranger;
use support::{builder, network, until};
use tessera_dht::node::Counters;
use tessera_dht::wire::message::Message;
use tessera_dht_node::data_dir::DataDirError;
use tessera_dht_node::{ContentId, Node, NodeError, PeerAddr, StartError};

fn counted(node: &Node, of: fn(&Counters) -> u64) -> u64 {
    node.status().wait().unwrap().lanes.iter().map(|lane| of(&lane.counters)).sum()
}

fn lone() -> Node {
    network(1, 2).remove(0)
}

#[test]
fn garbage_of_any_length_is_dropped_without_an_answer() {
    let node = lone();
    let mut stranger = Stranger::new([1; 32], "tessera");
    for len in (0..1500).step_by(7) {
        let garbage: Vec<u8> = (0..len).map(|n| (n * 31 + len) as u8).collect();
        stranger.send(&node, &garbage);
    }
    let refused = |node: &Node| counted(node, |c| c.refused_header + c.refused_forged + c.refused_period);
    until("all of it was counted", || refused(&node) >= 150);
    assert_eq!(stranger.answers(1), 0);
    until("the node serves on", || stranger.is_served(&node));
}

#[test]
fn a_datagram_cut_anywhere_is_dropped_without_an_answer() {
    let node = lone();
    let mut stranger = Stranger::new([1; 32], "tessera");
    let whole = stranger.datagram(&node, Message::Ping);
    for len in (0..whole.len()).step_by(11) {
        stranger.send(&node, &whole[..len]);
    }
    assert_eq!(stranger.answers(1), 0);
    until("the node serves on", || stranger.is_served(&node));
}

#[test]
fn a_replayed_datagram_is_answered_once() {
    let node = lone();
    let mut stranger = Stranger::new([1; 32], "tessera");
    let ping = stranger.datagram(&node, Message::Ping);
    for _ in 0..5 {
        stranger.send(&node, &ping);
    }
    until("the others were counted", || counted(&node, |c| c.refused_replay) == 4);
    until("one was answered", || stranger.answers(1) == 1);
    assert_eq!(stranger.answers(1), 0);
}

#[test]
fn an_oversized_datagram_is_dropped_even_if_its_front_is_well() {
    let node = lone();
    let mut stranger = Stranger::new([1; 32], "tessera");
    for more in [1, 100, 8000] {
        let mut long = stranger.datagram(&node, Message::Ping);
        long.resize(long.len() + more, 0);
        stranger.send(&node, &long);
    }
    until("the one that fits a buffer was counted", || counted(&node, |c| c.refused_header) == 1);
    assert_eq!(stranger.answers(1), 0);
    until("the node serves on", || stranger.is_served(&node));
}

#[test]
fn another_version_of_the_wire_format_is_dropped() {
    let node = lone();
    let mut stranger = Stranger::new([1; 32], "tessera");
    for version in [0, 2, 255] {
        let mut other = stranger.datagram(&node, Message::Ping);
        other[0] = version;
        stranger.send(&node, &other);
    }
    until("all were counted", || counted(&node, |c| c.refused_header) == 3);
    assert_eq!(stranger.answers(1), 0);
}

#[test]
fn nodes_of_another_network_neither_join_nor_are_answered() {
    let node = lone();
    let mut foreign = Stranger::new([1; 32], "another");
    assert!(!foreign.is_served(&node));
    let other = builder().lanes(1).network("another").bootstrap([node.address()]).start().unwrap();
    assert_eq!(other.joined(Duration::from_millis(500)).wait(), Err(NodeError::NotJoined));
    until("its words were counted", || counted(&node, |c| c.refused_forged) > 0);
    assert!(node.peers().wait().unwrap().is_empty());
}

#[test]
fn a_flood_of_new_identities_costs_a_bounded_share_and_friends_are_still_served() {
    // Limits as on the open internet: on loopback they are off.
    let strict = |builder: tessera_dht_node::NodeBuilder| builder.lanes(1).address_diversity(true);
    let node = strict(builder()).start().unwrap();
    let friend = strict(builder()).bootstrap([node.address()]).start().unwrap();
    friend.joined(Duration::from_secs(600)).wait().unwrap();
    let flood: Vec<Vec<u8>> = (0..1500_u32)
        .map(|n| {
            let mut seed = [9; 32];
            seed[..4].copy_from_slice(&n.to_le_bytes());
            Stranger::new(seed, "tessera").datagram(&node, Message::Ping)
        })
        .collect();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in &flood {
        socket.send_to(datagram, node.listen_addr()).unwrap();
    }
    assert!(friend.ping(node.address()).wait().unwrap().is_some(), "a friend is served in the middle of it");
    until("most were refused before any costly step", || counted(&node, |c| c.refused_stranger) > 500);
    let status = node.status().wait().unwrap();
    assert!(status.held("agreements") < 1000, "{}", status.held("agreements"));
    assert_eq!(status.contacts(), 1, "no identity without an address of its own became a contact");
}

#[test]
fn bootstrap_nodes_that_never_answer_do_not_keep_a_node_from_joining_by_another() {
    let friend = lone();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dead = PeerAddr::new(Stranger::new([4; 32], "tessera").key().0, silent.local_addr().unwrap());
    let node = builder().lanes(1).bootstrap([dead, friend.address()]).start().unwrap();
    node.joined(Duration::from_secs(600)).wait().unwrap();
    assert_eq!(node.ping(dead).wait().unwrap(), None);
    let stored = node.put(b"despite the silent one".to_vec()).wait().unwrap();
    assert_eq!(stored.replicas, 1);
}

#[test]
fn a_taken_port_is_refused_in_words() {
    let node = lone();
    let error = builder().listen(node.listen_addr()).start().unwrap_err();
    assert!(matches!(error, StartError::PortTaken(_)), "{error}");
    assert!(error.to_string().contains("--listen"), "{error}");
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = builder().listen(other.local_addr().unwrap()).start().unwrap_err();
    assert!(matches!(error, StartError::PortTaken(_)), "{error}");
}

#[test]
fn a_data_folder_that_cannot_be_written_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"no folder").unwrap();
    for path in [file.as_path(), &file.join("below"), std::path::Path::new("/proc/tessera")] {
        let error = builder().lanes(1).data_dir(path).start().unwrap_err();
        assert!(matches!(error, StartError::Data(DataDirError::Io { .. })), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_damaged_log_costs_what_was_damaged_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let others = network(3, 1);
    let node = builder().lanes(1).data_dir(dir.path()).bootstrap([others[0].address()]).start().unwrap();
    node.joined(Duration::from_secs(600)).wait().unwrap();
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 3));
    let ids: Vec<ContentId> =
        (0..50).map(|n| others[n % 3].put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    until("it holds all", || node.status().wait().unwrap().held("records") == ids.len());
    let id = node.id();
    node.shutdown();
    let log = fs::read_dir(dir.path().join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len());
    let log = log.unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&log, &bytes).unwrap();
    let node = builder().lanes(1).data_dir(dir.path()).start().unwrap();
    assert_eq!(node.id(), id);
    let held = node.status().wait().unwrap().held("records");
    assert!(held > 0 && held < ids.len(), "{held} of {}", ids.len());
    let events: Vec<String> = node.take_events().into_iter().map(|event| event.what).collect();
    assert!(events.iter().any(|what| what.contains("damaged at byte")), "{events:?}");
}

#[test]
fn two_nodes_do_not_share_a_data_folder() {
    let dir = tempfile::tempdir().unwrap();
    let _first = builder().lanes(1).data_dir(dir.path()).start().unwrap();
    let error = builder().lanes(1).data_dir(dir.path()).start().unwrap_err();
    assert!(matches!(error, StartError::Data(DataDirError::InUse(_))), "{error}");
}
