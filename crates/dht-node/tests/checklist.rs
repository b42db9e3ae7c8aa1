//! The checklist of the node specification, a test for each line of it. The line about allocations is `tests/hot_path.rs`: it
//! counts those of the whole process and must be alone in it.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{builder, network, until};
use tessera_dht_node::{ContentId, Node, NodeError};

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// No cross-lane locks; message passing only: code on a lane's thread names no lock. The runtime around the lanes and the node's
/// outside do, for callers. The one lock that a lane takes is a caller's own, to leave its answer there: only these two ever hold
/// it, and neither does anything meanwhile.
#[test]
fn no_lock_between_lanes_only_messages() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for dir in ["dht/src", "lanes/src/ring", "lanes/src/net", "stdx/src"] {
        sources(&crates.join(dir), &mut files);
    }
    for file in ["wal/queue.rs", "lane.rs", "context.rs", "drain.rs", "handoff.rs", "ack.rs", "runtime/lane_thread.rs"]
    {
        files.push(crates.join("lanes/src").join(file));
    }
    for file in ["handler.rs", "walk.rs", "clock.rs"] {
        files.push(crates.join("dht-node/src").join(file));
    }
    assert!(files.len() > 50, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for lock in ["Mutex", "RwLock", "Condvar"] {
                assert!(!line.contains(lock), "{}: {line}", file.display());
            }
        }
    }
}

/// Per-lane sockets, timers and buffers: each lane has a socket of its own on the one port, and runs by its own timers.
#[test]
fn every_lane_has_its_own_socket_timers_and_buffers() {
    let nodes = network(2, 3);
    let port = format!(":{:04X}", nodes[0].listen_addr().port());
    let table = std::fs::read_to_string("/proc/self/net/udp").unwrap();
    let bound =
        table.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&port))).count();
    assert_eq!(bound, 3);
    // Ids of all lanes, so that each gets datagrams by its own socket.
    for n in 0..60 {
        nodes[1].put(format!("for some lane {n}").into_bytes()).wait().unwrap();
    }
    let snapshot = nodes[0].runtime_snapshot();
    for (lane, counters) in snapshot.lanes.iter().enumerate() {
        assert!(counters.total("timers_fired") > 0, "lane {lane}");
        assert!(counters.total("datagrams_in") > 0 && counters.total("datagrams_out") > 0, "lane {lane}");
    }
    let misrouted = snapshot.total("misrouted") as f64 / snapshot.total("datagrams_in") as f64;
    assert!(misrouted < 0.2, "the kernel steers nearly all: {misrouted}");
}

/// Routing, lookups and provider operations are owned by lanes: each id by one.
#[test]
fn routing_lookups_and_providers_are_owned_by_lanes() {
    let nodes = network(3, 3);
    let ids: Vec<ContentId> =
        (0..90).map(|n| nodes[1].put(format!("owned {n}").into_bytes()).wait().unwrap().id).collect();
    for id in &ids {
        nodes[2].announce([*id]).wait().unwrap();
    }
    let held = |what: &str| -> Vec<usize> {
        nodes[0].status().wait().unwrap().lanes.iter().map(|lane| lane.held(what)).collect()
    };
    until("every provider is held once", || held("providers").iter().sum::<usize>() == ids.len());
    assert_eq!(held("records").iter().sum::<usize>(), ids.len(), "every record is held by one lane");
    for what in ["records", "providers"] {
        assert!(held(what).iter().all(|count| (10..60).contains(count)), "{what} are spread: {:?}", held(what));
    }
    assert_eq!(held("table peers"), [2, 2, 2], "every lane has a whole routing table");
    for id in &ids {
        nodes[0].find_providers(*id, 1).wait_all().unwrap();
    }
    let status = nodes[0].status().wait().unwrap();
    for lane in &status.lanes {
        assert!(lane.counters.lookups_started > 5, "lane {} looks up the ids it owns", lane.lane);
    }
}

/// Backpressure: far more commands than a node takes at once all end, within its bounds.
#[test]
fn more_than_a_node_takes_waits_or_is_refused_and_nothing_hangs() {
    let nodes = network(3, 2);
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let node = nodes[0].clone();
            std::thread::spawn(move || {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let calls: Vec<_> = (0..400)
                    .map(|n| Box::pin(node.get(ContentId::of_immutable(format!("{thread} {n}").as_bytes()))))
                    .collect();
                // All at once: each is begun before any is waited for. Some end in their first step.
                let begun: Vec<_> = calls
                    .into_iter()
                    .map(|mut call| match std::future::Future::poll(call.as_mut(), &mut context) {
                        std::task::Poll::Ready(end) => Ok(end),
                        std::task::Poll::Pending => Err(call),
                    })
                    .collect();
                let mut ended = 0;
                for call in begun {
                    let end = call.unwrap_or_else(|call| std::pin::Pin::into_inner(call).wait());
                    assert!(
                        matches!(
                            end,
                            Err(NodeError::NotFound { .. } | NodeError::Inconclusive { .. } | NodeError::Busy)
                        ),
                        "{end:?}"
                    );
                    ended += 1;
                }
                ended
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        for lane in nodes[0].status().wait().unwrap().lanes {
            for (what, now, most) in &lane.bounds {
                assert!(now <= most, "{what}: {now} of {most}");
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), 3200);
    assert!(nodes[1].put(b"and it works on".to_vec()).wait().is_ok());
}

/// Chaos: a lane dies again and again in the middle of traffic; the others serve, and it comes back from its log.
#[test]
fn lanes_that_die_in_traffic_come_back_and_the_others_serve() {
    let dir = tempfile::tempdir().unwrap();
    let others = network(3, 1);
    let node =
        builder().lanes(3).data_dir(dir.path()).test_hooks(true).bootstrap([others[0].address()]).start().unwrap();
    node.joined(Duration::from_secs(600)).wait().unwrap();
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 3));
    let before: Vec<ContentId> =
        (0..30).map(|n| others[0].put(format!("before {n}").into_bytes()).wait().unwrap().id).collect();
    until("it holds all of it", || node.status().wait().unwrap().held("records") == before.len());
    for round in 0..6 {
        let id = others[1].put(format!("round {round}").into_bytes()).wait().unwrap().id;
        assert!(node.inject_panic(round % 3) || round > 2, "a lane may still be down from the round before");
        for reader in others.iter().chain([&node]) {
            assert!(reader.get(id).wait().is_ok(), "round {round}");
        }
    }
    until("all lanes are back", || node.status().wait().unwrap().lanes.len() == 3);
    for id in before {
        assert_eq!(node.get(id).wait().unwrap().explain.finish, None, "it has it from its log, and asks no peer");
    }
}

/// Rebalancing: only slots that must move do, and all of them arrive.
#[test]
fn rebalancing_moves_what_must_move_and_loses_nothing() {
    let nodes = network(3, 2);
    let ids: Vec<ContentId> =
        (0..60).map(|n| nodes[1].put(format!("moves {n}").into_bytes()).wait().unwrap().id).collect();
    let held = |node: &Node| -> Vec<usize> {
        node.status().wait().unwrap().lanes.iter().map(|lane| lane.held("records")).collect()
    };
    let mut before = held(&nodes[0]);
    assert_eq!(before.iter().sum::<usize>(), ids.len());
    for lanes in [5, 3, 1, 4] {
        nodes[0].set_lanes(lanes).unwrap();
        let after = held(&nodes[0]);
        assert_eq!(after.iter().sum::<usize>(), ids.len(), "with {lanes} lanes");
        // Lanes that stay give to new ones and take from those that go, and nothing moves between them.
        for (stayed, (was, is)) in before.iter().zip(&after).enumerate() {
            let grew = after.len() > before.len();
            assert!(if grew { is <= was } else { is >= was }, "lane {stayed}, {lanes} lanes: {before:?} to {after:?}");
        }
        before = after;
    }
    for id in ids {
        assert_eq!(nodes[0].get(id).wait().unwrap().explain.finish, None, "from its own store");
    }
}
