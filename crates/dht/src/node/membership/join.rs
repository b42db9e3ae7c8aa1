//! Joining: the contacts to join by, and how far joining has come.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tessera_contracts::point::{NodeId, Point as _};

use super::LostContacts;
use crate::contact::Contact;
use crate::node::context::{Context, Place};
use crate::node::reserve_queue;
use crate::retry::JOIN;
use crate::routing::RoutingTable;
use crate::time::Now;

/// Configured seeds, and contacts remembered from before the last start: so many of each.
const SEEDS_MAX: usize = 256;

/// Contacts asked in one round of joining.
pub(super) const ASKED_PER_ROUND: usize = 8;

/// Between two tries of a configured seed that is not in the table.
const SEED_PAUSE_MS: u64 = 10 * 60 * 1000;

/// How far joining has come.
#[derive(Debug, Default)]
pub(super) struct Join {
    /// Configured contacts.
    seeds: Vec<Contact>,
    /// Contacts of before the last start.
    remembered: VecDeque<Contact>,
    /// Whose turn it is of the seeds, the remembered and the lost contacts.
    turns: Turns,
    next_ms: u64,
    pause_ms: u64,
    /// A lookup for our own id has run since the table was last empty.
    pub(super) joined: bool,
    looking: bool,
    /// After joining, buckets from this one down to zero are filled, one a tick.
    fill_from: Option<u32>,
    /// When a seed that is not in the table is tried next; zero for not yet known.
    seed_next_ms: u64,
    seed_tried: Option<Contact>,
    /// The contact to ask first in the next look around: it is back, and may know others that are not in the table.
    ask_first: Option<Contact>,
}

#[derive(Debug, Default)]
struct Turns {
    seed: usize,
    remembered: usize,
    lost: usize,
}

fn next(turn: &mut usize) -> usize {
    *turn += 1;
    *turn - 1
}

impl Join {
    pub(super) fn reserve_all(&mut self) {
        reserve_queue(&mut self.remembered, SEEDS_MAX);
    }

    pub(super) fn seeds(&self) -> &[Contact] {
        &self.seeds
    }

    /// Contacts of before the last start, and the configured ones.
    pub(super) fn older(&self) -> impl Iterator<Item = (NodeId, Contact)> {
        self.remembered.iter().chain(&self.seeds).map(|contact| (contact.id(), *contact))
    }

    pub(super) fn take_seeds(&mut self, place: &Place, contacts: Vec<Contact>) {
        for contact in contacts {
            if contact.key != place.own_key && !self.seeds.contains(&contact) && self.seeds.len() < SEEDS_MAX {
                self.seeds.push(contact);
            }
        }
    }

    /// Takes a contact of before the last start. The log tells them in order: the newest are kept.
    pub(super) fn remember(&mut self, place: &Place, contact: Contact) {
        if contact.key == place.own_key || self.remembered.contains(&contact) {
            return;
        }
        if self.remembered.len() == SEEDS_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(contact);
    }

    /// The table has run dry. Returns the contacts of the next round, if it is time for one: rounds go on for ever, with growing pauses.
    pub(super) fn round(&mut self, cx: &mut Context<'_>, lost: &LostContacts) -> [Option<Contact>; ASKED_PER_ROUND] {
        let Self { seeds, remembered, turns, .. } = self;
        let mut round = [None; ASKED_PER_ROUND];
        self.joined = false;
        let no_contact = seeds.is_empty() && remembered.is_empty() && lost.len() == 0;
        if cx.now.mono_ms < self.next_ms || no_contact {
            return round;
        }
        // Half of a round for those that were there last: this node itself may have been cut off.
        let of_lost = lost.len().min(ASKED_PER_ROUND / 2);
        let others_max = ASKED_PER_ROUND - of_lost;
        // Remembered contacts first. From the second round on seeds have half of each: a node that was away for long remembers hundreds
        // that are gone.
        let remembered_max = if self.pause_ms == 0 { others_max } else { others_max / 2 };
        self.pause_ms = JOIN.after_pause(self.pause_ms);
        self.next_ms = cx.now.mono_ms + cx.rng.jittered_ms(self.pause_ms);
        let of_seeds = seeds.len().min(others_max - remembered.len().min(remembered_max));
        let of_remembered = remembered.len().min(others_max - of_seeds);
        for (at, place) in round.iter_mut().enumerate().take(of_lost + of_remembered + of_seeds) {
            *place = Some(if at < of_lost {
                lost.in_turn(next(&mut turns.lost))
            } else if at < of_lost + of_remembered {
                remembered[next(&mut turns.remembered) % remembered.len()]
            } else {
                seeds[next(&mut turns.seed) % seeds.len()]
            });
        }
        round
    }

    /// Whether a look around is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.looking || self.fill_from.is_some()
    }

    /// Whether our own neighbours are to be looked for, as there are contacts to ask.
    pub(super) fn starts_looking(&mut self, now: Now) -> bool {
        self.pause_ms = 0;
        !self.joined && !self.looking && now.mono_ms >= self.next_ms
    }

    pub(super) fn looks(&mut self, now: Now) {
        self.next_ms = now.mono_ms + JOIN.min_ms;
    }

    /// A look around begins, or could not begin.
    pub(super) fn set_looking(&mut self, looking: bool) {
        self.looking = looking;
    }

    pub(super) fn ask_first(&mut self, contact: Contact) {
        self.ask_first = Some(contact);
    }

    pub(super) fn take_first(&mut self) -> Option<Contact> {
        self.ask_first.take()
    }

    /// Our own neighbours are found, the farthest of the K nearest in this bucket: now the table is filled.
    pub(super) fn done(&mut self, deepest: Option<u32>) {
        self.joined = true;
        self.fill_from = deepest;
    }

    /// Whether buckets may be refreshed, as all of them have been filled.
    pub(super) fn is_settled(&self) -> bool {
        self.joined && self.fill_from.is_none()
    }

    /// The next bucket to fill.
    pub(super) fn next_bucket(&mut self) -> Option<u32> {
        let bucket = self.fill_from.take()?;
        self.fill_from = bucket.checked_sub(1);
        Some(bucket)
    }

    /// Whether a seed that was tried is in the table now. It may be on the other side of a split where all others have been forgotten since;
    /// if it answers, there is more to be found. It is asked first: where its bucket is full it only waits for a place, and no other
    /// contact here knows its contacts.
    pub(super) fn seed_is_back(&mut self, table: &RoutingTable) -> bool {
        let back = self.seed_tried.take_if(|seed| table.get(&seed.id()).is_some());
        self.ask_first = back.or(self.ask_first);
        back.is_some()
    }

    /// A configured seed that is not in the table and is tried now, as one is now and then.
    pub(super) fn seed_to_try(&mut self, cx: &mut Context<'_>, table: &RoutingTable) -> Option<(Contact, NodeId)> {
        if cx.now.mono_ms < self.seed_next_ms {
            return None;
        }
        let is_first = self.seed_next_ms == 0;
        self.seed_next_ms = cx.now.mono_ms + cx.rng.jittered_ms(SEED_PAUSE_MS);
        for _ in 0..if is_first { 0 } else { self.seeds.len() } {
            let contact = self.seeds[next(&mut self.turns.seed) % self.seeds.len()];
            let id = contact.id();
            if cx.place.looks_after(&id) && table.get(&id).is_none() {
                self.seed_tried = Some(contact);
                return Some((contact, id));
            }
        }
        None
    }
}

/// The bucket of the farthest of our K nearest neighbours.
pub(super) fn deepest_bucket(place: &Place, table: &RoutingTable) -> Option<u32> {
    let closest = table.closest(&place.own, table.k(), |_| true);
    table.peers_of(&closest).last().map(|peer| place.own.distance_to(&peer.id).leading_zeros().min(64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::LaneNode;
    use crate::node::command::{Command, CommandId};
    use crate::node::config::NodeConfig;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_among, lane_with};
    use alloc::vec;

    #[test]
    fn half_of_a_round_of_joining_is_for_the_lost_however_many_are_remembered() {
        // So many lost and remembered contacts, and how many of each are asked in the first round.
        for (lost, remembered, of_lost, of_remembered) in
            [(0, 50, 0, 8), (1, 50, 1, 7), (4, 50, 4, 4), (50, 50, 4, 4), (50, 2, 4, 2)]
        {
            let mut lane = lane();
            let (lost, remembered) = (100..100 + lost, 200..200 + remembered);
            for contact in lost.clone().map(contact) {
                lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, contact, contact.id()));
            }
            for contact in remembered.clone().map(contact) {
                lane.act(T, |lane, cx| lane.peers.members_mut().remember(cx.place, contact));
            }
            let mut out = Sent::default();
            lane.with(T, &mut out, |lane, cx| lane.keep_joined(cx));
            let is_asked = |n: &u8| out.0.iter().any(|(to, _)| *to == contact(*n).addr);
            let asked = (lost.filter(is_asked).count(), remembered.filter(is_asked).count());
            assert_eq!(asked, (of_lost, of_remembered));
        }
    }

    #[test]
    fn lanes_refresh_their_nodes_buckets_in_turn() {
        let refreshed = |at: u8, lanes: usize| {
            let mut lane = lane_among(1, at, lanes);
            lane.router.peers.members_mut().join.joined = true;
            for contact in (10..60).map(contact) {
                lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            for _ in 0..32 {
                lane.act(T, |lane, cx| lane.refresh(cx));
            }
            assert_eq!(lane.table().bucket_due(T.mono_ms), None);
            lane.counters.lookups_started
        };
        let buckets = refreshed(0, 1);
        assert!(buckets >= 4);
        assert_eq!((refreshed(0, 2), refreshed(1, 2)), (buckets.div_ceil(2), buckets / 2));
    }

    #[test]
    fn a_seed_that_is_not_in_the_table_is_tried_after_a_pause_and_not_at_the_start() {
        let (mut lane, mut out) = (lane(), Sent::default());
        lane.act(T, |lane, cx| lane.peers.members_mut().take_seeds(cx.place, vec![contact(99)]));
        let mut asked = |ms: u64| {
            lane.with(Now { mono_ms: T.mono_ms + ms, ..T }, &mut out, |lane, cx| lane.try_seed(cx));
            out.0.len()
        };
        assert_eq!([asked(0), asked(SEED_PAUSE_MS / 2), asked(SEED_PAUSE_MS * 2)], [0, 0, 1]);
    }

    #[test]
    fn joining_and_refreshing_begin_when_there_is_more_than_the_four_operations_for_commands() {
        type Act = fn(&mut LaneNode);
        let works: [(&str, Act, Act); 5] = [
            ("joining", |_| {}, |lane| lane.act(T, |lane, cx| lane.keep_joined(cx))),
            (
                "filling buckets",
                |lane| lane.router.peers.members_mut().join.done(Some(3)),
                |lane| lane.act(T, |lane, cx| lane.keep_joined(cx)),
            ),
            (
                "refreshing",
                |lane| lane.router.peers.members_mut().set_joined(),
                |lane| lane.act(T, |lane, cx| lane.refresh(cx)),
            ),
            (
                "looking around after a split",
                |lane| {
                    (100..103).for_each(|n| {
                        lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, contact(n), contact(n).id()))
                    })
                },
                |lane| lane.act(T, |lane, cx| lane.heal(cx)),
            ),
            (
                "looking around by a seed",
                |lane| lane.router.peers.members_mut().join.seed_tried = Some(contact(100)),
                |lane| lane.act(T, |lane, cx| lane.try_seed(cx)),
            ),
        ];
        for (what, work, act) in works {
            let mut lane = lane_with(NodeConfig { operations_max: 10, ..NodeConfig::default() });
            for contact in (100..=255).map(contact) {
                lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            work(&mut lane);
            for n in 0..6 {
                lane.on_command(T, CommandId(n), Command::FindNode { target: [7; 32] }, &mut Sent::default());
            }
            act(&mut lane);
            assert_eq!(lane.counters.lookups_started, 6, "{what} waits");
            let cancel = Command::Cancel { command: CommandId(0) };
            lane.on_command(T, CommandId(99), cancel, &mut Sent::default());
            assert_eq!(lane.router.operations.len(), 5);
            act(&mut lane);
            assert_eq!(lane.counters.lookups_started, 7, "and is not forgotten: {what}");
        }
    }
}
