//! Leases whose deadlines came out of order.
//!
//! They are few: granted by a clock that is far behind others', or read from a store in the order of ids. Two heaps keep
//! them, live ones with the soonest deadline on top and lapsed ones with the latest, and time moves them between the two, in
//! either direction. Each move costs the logarithm of their number; a renewal puts a straggler back in order.
//!
//! All room is reserved when shards are made; nothing here allocates afterwards.

use alloc::vec::Vec;

use tessera_contracts::ids::LogicalTime;

use super::place::{Place, Slot};

/// Leases out of order, live and lapsed.
#[derive(Debug, Default)]
pub(super) struct Stragglers {
    live: Heap<SoonestFirst>,
    lapsed: Heap<LatestFirst>,
}

impl Stragglers {
    /// Makes room for `all` shards.
    pub(super) fn reserve(&mut self, all: usize) {
        self.live.entries.reserve(all - self.live.entries.len());
        self.lapsed.entries.reserve(all - self.lapsed.entries.len());
    }

    pub(super) fn insert(&mut self, slot: Slot, deadline: LogicalTime, places: &mut [Place]) {
        self.live.push(Deadline { at: deadline, slot }, places);
    }

    /// Takes out a shard that was at `place`.
    pub(super) fn remove(&mut self, place: Place, places: &mut [Place]) {
        match place {
            Place::LiveStraggler { position } => self.live.remove(position, places),
            Place::LapsedStraggler { position } => self.lapsed.remove(position, places),
            Place::Nowhere | Place::Free(_) | Place::Leased(..) => {}
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

    pub(super) fn lapsed_count(&self) -> u32 {
        self.lapsed.entries.len() as u32
    }

    /// The soonest deadline among live leases.
    pub(super) fn earliest_deadline(&self) -> Option<LogicalTime> {
        self.live.top().map(|deadline| deadline.at)
    }

    /// All of them, lapsed ones too.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.live.entries.iter().chain(&self.lapsed.entries).map(|deadline| deadline.slot)
    }

    /// Shards whose leases lapsed.
    pub(super) fn lapsed(&self) -> impl Iterator<Item = Slot> {
        self.lapsed.entries.iter().map(|deadline| deadline.slot)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Deadline {
    at: LogicalTime,
    slot: Slot,
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
        Place::LiveStraggler { position }
    }
}

#[derive(Debug, Default)]
struct LatestFirst;

impl HeapOrder for LatestFirst {
    fn is_above(a: &Deadline, b: &Deadline) -> bool {
        a.at > b.at
    }

    fn place(position: u32) -> Place {
        Place::LapsedStraggler { position }
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
    use super::*;

    #[test]
    fn room_is_made_for_all_to_be_live_and_for_all_to_have_lapsed() {
        let mut stragglers = Stragglers::default();
        stragglers.reserve(100);
        assert!(stragglers.live.entries.capacity() >= 100 && stragglers.lapsed.entries.capacity() >= 100);
    }

    #[test]
    fn room_that_is_there_is_not_made_again() {
        let mut stragglers = Stragglers::default();
        stragglers.reserve(100);
        let mut places = std::vec![Place::Nowhere; 100];
        (0..100).for_each(|slot| stragglers.insert(slot, LogicalTime::new(u64::from(slot)), &mut places));
        stragglers.see_time(LogicalTime::new(49), &mut places);
        let room = |stragglers: &Stragglers| (stragglers.live.entries.capacity(), stragglers.lapsed.entries.capacity());
        let before = room(&stragglers);
        stragglers.reserve(100);
        assert_eq!(room(&stragglers), before);
    }

    #[test]
    fn leases_lapse_and_revive_in_the_order_of_their_deadlines_however_they_came() {
        let (count, mut dice) = (200_u64, 1_u64);
        for _ in 0..20 {
            let (mut stragglers, mut places) = (Stragglers::default(), std::vec![Place::Nowhere; count as usize]);
            let mut deadlines: Vec<u64> = (0..count)
                .map(|_| {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    1 + (dice >> 33) % 1_000
                })
                .collect();
            for (slot, deadline) in (0..).zip(&deadlines) {
                stragglers.insert(slot, LogicalTime::new(*deadline), &mut places);
            }
            deadlines.sort_unstable();
            // Tick by tick there and back again: each lapses, and revives, at its own time.
            for now in (0..=1_000).chain((0..1_000).rev()) {
                stragglers.see_time(LogicalTime::new(now), &mut places);
                let lapsed = deadlines.partition_point(|deadline| *deadline <= now);
                let soonest = deadlines.get(lapsed).copied().map(LogicalTime::new);
                assert_eq!((stragglers.lapsed_count() as usize, stragglers.earliest_deadline()), (lapsed, soonest));
            }
        }
    }
}
