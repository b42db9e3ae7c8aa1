//! The routing table against a naive one: the same rules over plain lists, without slab, indices or bit sets.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use proptest::prelude::*;
use tessera_contracts::point::{NodeId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::PublicKey;
use tessera_dht::routing::{Placed, RoundTrip, RoutingTable, SPARES_MAX, TableLimits};

const OWN: NodeId = NodeId::from_bytes([0; 32]);

/// Small enough that every limit is met.
const LIMITS: TableLimits =
    TableLimits { k: 3, peers_max: 16, per_prefix_in_bucket: 2, per_prefix_in_table: 5, silences_max: 2 };

#[derive(Clone, Copy)]
struct NaivePeer {
    id: NodeId,
    contact: Contact,
    round_trip: RoundTrip,
    answered_ms: u64,
    silences: u8,
}

impl NaivePeer {
    fn srtt(&self) -> Option<u64> {
        self.round_trip.srtt_ms()
    }
}

/// A bucket: members in order of use, spares in order of age.
#[derive(Clone, Default)]
struct NaiveBucket {
    live: Vec<NaivePeer>,
    spares: Vec<NaivePeer>,
}

struct NaiveTable(Vec<NaiveBucket>);

impl NaiveTable {
    fn len(&self) -> usize {
        self.0.iter().map(|bucket| bucket.live.len() + bucket.spares.len()).sum()
    }

    fn live(&self) -> Vec<NodeId> {
        self.0.iter().flat_map(|bucket| &bucket.live).map(|peer| peer.id).collect()
    }

    fn knows(&self, id: &NodeId) -> bool {
        self.0.iter().flat_map(|bucket| bucket.live.iter().chain(&bucket.spares)).any(|peer| peer.id == *id)
    }

    fn bucket(&mut self, id: &NodeId) -> &mut NaiveBucket {
        &mut self.0[OWN.distance_to(id).leading_zeros() as usize]
    }

    fn prefix_has_room(&mut self, id: &NodeId, contact: &Contact) -> bool {
        let of = |bucket: &NaiveBucket| {
            let all = bucket.live.iter().chain(&bucket.spares);
            let others = all.filter(|peer| peer.id != *id);
            others.filter(|peer| peer.contact.addr.prefix() == contact.addr.prefix()).count()
        };
        let in_table: usize = self.0.iter().map(of).sum();
        of(self.bucket(id)) < LIMITS.per_prefix_in_bucket && in_table < LIMITS.per_prefix_in_table
    }

    fn answered(&mut self, now_ms: u64, id: NodeId, contact: Contact, rtt_ms: u64) -> Placed {
        let has_room = self.prefix_has_room(&id, &contact);
        let bucket = self.bucket(&id);
        let known = bucket.live.iter().chain(&bucket.spares).find(|peer| peer.id == id).map(|peer| peer.contact.addr);
        if !has_room && known.is_none_or(|addr| addr.prefix() != contact.addr.prefix()) {
            return Placed::Refused;
        }
        let heard = |peer: &mut NaivePeer| {
            (peer.contact, peer.answered_ms, peer.silences) = (contact, now_ms, 0);
            peer.round_trip.record(rtt_ms);
        };
        if let Some(at) = bucket.live.iter().position(|peer| peer.id == id) {
            let mut peer = bucket.live.remove(at);
            heard(&mut peer);
            bucket.live.push(peer);
            return if known == Some(contact.addr) { Placed::Refreshed } else { Placed::Moved };
        }
        if let Some(peer) = bucket.spares.iter_mut().find(|peer| peer.id == id) {
            heard(peer);
            return bucket.promote(now_ms, &id);
        }
        if self.len() == LIMITS.peers_max {
            if self.bucket(&id).spares.is_empty() {
                return Placed::Refused;
            }
            self.bucket(&id).spares.remove(0);
        }
        let mut peer = NaivePeer { id, contact, round_trip: RoundTrip::default(), answered_ms: now_ms, silences: 0 };
        peer.round_trip.record(rtt_ms);
        let bucket = self.bucket(&id);
        if bucket.live.len() < LIMITS.k {
            bucket.live.push(peer);
            return Placed::Added;
        }
        if bucket.spares.len() == SPARES_MAX {
            bucket.spares.remove(0);
        }
        bucket.spares.push(peer);
        bucket.promote(now_ms, &id)
    }

    fn silent(&mut self, id: &NodeId) -> bool {
        let bucket = self.bucket(id);
        if let Some(at) = bucket.spares.iter().position(|peer| peer.id == *id) {
            bucket.spares.remove(at);
            return true;
        }
        let Some(at) = bucket.live.iter().position(|peer| peer.id == *id) else { return false };
        bucket.live[at].silences += 1;
        let silences = bucket.live[at].silences;
        let replaced = silences >= LIMITS.silences_max && !bucket.spares.is_empty();
        if replaced || silences >= LIMITS.silences_max * 3 {
            bucket.live.remove(at);
            bucket.fill();
            return true;
        }
        false
    }

    fn expel(&mut self, id: &NodeId) {
        let bucket = self.bucket(id);
        let before = bucket.live.len();
        bucket.live.retain(|peer| peer.id != *id);
        bucket.spares.retain(|peer| peer.id != *id);
        if bucket.live.len() < before {
            bucket.fill();
        }
    }
}

impl NaiveBucket {
    /// The fastest spare takes a free place; of equally fast ones the oldest.
    fn fill(&mut self) {
        let fastest = (0..self.spares.len()).min_by_key(|at| self.spares[*at].srtt().unwrap_or(u64::MAX));
        if let Some(at) = fastest {
            self.live.push(self.spares.remove(at));
        }
    }

    /// The spare `id` has answered.
    fn promote(&mut self, now_ms: u64, id: &NodeId) -> Placed {
        let at = self.spares.iter().position(|peer| peer.id == *id).unwrap();
        if self.live.len() < LIMITS.k {
            self.live.push(self.spares.remove(at));
            return Placed::Added;
        }
        if let Some(silent) = self.live.iter().position(|peer| peer.silences >= LIMITS.silences_max) {
            let gone = self.live.remove(silent);
            self.live.push(self.spares.remove(at));
            return Placed::Replaced(Some(gone.contact));
        }
        let slowest = (0..self.live.len()).max_by_key(|at| self.live[*at].srtt().unwrap_or(0)).unwrap();
        if self.spares[at].srtt().unwrap() * 2 < self.live[slowest].srtt().unwrap() {
            let newcomer = self.spares.remove(at);
            self.spares.push(self.live.remove(slowest));
            self.live.push(newcomer);
            return Placed::Replaced(None);
        }
        let oldest = self.live[0];
        Placed::Spare((now_ms - oldest.answered_ms >= 30_000).then_some(oldest.contact))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Answered { rtt_ms: u64, later_ms: u64, net: u8 },
    Silent,
    Expel,
}

fn step() -> impl Strategy<Value = (usize, u8, Step)> {
    let happened = prop_oneof![
        6 => (1..300_u64, 0..20_000_u64, 0..6_u8)
            .prop_map(|(rtt_ms, later_ms, net)| Step::Answered { rtt_ms, later_ms, net }),
        3 => Just(Step::Silent),
        1 => Just(Step::Expel),
    ];
    // Four buckets, and more peers in each than it has places.
    (0..4_usize, 0..16_u8, happened)
}

/// A peer that shares exactly `zeros` leading bits with our own id of zeros.
fn peer(zeros: usize, salt: u8) -> NodeId {
    let mut id = [0; 32];
    id[0] = 0x80 >> zeros;
    id[31] = salt;
    NodeId::from_bytes(id)
}

proptest! {
    #[test]
    fn the_table_does_what_a_naive_one_does(steps in prop::collection::vec(step(), 0..250), target: [u8; 32], count in 1..=20_usize) {
        let mut table = RoutingTable::new(OWN, LIMITS);
        let mut naive = NaiveTable(vec![NaiveBucket::default(); 256]);
        let mut now_ms = 0;
        for (zeros, salt, happened) in steps {
            let id = peer(zeros, salt);
            match happened {
                Step::Answered { rtt_ms, later_ms, net } => {
                    now_ms += later_ms;
                    let contact = Contact { key: PublicKey([salt; 32]), addr: Addr::v4([192, 0, net, salt], 1) };
                    let placed = table.answered(now_ms, id, contact, Some(rtt_ms));
                    prop_assert_eq!(placed, naive.answered(now_ms, id, contact, rtt_ms));
                }
                Step::Silent => prop_assert_eq!(table.silent(&id), naive.silent(&id)),
                Step::Expel => {
                    table.expel(&id);
                    naive.expel(&id);
                }
            }
            prop_assert_eq!(table.iter_live().map(|peer| peer.id).collect::<Vec<_>>(), naive.live());
            prop_assert_eq!((table.len(), table.get(&id).is_some()), (naive.len(), naive.knows(&id)));
        }
        let target = NodeId::from_bytes(target);
        let mut nearest = naive.live();
        nearest.sort_by_key(|id| id.distance_to(&target));
        nearest.truncate(count);
        let closest = table.closest(&target, count, |_| true);
        prop_assert_eq!(table.peers_of(&closest).map(|peer| peer.id).collect::<Vec<_>>(), nearest);
    }
}
