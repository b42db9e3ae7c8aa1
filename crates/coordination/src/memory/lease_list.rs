//! Leases in the order of their deadlines, at a constant cost each.
//!
//! All leases of a run are equally long and time runs forward, so each new deadline is the latest: it goes to the end of a
//! list. Time is a boundary in that list, lapsed leases before it and live ones behind, and moves over each lease once, or
//! back over it where a caller's clock is behind another's. A lease that is granted by such a clock belongs a few places
//! before the end, and a short walk finds it; one that is too far back is refused, and is for the heap of stragglers.

use tessera_contracts::ids::LogicalTime;

use super::place::{List, NO_SLOT, Place, Slot};

/// Leases by deadline, and how many of them have lapsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseList {
    list: List,
    /// The first whose deadline is after `horizon`.
    first_live: Slot,
    lapsed_count: u32,
    /// Lapsed are those whose deadline is not after it.
    horizon: LogicalTime,
}

impl Default for LeaseList {
    fn default() -> Self {
        Self { list: List::default(), first_live: NO_SLOT, lapsed_count: 0, horizon: LogicalTime::new(0) }
    }
}

impl LeaseList {
    /// Takes in a lease, unless more than `walk_max` others end later. Returns whether it did.
    pub(super) fn insert(&mut self, slot: Slot, deadline: LogicalTime, walk_max: u32, places: &mut [Place]) -> bool {
        let mut before = self.list.last;
        let mut walked = 0;
        while let Some(latest) = deadline_at(before, places)
            && latest > deadline
        {
            if walked == walk_max {
                return false;
            }
            walked += 1;
            before = self.before(before, places);
        }
        let links = self.list.link(slot, before, places);
        places[slot as usize] = Place::Leased(links, deadline);
        if deadline <= self.horizon {
            self.lapsed_count += 1;
        } else if links.after == self.first_live {
            self.first_live = slot;
        }
        true
    }

    /// Takes out a lease that is in the list and whose place was just cleared.
    pub(super) fn remove(&mut self, slot: Slot, place: Place, places: &mut [Place]) {
        let Place::Leased(links, deadline) = place else { return };
        if deadline <= self.horizon {
            self.lapsed_count -= 1;
        }
        if self.first_live == slot {
            self.first_live = links.after;
        }
        self.list.unlink(links, places);
    }

    /// Moves the boundary to `horizon`.
    pub(super) fn see_time(&mut self, horizon: LogicalTime, places: &[Place]) {
        if horizon < self.horizon {
            while let Some(latest) = deadline_at(self.before(self.first_live, places), places)
                && latest > horizon
            {
                self.first_live = self.before(self.first_live, places);
                self.lapsed_count -= 1;
            }
        } else {
            while let Some(Place::Leased(links, deadline)) = places.get(self.first_live as usize)
                && *deadline <= horizon
            {
                self.first_live = links.after;
                self.lapsed_count += 1;
            }
        }
        self.horizon = horizon;
    }

    pub(super) const fn lapsed_count(&self) -> u32 {
        self.lapsed_count
    }

    /// The soonest deadline among live leases.
    pub(super) fn earliest_deadline(&self, places: &[Place]) -> Option<LogicalTime> {
        deadline_at(self.first_live, places)
    }

    /// Shards whose leases lapsed, longest ago first.
    pub(super) fn lapsed(&self, places: &[Place]) -> impl Iterator<Item = Slot> {
        self.list.iter(places).take(self.lapsed_count as usize)
    }

    /// All of them, lapsed ones too.
    pub(super) fn iter(&self, places: &[Place]) -> impl Iterator<Item = Slot> {
        self.list.iter(places)
    }

    /// The one before; the last one, if `slot` is the end.
    fn before(&self, slot: Slot, places: &[Place]) -> Slot {
        match places.get(slot as usize).and_then(Place::links) {
            Some(links) => links.before,
            None => self.list.last,
        }
    }
}

fn deadline_at(slot: Slot, places: &[Place]) -> Option<LogicalTime> {
    match places.get(slot as usize) {
        Some(Place::Leased(_, deadline)) => Some(*deadline),
        _ => None,
    }
}
