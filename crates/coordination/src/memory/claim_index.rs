//! Which shards of a run can be claimed, kept current as shards change hands.
//!
//! A shard is in the queue of free shards, first freed first claimed, or among the leases, by deadline. Whatever happens to
//! a shard, and a claim or a hint, costs the same however many shards the run has: taking one out of a list, putting one at
//! the end of a list, reading the front of a list. Time passes over each lease once, which is part of what that lease cost
//! (so a claim that comes after a long silence pays for all that lapsed meanwhile). The exception are deadlines that come
//! far out of order, see [`stragglers`](super::stragglers): those cost the logarithm of how many there are.
//!
//! Callers' clocks may differ, and a request with an earlier time must see what was true then, so time may also move back.

use tessera_contracts::ids::LogicalTime;

use super::lease_list::LeaseList;
use super::place::{List, NO_SLOT, Place, Slot};
use super::stragglers::Stragglers;

/// How many leases may end later than one that is put in order.
pub(super) const WALK_MAX: u32 = 32;

/// The claimable and leased shards of one run.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex<const WALK: u32 = WALK_MAX> {
    free: List,
    free_count: u32,
    leases: LeaseList,
    stragglers: Stragglers,
    shard_count: usize,
}

impl<const WALK: u32> ClaimIndex<WALK> {
    /// Makes room for `added` more shards.
    pub(super) fn reserve(&mut self, added: usize) {
        self.shard_count += added;
        self.stragglers.reserve(self.shard_count);
    }

    /// A shard became free: it goes to the end of the queue.
    pub(super) fn add_free(&mut self, slot: Slot, places: &mut [Place]) {
        debug_assert_eq!(places[slot as usize], Place::Nowhere);
        places[slot as usize] = Place::Free(self.free.link(slot, self.free.last, places));
        self.free_count += 1;
    }

    /// A shard was leased until `deadline`.
    pub(super) fn add_leased(&mut self, slot: Slot, deadline: LogicalTime, places: &mut [Place]) {
        debug_assert_eq!(places[slot as usize], Place::Nowhere);
        if !self.leases.insert(slot, deadline, WALK, places) {
            self.stragglers.insert(slot, deadline, places);
        }
    }

    /// The lease of a shard now ends at `deadline`.
    pub(super) fn move_deadline(&mut self, slot: Slot, deadline: LogicalTime, places: &mut [Place]) {
        self.remove(slot, places);
        self.add_leased(slot, deadline, places);
    }

    /// A shard is no longer free or leased.
    pub(super) fn remove(&mut self, slot: Slot, places: &mut [Place]) {
        let place = core::mem::take(&mut places[slot as usize]);
        match place {
            Place::Nowhere => {}
            Place::Leased(..) => self.leases.remove(slot, place, places),
            Place::LiveStraggler { .. } | Place::LapsedStraggler { .. } => self.stragglers.remove(place, places),
            Place::Free(links) => {
                self.free.unlink(links, places);
                self.free_count -= 1;
            }
        }
    }

    /// Sorts leases into live and lapsed as of `horizon`: lapsed are those whose deadline is not after it.
    pub(super) fn see_time(&mut self, horizon: LogicalTime, places: &mut [Place]) {
        self.leases.see_time(horizon, places);
        self.stragglers.see_time(horizon, places);
    }

    /// How many shards can be claimed, as of the time last seen.
    pub(super) fn available_count(&self) -> u32 {
        self.free_count + self.leases.lapsed_count() + self.stragglers.lapsed_count()
    }

    /// The soonest deadline among live leases, as of the time last seen.
    pub(super) fn earliest_deadline(&self, places: &[Place]) -> Option<LogicalTime> {
        let (in_order, out_of_order) = (self.leases.earliest_deadline(places), self.stragglers.earliest_deadline());
        in_order.into_iter().chain(out_of_order).min()
    }

    /// Shards that are leased, lapsed or not.
    pub(super) fn leased<'a>(&'a self, places: &'a [Place]) -> impl Iterator<Item = Slot> + 'a {
        self.leases.iter(places).chain(self.stragglers.iter())
    }

    /// The shard to claim next: the one that has been free longest, or the one whose lease lapsed longest ago.
    pub(super) fn candidate(&self, places: &[Place]) -> Option<Slot> {
        match self.free.first {
            NO_SLOT => self.candidates(places).next(),
            first => Some(first),
        }
    }

    /// Shards that can be claimed, free ones in the order of the queue, then lapsed ones.
    pub(super) fn candidates<'a>(&'a self, places: &'a [Place]) -> impl Iterator<Item = Slot> + 'a {
        self.free.iter(places).chain(self.leases.lapsed(places)).chain(self.stragglers.lapsed())
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn at(time: u64) -> LogicalTime {
        LogicalTime::new(time)
    }

    #[test]
    fn free_shards_are_claimed_in_the_order_they_became_free() {
        let (mut index, mut places) = (ClaimIndex::<WALK_MAX>::default(), vec![Place::Nowhere; 4]);
        for slot in 0..4 {
            index.add_free(slot, &mut places);
        }
        index.remove(1, &mut places);
        assert_eq!(index.candidates(&places).collect::<Vec<_>>(), [0, 2, 3]);
        index.remove(0, &mut places);
        index.add_free(0, &mut places);
        index.remove(3, &mut places);
        assert_eq!(index.candidates(&places).collect::<Vec<_>>(), [2, 0]);
        assert_eq!((index.candidate(&places), index.available_count()), (Some(2), 2));
    }

    #[test]
    fn a_lease_lapses_at_its_deadline_and_revives_when_time_is_seen_earlier() {
        let (mut index, mut places) = (ClaimIndex::<WALK_MAX>::default(), vec![Place::Nowhere; 1]);
        index.add_leased(0, at(10), &mut places);
        index.see_time(at(9), &mut places);
        assert_eq!((index.available_count(), index.earliest_deadline(&places)), (0, Some(at(10))));
        index.see_time(at(10), &mut places);
        assert_eq!((index.available_count(), index.earliest_deadline(&places)), (1, None));
        index.see_time(at(9), &mut places);
        assert_eq!((index.available_count(), index.earliest_deadline(&places)), (0, Some(at(10))));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Free(Slot),
        Lease(Slot, u64),
        Remove(Slot),
        Time(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let slot = 0..12_u32;
        prop_oneof![
            slot.clone().prop_map(Step::Free),
            (slot.clone(), 0..20_u64).prop_map(|(slot, deadline)| Step::Lease(slot, deadline)),
            slot.prop_map(Step::Remove),
            (0..20_u64).prop_map(Step::Time),
        ]
    }

    #[test]
    fn leases_that_lapsed_are_claimed_longest_ago_first() {
        let (mut index, mut places) = (ClaimIndex::<WALK_MAX>::default(), vec![Place::Nowhere; 3]);
        for (slot, deadline) in [(0, 12), (1, 10), (2, 11)] {
            index.add_leased(slot, at(deadline), &mut places);
        }
        index.see_time(at(11), &mut places);
        assert_eq!(index.candidates(&places).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(index.candidate(&places), Some(1));
    }

    #[test]
    fn a_walk_finds_the_place_of_a_lease_and_a_long_one_is_not_begun() {
        let (mut index, mut places) = (ClaimIndex::<2>::default(), vec![Place::Nowhere; 4]);
        for (slot, deadline) in [(0, 10), (1, 11), (2, 9), (3, 8)] {
            index.add_leased(slot, at(deadline), &mut places);
        }
        assert!(matches!(places[2], Place::Leased(..)), "two end later");
        assert_eq!(places[3], Place::LiveStraggler { position: 0 }, "three end later");
        assert_eq!(index.earliest_deadline(&places), Some(at(8)));
        index.move_deadline(3, at(12), &mut places);
        assert!(matches!(places[3], Place::Leased(..)), "renewed, it is in order again");
        assert_eq!(index.earliest_deadline(&places), Some(at(9)));
    }

    #[test]
    fn leases_that_end_together_stay_in_order_however_many_they_are() {
        let (mut index, mut places) = (ClaimIndex::<2>::default(), vec![Place::Nowhere; 6]);
        for slot in 0..6 {
            index.add_leased(slot, at(10), &mut places);
        }
        assert!(places.iter().all(|place| matches!(place, Place::Leased(..))), "{places:?}");
        index.see_time(at(10), &mut places);
        assert_eq!(index.candidates(&places).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_lease_that_ends_with_the_time_last_seen_can_be_taken_out_before_time_is_seen_again() {
        let (mut index, mut places) = (ClaimIndex::<WALK_MAX>::default(), vec![Place::Nowhere; 1]);
        index.see_time(at(10), &mut places);
        index.add_leased(0, at(10), &mut places);
        assert_eq!(index.available_count(), 1);
        index.remove(0, &mut places);
        assert_eq!(index.available_count(), 0);
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_list_of_deadlines(steps in prop::collection::vec(step(), 1..200)) {
            agrees_with_a_list_of_deadlines::<WALK_MAX>(&steps)?;
            agrees_with_a_list_of_deadlines::<1>(&steps)?;
            agrees_with_a_list_of_deadlines::<0>(&steps)?;
        }
    }

    fn agrees_with_a_list_of_deadlines<const WALK: u32>(steps: &[Step]) -> Result<(), TestCaseError> {
        let (mut index, mut places) = (ClaimIndex::<WALK>::default(), vec![Place::Nowhere; 12]);
        let mut model: BTreeMap<Slot, Option<u64>> = BTreeMap::new();
        let mut now = 0;
        for step in steps {
            match *step {
                Step::Free(slot) => {
                    index.remove(slot, &mut places);
                    index.add_free(slot, &mut places);
                    model.insert(slot, None);
                }
                Step::Lease(slot, deadline) => {
                    if let Some(Some(_)) = model.insert(slot, Some(deadline)) {
                        index.move_deadline(slot, at(deadline), &mut places);
                    } else {
                        index.remove(slot, &mut places);
                        index.add_leased(slot, at(deadline), &mut places);
                    }
                }
                Step::Remove(slot) => {
                    index.remove(slot, &mut places);
                    model.remove(&slot);
                }
                Step::Time(time) => now = time,
            }
            index.see_time(at(now), &mut places);
            let claimable = |deadline: &Option<u64>| deadline.is_none_or(|deadline| deadline <= now);
            let mut expected: Vec<Slot> =
                model.iter().filter(|(_, deadline)| claimable(deadline)).map(|(slot, _)| *slot).collect();
            let mut found: Vec<Slot> = index.candidates(&places).collect();
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(index.available_count() as usize, expected.len());
            let soonest = model.values().filter(|deadline| !claimable(deadline)).flatten().min().copied();
            prop_assert_eq!(index.earliest_deadline(&places), soonest.map(at));
            prop_assert_eq!(index.candidate(&places), index.candidates(&places).next());
        }
        Ok(())
    }
}
