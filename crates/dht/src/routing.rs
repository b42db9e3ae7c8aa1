//! The routing table: this lane's peers, sorted by how many leading bits they share with us.
//!
//! One bucket per shared-prefix length, each with up to K live peers in order of use and a few spares. Buckets hold
//! indices into one slab of [`Peer`]s. Room for a small network is reserved at construction; a larger one takes more as peers
//! come, in doublings up to the bound. The rules that keep strangers from shaping the table:
//!
//! - A peer enters a bucket only after it has answered *us*: being named by others, or asking us, makes a candidate.
//! - A live peer is not displaced by a newcomer. The peer unheard of for longest is pinged first, and only if it stays
//!   silent does a spare take its place. Among spares the one with the shortest round trip goes first. One exception
//!   for speed: a newcomer at less than half the round trip of the slowest member changes places with it.
//! - No address prefix holds more than a few places of a bucket, or of the table, but for those of private networks.

mod nearest;
mod peer;
mod places;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use tessera_contracts::point::{NodeId, Point};

use crate::addr::AddrPrefix;
use crate::contact::Contact;

pub use nearest::{Closest, size_of_density};
pub use peer::{Peer, RoundTrip, Smoothed};
use places::Bucket;

/// The largest K a table can be configured for.
pub const K_MAX: usize = 32;

/// Spares of one bucket.
pub const SPARES_MAX: usize = 8;

/// Buckets: one per length of shared prefix.
const BUCKETS: usize = 256;

/// Peers and buckets for which room is reserved: enough for a network of a few hundred nodes.
const FIRST_PEERS: usize = 128;
const FIRST_BUCKETS: usize = 16;

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

/// The place of a peer that answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// It was there and is now the most recently used.
    Refreshed,
    /// It was there, and is at another address now.
    Moved,
    /// It took a free place.
    Added,
    /// It took the place of a member that was slower, and now waits as a spare; or of a silent member that is gone, which is named.
    Replaced(Option<Contact>),
    /// The bucket is full: it waits as a spare. `Some` names the member that should prove itself by a ping.
    Spare(Option<Contact>),
    /// Its address prefix has its share already, or the table is full. A peer of the table is left unchanged.
    Refused,
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
            peers: Vec::with_capacity(limits.peers_max.min(FIRST_PEERS)),
            free: Vec::with_capacity(limits.peers_max.min(FIRST_PEERS)),
            buckets: Vec::with_capacity(FIRST_BUCKETS),
            occupied: [0; 4],
            live: 0,
        }
    }

    /// Takes all memory that may ever be needed.
    pub(crate) fn reserve_all(&mut self) {
        self.peers.reserve_exact(self.limits.peers_max - self.peers.len());
        self.free.reserve_exact(self.limits.peers_max - self.free.len());
        self.buckets.reserve_exact(BUCKETS - self.buckets.len());
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

    /// Whether the table is empty.
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
            let before = self.peers[usize::from(index)].contact.addr;
            // Else one could come from many networks and gather in one.
            if before.prefix() != contact.addr.prefix() && !self.prefix_has_room(at, contact.addr.prefix(), Some(index))
            {
                return Placed::Refused;
            }
            let peer = &mut self.peers[usize::from(index)];
            peer.contact = contact;
            peer.answered_ms = now_ms;
            peer.silences = 0;
            if let Some(ms) = rtt_ms {
                peer.round_trip.record(ms);
            }
            if peer.live {
                self.move_to_back(at, index);
                return if before == contact.addr { Placed::Refreshed } else { Placed::Moved };
            }
            return self.promote_if_better(now_ms, at, index);
        }
        if !self.prefix_has_room(at, contact.addr.prefix(), None) {
            return Placed::Refused;
        }
        let (mut round_trip, write_trip) = (Smoothed::default(), Smoothed::default());
        if let Some(ms) = rtt_ms {
            round_trip.record(ms);
        }
        let peer = Peer {
            id,
            contact,
            round_trip,
            write_trip,
            answered_ms: now_ms,
            silences: 0,
            capabilities: 0,
            live: false,
        };
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
            // No spare replaces it: it stays, in case the silence is ours. Much later it goes anyway.
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

    /// All live peers.
    pub fn iter_live(&self) -> impl Iterator<Item = &Peer> {
        self.buckets.iter().flat_map(|bucket| bucket.live()).map(|index| &self.peers[usize::from(*index)])
    }

    /// All spares.
    pub fn iter_spares(&self) -> impl Iterator<Item = &Peer> {
        self.buckets.iter().flat_map(|bucket| bucket.spares()).map(|index| &self.peers[usize::from(*index)])
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

    /// The bucket that has been due for a lookup for longest, if any is: as a length of shared prefix.
    /// Only buckets up to the deepest occupied one count; deeper ones would find no peer.
    #[must_use]
    pub fn bucket_due(&self, now_ms: u64) -> Option<u32> {
        let deepest = self.buckets.iter().rposition(|bucket| bucket.live_len > 0)?;
        (0..=deepest)
            .filter(|at| self.buckets[*at].refresh_ms <= now_ms)
            .min_by_key(|at| self.buckets[*at].refresh_ms)
            .map(|at| at as u32)
    }

    fn prefix_has_room(&self, at: usize, prefix: AddrPrefix, without: Option<u16>) -> bool {
        let count = |indices: &mut dyn Iterator<Item = u16>| {
            indices
                .filter(|index| Some(*index) != without)
                .filter(|index| self.peers[usize::from(*index)].contact.addr.prefix() == prefix)
                .count()
        };
        if prefix.is_private() {
            return true;
        }
        let bucket = self.bucket(at);
        count(&mut bucket.live().iter().chain(bucket.spares()).copied()) < self.limits.per_prefix_in_bucket
            && (self.limits.per_prefix_in_table >= self.limits.peers_max
                || count(&mut self.buckets.iter().flat_map(|b| b.live().iter().chain(b.spares()).copied()))
                    < self.limits.per_prefix_in_table)
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
            let gone = peer(silent).contact;
            self.remove_live(at, silent);
            self.take_spare(at, index);
            self.push_live(at, index);
            return Placed::Replaced(Some(gone));
        }
        let slowest = live.iter().copied().max_by_key(|i| peer(*i).round_trip.srtt_ms().unwrap_or(0));
        if let (Some(slowest), Some(new)) = (slowest, peer(index).round_trip.srtt_ms())
            && peer(slowest).round_trip.srtt_ms().is_some_and(|old| new * 2 < old)
        {
            self.take_spare(at, index);
            self.demote(at, slowest);
            self.push_live(at, index);
            return Placed::Replaced(None);
        }
        let oldest = peer(live[0]);
        Placed::Spare((now_ms.saturating_sub(oldest.answered_ms) >= 30_000).then_some(oldest.contact))
    }
}
