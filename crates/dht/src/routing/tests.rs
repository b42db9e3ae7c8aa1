//! The table by example, and under random sequences of events.

use super::*;
use crate::addr::Addr;
use crate::identity::PublicKey;
use crate::rng::LaneRng;
use proptest::prelude::*;

fn contact(n: u64) -> Contact {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&n.to_le_bytes());
    // Every peer in its own /24, so that only the diversity tests meet that rule.
    let [a, b, ..] = n.to_le_bytes();
    Contact { key: PublicKey(key), addr: Addr::v4([10, a, b, 1], 1000) }
}

fn table(limits: TableLimits) -> RoutingTable {
    RoutingTable::new(NodeId::from_bytes([0; 32]), limits)
}

/// An id whose distance to zero has `zeros` leading zero bits.
fn id_in_bucket(zeros: usize, salt: u8) -> NodeId {
    let mut bytes = [0; 32];
    bytes[zeros / 8] = 0x80 >> (zeros % 8);
    bytes[31] = salt;
    NodeId::from_bytes(bytes)
}

fn fill(table: &mut RoutingTable, count: u8, at_ms: u64, rtt: u64) {
    for n in 0..count {
        table.answered(at_ms + u64::from(n), id_in_bucket(0, n), contact(u64::from(n)), Some(rtt));
    }
}

#[test]
fn a_full_bucket_keeps_its_members_and_names_the_oldest_for_a_ping() {
    let mut table = table(TableLimits::default());
    fill(&mut table, 20, 0, 100);
    let newcomer = table.answered(1000, id_in_bucket(0, 99), contact(99), Some(100));
    assert_eq!(newcomer, Placed::Spare(None), "the oldest was heard a second ago");
    let newcomer = table.answered(60_000, id_in_bucket(0, 98), contact(98), Some(100));
    assert_eq!(newcomer, Placed::Spare(Some(contact(0))));
    assert_eq!((table.live_len(), table.len()), (20, 22));
}

#[test]
fn a_silent_member_gives_way_to_the_fastest_spare_and_not_before_its_second_silence() {
    let mut table = table(TableLimits::default());
    fill(&mut table, 20, 0, 100);
    table.answered(1000, id_in_bucket(0, 99), contact(99), Some(90));
    table.answered(1000, id_in_bucket(0, 98), contact(98), Some(80));
    assert!(!table.silent(&id_in_bucket(0, 3)));
    assert!(table.silent(&id_in_bucket(0, 3)));
    assert!(table.get(&id_in_bucket(0, 3)).is_none());
    assert!(table.get(&id_in_bucket(0, 98)).unwrap().live);
    assert!(!table.get(&id_in_bucket(0, 99)).unwrap().live);
}

#[test]
fn an_answer_wipes_out_earlier_silence() {
    let mut table = table(TableLimits::default());
    fill(&mut table, 1, 0, 100);
    table.silent(&id_in_bucket(0, 0));
    table.answered(1, id_in_bucket(0, 0), contact(0), Some(100));
    assert_eq!(table.get(&id_in_bucket(0, 0)).unwrap().silences, 0);
}

#[test]
fn a_lonely_peer_survives_silence_for_a_while_and_then_goes() {
    let mut table = table(TableLimits::default());
    fill(&mut table, 1, 0, 100);
    let gone: Vec<_> = (0..6).map(|_| table.silent(&id_in_bucket(0, 0))).collect();
    assert_eq!(gone, [false, false, false, false, false, true]);
    assert!(table.is_empty());
}

#[test]
fn a_newcomer_twice_as_fast_changes_places_with_the_slowest() {
    let mut table = table(TableLimits::default());
    fill(&mut table, 19, 0, 100);
    table.answered(50, id_in_bucket(0, 50), contact(50), Some(300));
    assert_eq!(table.answered(60, id_in_bucket(0, 60), contact(60), Some(150)), Placed::Spare(None));
    assert_eq!(table.answered(61, id_in_bucket(0, 61), contact(61), Some(149)), Placed::Replaced(None));
    assert!(!table.get(&id_in_bucket(0, 50)).unwrap().live, "the slow one waits as a spare");
}

#[test]
fn one_prefix_gets_two_places_of_a_bucket_and_ten_of_the_table() {
    let mut table = table(TableLimits::default());
    let same_24 = |n: u8| Contact { addr: Addr::v4([192, 0, 2, n], 1), ..contact(u64::from(n)) };
    for n in 0..5 {
        let placed = table.answered(0, id_in_bucket(0, n), same_24(n), None);
        assert_eq!(placed == Placed::Added, n < 2, "{n}");
    }
    let taken = (1..20).filter(|z| table.answered(0, id_in_bucket(*z, 1), same_24(*z as u8), None) == Placed::Added);
    assert_eq!(taken.count(), 8);
}

#[test]
fn a_private_network_has_as_many_places_as_it_needs() {
    let mut table = table(TableLimits::default());
    let same_24 = |n: u8| Contact { addr: Addr::v4([192, 168, 2, n], 1), ..contact(u64::from(n)) };
    let taken =
        |table: &mut RoutingTable, z, n| table.answered(0, id_in_bucket(z, n), same_24(n), None) == Placed::Added;
    assert_eq!((0..20).filter(|n| taken(&mut table, 0, *n)).count(), 20);
    assert_eq!((20..40).filter(|n| taken(&mut table, 1, *n)).count(), 20);
}

#[test]
fn the_bucket_due_for_longest_comes_first_and_a_lookup_makes_it_fresh() {
    let mut table = table(TableLimits::default());
    assert_eq!(table.bucket_due(1000), None, "the table is empty");
    for zeros in [0, 1, 2] {
        table.answered(0, id_in_bucket(zeros, 1), contact(zeros as u64), None);
    }
    for (zeros, due_ms) in [(0, 500), (1, 300), (2, 900), (3, 100)] {
        table.refreshed(&id_in_bucket(zeros, 9), due_ms);
    }
    assert_eq!(table.bucket_due(299), None, "the fourth is due, and empty");
    assert_eq!(table.bucket_due(300), Some(1));
    table.refreshed(&id_in_bucket(1, 7), 2000);
    assert_eq!(table.bucket_due(899), Some(0));
    table.refreshed(&id_in_bucket(0, 7), 2000);
    assert_eq!((table.bucket_due(899), table.bucket_due(900)), (None, Some(2)));
}

#[test]
fn own_id_is_never_taken() {
    let mut table = table(TableLimits::default());
    assert_eq!(table.answered(0, NodeId::from_bytes([0; 32]), contact(0), None), Placed::Refused);
}

#[test]
fn size_estimate_is_right_within_a_factor() {
    let mut rng = LaneRng::new([1; 32]);
    for nodes in [300_u64, 3000, 30_000] {
        let own = NodeId::from_bytes(rng.bytes());
        let mut table = RoutingTable::new(own, TableLimits::default());
        for n in 0..nodes {
            table.answered(0, NodeId::from_bytes(rng.bytes()), contact(n), None);
        }
        let estimate = table.network_size();
        assert!((0.4..2.5).contains(&(estimate / nodes as f64)), "{nodes} nodes, estimated {estimate}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Answered { zeros: usize, salt: u8, rtt: u64 },
    Silent { zeros: usize, salt: u8 },
    Expel { zeros: usize, salt: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..4_usize, 0..12_u8);
    prop_oneof![
        5 => (place.clone(), 1..400_u64).prop_map(|((zeros, salt), rtt)| Step::Answered { zeros, salt, rtt }),
        2 => place.clone().prop_map(|(zeros, salt)| Step::Silent { zeros, salt }),
        1 => place.prop_map(|(zeros, salt)| Step::Expel { zeros, salt }),
    ]
}

proptest! {
    /// Against a naive table: a set of live ids, sorted by distance.
    #[test]
    fn closest_is_exact(own: [u8; 32], seeds in prop::collection::vec(any::<u64>(), 0..300), target: [u8; 32], near in 0..200_u32, count in 1..=K_MAX) {
        let mut table = RoutingTable::new(NodeId::from_bytes(own), TableLimits { peers_max: 4000, per_prefix_in_bucket: 4000, per_prefix_in_table: 4000, ..TableLimits::default() });
        for (n, seed) in seeds.iter().enumerate() {
            // Ids at all depths below our own, so that deep buckets are met too.
            let mut id = own;
            let random: [u8; 32] = LaneRng::new([(*seed % 251) as u8; 32]).bytes();
            let depth = (seed % 40) as usize;
            for bit in depth..256 {
                let flip = bit == depth || random[bit / 8] >> (7 - bit % 8) & 1 == 1;
                if flip { id[bit / 8] ^= 0x80 >> (bit % 8); }
            }
            id[31] ^= *seed as u8;
            table.answered(n as u64, NodeId::from_bytes(id), contact(n as u64), None);
        }
        let mut target = target;
        for bit in 0..near as usize { // Sometimes near ourselves.
            let mask = 0x80 >> (bit % 8);
            target[bit / 8] = target[bit / 8] & !mask | own[bit / 8] & mask;
        }
        let target = NodeId::from_bytes(target);
        let mut naive: Vec<_> = table.iter_live().map(|peer| peer.id.distance_to(&target)).collect();
        naive.sort();
        naive.truncate(count);
        let closest = table.closest(&target, count, |_| true);
        let found: Vec<_> = table.peers_of(&closest).map(|peer| peer.id.distance_to(&target)).collect();
        prop_assert_eq!(found, naive);
    }

    #[test]
    fn bounds_and_counts_hold_whatever_happens(steps in prop::collection::vec(step(), 0..300)) {
        let limits = TableLimits { k: 4, peers_max: 20, ..TableLimits::default() };
        let mut table = table(limits);
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Answered { zeros, salt, rtt } => {
                    let id = id_in_bucket(zeros, salt);
                    let placed = table.answered(n as u64 * 7000, id, contact(u64::from(salt) * 4 + zeros as u64), Some(rtt));
                    prop_assert_eq!(table.get(&id).is_some(), placed != Placed::Refused);
                }
                Step::Silent { zeros, salt } => {
                    let known = table.get(&id_in_bucket(zeros, salt)).is_some();
                    let lost = table.silent(&id_in_bucket(zeros, salt));
                    prop_assert_eq!(table.get(&id_in_bucket(zeros, salt)).is_some(), known && !lost);
                }
                Step::Expel { zeros, salt } => {
                    table.expel(&id_in_bucket(zeros, salt));
                    prop_assert!(table.get(&id_in_bucket(zeros, salt)).is_none());
                }
            }
            let mut seen = alloc::collections::BTreeSet::new();
            for (at, bucket) in table.buckets.iter().enumerate() {
                prop_assert!(bucket.live().len() <= 4 && bucket.spares().len() <= SPARES_MAX);
                for index in bucket.live().iter().chain(bucket.spares()) {
                    prop_assert!(seen.insert(*index), "one place each");
                    prop_assert_eq!(table.bucket_of(&table.peers[usize::from(*index)].id), Some(at));
                }
                prop_assert_eq!(bucket.live_len > 0, table.occupied[at / 64] >> (63 - at % 64) & 1 == 1);
            }
            prop_assert_eq!(seen.len(), table.len());
            prop_assert!(table.len() <= 20);
            prop_assert_eq!(table.iter_live().count(), table.live_len());
        }
    }
}
