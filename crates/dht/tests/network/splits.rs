//! Splits: lost contacts are tried again and found again, however long it took, and records are given to their current holders.

use crate::net::{self, Net};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::contact::Contact;
use tessera_dht::lookup::LookupConfig;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::record::immutable_record;
use tessera_dht::routing::TableLimits;
use tessera_dht::store::records::Class;

/// How many live contacts each lane of each member has: the fewest and the most.
fn live(net: &Net, members: std::ops::Range<usize>) -> (usize, usize) {
    let lanes = net.members[members].iter().flat_map(|member| &member.lanes);
    let (least, most) =
        (lanes.clone().map(|lane| lane.table().live_len()).min(), lanes.map(|lane| lane.table().live_len()).max());
    (least.unwrap(), most.unwrap())
}

fn lost(net: &Net, n: usize, lane: usize) -> usize {
    let bounds = net.members[n].lanes[lane].bounds();
    bounds.iter().find(|(name, _, _)| *name == "lost contacts").unwrap().1
}

#[test]
fn a_split_of_two_hours_heals_within_minutes() {
    let mut net = Net::of(30, &NodeConfig::default());
    net.cut = Some(15);
    net.run_quietly(2 * 3_600_000);
    assert_eq!(live(&net, 0..30), (14, 14));
    net.cut = None;
    net.run_quietly(14 * 60_000);
    assert_eq!(live(&net, 0..30), (29, 29), "all nodes know each other");
}

#[test]
fn a_seed_on_the_other_side_of_a_split_is_tried_though_no_node_there_was_ever_met() {
    let mut net = Net::of(12, &NodeConfig::default());
    net.cut = Some(6);
    // All start again behind the border, so that no node remembers a contact beyond it.
    for n in 0..12 {
        net.members[n].lanes[0] = net::lane_again(n, net.now);
        let (first, second) = (net.members[0].contact, net.members[6].contact);
        let seeds = match n {
            0..6 => vec![first],
            6 => vec![first, net.members[7].contact],
            _ => vec![first, second],
        };
        net.start(n, seeds);
    }
    net.run_quietly(20 * 60_000);
    assert_eq!((live(&net, 0..6), live(&net, 6..12)), ((5, 5), (5, 5)));
    net.cut = None;
    net.run_quietly(15 * 60_000);
    assert_eq!(live(&net, 0..12), (11, 11));
}

/// Twenty nodes on each side of a border that have never met a node beyond it, and have more contacts than places for them. Those for whom
/// `has_seed` holds have the first node, which is beyond it, as a seed. The border is gone for forty minutes.
fn after_a_border(has_seed: impl Fn(&Net, usize) -> bool) -> Net {
    let config = NodeConfig {
        table: TableLimits { k: 4, ..TableLimits::default() },
        lookup: LookupConfig { k: 4, ..LookupConfig::default() },
        ..NodeConfig::default()
    };
    let mut net = Net::empty();
    net.cut = Some(20);
    for n in 0..40 {
        net.join_by(if n < 20 { 0 } else { 20 }, 1, &config);
        net.run(300);
    }
    for n in 20..40 {
        if has_seed(&net, n) {
            let contacts = vec![net.members[0].contact];
            net.tell(n, None, Command::Bootstrap { contacts });
        }
    }
    net.run_quietly(20 * 60_000);
    net.cut = None;
    net.run_quietly(40 * 60_000);
    net
}

/// The four nodes nearest to member `n`, but for itself, wherever they are.
fn nearest_to(net: &Net, n: usize) -> Vec<Contact> {
    let id = net.members[n].lanes[0].id();
    let others = net.members.iter().map(|member| member.contact).filter(|contact| contact.id() != id);
    let mut nearest: Vec<_> = others.collect();
    nearest.sort_by_key(|contact| contact.id().distance_to(&id));
    nearest.truncate(4);
    nearest
}

/// The first member behind the border whose bucket for the seed is that of half the space, which is full.
fn far_from_seed(net: &Net) -> usize {
    let seed = net.members[0].lanes[0].id();
    (20..40).find(|n| net.members[*n].lanes[0].id().distance_to(&seed).leading_zeros() == 0).unwrap()
}

#[test]
fn a_seed_beyond_a_split_is_asked_for_its_contacts_though_its_place_here_is_taken() {
    let mut net = after_a_border(|net, n| n == far_from_seed(net));
    let n = far_from_seed(&net);
    let (seed, own) = (net.members[0].contact.id(), net.members[n].lanes[0].id());
    assert!(net.members[n].lanes[0].table().iter_live().all(|peer| peer.id != seed), "its place is taken");
    let nearest = nearest_to(&net, n);
    assert!(nearest.iter().any(|contact| net.by_addr[&contact.addr] < 20), "or it would prove nothing");
    let found = net.ask(n, Command::FindNode { target: *own.as_bytes() });
    assert_eq!(found.answer, Answer::Nodes(nearest));
}

#[test]
fn two_parts_of_which_one_has_a_seed_in_the_other_become_one_though_their_buckets_are_full() {
    let mut net = after_a_border(|_, _| true);
    let mut missed = Vec::new();
    for (from, to) in (0..20).map(|n| (39, n)).chain((20..40).map(|n| (19, n))) {
        let there = net.members[to].contact;
        let found = net.ask(from, Command::FindNode { target: *there.id().as_bytes() });
        if !matches!(&found.answer, Answer::Nodes(nodes) if nodes[0] == there) {
            missed.push((from, to));
        }
    }
    assert_eq!(missed, []);
}

#[test]
fn a_node_without_seeds_that_was_cut_off_finds_at_once_what_is_there_again() {
    let mut net = Net::of(8, &NodeConfig::default());
    net.silent.insert(0); // It was the first, and knows no seed.
    net.run_quietly(12 * 60_000);
    assert_eq!((live(&net, 0..1), lost(&net, 0, 0)), ((0, 0), 7));
    net.put(3, immutable_record(b"meanwhile", 36_000).unwrap());
    net.silent.clear();
    let got = net.get(0, ContentId::of_immutable(b"meanwhile"), false);
    assert!(matches!(got.answer, Answer::Record(_)), "{got:?}");
}

#[test]
fn an_idle_node_without_seeds_joins_again_by_lost_contacts() {
    let mut net = Net::of(8, &NodeConfig::default());
    net.silent.insert(0);
    net.run_quietly(3 * 3_600_000);
    assert_eq!(live(&net, 0..1), (0, 0));
    // The others must not find it first.
    let now = net.now;
    for n in 1..8 {
        net.members[n].lanes[0] = net::lane_again(n, now);
        net.start(n, vec![net.members[1].contact]);
    }
    net.silent.clear();
    net.run_quietly(90_000);
    assert!(net.members[0].lanes[0].health(net.now).joined);
}

#[test]
fn the_dead_leave_the_tables_of_all_lanes_though_messages_between_them_are_lost_or_mixed() {
    for (messages_lost, messages_mixed) in [(false, false), (true, false), (false, true)] {
        let mut net = Net::of_lanes(10, 4, &NodeConfig::default());
        (net.messages_lost, net.messages_mixed) = (messages_lost, messages_mixed);
        net.silent.extend(1..10);
        net.run_quietly(15 * 60_000);
        assert_eq!(live(&net, 0..1), (0, 0), "lost: {messages_lost}, mixed: {messages_mixed}");
        if !messages_lost {
            assert_eq!([0, 1, 2, 3].map(|lane| lost(&net, 0, lane)), [9; 4], "and all lanes remember them");
        }
        net.silent.clear();
        net.run_quietly(12 * 60_000);
        assert_eq!(live(&net, 0..1), (9, 9), "lost: {messages_lost}, mixed: {messages_mixed}");
    }
}

/// How many of the twenty nodes nearest to `id` hold its record.
fn true_holders(net: &Net, id: &ContentId) -> usize {
    let mut nearest: Vec<_> = net.members.iter().collect();
    nearest.sort_by_key(|member| member.lanes[0].id().distance_to(id));
    let holds =
        |lane: &tessera_dht::node::LaneNode| lane.records().peek(id).is_some_and(|kept| kept.class == Class::Held);
    nearest[..20].iter().filter(|member| member.lanes.iter().any(holds)).count()
}

#[test]
fn after_a_split_heals_records_have_all_their_holders_however_many_lanes_nodes_have() {
    for lanes in [1, 4] {
        let mut net = Net::of_lanes(30, lanes, &NodeConfig::default());
        net.cut = Some(15);
        net.run_quietly(600_000);
        let ids: Vec<_> = (0..20)
            .map(|n| {
                let value = format!("behind {n}");
                net.put(2, immutable_record(value.as_bytes(), 7200).unwrap());
                ContentId::of_immutable(value.as_bytes())
            })
            .collect();
        net.cut = None;
        net.run_quietly(300_000);
        let holders: Vec<_> = ids.iter().map(|id| true_holders(&net, id)).collect();
        let full = holders.iter().filter(|count| **count == 20).count();
        assert_eq!(full, 20, "{lanes} lanes: {holders:?}");
    }
}
