//! A lane of a running node that is hot by its policy has another serve half of its slots, without being asked to.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::time::Duration;

use support::{builder, network, until};
use tessera_dht_node::{ContentId, ReliefPolicy};

#[test]
fn a_lane_of_a_running_node_lends_slots_by_itself_and_takes_them_back_and_nothing_is_lost() {
    let others = network(2, 1);
    // So low that a lane is hot whatever it does, and cool enough to help: how busy lanes are is up to the machine.
    let policy = ReliefPolicy { hot_percent: 0, cool_percent: 100, sustained: Duration::from_millis(300) };
    let node = builder().lanes(2).relief(Some(policy)).bootstrap([others[0].address()]).start().unwrap();
    node.joined(Duration::from_secs(600)).wait().unwrap();
    until("all know it", || others.iter().all(|other| other.peers().wait().unwrap().len() == 2));
    let ids: Vec<ContentId> =
        (0..30).map(|n| others[n % 2].put(format!("hot {n}").into_bytes()).wait().unwrap().id).collect();
    let mut told: Vec<String> = Vec::new();
    let mut is_told = |word: &str| {
        told.extend(node.take_events().into_iter().map(|event| event.what));
        told.iter().any(|what| what.contains(word))
    };
    until("a lane lends half of its slots", || is_told("serves half of its slots"));
    for id in &ids {
        node.get(*id).wait().unwrap();
    }
    until("it takes them back", || is_told("take their slots back"));
    for id in &ids {
        node.get(*id).wait().unwrap();
    }
    assert_eq!(node.status().wait().unwrap().alarms, [] as [String; 0]);
}
