//! The four states of a shard, and why one was parked.
//!
//! The numbers are stored by durable backends and never change their meaning; the assertions below break the build if
//! one moves.

use core::fmt;

/// Where a shard stands. Every transition starts at `Active`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum ShardStatus {
    /// Work remains; a worker may hold it.
    Active = 0,
    /// The whole range was swept.
    Done = 1,
    /// Replaced by children that cover its range.
    Split = 2,
    /// Halted for a [`ParkReason`]; only `unpark_shard` revives it.
    Parked = 3,
}

const _: () = {
    assert!(ShardStatus::Active as u8 == 0);
    assert!(ShardStatus::Done as u8 == 1);
    assert!(ShardStatus::Split as u8 == 2);
    assert!(ShardStatus::Parked as u8 == 3);
};

impl ShardStatus {
    /// All states, by number.
    pub const ALL: [Self; 4] = [Self::Active, Self::Done, Self::Split, Self::Parked];

    /// Whether no operation of [`CoordinationBackend`](crate::CoordinationBackend) may change the state any more.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Active => false,
            Self::Done | Self::Split | Self::Parked => true,
        }
    }

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The state with this stored number, if there is one.
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Active),
            1 => Some(Self::Done),
            2 => Some(Self::Split),
            3 => Some(Self::Parked),
            _ => None,
        }
    }

    /// The word operators read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Done => "done",
            Self::Split => "split",
            Self::Parked => "parked",
        }
    }
}

impl fmt::Display for ShardStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a shard was parked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum ParkReason {
    /// The connector lacks access; a credential must change.
    PermissionDenied = 0,
    /// The target no longer exists.
    NotFound = 1,
    /// Something is inconsistent; a person must look.
    Poisoned = 2,
    /// Transient errors piled up; trying again later may help.
    TooManyErrors = 3,
    /// None of the others; the detail text says what.
    Other = 4,
    /// No worker that took part could reach the target; see [`decide::unreachable`](crate::decide::unreachable).
    Unreachable = 5,
}

const _: () = {
    assert!(ParkReason::PermissionDenied as u8 == 0);
    assert!(ParkReason::NotFound as u8 == 1);
    assert!(ParkReason::Poisoned as u8 == 2);
    assert!(ParkReason::TooManyErrors as u8 == 3);
    assert!(ParkReason::Other as u8 == 4);
    assert!(ParkReason::Unreachable as u8 == 5);
};

impl ParkReason {
    /// All reasons, by number.
    pub const ALL: [Self; 6] =
        [Self::PermissionDenied, Self::NotFound, Self::Poisoned, Self::TooManyErrors, Self::Other, Self::Unreachable];

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The reason with this stored number, if there is one.
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::PermissionDenied),
            1 => Some(Self::NotFound),
            2 => Some(Self::Poisoned),
            3 => Some(Self::TooManyErrors),
            4 => Some(Self::Other),
            5 => Some(Self::Unreachable),
            _ => None,
        }
    }

    /// The word operators read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PermissionDenied => "permission denied",
            Self::NotFound => "not found",
            Self::Poisoned => "poisoned",
            Self::TooManyErrors => "too many errors",
            Self::Other => "other",
            Self::Unreachable => "unreachable",
        }
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_numbers_round_trip_and_others_are_refused() {
        for status in ShardStatus::ALL {
            assert_eq!(ShardStatus::from_u8(status.as_u8()), Some(status));
        }
        assert_eq!(ShardStatus::from_u8(4), None);
        for reason in ParkReason::ALL {
            assert_eq!(ParkReason::from_u8(reason.as_u8()), Some(reason));
        }
        assert_eq!(ParkReason::from_u8(6), None);
    }

    #[test]
    fn only_active_is_not_terminal() {
        let terminal = ShardStatus::ALL.map(ShardStatus::is_terminal);
        assert_eq!(terminal, [false, true, true, true]);
    }
}
