//! Which shards of a run can be claimed, kept current as shards change hands.
//!
//! Three places a shard can be in: the queue of free shards, first freed first claimed; the heap of live leases, soonest
//! deadline on top; the heap of lapsed leases, latest deadline on top. Time moves leases between the heaps, in either
//! direction: callers' clocks may differ, and a request with an earlier time must see what was true then. Moving a lease
//! costs the logarithm of the number of leases and happens once per expiry as long as time runs forward, so a claim, its
//! hint and a renewal do not depend on how many shards the run has.
//!
//! A shard's place in queue or heap is kept in [`Place`], one per shard of the coordinator, so that it can be taken out of
//! the middle. All room is reserved when shards are made; nothing here allocates afterwards.

use alloc::vec::Vec;

use tessera_contracts::ids::LogicalTime;

/// The number of a shard in the coordinator's arena.
pub(super) type Slot = u32;

const NO_SLOT: Slot = Slot::MAX;

/// Where a shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Place {
    /// Settled, or not there at all.
    #[default]
    Nowhere,
    /// Free, between these two in the queue.
    Free { before: Slot, after: Slot },
    /// Leased, at this position of the heap of live leases.
    Live { position: u32 },
    /// Its lease ran out, at this position of the heap of lapsed leases.
    Lapsed { position: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Deadline {
    at: LogicalTime,
    slot: Slot,
}

/// The claimable and leased shards of one run.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    first_free: Option<Slot>,
    last_free: Option<Slot>,
    free_count: u32,
    live: Heap<SoonestFirst>,
    lapsed: Heap<LatestFirst>,
}

impl ClaimIndex {
    /// Makes room for `added` more shards.
    pub(super) fn reserve(&mut self, added: usize) {
        let all = self.free_count as usize + self.live.entries.len() + self.lapsed.entries.len() + added;
        self.live.entries.reserve(all - self.live.entries.len());
        self.lapsed.entries.reserve(all - self.lapsed.entries.len());
    }

    /// A shard became free: it goes to the end of the queue.
    pub(super) fn add_free(&mut self, slot: Slot, places: &mut [Place]) {
        debug_assert_eq!(places[slot as usize], Place::Nowhere);
        let before = self.last_free.replace(slot);
        match before {
            Some(before) => set_after(places, before, slot),
            None => self.first_free = Some(slot),
        }
        places[slot as usize] = Place::Free { before: before.unwrap_or(NO_SLOT), after: NO_SLOT };
        self.free_count += 1;
    }

    /// A shard was leased until `deadline`.
    pub(super) fn add_leased(&mut self, slot: Slot, deadline: LogicalTime, places: &mut [Place]) {
        debug_assert_eq!(places[slot as usize], Place::Nowhere);
        self.live.push(Deadline { at: deadline, slot }, places);
    }

    /// The lease of a shard now ends at `deadline`.
    pub(super) fn move_deadline(&mut self, slot: Slot, deadline: LogicalTime, places: &mut [Place]) {
        match places[slot as usize] {
            // Most renewals: from where it is, it is not far.
            Place::Live { position } => self.live.replace(position, Deadline { at: deadline, slot }, places),
            _ => {
                self.remove(slot, places);
                self.add_leased(slot, deadline, places);
            }
        }
    }

    /// A shard is no longer free or leased.
    pub(super) fn remove(&mut self, slot: Slot, places: &mut [Place]) {
        match core::mem::take(&mut places[slot as usize]) {
            Place::Nowhere => {}
            Place::Live { position } => self.live.remove(position, places),
            Place::Lapsed { position } => self.lapsed.remove(position, places),
            Place::Free { before, after } => {
                match before {
                    NO_SLOT => self.first_free = (after != NO_SLOT).then_some(after),
                    before => set_after(places, before, after),
                }
                match after {
                    NO_SLOT => self.last_free = (before != NO_SLOT).then_some(before),
                    after => set_before(places, after, before),
                }
                self.free_count -= 1;
            }
        }
    }

    /// Sorts leases into live and lapsed as of `horizon`: lapsed are those whose deadline is not after it.
    pub(super) fn see_time(&mut self, horizon: LogicalTime, places: &mut [Place]) {
        while let Some(lapsed) = self.live.top().filter(|deadline| deadline.at <= horizon) {
            self.live.remove(0, places);
            self.lapsed.push(lapsed, places);
        }
        while let Some(live) = self.lapsed.top().filter(|deadline| deadline.at > horizon) {
            self.lapsed.remove(0, places);
            self.live.push(live, places);
        }
    }

    /// How many shards can be claimed, as of the time last seen.
    pub(super) fn available_count(&self) -> u32 {
        self.free_count + self.lapsed.entries.len() as u32
    }

    /// The soonest deadline among live leases, as of the time last seen.
    pub(super) fn earliest_deadline(&self) -> Option<LogicalTime> {
        self.live.top().map(|deadline| deadline.at)
    }

    /// The shard to claim next: the one that has been free longest, or one whose lease lapsed.
    pub(super) fn candidate(&self) -> Option<Slot> {
        self.first_free.or_else(|| self.lapsed.top().map(|deadline| deadline.slot))
    }

    /// Shards that can be claimed, free ones in the order of the queue, then lapsed ones.
    pub(super) fn candidates<'a>(&'a self, places: &'a [Place]) -> impl Iterator<Item = Slot> + 'a {
        let next = |slot: &Slot| match places[*slot as usize] {
            Place::Free { after, .. } => (after != NO_SLOT).then_some(after),
            _ => None,
        };
        let lapsed = self.lapsed.entries.iter().map(|deadline| deadline.slot);
        core::iter::successors(self.first_free, next).chain(lapsed)
    }
}

fn set_after(places: &mut [Place], slot: Slot, next: Slot) {
    if let Place::Free { after, .. } = &mut places[slot as usize] {
        *after = next;
    }
}

fn set_before(places: &mut [Place], slot: Slot, previous: Slot) {
    if let Place::Free { before, .. } = &mut places[slot as usize] {
        *before = previous;
    }
}

/// In which order a heap keeps deadlines, and what its places are called.
trait HeapOrder {
    fn is_above(a: &Deadline, b: &Deadline) -> bool;
    fn place(position: u32) -> Place;
}

#[derive(Debug, Default)]
struct SoonestFirst;

impl HeapOrder for SoonestFirst {
    fn is_above(a: &Deadline, b: &Deadline) -> bool {
        a.at < b.at
    }

    fn place(position: u32) -> Place {
        Place::Live { position }
    }
}

#[derive(Debug, Default)]
struct LatestFirst;

impl HeapOrder for LatestFirst {
    fn is_above(a: &Deadline, b: &Deadline) -> bool {
        a.at > b.at
    }

    fn place(position: u32) -> Place {
        Place::Lapsed { position }
    }
}

/// A heap that knows where each shard is. Four children per node: a quarter of the levels cost a cache line each.
#[derive(Debug, Default)]
struct Heap<O> {
    entries: Vec<Deadline>,
    order: core::marker::PhantomData<O>,
}

const ARITY: usize = 4;

impl<O: HeapOrder> Heap<O> {
    fn top(&self) -> Option<Deadline> {
        self.entries.first().copied()
    }

    fn push(&mut self, deadline: Deadline, places: &mut [Place]) {
        self.entries.push(deadline);
        self.rise(self.entries.len() - 1, places);
    }

    /// Takes out the entry at `position`, whose shard's place the caller has cleared or is about to overwrite.
    fn remove(&mut self, position: u32, places: &mut [Place]) {
        let gone = self.entries.swap_remove(position as usize);
        places[gone.slot as usize] = Place::Nowhere;
        if let Some(&moved) = self.entries.get(position as usize) {
            self.replace(position, moved, places);
        }
    }

    /// Puts `deadline` where another was, and from there to where it belongs.
    fn replace(&mut self, position: u32, deadline: Deadline, places: &mut [Place]) {
        self.entries[position as usize] = deadline;
        let settled = self.rise(position as usize, places);
        self.sink(settled, places);
    }

    fn rise(&mut self, mut position: usize, places: &mut [Place]) -> usize {
        let moving = self.entries[position];
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if !O::is_above(&moving, &self.entries[parent]) {
                break;
            }
            self.put(position, self.entries[parent], places);
            position = parent;
        }
        self.put(position, moving, places);
        position
    }

    fn sink(&mut self, mut position: usize, places: &mut [Place]) {
        let moving = self.entries[position];
        loop {
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(self.entries.len());
            let best =
                children.reduce(
                    |best, child| {
                        if O::is_above(&self.entries[child], &self.entries[best]) { child } else { best }
                    },
                );
            match best {
                Some(child) if O::is_above(&self.entries[child], &moving) => {
                    self.put(position, self.entries[child], places);
                    position = child;
                }
                _ => break,
            }
        }
        self.put(position, moving, places);
    }

    fn put(&mut self, position: usize, deadline: Deadline, places: &mut [Place]) {
        self.entries[position] = deadline;
        places[deadline.slot as usize] = O::place(position as u32);
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn at(time: u64) -> LogicalTime {
        LogicalTime::new(time)
    }

    #[test]
    fn free_shards_are_claimed_in_the_order_they_became_free() {
        let (mut index, mut places) = (ClaimIndex::default(), vec![Place::Nowhere; 4]);
        for slot in 0..4 {
            index.add_free(slot, &mut places);
        }
        index.remove(1, &mut places);
        assert_eq!(index.candidates(&places).collect::<Vec<_>>(), [0, 2, 3]);
        index.remove(0, &mut places);
        index.add_free(0, &mut places);
        index.remove(3, &mut places);
        assert_eq!(index.candidates(&places).collect::<Vec<_>>(), [2, 0]);
        assert_eq!((index.candidate(), index.available_count()), (Some(2), 2));
    }

    #[test]
    fn a_lease_lapses_at_its_deadline_and_revives_when_time_is_seen_earlier() {
        let (mut index, mut places) = (ClaimIndex::default(), vec![Place::Nowhere; 1]);
        index.add_leased(0, at(10), &mut places);
        index.see_time(at(9), &mut places);
        assert_eq!((index.available_count(), index.earliest_deadline()), (0, Some(at(10))));
        index.see_time(at(10), &mut places);
        assert_eq!((index.available_count(), index.earliest_deadline()), (1, None));
        index.see_time(at(9), &mut places);
        assert_eq!((index.available_count(), index.earliest_deadline()), (0, Some(at(10))));
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

    proptest! {
        #[test]
        fn the_index_agrees_with_a_list_of_deadlines(steps in prop::collection::vec(step(), 1..200)) {
            let (mut index, mut places) = (ClaimIndex::default(), vec![Place::Nowhere; 12]);
            let mut model: BTreeMap<Slot, Option<u64>> = BTreeMap::new();
            let mut now = 0;
            for step in steps {
                match step {
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
                prop_assert_eq!(index.earliest_deadline(), soonest.map(at));
                prop_assert_eq!(index.candidate().is_some(), !expected.is_empty());
            }
        }
    }
}
