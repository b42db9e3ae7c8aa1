//! A minority around a target that names made-up contacts, on real sockets: what is put there is held near it, and found.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use support::made_up::MadeUp;
use support::{builder, until};
use tessera_dht_node::{ContentId, Node, Point as _};

const NODES: usize = 60;
const ATTACKERS: usize = 12;
const READS: usize = 40;
/// Contacts of one distance that a table keeps.
const TABLE_K: usize = 20;

#[test]
fn twelve_attackers_with_made_up_contacts_keep_a_value_neither_from_holders_near_it_nor_from_its_readers() {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..NODES {
        let seeds: Vec<_> = nodes.iter().take(2).map(Node::address).collect();
        nodes.push(builder().lanes(1).bootstrap(seeds).start().unwrap());
    }
    let contacts = |node: &Node| node.status().wait().unwrap().contacts();
    // Attackers meet a network that has formed: in tables that have yet to fill they would take the places of honest nodes.
    let rooms: Vec<usize> = nodes.iter().map(|node| room_for_others(node, &nodes)).collect();
    let know_others = || nodes.iter().zip(&rooms).all(|(node, room)| contacts(node) * 10 >= room * 9);
    until("each knows nine in ten of those that it has room for", know_others);
    let value = b"what they would keep from its readers";
    let target = ContentId::of_immutable(value);
    let attackers = MadeUp::around(&target, &nodes, ATTACKERS);
    let know_attackers = || nodes.iter().zip(&rooms).filter(|(node, room)| contacts(node) > **room).count();
    until("nodes know attackers", || know_attackers() > NODES / 4);

    let mut near: Vec<_> = nodes.iter().collect();
    near.sort_by_key(|node| node.id().distance_to(&target));
    let (near, far) = near.split_at(20);
    let stored = far[0].put(value.to_vec()).wait().unwrap();
    let holders = near.iter().filter(|node| node.status().wait().unwrap().held("records") > 0).count();

    let found = (0..READS).filter(|n| far[1 + n % (far.len() - 1)].get(target).wait().is_ok()).count();
    assert!(found * 100 >= READS * 95, "{found} of {READS} reads found it");
    assert!(holders >= 18, "{holders} of the 20 nearest hold it: {stored:?}");
    drop(attackers);
}

/// How many of the others a node's table has room for: twenty at each distance that it tells apart.
fn room_for_others(node: &Node, nodes: &[Node]) -> usize {
    let mut at_distance = [0; 257];
    for other in nodes.iter().filter(|other| other.id() != node.id()) {
        at_distance[node.id().distance_to(&other.id()).leading_zeros() as usize] += 1;
    }
    at_distance.iter().map(|others: &usize| (*others).min(TABLE_K)).sum()
}
