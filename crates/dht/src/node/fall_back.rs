//! Whom a lookup asks when those it began with are silent: the next of our own table; and if it knows nobody alive, those
//! who were alive last, contacts of before the last start and the configured seeds. If it would end without what it looks for: those who fell silent lately.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};

use super::LaneNode;
use super::operation::{Operation, Phase, Task};
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::time::Now;

/// Configured seeds that a lookup falls back to.
const SEEDS_PER_LOOKUP: usize = 4;

/// Contacts that fell silent lately which a lookup asks before it says that there is nothing: so many, and as many again if one was there.
const LOST_PER_ROUND: usize = 4;
const LOST_ROUNDS_MAX: u8 = 4;

/// Lost and remembered contacts that a lookup begins with: so few that it is not lost in waiting if they are gone.
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
        let unasked = lost
            .chain(spares)
            .filter(|(id, contact)| !lookup.knows(id) && !abuse.is_quarantined(now.mono_ms, &contact.key));
        let mut nearest: [Option<(Distance, NodeId, Contact)>; LOST_PER_ROUND] = [None; LOST_PER_ROUND];
        for (id, contact) in unasked {
            // Whoever has just come back is on both lists for a moment.
            if nearest.iter().flatten().any(|(_, known, _)| *known == id) {
                continue;
            }
            // Each takes the place of the first that is farther, which goes on to the next.
            let mut moving = Some((id.distance_to(&target), id, contact));
            for place in &mut nearest {
                let is_nearer = |(distance, ..): &(Distance, NodeId, Contact)| {
                    place.as_ref().is_none_or(|(farther, ..)| distance < farther)
                };
                if moving.as_ref().is_some_and(is_nearer) {
                    core::mem::swap(place, &mut moving);
                }
            }
        }
        for (_, id, contact) in nearest.iter().flatten() {
            lookup.offer(*id, *contact, None);
        }
        nearest[0].is_some()
    }

    /// Whoever was asked only because it may be back, and is not, is not asked twice: somebody waits for the answer that there is nothing.
    pub(super) fn give_up_lost(&mut self, at: u16, peer: &NodeId) {
        let Operation { lookup, lost_offered: (rounds, _), .. } = &mut *self.operations[usize::from(at)];
        if *rounds > 0 && self.lost.iter().any(|lost| lost.id == *peer) {
            lookup.give_up(peer);
        }
    }

    /// Gives a lookup those nearest to its target of whom are not in the table: half of them lost, who were there last, and half remembered
    /// contacts and seeds, as all who were lost may be gone together. Of whom there are few, the others take the places.
    pub(super) fn offer_remembered(&mut self, now: Now, at: u16) {
        let Self { operations, remembered, seeds, lost, sealer, abuse, .. } = self;
        let lookup = &mut operations[usize::from(at)].lookup;
        let target = ContentId::from_bytes(*lookup.target());
        let is_lost = |id: &NodeId| lost.iter().any(|lost| lost.id == *id);
        let is_usable =
            |id: &NodeId, contact: &Contact| !lookup.knows(id) && !abuse.is_quarantined(now.mono_ms, &contact.key);
        let nearest_first = |mut contacts: Vec<(NodeId, Contact)>| {
            contacts.retain(|(id, contact)| is_usable(id, contact));
            contacts.sort_unstable_by_key(|(id, _)| id.distance_to(&target));
            contacts.dedup_by_key(|(id, _)| *id);
            contacts
        };
        let older = remembered.iter().chain(seeds.iter()).map(|contact| (sealer.node_id(&contact.key), *contact));
        let older = nearest_first(older.filter(|(id, _)| !is_lost(id)).collect());
        let lost = nearest_first(lost.iter().map(|lost| (lost.id, lost.contact)).collect());
        let of_lost = REMEMBERED_PER_LOOKUP - older.len().min(REMEMBERED_PER_LOOKUP / 2);
        let begins_with = lost.into_iter().take(of_lost).chain(older).take(REMEMBERED_PER_LOOKUP);
        for (id, contact) in begins_with {
            lookup.offer(id, contact, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::{Goal, Standing};
    use crate::node::command::Privacy;
    use crate::node::lone_lane::{Sent, T, contact, lane};
    use alloc::collections::BTreeSet;

    #[test]
    fn a_lookup_without_a_result_asks_the_nearest_lost_and_spares_and_more_while_they_answer() {
        let mut lane = lane();
        let is_far = |n: &u8| (contact(*n).id().as_bytes()[0] ^ lane.own.as_bytes()[0]) & 0x80 != 0;
        let far: Vec<_> = (0..=255).filter(is_far).map(contact).collect();
        let (live, rest) = far.split_at(lane.table.k());
        let (spares, lost) = (&rest[..6], &rest[6..12]);
        for contact in live.iter().chain(spares) {
            lane.table.answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        for contact in lost {
            lane.remember_lost(T, *contact, contact.id());
        }
        assert_eq!((lane.table.live_len(), lane.table.len()), (live.len(), live.len() + spares.len()));
        let target = [0x77; 32];
        let task = Task::Get { mutable: false };
        assert!(lane.begin(T, task, None, target, Goal::Immutable, Privacy::None, &mut Sent::default()).is_none());
        let mut nearest = rest[..12].to_vec();
        nearest.sort_by_key(|contact| contact.id().distance_to(&ContentId::from_bytes(target)));
        let known = |lane: &LaneNode<_>| {
            nearest.iter().map(|contact| lane.operations[0].lookup.knows(&contact.id())).collect::<Vec<_>>()
        };
        assert_eq!(known(&lane), [false; 12]);
        assert!(lane.offer_lost(T, 0));
        assert_eq!(known(&lane)[..5], [true, true, true, true, false]);
        assert!(!lane.offer_lost(T, 0), "nobody has answered since");
        let lookup = &mut lane.operations[0].lookup;
        let asked = lookup.candidates().iter().find(|candidate| candidate.standing == Standing::Asked).unwrap().id;
        assert!(lookup.answered(T.mono_ms, &asked, [1; 16], core::iter::empty()));
        assert!(lane.offer_lost(T, 0));
        assert_eq!(known(&lane)[..9], [true, true, true, true, true, true, true, true, false]);
    }

    #[test]
    fn the_more_are_silent_the_more_are_asked_where_somebody_waits_for_it_and_else_no_more() {
        for (task, asks_more) in [(Task::FindNode, true), (Task::Put, true), (Task::Join, false), (Task::Upkeep, false)]
        {
            let (mut lane, mut sent) = (lane(), Sent::default());
            for contact in (100..200).map(contact) {
                lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            let began_with = lane.config.lookup.k;
            lane.begin(T, task, None, [0x77; 32], Goal::Nodes, Privacy::None, &mut sent);
            assert_eq!(lane.operations[0].lookup.candidates().len(), began_with);
            // Nobody ever answers.
            let mut now = T;
            while lane.spare_operations() < lane.config.operations_max {
                now = now.later(core::time::Duration::from_millis(10));
                lane.on_time(now, &mut sent);
            }
            let asked: BTreeSet<_> = sent.0.iter().map(|(to, _)| *to).collect();
            assert_eq!(asked.len() > began_with, asks_more, "{task:?}: {} were asked", asked.len());
            assert!(asked.len() >= began_with, "{task:?}: {} were asked", asked.len());
        }
    }

    /// A lane that knows twenty contacts, all alive and none a spare, and lost thirty.
    fn with_lost() -> LaneNode<crate::identity::Identity> {
        let mut lane = lane();
        for contact in (100..120).map(contact) {
            lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        for contact in (200..230).map(contact) {
            lane.remember_lost(T, contact, contact.id());
        }
        lane
    }

    fn known(lane: &LaneNode<crate::identity::Identity>) -> usize {
        (200..230).filter(|n| lane.operations[0].lookup.knows(&contact(*n).id())).count()
    }

    #[test]
    fn only_what_somebody_waits_to_find_asks_the_lost() {
        for (task, goal, asks) in [
            (Task::Get { mutable: false }, Goal::Immutable, true),
            (Task::FindProviders, Goal::Providers { limit: 1 }, true),
            (Task::FindNode, Goal::Nodes, false),
            (Task::Put, Goal::Nodes, false),
            (Task::Join, Goal::Nodes, false),
            (Task::Upkeep, Goal::Nodes, false),
        ] {
            let mut lane = with_lost();
            lane.begin(T, task, None, [0x77; 32], goal, Privacy::None, &mut Sent::default());
            assert_eq!(
                (lane.offer_lost(T, 0), known(&lane)),
                (asks, if asks { LOST_PER_ROUND } else { 0 }),
                "{task:?}"
            );
        }
    }

    #[test]
    fn the_lost_are_asked_in_four_rounds_at_most_however_many_answer() {
        let mut lane = with_lost();
        let task = Task::Get { mutable: false };
        lane.begin(T, task, None, [0x77; 32], Goal::Immutable, Privacy::None, &mut Sent::default());
        for round in 1..=LOST_ROUNDS_MAX + 2 {
            assert_eq!(lane.offer_lost(T, 0), round <= LOST_ROUNDS_MAX, "round {round}");
            let lookup = &mut lane.operations[0].lookup;
            let asked = lookup.candidates().iter().find(|candidate| candidate.standing == Standing::Asked);
            let asked =
                asked.map(|candidate| candidate.id).or_else(|| lookup.next(T.mono_ms, |_| true).map(|ask| ask.id));
            assert!(lookup.answered(T.mono_ms, &asked.unwrap(), [1; 16], core::iter::empty()));
        }
        assert_eq!(known(&lane), LOST_PER_ROUND * usize::from(LOST_ROUNDS_MAX));
    }

    #[test]
    fn a_lost_contact_in_quarantine_is_not_asked() {
        let mut lane = with_lost();
        for key in (200..230).map(|n| contact(n).key) {
            while !lane.abuse.is_quarantined(T.mono_ms, &key) {
                lane.abuse.offence(T.mono_ms, &key, crate::abuse::Offence::InvalidRecord);
            }
        }
        let task = Task::Get { mutable: false };
        lane.begin(T, task, None, [0x77; 32], Goal::Immutable, Privacy::None, &mut Sent::default());
        lane.offer_lost(T, 0);
        assert_eq!(known(&lane), 0);
    }

    #[test]
    fn who_is_lost_and_waits_for_a_place_too_is_offered_once() {
        let mut lane = lane();
        let is_far = |n: &u8| (contact(*n).id().as_bytes()[0] ^ lane.own.as_bytes()[0]) & 0x80 != 0;
        let far: Vec<_> = (0..=255).filter(is_far).map(contact).take(lane.table.k() + 6).collect();
        let back = &far[lane.table.k()..];
        for contact in back {
            lane.remember_lost(T, *contact, contact.id());
        }
        for contact in &far {
            lane.table.answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        assert_eq!(lane.table.iter_spares().count(), back.len());
        let task = Task::Get { mutable: false };
        lane.begin(T, task, None, [0x77; 32], Goal::Immutable, Privacy::None, &mut Sent::default());
        assert!(lane.offer_lost(T, 0));
        let offered = back.iter().filter(|contact| lane.operations[0].lookup.knows(&contact.id())).count();
        assert_eq!(offered, LOST_PER_ROUND);
    }

    #[test]
    fn a_lookup_that_knows_nobody_alive_begins_with_as_many_lost_as_remembered_ones() {
        // So many lost and remembered contacts, and so many of each it begins with.
        for (lost, remembered, of_lost, of_remembered) in
            [(30, 30, 8, 8), (30, 0, 16, 0), (0, 30, 0, 16), (30, 3, 13, 3), (3, 30, 3, 13), (8, 8, 8, 8), (2, 2, 2, 2)]
        {
            let mut lane = lane();
            let (lost, remembered) = (100..100 + lost, 200..200 + remembered);
            for contact in lost.clone().map(contact) {
                lane.remember_lost(T, contact, contact.id());
            }
            // Most of those who were met before the last start were met again since.
            for contact in remembered.clone().chain(lost.clone()).map(contact) {
                lane.remember(contact);
            }
            lane.begin(T, Task::FindNode, None, [0x77; 32], Goal::Nodes, Privacy::None, &mut Sent::default());
            let known = |n: &u8| lane.operations[0].lookup.knows(&contact(*n).id());
            let begins_with = (lost.filter(known).count(), remembered.filter(known).count());
            assert_eq!(begins_with, (of_lost, of_remembered));
        }
    }
}
