//! Who held a shard, when, and why it moved: the last few owners, for operators.
//!
//! Nothing in the protocol reads this. It answers "who had it at noon, and why did it go elsewhere" without a log archive.

use core::fmt;
use core::hash::{Hash, Hasher};

use tessera_contracts::canonical::{CanonicalBytes, CanonicalSink};
use tessera_contracts::ids::{FenceEpoch, LogicalTime, WorkerId};
use tessera_stdx::RingBuffer;

use super::unreachable::Unreachable;

/// How many owners a shard remembers.
pub const HISTORY_CAP: usize = 8;

/// Why a shard came to a new owner. Stored by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum MoveReason {
    /// Nobody held it before.
    #[default]
    FirstAcquire = 0,
    /// The owner before let the deadline pass.
    Expired = 1,
    /// The owner before lost its session with the store.
    SessionLost = 2,
    /// The owner before gave it back.
    Released = 3,
    /// The owner before gave it back because it was asked to.
    Yielded = 4,
    /// The owner before gave it back before a planned stop.
    Drained = 5,
    /// It was parked, and unparked.
    Unparked = 6,
    /// The owner before could not reach the target.
    Unreachable = 7,
}

const _: () = {
    assert!(MoveReason::FirstAcquire as u8 == 0);
    assert!(MoveReason::Expired as u8 == 1);
    assert!(MoveReason::SessionLost as u8 == 2);
    assert!(MoveReason::Released as u8 == 3);
    assert!(MoveReason::Yielded as u8 == 4);
    assert!(MoveReason::Drained as u8 == 5);
    assert!(MoveReason::Unparked as u8 == 6);
    assert!(MoveReason::Unreachable as u8 == 7);
};

impl MoveReason {
    /// All reasons, by number.
    pub const ALL: [Self; 8] = [
        Self::FirstAcquire,
        Self::Expired,
        Self::SessionLost,
        Self::Released,
        Self::Yielded,
        Self::Drained,
        Self::Unparked,
        Self::Unreachable,
    ];

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The reason with this stored number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The words operators read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FirstAcquire => "first acquire",
            Self::Expired => "lease expired",
            Self::SessionLost => "session lost",
            Self::Released => "released",
            Self::Yielded => "yielded",
            Self::Drained => "drained",
            Self::Unparked => "unparked",
            Self::Unreachable => "unreachable",
        }
    }
}

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a worker gives a shard back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReleaseReason<'a> {
    /// For a reason of its own.
    #[default]
    Released,
    /// It was asked to yield.
    Yielded,
    /// It is about to stop.
    Drained,
    /// It cannot reach the target; another worker may. It is not given the shard again.
    Unreachable(Unreachable<'a>),
}

impl From<ReleaseReason<'_>> for MoveReason {
    fn from(reason: ReleaseReason<'_>) -> Self {
        match reason {
            ReleaseReason::Released => Self::Released,
            ReleaseReason::Yielded => Self::Yielded,
            ReleaseReason::Drained => Self::Drained,
            ReleaseReason::Unreachable(_) => Self::Unreachable,
        }
    }
}

impl CanonicalBytes for ReleaseReason<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.u8(MoveReason::from(*self).as_u8());
        if let Self::Unreachable(unreachable) = self {
            unreachable.write_canonical(sink);
        }
    }
}

/// One owner of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ownership {
    /// Who it was granted to.
    pub worker: WorkerId,
    /// With which fence epoch.
    pub fence: FenceEpoch,
    /// When.
    pub since: LogicalTime,
    /// Why it was free to be granted.
    pub reason: MoveReason,
}

/// The last [`HISTORY_CAP`] owners, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    owners: RingBuffer<Ownership, HISTORY_CAP>,
}

impl History {
    /// Nobody yet.
    pub const fn new() -> Self {
        Self { owners: RingBuffer::new() }
    }

    /// Remembers an owner and forgets the oldest if there is no room.
    pub fn record(&mut self, ownership: Ownership) {
        self.owners.push_back_overwrite(ownership);
    }

    /// Owners, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Ownership> + ExactSizeIterator {
        self.owners.iter()
    }
}

impl FromIterator<Ownership> for History {
    /// Rebuilds a history from stored entries, oldest first; of too many the last stay.
    fn from_iter<I: IntoIterator<Item = Ownership>>(owners: I) -> Self {
        let mut history = Self::new();
        owners.into_iter().for_each(|ownership| history.record(ownership));
        history
    }
}

impl Hash for History {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.owners.len());
        self.iter().for_each(|ownership| ownership.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ninth_owner_pushes_out_the_first() {
        let owner = |n| Ownership {
            worker: WorkerId::new(n),
            fence: FenceEpoch::new(n),
            since: LogicalTime::new(n),
            reason: MoveReason::Expired,
        };
        let history: History = (1..=9).map(owner).collect();
        assert_eq!(history.iter().len(), HISTORY_CAP);
        assert_eq!(history.iter().next(), Some(&owner(2)));
        assert_eq!(history.iter().next_back(), Some(&owner(9)));
    }

    #[test]
    fn stored_numbers_round_trip_and_others_are_refused() {
        for reason in MoveReason::ALL {
            assert_eq!(MoveReason::from_u8(reason.as_u8()), Some(reason));
        }
        assert_eq!(MoveReason::from_u8(8), None);
    }
}
