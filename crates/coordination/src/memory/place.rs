//! Where a shard is in its run's claim index, and the lists that run through those places.
//!
//! There is one [`Place`] per shard of the coordinator, so that a shard can be taken out of the middle of whatever it is in
//! without a search, and a list needs no room of its own.

use tessera_contracts::ids::LogicalTime;

/// The number of a shard in the coordinator's arena.
pub(super) type Slot = u32;

/// What stands for no shard at the ends of a list.
pub(super) const NO_SLOT: Slot = Slot::MAX;

/// Where a shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Place {
    /// Settled, or not there at all.
    #[default]
    Nowhere,
    /// Free, in the queue of free shards.
    Free(Links),
    /// Leased, in the list of leases by deadline.
    Leased(Links, LogicalTime),
    /// Leased and out of order, at this position of the heap of live stragglers.
    LiveStraggler { position: u32 },
    /// Its lease out of order and run out, at this position of the heap of lapsed stragglers.
    LapsedStraggler { position: u32 },
}

/// The neighbours of a shard in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Links {
    pub(super) before: Slot,
    pub(super) after: Slot,
}

impl Place {
    /// The neighbours, if it is in a list.
    pub(super) const fn links(&self) -> Option<Links> {
        match self {
            Self::Free(links) | Self::Leased(links, _) => Some(*links),
            Self::Nowhere | Self::LiveStraggler { .. } | Self::LapsedStraggler { .. } => None,
        }
    }

    fn links_mut(&mut self) -> Option<&mut Links> {
        match self {
            Self::Free(links) | Self::Leased(links, _) => Some(links),
            Self::Nowhere | Self::LiveStraggler { .. } | Self::LapsedStraggler { .. } => None,
        }
    }
}

/// A list through the places of shards, by its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) first: Slot,
    pub(super) last: Slot,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NO_SLOT, last: NO_SLOT }
    }
}

impl List {
    /// Makes room for `slot` behind `before`, or at the front if that is [`NO_SLOT`]; its place is to be these links.
    pub(super) fn link(&mut self, slot: Slot, before: Slot, places: &mut [Place]) -> Links {
        let after = match links_of(before, places) {
            Some(links) => core::mem::replace(&mut links.after, slot),
            None => core::mem::replace(&mut self.first, slot),
        };
        match links_of(after, places) {
            Some(links) => links.before = slot,
            None => self.last = slot,
        }
        Links { before, after }
    }

    /// Joins what is before and after a shard that goes.
    pub(super) fn unlink(&mut self, links: Links, places: &mut [Place]) {
        match links_of(links.before, places) {
            Some(before) => before.after = links.after,
            None => self.first = links.after,
        }
        match links_of(links.after, places) {
            Some(after) => after.before = links.before,
            None => self.last = links.before,
        }
    }

    /// Its shards, first to last.
    pub(super) fn iter(self, places: &[Place]) -> impl Iterator<Item = Slot> {
        let named = |slot: Slot| (slot != NO_SLOT).then_some(slot);
        core::iter::successors(named(self.first), move |slot| named(places[*slot as usize].links()?.after))
    }
}

/// The links of a shard in a list; none for the end of one.
fn links_of(slot: Slot, places: &mut [Place]) -> Option<&mut Links> {
    places.get_mut(slot as usize).and_then(Place::links_mut)
}
