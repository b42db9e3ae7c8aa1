//! Records survive a restart, a restart with another number of lanes, a lane that panics, and changes of lanes under load.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use support::{builder, network, until};
use tessera_dht_node::{ContentId, Node, PutMutable};

fn at(path: &Path, lanes: usize, listen: Option<SocketAddr>, seed: Option<&Node>) -> Node {
    let builder = builder().lanes(lanes).data_dir(path).test_hooks(true).bootstrap(seed.map(Node::address));
    match listen {
        Some(listen) => builder.listen(listen).start().unwrap(),
        None => builder.start().unwrap(),
    }
}

fn held(node: &Node) -> (usize, usize, usize) {
    let status = node.status().wait().unwrap();
    (status.held("records"), status.held("providers"), status.held("published"))
}

#[test]
fn a_node_that_restarts_has_its_identity_records_providers_and_contacts_with_any_number_of_lanes() {
    let dir = tempfile::tempdir().unwrap();
    let others = network(3, 1);
    let node = at(dir.path(), 2, None, Some(&others[0]));
    node.joined(Duration::from_secs(600)).wait().unwrap();
    let (id, listen) = (node.id(), node.listen_addr());
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 3));
    let values: Vec<ContentId> =
        (0..60).map(|n| others[n % 3].put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    for n in 0..20 {
        others[n % 3].announce([ContentId::of_immutable(format!("film {n}").as_bytes())]).wait().unwrap();
    }
    node.announce([ContentId::of_immutable(b"my own film")]).wait().unwrap();
    until("it holds all of it", || held(&node).0 >= 60 && held(&node).1 >= 20);
    let before = held(&node);
    node.shutdown();
    for lanes in [2, 5, 3, 1] {
        let node = at(dir.path(), lanes, Some(listen), None);
        assert_eq!((node.id(), node.listen_addr()), (id, listen));
        assert_eq!(held(&node), before, "with {lanes} lanes");
        until("it finds its old contacts without being told any", || node.peers().wait().unwrap().len() == 3);
        for id in &values {
            // From its own store, without asking a peer.
            let got = node.get(*id).wait().unwrap();
            assert_eq!(got.explain.finish, None, "with {lanes} lanes");
        }
        node.shutdown();
    }
}

#[test]
fn a_node_that_gets_a_new_identity_has_what_it_had_under_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let node = at(dir.path(), 3, None, None);
    let before = node.id();
    let values: Vec<ContentId> =
        (0..40).map(|n| node.put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    node.shutdown();
    std::fs::remove_file(dir.path().join("key")).unwrap();
    for lanes in [3, 3, 2, 5] {
        let node = at(dir.path(), lanes, None, None);
        assert_ne!(node.id(), before);
        for id in &values {
            assert_eq!(node.get(*id).wait().unwrap().explain.finish, None, "with {lanes} lanes");
        }
        node.shutdown();
    }
}

#[test]
fn a_lane_that_panics_is_restarted_alone_and_loses_nothing_it_had_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let others = network(3, 1);
    let node = at(dir.path(), 3, None, Some(&others[0]));
    node.joined(Duration::from_secs(600)).wait().unwrap();
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 3));
    let values: Vec<ContentId> =
        (0..40).map(|n| others[n % 3].put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    until("it holds all of it", || held(&node).0 >= 40);
    let before = held(&node);
    for lane in [0, 2, 1] {
        assert!(node.inject_panic(lane));
        // Callers notice nothing but a little delay: the question is asked again.
        for id in &values {
            node.get(*id).wait().unwrap();
        }
        until("the lane is back", || node.status().wait().unwrap().lanes.len() == 3);
        until("it holds what it held", || held(&node) == before);
    }
    let events: Vec<String> = node.take_events().into_iter().map(|event| event.what).collect();
    assert_eq!(events.iter().filter(|what| what.contains("told to panic")).count(), 3, "{events:?}");
}

#[test]
fn the_panic_hook_is_for_nodes_built_with_it() {
    let node = network(1, 1).remove(0);
    assert!(!node.inject_panic(0));
    assert_eq!(node.status().wait().unwrap().lanes.len(), 1);
}

#[test]
fn lanes_change_from_one_to_four_to_three_under_load_without_a_lost_record() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    let dir = tempfile::tempdir().unwrap();
    let others = network(4, 1);
    let node = at(dir.path(), 1, None, Some(&others[0]));
    node.joined(Duration::from_secs(600)).wait().unwrap();
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 4));
    let stop = Arc::new(AtomicBool::new(false));
    let (lookups, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut load = Vec::new();
    for (n, user) in [others[1].clone(), others[2].clone(), node.clone()].into_iter().enumerate() {
        let (stop, lookups, failed, changing) = (stop.clone(), lookups.clone(), failed.clone(), node.id());
        load.push(std::thread::spawn(move || {
            let (mut stored, mut acknowledged) = (Vec::new(), Vec::new());
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let put = user.put(format!("load {n} {round}").into_bytes()).wait().unwrap();
                assert!(put.replicas * 2 > put.holders, "{put:?}");
                stored.push(put.id);
                if put.explain.asked.iter().any(|asked| asked.id == changing && asked.useful) {
                    acknowledged.push(put.id);
                }
                lookups.fetch_add(1, Ordering::Relaxed);
                if user.get(stored[round / 2]).wait().is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            (stored, acknowledged)
        }));
    }
    until("there is load", || lookups.load(Ordering::Relaxed) > 60);
    for lanes in [4, 3, 1, 2] {
        node.set_lanes(lanes).unwrap();
        let from = lookups.load(Ordering::Relaxed);
        until("the load goes on", || lookups.load(Ordering::Relaxed) > from + 30);
        assert_eq!(node.status().wait().unwrap().lanes.len(), lanes);
    }
    stop.store(true, Ordering::Relaxed);
    let (mut stored, mut acknowledged) = (Vec::new(), Vec::new());
    for thread in load {
        let (all, by_it) = thread.join().unwrap();
        stored.extend(all);
        acknowledged.extend(by_it);
    }
    let (lookups, failed) = (lookups.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    assert_eq!(failed, 0, "of {lookups} lookups during the changes");
    for id in &stored {
        assert!(others[3].get(*id).wait().is_ok(), "a record is lost");
    }
    // The changing node still holds all it acknowledged, and still does after a restart.
    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
    let holds_all = |node: &Node| {
        for id in &acknowledged {
            let explain = node.get(*id).wait().unwrap().explain;
            assert_eq!(explain.finish, None, "it asks others for a record that it acknowledged");
        }
    };
    holds_all(&node);
    let listen = node.listen_addr();
    node.shutdown();
    holds_all(&at(dir.path(), 4, Some(listen), None));
}

#[test]
fn a_hot_lane_is_relieved_and_takes_its_slots_back() {
    let nodes = network(3, 2);
    let ids: Vec<ContentId> =
        (0..30).map(|n| nodes[1].put(format!("hot {n}").into_bytes()).wait().unwrap().id).collect();
    let before = held(&nodes[0]).0;
    nodes[0].relieve(0, 1).unwrap();
    assert_eq!(held(&nodes[0]).0, before);
    for id in &ids {
        assert_eq!(nodes[0].get(*id).wait().unwrap().explain.finish, None);
    }
    nodes[0].merge_back().unwrap();
    assert_eq!(held(&nodes[0]).0, before);
    assert!(nodes[0].relieve(0, 7).is_err(), "there is no lane seven");
}

#[test]
fn a_mutable_value_survives_the_restart_of_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let others = network(3, 1);
    let node = at(dir.path(), 2, None, Some(&others[0]));
    node.joined(Duration::from_secs(600)).wait().unwrap();
    let first = node.put_mutable(b"one".to_vec(), PutMutable::named("motd")).wait().unwrap();
    node.shutdown();
    let node = at(dir.path(), 1, None, Some(&others[0]));
    node.joined(Duration::from_secs(600)).wait().unwrap();
    let second = node.put_mutable(b"two".to_vec(), PutMutable::named("motd")).wait().unwrap();
    assert_eq!((second.key, second.sequence), (first.key, first.sequence + 1));
}

#[test]
fn a_log_is_replaced_by_a_snapshot_from_which_a_restart_has_everything() {
    let dir = tempfile::tempdir().unwrap();
    let others = network(2, 1);
    let start = |seeds: Option<&Node>| {
        let builder = builder().lanes(2).data_dir(dir.path()).compact_log_at(64 << 10);
        builder.bootstrap(seeds.map(Node::address)).start().unwrap()
    };
    let node = start(Some(&others[0]));
    node.joined(Duration::from_secs(600)).wait().unwrap();
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 2));
    let kept: Vec<ContentId> =
        (0..40).map(|n| others[n % 2].put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    let film = ContentId::of_immutable(b"a film");
    others[1].announce([film]).wait().unwrap();
    until("it holds the provider", || held(&node).1 == 1);
    // Versions replace each other: the log grows, the state does not.
    let mut newest = None;
    for n in 0..300_u32 {
        let value = [&n.to_le_bytes()[..], &[7; 800]].concat();
        let put = PutMutable { sequence: Some(u64::from(n) + 1), ..PutMutable::named("often") };
        newest = Some(others[0].put_mutable(value, put).wait().unwrap());
    }
    let size = || -> u64 {
        let files = std::fs::read_dir(dir.path().join("log")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    until("the log is short", || size() < 160 << 10);
    let before = held(&node);
    node.shutdown();
    let node = start(None);
    assert_eq!(held(&node), before, "from {} bytes", size());
    until("it found its contacts in the snapshot", || node.peers().wait().unwrap().len() == 2);
    for id in kept {
        assert_eq!(node.get(id).wait().unwrap().explain.finish, None);
    }
    let newest = newest.unwrap();
    assert_eq!(node.get_mutable(newest.key).wait().unwrap().sequence, newest.sequence);
}

#[test]
fn a_mutable_value_of_a_node_that_is_alone_is_read_and_written_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let start = || builder().lanes(2).data_dir(dir.path()).start().unwrap();
    let node = start();
    let first = node.put_mutable(b"today", PutMutable::named("motd")).wait().unwrap();
    node.shutdown();
    let node = start();
    assert_eq!(node.get_mutable(first.key).wait().unwrap().value, b"today");
    assert_eq!(node.put_mutable(b"tomorrow", PutMutable::named("motd")).wait().unwrap().sequence, 2);
}
