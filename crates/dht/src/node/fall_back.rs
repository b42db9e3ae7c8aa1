//! Whom a lookup asks when those it began with are silent: the next of our own table; and if it knows nobody alive, contacts of
//! before the last start and the configured seeds. If it would end without what it looks for: those who fell silent lately.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};

use super::LaneNode;
use super::operation::{Operation, Phase, Task};
use crate::identity::Crypto;
use crate::time::Now;

/// Configured seeds that a lookup falls back to.
const SEEDS_PER_LOOKUP: usize = 4;

/// Contacts that fell silent lately which a lookup asks before it says that there is nothing: so many, and as many again if one was there.
const LOST_PER_ROUND: usize = 4;
const LOST_ROUNDS_MAX: u8 = 4;

/// Contacts of before the last start that a lookup begins with: so few that it is not lost in waiting if they are gone.
const REMEMBERED_PER_LOOKUP: usize = 16;

impl<C: Crypto> LaneNode<C> {
    /// Gives a lookup that knows nobody alive some of the configured seeds, to be asked first. Once: they are few, and
    /// everybody's.
    pub(super) fn fall_back(&mut self, now: Now, at: u16) {
        let Self { operations, seeds, sealer, abuse, rng, .. } = self;
        let operation = &mut operations[usize::from(at)];
        if !core::mem::replace(&mut operation.fell_back, true) {
            let start = rng.below(seeds.len() as u64) as usize;
            let usable = seeds.iter().cycle().skip(start).take(seeds.len());
            let usable = usable.filter(|seed| !abuse.is_quarantined(now.mono_ms, &seed.key));
            for seed in usable.take(SEEDS_PER_LOOKUP) {
                operation.lookup.offer_first(sealer.node_id(&seed.key), *seed);
            }
        }
    }

    /// Gives a lookup as many of the next nearest of our own table as have been silent: where many are gone at once, as behind a
    /// border, those that are left cannot all be named by the few who answer, and a write would end with those few.
    pub(super) fn widen(&mut self, now: Now, at: u16) {
        let Self { operations, table, abuse, .. } = self;
        let Operation { lookup, task, .. } = &mut *operations[usize::from(at)];
        // What nobody waits for does not ask the more, the more are gone.
        let lacking = if matches!(task, Task::Join | Task::Upkeep) { 0 } else { lookup.lacking() };
        if lacking > 0 {
            let target = ContentId::from_bytes(*lookup.target());
            let next = table.closest(&target, lacking, |peer| {
                !lookup.knows(&peer.id) && !abuse.is_quarantined(now.mono_ms, &peer.contact.key)
            });
            for peer in table.peers_of(&next) {
                lookup.offer(peer.id, peer.contact, peer.round_trip.srtt_ms());
            }
        }
    }

    /// Gives a lookup that has found nothing those nearest to its target who fell silent lately, or who came back and found their places
    /// taken. The silence may have been the network's, and they hold what was stored on their side. Says whether there is anybody to ask.
    pub(super) fn offer_lost(&mut self, now: Now, at: u16) -> bool {
        let Self { operations, table, lost, abuse, .. } = self;
        let Operation { lookup, task, phase, lost_offered: (rounds, answers_before), .. } =
            &mut *operations[usize::from(at)];
        let answers = lookup.stats(now.mono_ms).answers;
        let goes_on = *rounds == 0 || *rounds < LOST_ROUNDS_MAX && answers > *answers_before;
        if !matches!(task, Task::Get { .. } | Task::FindProviders) || *phase == Phase::Blind || !goes_on {
            return false;
        }
        (*rounds, *answers_before) = (*rounds + 1, answers);
        let target = ContentId::from_bytes(*lookup.target());
        let lost = lost.iter().filter(|lost| lost.is_fresh()).map(|lost| (lost.id, lost.contact));
        let spares = table.iter_spares().map(|peer| (peer.id, peer.contact));
        let mut nearest: Vec<_> = lost
            .chain(spares)
            .filter(|(id, contact)| !lookup.knows(id) && !abuse.is_quarantined(now.mono_ms, &contact.key))
            .map(|(id, contact)| (id.distance_to(&target), id, contact))
            .collect();
        nearest.sort_unstable_by_key(|(distance, ..)| *distance);
        nearest.truncate(LOST_PER_ROUND);
        for (_, id, contact) in &nearest {
            lookup.offer(*id, *contact, None);
        }
        !nearest.is_empty()
    }

    /// Gives a lookup those of the remembered contacts and seeds who are nearest to its target.
    pub(super) fn offer_remembered(&mut self, now: Now, at: u16) {
        let Self { operations, remembered, seeds, sealer, abuse, .. } = self;
        let lookup = &mut operations[usize::from(at)].lookup;
        let target = ContentId::from_bytes(*lookup.target());
        let usable =
            remembered.iter().chain(seeds.iter()).filter(|contact| !abuse.is_quarantined(now.mono_ms, &contact.key));
        let mut usable: Vec<_> = usable.map(|contact| (sealer.node_id(&contact.key), *contact)).collect();
        usable.sort_unstable_by_key(|(id, _)| id.distance_to(&target));
        for (id, contact) in usable.into_iter().take(REMEMBERED_PER_LOOKUP) {
            lookup.offer(id, contact, None);
        }
    }
}
