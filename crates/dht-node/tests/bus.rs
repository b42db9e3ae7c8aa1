//! The bus between the lanes of a running node: what it carries, what it costs where the kernel does not steer, and its alarms.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::time::{Duration, Instant};

use support::{builder, network, until};
use tessera_dht_node::{ContentId, Node};
use tessera_lanes::Class;

/// Messages of a class that the lanes of a node have taken, and those that were dropped.
fn taken(node: &Node, class: Class) -> (u64, u64) {
    let snapshot = node.runtime_snapshot();
    let classes = snapshot.lanes.iter().map(|lane| &lane.classes[class.index()]);
    classes.fold((0, 0), |(drained, dropped), class| (drained + class.drained, dropped + class.dropped_total()))
}

#[test]
fn changes_of_lanes_and_news_for_new_lanes_are_control_messages_and_all_are_acknowledged() {
    let nodes = network(3, 2);
    let node = &nodes[0];
    let ids: Vec<ContentId> =
        (0..10).map(|n| nodes[1].put(format!("kept {n}").into_bytes()).wait().unwrap().id).collect();
    for lanes in [4, 1, 3] {
        let before = taken(node, Class::Control).0;
        node.set_lanes(lanes).unwrap();
        // Each lane is told of the map, and each lane that leaves is told so.
        until("control messages were taken", || taken(node, Class::Control).0 >= before + lanes as u64);
    }
    node.relieve(0, 1).unwrap();
    node.merge_back().unwrap();
    for id in ids {
        assert!(node.get(id).wait().is_ok());
    }
    assert!(node.runtime_snapshot().total("acks_taken") > 0, "messages were acknowledged");
    assert_eq!(node.runtime_snapshot().total("acks_given_up"), 0);
    assert_eq!(node.status().wait().unwrap().alarms, [] as [String; 0]);
}

#[test]
fn a_node_that_the_kernel_does_not_steer_for_serves_as_well_and_passes_datagrams_on() {
    let mut nodes = network(2, 1);
    let seed = nodes[0].address();
    let node = builder().lanes(3).kernel_steering(false).bootstrap([seed]).start().unwrap();
    node.joined(Duration::from_secs(600)).wait().unwrap();
    nodes.push(node);
    let node = &nodes[2];
    until("all know it", || nodes.iter().all(|node| node.peers().wait().unwrap().len() == 2));
    assert!(!node.status().wait().unwrap().kernel_steering);
    for n in 0..20 {
        let id = nodes[0].put(format!("through lanes {n}").into_bytes()).wait().unwrap().id;
        assert!(node.get(id).wait().is_ok());
        let back = node.put(format!("and back {n}").into_bytes()).wait().unwrap().id;
        assert!(nodes[1].get(back).wait().is_ok());
    }
    assert!(node.runtime_snapshot().total("misrouted") > 0, "a third at most met its lane by chance");
}

#[test]
fn control_messages_that_a_hung_lane_never_took_raise_the_alarm_of_a_running_node() {
    const HANGS_FOR: Duration = Duration::from_secs(20);
    // Each lane has a thread: what hangs is one lane.
    let node = builder().lanes(2).share_threads(false).test_hooks(true).start().unwrap();
    let told =
        |word: &str| node.status().wait().is_ok_and(|status| status.alarms.iter().any(|alarm| alarm.contains(word)));
    let mut hangs_until = None;
    until("the alarm stands", || {
        // Where a machine is so slow that the lane goes on before it was told often enough, it hangs once more.
        if hangs_until.is_none_or(|end| end < Instant::now()) {
            hangs_until = Some(Instant::now() + HANGS_FOR);
            assert!(node.inject_stall(1, HANGS_FOR));
            // The successor of the other one says that it is there, to a lane that hears nothing.
            until("a lane panics", || node.inject_panic(0));
        }
        told("control messages were dropped")
    });
    let snapshot = node.runtime_snapshot();
    assert!(snapshot.total("acks_given_up") > 0, "it was told again and again before that");
    until("the node serves again", || node.put(b"after it").wait().is_ok());
}
