//! Announcing the ids of one region to the holders of each, as many ids to a datagram as fit.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};

use crate::contact::Contact;
use crate::identity::Signature;
use crate::lookup::FRONTIER_MAX;
use crate::seal::cookie::Scope;
use crate::wire::ANNOUNCED_IDS_MAX;
use crate::wire::message::{ANNOUNCED_BYTES, Announcement, SignedProvider};

/// Announcing the ids of one region.
#[derive(Debug)]
pub(crate) struct Announcing {
    /// How far from the target everybody is asked.
    radius: Distance,
    ids: Vec<ContentId>,
    signatures: Vec<Signature>,
    provider: Option<Contact>,
    issued_secs: u64,
    ttl_secs: u32,
    /// For each id, which of the operation's holders get it: all, as long as they are not known, and none of one that is withdrawn.
    holders: Vec<u64>,
    /// For each holder, the first id not yet sent to it.
    cursors: [u32; FRONTIER_MAX],
    turn: usize,
}

impl Default for Announcing {
    fn default() -> Self {
        Self {
            radius: Distance::ZERO,
            ids: Vec::new(),
            signatures: Vec::new(),
            provider: None,
            issued_secs: 0,
            ttl_secs: 0,
            holders: Vec::new(),
            cursors: [0; FRONTIER_MAX],
            turn: 0,
        }
    }
}

impl Announcing {
    /// Announcing ids for `provider`, whose own signature is replaced by those of the ids.
    pub(crate) fn new(radius: Distance, ids: Vec<ContentId>, signatures: Vec<Signature>, of: &SignedProvider) -> Self {
        let SignedProvider { provider, issued_secs, ttl_secs, .. } = *of;
        debug_assert!(ids.is_sorted(), "an id that is withdrawn is searched for");
        let holders = alloc::vec![u64::MAX; ids.len()];
        Self { radius, ids, signatures, provider: Some(provider), issued_secs, ttl_secs, holders, ..Self::default() }
    }

    /// No holder is sent `id` from now on, if it is announced for `own`.
    pub(super) fn withdraw(&mut self, own: &crate::identity::PublicKey, id: &ContentId) {
        if self.provider.is_some_and(|provider| provider.key == *own)
            && let Ok(at) = self.ids.binary_search(id)
        {
            self.holders[at] = 0;
        }
    }

    pub(super) fn radius(&self) -> Distance {
        self.radius
    }

    /// The ids, if they are announced for `key`.
    pub(crate) fn into_ids_of(self, own: &crate::identity::PublicKey) -> Option<Vec<ContentId>> {
        self.provider.is_some_and(|provider| provider.key == *own).then_some(self.ids)
    }

    /// How many leading bits the ids share, if everybody of a region is wanted and not only the holders of one id.
    pub(super) fn region_bits(&self) -> Option<u32> {
        (self.ids.len() > 1).then(|| self.radius.leading_zeros())
    }

    /// What a holder's token must be good for.
    pub(super) fn scope(&self) -> Scope {
        self.region_bits().map_or(Scope::EXACT, Scope::region)
    }

    /// The region's nodes are known: which of them are the K nearest to each id?
    pub(super) fn plan<'a>(&mut self, k: usize, holders: impl ExactSizeIterator<Item = &'a NodeId> + Clone) {
        let mut by_distance: Vec<(Distance, u8)> = Vec::with_capacity(holders.len());
        for (id, wanted) in self.ids.iter().zip(&mut self.holders) {
            by_distance.clear();
            by_distance.extend(holders.clone().enumerate().map(|(i, holder)| (holder.distance_to(id), i as u8)));
            by_distance.sort_unstable();
            let mask = by_distance.iter().take(k).fold(0_u64, |mask, (_, i)| mask | 1 << i);
            *wanted &= mask;
        }
    }

    /// All holders once, the one whose turn it is first.
    pub(super) fn turns(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let turn = self.turn;
        (0..count).map(move |step| (turn + step) % count)
    }

    /// The first id that `holder` has not been sent.
    pub(super) fn next_for(&self, holder: usize) -> Option<usize> {
        (self.cursors[holder] as usize..self.holders.len()).find(|i| self.gets(holder, *i))
    }

    /// `holder` is sent the batch that begins at `start`.
    pub(super) fn take_turn(&mut self, holder: usize, start: usize) {
        self.cursors[holder] = self.batch_end(holder, start) as u32;
        self.turn = holder + 1;
    }

    /// `holder` is sent nothing more.
    pub(super) fn give_up(&mut self, holder: usize) {
        self.cursors[holder] = self.ids.len() as u32;
    }

    /// `holder` is sent the batch that began at `start` again.
    pub(super) fn resume_at(&mut self, holder: usize, start: u32) {
        self.cursors[holder] = start.min(self.cursors[holder]);
    }

    /// How many ids the batch has that begins at `start`.
    pub(super) fn sent_in_batch(&self, holder: usize, start: u32) -> u32 {
        let start = start as usize;
        (start..self.batch_end(holder, start)).filter(|i| self.gets(holder, *i)).count() as u32
    }

    /// Writes the batch that begins at `start`. Returns what is announced, and the first of its ids; `None` if all of it is withdrawn.
    pub(super) fn batch<'l>(
        &self,
        holder: usize,
        start: u32,
        list: &'l mut [u8; ANNOUNCED_IDS_MAX * ANNOUNCED_BYTES],
    ) -> Option<(Announcement<'l>, ContentId)> {
        let start = start as usize;
        let mut len = 0;
        for i in (start..self.batch_end(holder, start)).filter(|i| self.gets(holder, *i)) {
            let entry = &mut list[len..][..ANNOUNCED_BYTES];
            entry[..32].copy_from_slice(self.ids[i].as_bytes());
            entry[32..].copy_from_slice(&self.signatures[i]);
            len += ANNOUNCED_BYTES;
        }
        let provider = self.provider.filter(|_| len > 0)?;
        let announcement = Announcement::over(provider, self.issued_secs, self.ttl_secs, &list[..len]);
        Some((announcement, self.ids[start]))
    }

    fn gets(&self, holder: usize, id: usize) -> bool {
        self.holders[id] >> holder & 1 == 1
    }

    /// One past the last id of the datagram for `holder` that begins at `start`: as many ids as fit one datagram.
    fn batch_end(&self, holder: usize, start: usize) -> usize {
        let mut ids = (start..self.holders.len()).filter(|i| self.gets(holder, *i));
        ids.nth(ANNOUNCED_IDS_MAX).unwrap_or(self.holders.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cut_a_holders_ids_at_the_size_of_a_datagram() {
        let holders = (0..25).map(|i| if i % 2 == 0 { 0b10 } else { 0b01 }).collect();
        let announcing = Announcing { holders, ..Announcing::default() };
        assert_eq!(announcing.batch_end(1, 0), 20, "ids 0, 2, .. 18 are ten");
        assert_eq!(announcing.batch_end(1, 20), 25);
        assert_eq!(announcing.batch_end(5, 0), 25, "none for this holder");
    }
}
