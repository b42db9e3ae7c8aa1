//! Buckets of indices into one slab of peers.
//!
//! This module moves peers and updates all counts; the table decides which peers move.

use tessera_contracts::point::{NodeId, Point as _};

use super::{BUCKETS, K_MAX, Peer, RoutingTable, SPARES_MAX};

/// Peers are looked for in every request. They are large and a bucket has many, so each place knows the end of its peer's
/// id: only the peer that is looked for is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    /// Indices of live peers, least recently used first, and the ends of their ids.
    live: [u16; K_MAX],
    live_tags: [u16; K_MAX],
    pub(super) live_len: u8,
    /// Indices of spares, oldest first, and the ends of their ids.
    spares: [u16; SPARES_MAX],
    spare_tags: [u16; SPARES_MAX],
    spares_len: u8,
    /// When it is due for a lookup, unless one goes through here before.
    pub(super) refresh_ms: u64,
}

impl Bucket {
    pub(super) const EMPTY: Self = Self {
        live: [0; K_MAX],
        live_tags: [0; K_MAX],
        live_len: 0,
        spares: [0; SPARES_MAX],
        spare_tags: [0; SPARES_MAX],
        spares_len: 0,
        refresh_ms: 0,
    };

    pub(super) fn live(&self) -> &[u16] {
        &self.live[..usize::from(self.live_len)]
    }

    pub(super) fn spares(&self) -> &[u16] {
        &self.spares[..usize::from(self.spares_len)]
    }

    /// Places of peers whose ids end in `tag`.
    fn tagged(&self, tag: u16) -> impl Iterator<Item = u16> + '_ {
        let live = self.live().iter().zip(&self.live_tags);
        let all = live.chain(self.spares().iter().zip(&self.spare_tags));
        all.filter(move |(_, known)| **known == tag).map(|(index, _)| *index)
    }
}

/// The end of an id: those of a bucket begin alike.
fn tag_of(id: &NodeId) -> u16 {
    let [.., a, b] = *id.as_bytes();
    u16::from_le_bytes([a, b])
}

impl RoutingTable {
    pub(super) fn bucket_of(&self, id: &NodeId) -> Option<usize> {
        let zeros = self.own.distance_to(id).leading_zeros() as usize;
        (zeros < BUCKETS).then_some(zeros)
    }

    pub(super) fn bucket(&self, at: usize) -> &Bucket {
        self.buckets.get(at).unwrap_or(&Bucket::EMPTY)
    }

    /// The bucket, to be used from now on.
    pub(super) fn reach(&mut self, at: usize) -> &mut Bucket {
        if self.buckets.len() <= at {
            self.buckets.resize(at + 1, Bucket::EMPTY);
        }
        &mut self.buckets[at]
    }

    pub(super) fn find(&self, id: &NodeId) -> Option<u16> {
        self.bucket(self.bucket_of(id)?).tagged(tag_of(id)).find(|index| self.peers[usize::from(*index)].id == *id)
    }

    pub(super) fn allocate(&mut self, at: usize, peer: Peer) -> Option<u16> {
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

    pub(super) fn push_live(&mut self, at: usize, index: u16) {
        let tag = tag_of(&self.peers[usize::from(index)].id);
        let bucket = self.reach(at);
        let place = usize::from(bucket.live_len);
        (bucket.live[place], bucket.live_tags[place]) = (index, tag);
        bucket.live_len += 1;
        self.peers[usize::from(index)].live = true;
        self.occupied[at / 64] |= 1 << (63 - at % 64);
        self.live += 1;
    }

    pub(super) fn push_spare(&mut self, at: usize, index: u16) {
        if self.bucket(at).spares().len() == SPARES_MAX {
            let oldest = self.bucket(at).spares[0];
            self.remove_spare(at, oldest);
        }
        let tag = tag_of(&self.peers[usize::from(index)].id);
        let bucket = self.reach(at);
        let place = usize::from(bucket.spares_len);
        (bucket.spares[place], bucket.spare_tags[place]) = (index, tag);
        bucket.spares_len += 1;
        self.peers[usize::from(index)].live = false;
    }

    pub(super) fn best_spare(&self, at: usize) -> Option<u16> {
        self.buckets[at]
            .spares()
            .iter()
            .copied()
            .min_by_key(|index| self.peers[usize::from(*index)].round_trip.srtt_ms().unwrap_or(u64::MAX))
    }

    pub(super) fn move_to_back(&mut self, at: usize, index: u16) {
        let bucket = &mut self.buckets[at];
        let len = usize::from(bucket.live_len);
        if let Some(place) = bucket.live().iter().position(|i| *i == index) {
            bucket.live[place..len].rotate_left(1);
            bucket.live_tags[place..len].rotate_left(1);
        }
    }

    pub(super) fn remove_live(&mut self, at: usize, index: u16) {
        self.unlink_live(at, index);
        self.free.push(index);
    }

    pub(super) fn demote(&mut self, at: usize, index: u16) {
        self.unlink_live(at, index);
        self.push_spare(at, index);
    }

    pub(super) fn take_spare(&mut self, at: usize, index: u16) {
        let bucket = &mut self.buckets[at];
        let len = usize::from(bucket.spares_len);
        if let Some(place) = bucket.spares().iter().position(|i| *i == index) {
            bucket.spares[place..len].rotate_left(1);
            bucket.spare_tags[place..len].rotate_left(1);
            bucket.spares_len -= 1;
        }
    }

    pub(super) fn remove_spare(&mut self, at: usize, index: u16) {
        self.take_spare(at, index);
        self.free.push(index);
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
}
