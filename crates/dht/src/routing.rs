//! The routing table: whom this lane knows, sorted by how many leading bits they share with us.
//!
//! One bucket per shared-prefix length, each with up to K live peers in order of use and a few spares. Buckets hold
//! indices into one slab of [`Peer`]s; everything is reserved at construction. The rules that keep strangers from
//! shaping the table:
//!
//! - A peer enters a bucket only after it has answered *us*: being named by others, or asking us, makes a candidate.
//! - A live peer is not displaced by a newcomer. The peer unheard of for longest is pinged first, and only if it stays
//!   silent does a spare take its place. Among spares the one with the shortest round trip goes first. One exception
//!   for speed: a newcomer at less than half the round trip of the slowest member changes places with it.
//! - No address prefix holds more than a few places of a bucket, or of the table.

use alloc::vec::Vec;

use tessera_contracts::point::{Distance, NodeId, Point};

use crate::addr::AddrPrefix;
use crate::contact::Contact;

/// The largest K a table can be configured for.
pub const K_MAX: usize = 32;

/// Spares of one bucket.
pub const SPARES_MAX: usize = 8;

/// Buckets: one per length of shared prefix.
const BUCKETS: usize = 256;

/// How a table is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLimits {
    /// Live peers of one bucket, at most [`K_MAX`].
    pub k: usize,
    /// Peers in all, live and spare.
    pub peers_max: usize,
    /// Places one address prefix may hold in a bucket.
    pub per_prefix_in_bucket: usize,
    /// Places one address prefix may hold in the table.
    pub per_prefix_in_table: usize,
    /// Silences in a row after which a peer gives its place to a spare.
    pub silences_max: u8,
}

impl Default for TableLimits {
    fn default() -> Self {
        Self { k: 20, peers_max: 1024, per_prefix_in_bucket: 2, per_prefix_in_table: 10, silences_max: 2 }
    }
}

/// Smoothed round-trip time, as TCP keeps it: the mean and the mean deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrip {
    /// Smoothed round trip in eighths of a millisecond; zero before the first sample.
    srtt_8th: u32,
    /// Smoothed deviation, in quarters of a millisecond.
    deviation_4th: u32,
}

impl RoundTrip {
    /// Adds a sample.
    pub fn record(&mut self, ms: u64) {
        let ms = ms.min(60_000) as i64;
        if self.srtt_8th == 0 {
            self.srtt_8th = (ms as u32 * 8).max(1);
            self.deviation_4th = ms as u32 * 2;
            return;
        }
        let error = ms - i64::from(self.srtt_8th / 8);
        self.srtt_8th = (i64::from(self.srtt_8th) + error).max(1) as u32;
        self.deviation_4th = (i64::from(self.deviation_4th) + error.abs() - i64::from(self.deviation_4th / 4)) as u32;
    }

    /// The smoothed round trip in milliseconds, if there was a sample.
    #[must_use]
    pub fn srtt_ms(&self) -> Option<u64> {
        (self.srtt_8th != 0).then_some(u64::from(self.srtt_8th / 8))
    }

    /// Mean plus four deviations: what nearly every answer keeps within.
    #[must_use]
    pub fn slow_ms(&self) -> Option<u64> {
        self.srtt_ms().map(|ms| ms + u64::from(self.deviation_4th))
    }
}

/// A peer of the table.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// How to reach it.
    pub contact: Contact,
    /// How fast it answers.
    pub round_trip: RoundTrip,
    /// When it last answered us.
    pub answered_ms: u64,
    /// Requests in a row it has not answered.
    pub silences: u8,
    /// What it said it can do; zero before it said so.
    pub capabilities: u64,
    live: bool,
}

/// What became of a peer that answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// It was there and is now the most recently used.
    Refreshed,
    /// It took a free place.
    Added,
    /// It took the place of a member that was slower or silent.
    Replaced,
    /// The bucket is full: it waits as a spare. `Some` names the member that should prove itself by a ping.
    Spare(Option<Contact>),
    /// Its address prefix has its share already, or the table is full.
    Refused,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Indices of live peers, least recently used first.
    live: [u16; K_MAX],
    live_len: u8,
    /// Indices of spares, oldest first.
    spares: [u16; SPARES_MAX],
    spares_len: u8,
    /// When it is due for a lookup, unless one goes through here before.
    refresh_ms: u64,
}

impl Bucket {
    const EMPTY: Self = Self { live: [0; K_MAX], live_len: 0, spares: [0; SPARES_MAX], spares_len: 0, refresh_ms: 0 };

    fn live(&self) -> &[u16] {
        &self.live[..usize::from(self.live_len)]
    }

    fn spares(&self) -> &[u16] {
        &self.spares[..usize::from(self.spares_len)]
    }
}

/// Indices of peers near a point, nearest first.
#[derive(Debug, Clone, Copy)]
pub struct Closest {
    found: [u16; K_MAX],
    len: usize,
}

/// The routing table of one lane.
#[derive(Debug)]
pub struct RoutingTable {
    own: NodeId,
    limits: TableLimits,
    peers: Vec<Peer>,
    free: Vec<u16>,
    /// The buckets down to the deepest that was ever used: most of the 256 never are.
    buckets: Vec<Bucket>,
    /// Bit j, counted from the most significant of word 0: bucket j has live peers.
    occupied: [u64; 4],
    live: usize,
}

impl RoutingTable {
    /// An empty table around `own`.
    #[must_use]
    pub fn new(own: NodeId, limits: TableLimits) -> Self {
        let limits = TableLimits {
            k: limits.k.clamp(1, K_MAX),
            peers_max: limits.peers_max.clamp(1, usize::from(u16::MAX)),
            ..limits
        };
        Self {
            own,
            limits,
            peers: Vec::with_capacity(limits.peers_max),
            free: Vec::with_capacity(limits.peers_max),
            buckets: Vec::with_capacity(BUCKETS),
            occupied: [0; 4],
            live: 0,
        }
    }

    /// The node this table is centred on.
    #[must_use]
    pub fn own(&self) -> NodeId {
        self.own
    }

    /// K.
    #[must_use]
    pub fn k(&self) -> usize {
        self.limits.k
    }

    /// How many live peers there are.
    #[must_use]
    pub fn live_len(&self) -> usize {
        self.live
    }

    /// How many peers there are, spares included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.peers.len() - self.free.len()
    }

    /// Bytes in use and bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let (bucket, peer) = (size_of::<Bucket>(), size_of::<Peer>() + size_of::<u16>());
        let used = self.buckets.len() * bucket + self.len() * peer;
        (used, BUCKETS * bucket + self.limits.peers_max * peer)
    }

    /// Whether nobody is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The peer with `id`, live or spare.
    #[must_use]
    pub fn get(&self, id: &NodeId) -> Option<&Peer> {
        self.find(id).map(|index| &self.peers[usize::from(index)])
    }

    /// The same, to note something about it.
    pub fn get_mut(&mut self, id: &NodeId) -> Option<&mut Peer> {
        self.find(id).map(|index| &mut self.peers[usize::from(index)])
    }

    /// Whether `id` would be taken if it answered: its bucket has room and its prefix has not had its share. Asked
    /// before a stranger is pinged.
    #[must_use]
    pub fn would_take(&self, id: &NodeId, prefix: AddrPrefix) -> bool {
        let Some(at) = self.bucket_of(id) else { return false };
        self.find(id).is_none()
            && self.bucket(at).live().len() < self.limits.k
            && self.prefix_has_room(at, prefix, None)
    }

    /// Notes that a peer answered us after `rtt_ms`, and gives it the place it deserves.
    pub fn answered(&mut self, now_ms: u64, id: NodeId, contact: Contact, rtt_ms: Option<u64>) -> Placed {
        let Some(at) = self.bucket_of(&id) else { return Placed::Refused };
        if let Some(index) = self.find(&id) {
            let peer = &mut self.peers[usize::from(index)];
            peer.contact = contact;
            peer.answered_ms = now_ms;
            peer.silences = 0;
            if let Some(ms) = rtt_ms {
                peer.round_trip.record(ms);
            }
            if peer.live {
                self.move_to_back(at, index);
                return Placed::Refreshed;
            }
            return self.promote_if_better(now_ms, at, index);
        }
        if !self.prefix_has_room(at, contact.addr.prefix(), None) {
            return Placed::Refused;
        }
        let mut round_trip = RoundTrip::default();
        if let Some(ms) = rtt_ms {
            round_trip.record(ms);
        }
        let peer = Peer { id, contact, round_trip, answered_ms: now_ms, silences: 0, capabilities: 0, live: false };
        let Some(index) = self.allocate(at, peer) else { return Placed::Refused };
        if self.bucket(at).live().len() < self.limits.k {
            self.push_live(at, index);
            return Placed::Added;
        }
        self.push_spare(at, index);
        self.promote_if_better(now_ms, at, index)
    }

    /// Notes that a peer did not answer. Returns whether it lost its place.
    pub fn silent(&mut self, id: &NodeId) -> bool {
        let (Some(at), Some(index)) = (self.bucket_of(id), self.find(id)) else { return false };
        let peer = &mut self.peers[usize::from(index)];
        peer.silences = peer.silences.saturating_add(1);
        if !peer.live {
            self.remove_spare(at, index);
            return true;
        }
        if peer.silences < self.limits.silences_max {
            return false;
        }
        match self.best_spare(at) {
            Some(spare) => {
                self.remove_live(at, index);
                self.take_spare(at, spare);
                self.push_live(at, spare);
                true
            }
            // Nobody to replace it: it stays, in case the silence is ours. Much later it goes anyway.
            None if self.peers[usize::from(index)].silences >= self.limits.silences_max.saturating_mul(3) => {
                self.remove_live(at, index);
                true
            }
            None => false,
        }
    }

    /// Forgets a peer: it misbehaved.
    pub fn expel(&mut self, id: &NodeId) {
        let (Some(at), Some(index)) = (self.bucket_of(id), self.find(id)) else { return };
        if self.peers[usize::from(index)].live {
            self.remove_live(at, index);
            if let Some(spare) = self.best_spare(at) {
                self.take_spare(at, spare);
                self.push_live(at, spare);
            }
        } else {
            self.remove_spare(at, index);
        }
    }

    /// The up to `count` live peers nearest to `target` for which `admit` holds, nearest first. Exact: no live peer left
    /// out is nearer than one returned.
    pub fn closest(&self, target: &impl Point, count: usize, mut admit: impl FnMut(&Peer) -> bool) -> Closest {
        let count = count.min(K_MAX);
        let mut closest = Closest { found: [0; K_MAX], len: 0 };
        let mut distances = [Distance::MAX; K_MAX];
        for at in self.buckets_by_distance(self.own.distance_to(target)) {
            let start = closest.len;
            if start == count {
                break;
            }
            for &index in self.buckets[at].live() {
                let peer = &self.peers[usize::from(index)];
                let distance = peer.id.distance_to(target);
                if closest.len == count && distance >= distances[count - 1] || !admit(peer) {
                    continue;
                }
                // All of this bucket are farther than all before it: sort within its own stretch.
                let mut place = closest.len.min(count - 1);
                while place > start && distances[place - 1] > distance {
                    distances[place] = distances[place - 1];
                    closest.found[place] = closest.found[place - 1];
                    place -= 1;
                }
                distances[place] = distance;
                closest.found[place] = index;
                closest.len = (closest.len + 1).min(count);
            }
        }
        closest
    }

    /// The peers of a result of [`RoutingTable::closest`].
    pub fn peers_of<'a>(&'a self, closest: &'a Closest) -> impl ExactSizeIterator<Item = &'a Peer> + 'a {
        closest.found[..closest.len].iter().map(|index| &self.peers[usize::from(*index)])
    }

    /// All live peers.
    pub fn iter_live(&self) -> impl Iterator<Item = &Peer> {
        self.buckets.iter().flat_map(|bucket| bucket.live()).map(|index| &self.peers[usize::from(*index)])
    }

    /// The live peer that has been silent to us for longest, if that is longer than `idle_ms`.
    pub fn stalest(&self, now_ms: u64, idle_ms: u64, mut admit: impl FnMut(&Peer) -> bool) -> Option<&Peer> {
        self.iter_live()
            .filter(|peer| now_ms.saturating_sub(peer.answered_ms) >= idle_ms && admit(peer))
            .min_by_key(|peer| peer.answered_ms)
    }

    /// Notes that a lookup for `target` ran: its bucket is fresh until `due_ms`. The caller draws that, so that buckets, and
    /// nodes that started together, drift apart.
    pub fn refreshed(&mut self, target: &impl Point, due_ms: u64) {
        let zeros = self.own.distance_to(target).leading_zeros() as usize;
        if zeros < BUCKETS {
            self.reach(zeros).refresh_ms = due_ms;
        }
    }

    /// The bucket that has been due for a lookup for longest, if one is: as a length of shared prefix.
    /// Only buckets up to the deepest occupied one count; deeper ones would only find nobody.
    #[must_use]
    pub fn bucket_due(&self, now_ms: u64) -> Option<u32> {
        let deepest = self.buckets.iter().rposition(|bucket| bucket.live_len > 0)?;
        (0..=deepest)
            .filter(|at| self.buckets[*at].refresh_ms <= now_ms)
            .min_by_key(|at| self.buckets[*at].refresh_ms)
            .map(|at| at as u32)
    }

    /// About how many nodes the network has, from how near the nearest K are: K points within distance d of us mean a
    /// density of K/d. At least the number of peers known.
    #[must_use]
    pub fn network_size(&self) -> f64 {
        let closest = self.closest(&self.own, self.limits.k, |_| true);
        let known = (self.live + 1) as f64;
        match self.peers_of(&closest).last() {
            Some(farthest) if closest.len == self.limits.k => {
                size_of_density(closest.len, self.own.distance_to(&farthest.id)).max(known)
            }
            _ => known,
        }
    }

    fn bucket_of(&self, id: &NodeId) -> Option<usize> {
        let zeros = self.own.distance_to(id).leading_zeros() as usize;
        (zeros < BUCKETS).then_some(zeros)
    }

    fn bucket(&self, at: usize) -> &Bucket {
        self.buckets.get(at).unwrap_or(&Bucket::EMPTY)
    }

    /// The bucket, to be used from now on. Room for all of them is reserved.
    fn reach(&mut self, at: usize) -> &mut Bucket {
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, Bucket::EMPTY);
        }
        &mut self.buckets[at]
    }

    fn find(&self, id: &NodeId) -> Option<u16> {
        let bucket = self.bucket(self.bucket_of(id)?);
        bucket.live().iter().chain(bucket.spares()).copied().find(|index| self.peers[usize::from(*index)].id == *id)
    }

    fn prefix_has_room(&self, at: usize, prefix: AddrPrefix, without: Option<u16>) -> bool {
        let count = |indices: &mut dyn Iterator<Item = u16>| {
            indices
                .filter(|index| Some(*index) != without)
                .filter(|index| self.peers[usize::from(*index)].contact.addr.prefix() == prefix)
                .count()
        };
        let bucket = self.bucket(at);
        count(&mut bucket.live().iter().chain(bucket.spares()).copied()) < self.limits.per_prefix_in_bucket
            && (self.limits.per_prefix_in_table >= self.limits.peers_max
                || count(&mut self.buckets.iter().flat_map(|b| b.live().iter().chain(b.spares()).copied()))
                    < self.limits.per_prefix_in_table)
    }

    fn allocate(&mut self, at: usize, peer: Peer) -> Option<u16> {
        if let Some(index) = self.free.pop() {
            self.peers[usize::from(index)] = peer;
            return Some(index);
        }
        if self.peers.len() < self.limits.peers_max {
            self.peers.push(peer);
            return Some((self.peers.len() - 1) as u16);
        }
        // Full: a spare of the same bucket may be given up, a live peer never.
        let oldest = *self.bucket(at).spares().first()?;
        self.take_spare(at, oldest);
        self.peers[usize::from(oldest)] = peer;
        Some(oldest)
    }

    fn push_live(&mut self, at: usize, index: u16) {
        let bucket = self.reach(at);
        bucket.live[usize::from(bucket.live_len)] = index;
        bucket.live_len += 1;
        self.peers[usize::from(index)].live = true;
        self.occupied[at / 64] |= 1 << (63 - at % 64);
        self.live += 1;
    }

    fn push_spare(&mut self, at: usize, index: u16) {
        if self.bucket(at).spares().len() == SPARES_MAX {
            let oldest = self.bucket(at).spares[0];
            self.remove_spare(at, oldest);
        }
        let bucket = self.reach(at);
        bucket.spares[usize::from(bucket.spares_len)] = index;
        bucket.spares_len += 1;
        self.peers[usize::from(index)].live = false;
    }

    /// A spare that answered: takes the place of a silent member, or of one more than twice as slow; else it waits, and
    /// the member unheard of for longest is named for a ping.
    fn promote_if_better(&mut self, now_ms: u64, at: usize, index: u16) -> Placed {
        let peer = |i: u16| &self.peers[usize::from(i)];
        let live = self.buckets[at].live();
        if live.len() < self.limits.k {
            self.take_spare(at, index);
            self.push_live(at, index);
            return Placed::Added;
        }
        let silent = live.iter().copied().find(|i| peer(*i).silences >= self.limits.silences_max);
        if let Some(silent) = silent {
            self.remove_live(at, silent);
            self.take_spare(at, index);
            self.push_live(at, index);
            return Placed::Replaced;
        }
        let slowest = live.iter().copied().max_by_key(|i| peer(*i).round_trip.srtt_ms().unwrap_or(0));
        if let (Some(slowest), Some(new)) = (slowest, peer(index).round_trip.srtt_ms())
            && peer(slowest).round_trip.srtt_ms().is_some_and(|old| new * 2 < old)
        {
            self.take_spare(at, index);
            self.demote(at, slowest);
            self.push_live(at, index);
            return Placed::Replaced;
        }
        let oldest = peer(live[0]);
        Placed::Spare((now_ms.saturating_sub(oldest.answered_ms) >= 30_000).then_some(oldest.contact))
    }

    fn best_spare(&self, at: usize) -> Option<u16> {
        self.buckets[at]
            .spares()
            .iter()
            .copied()
            .min_by_key(|index| self.peers[usize::from(*index)].round_trip.srtt_ms().unwrap_or(u64::MAX))
    }

    fn move_to_back(&mut self, at: usize, index: u16) {
        let bucket = &mut self.buckets[at];
        let len = usize::from(bucket.live_len);
        if let Some(place) = bucket.live().iter().position(|i| *i == index) {
            bucket.live[place..len].rotate_left(1);
        }
    }

    fn unlink_live(&mut self, at: usize, index: u16) {
        self.move_to_back(at, index);
        let bucket = &mut self.buckets[at];
        bucket.live_len -= 1;
        if bucket.live_len == 0 {
            self.occupied[at / 64] &= !(1 << (63 - at % 64));
        }
        self.live -= 1;
    }

    fn remove_live(&mut self, at: usize, index: u16) {
        self.unlink_live(at, index);
        self.free.push(index);
    }

    fn demote(&mut self, at: usize, index: u16) {
        self.unlink_live(at, index);
        self.push_spare(at, index);
    }

    fn take_spare(&mut self, at: usize, index: u16) {
        let bucket = &mut self.buckets[at];
        let len = usize::from(bucket.spares_len);
        if let Some(place) = bucket.spares().iter().position(|i| *i == index) {
            bucket.spares[place..len].rotate_left(1);
            bucket.spares_len -= 1;
        }
    }

    fn remove_spare(&mut self, at: usize, index: u16) {
        self.take_spare(at, index);
        self.free.push(index);
    }

    /// Occupied buckets, those with nearer peers first. Bucket j holds the ids that agree with ours before bit j and
    /// differ at it, so the bits of `own ^ target` tell which bucket comes before which, and no two overlap.
    fn buckets_by_distance(&self, distance: Distance) -> impl Iterator<Item = usize> + use<> {
        let first = distance.leading_zeros() as usize;
        let bits = distance.to_bytes();
        let words: [u64; 4] =
            core::array::from_fn(|w| u64::from_be_bytes(core::array::from_fn(|byte| bits[w * 8 + byte])));
        let occupied = self.occupied;
        let after: [u64; 4] = core::array::from_fn(|w| mask_from(first + 1, w));
        let nearer: [u64; 4] = core::array::from_fn(|w| occupied[w] & words[w] & after[w]);
        let farther: [u64; 4] = core::array::from_fn(|w| occupied[w] & !words[w] & after[w]);
        let before: [u64; 4] = core::array::from_fn(|w| occupied[w] & !mask_from(first, w));
        let same = (first < BUCKETS && occupied[first / 64] >> (63 - first % 64) & 1 == 1).then_some(first);
        same.into_iter().chain(ascending(nearer)).chain(descending(farther)).chain(descending(before))
    }
}

/// The network size that `count` nodes within `farthest` of a point speak for.
#[must_use]
pub fn size_of_density(count: usize, farthest: Distance) -> f64 {
    const SPACE: f64 = 18_446_744_073_709_551_616.0; // 2^64, of which the first 64 bits of the distance are a share.
    count as f64 * SPACE / (farthest.prefix(64) as f64 + 1.0)
}

/// Bits of word `w` that belong to places `from` and later.
fn mask_from(from: usize, w: usize) -> u64 {
    match from.saturating_sub(w * 64) {
        0 => u64::MAX,
        skip @ 1..64 => u64::MAX >> skip,
        _ => 0,
    }
}

fn ascending(mut words: [u64; 4]) -> impl Iterator<Item = usize> {
    let mut w = 0;
    core::iter::from_fn(move || {
        while w < 4 && words[w] == 0 {
            w += 1;
        }
        let word = words.get_mut(w)?;
        let place = word.leading_zeros() as usize;
        *word &= !(1 << (63 - place));
        Some(w * 64 + place)
    })
}

fn descending(mut words: [u64; 4]) -> impl Iterator<Item = usize> {
    let mut w = 4;
    core::iter::from_fn(move || {
        while w > 0 && words[w - 1] == 0 {
            w -= 1;
        }
        let word = words.get_mut(w.checked_sub(1)?)?;
        let place = 63 - word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some((w - 1) * 64 + place)
    })
}

#[cfg(test)]
mod tests {
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
        assert_eq!(table.answered(61, id_in_bucket(0, 61), contact(61), Some(149)), Placed::Replaced);
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
        let taken =
            (1..20).filter(|z| table.answered(0, id_in_bucket(*z, 1), same_24(*z as u8), None) == Placed::Added);
        assert_eq!(taken.count(), 8);
    }

    #[test]
    fn the_bucket_due_for_longest_comes_first_and_a_lookup_makes_it_fresh() {
        let mut table = table(TableLimits::default());
        assert_eq!(table.bucket_due(1000), None, "nobody is known");
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

    #[test]
    fn round_trip_follows_its_samples() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.srtt_ms(), None);
        round_trip.record(80);
        assert_eq!(round_trip.srtt_ms(), Some(80));
        for _ in 0..100 {
            round_trip.record(200);
        }
        assert!((190..=200).contains(&round_trip.srtt_ms().unwrap()));
        round_trip.record(0);
        assert!(round_trip.srtt_ms().is_some(), "a sample of zero is a sample");
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
}
