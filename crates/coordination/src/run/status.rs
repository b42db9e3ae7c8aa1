//! The five states of a run, and what of it binds its shards.

use core::fmt;

use tessera_contracts::ids::RunId;

use crate::error::AccessRefused;

/// Where a run stands. Stored by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum RunStatus {
    /// Created, without shards.
    Initializing = 0,
    /// Its shards are worked on.
    Active = 1,
    /// Every shard was swept.
    Done = 2,
    /// Given up with something left undone.
    Failed = 3,
    /// Called off.
    Cancelled = 4,
}

const _: () = {
    assert!(RunStatus::Initializing as u8 == 0);
    assert!(RunStatus::Active as u8 == 1);
    assert!(RunStatus::Done as u8 == 2);
    assert!(RunStatus::Failed as u8 == 3);
    assert!(RunStatus::Cancelled as u8 == 4);
};

impl RunStatus {
    /// All states, by number.
    pub const ALL: [Self; 5] = [Self::Initializing, Self::Active, Self::Done, Self::Failed, Self::Cancelled];

    /// Whether the run is settled for good.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Initializing | Self::Active => false,
            Self::Done | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The state with this stored number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The word operators read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The part of a run that decisions about its shards depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunGate {
    /// Where the run stands: only an active run's shards are worked on.
    pub status: RunStatus,
    /// How long a lease lasts.
    pub lease_duration: u64,
    /// Acquisitions in a row without progress after which a shard is parked; 0 for never.
    pub max_shard_retries: u32,
}

impl RunGate {
    /// Whether the run accepts work.
    pub fn check_active(&self, run: RunId) -> Result<(), AccessRefused> {
        match self.status {
            RunStatus::Active => Ok(()),
            status => Err(AccessRefused::RunNotActive { run, status }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_failed_and_cancelled_are_terminal() {
        assert_eq!(RunStatus::ALL.map(RunStatus::is_terminal), [false, false, true, true, true]);
    }

    #[test]
    fn only_an_active_run_accepts_work() {
        for status in RunStatus::ALL {
            let gate = RunGate { status, lease_duration: 1, max_shard_retries: 0 };
            assert_eq!(gate.check_active(RunId::new(1)).is_ok(), status == RunStatus::Active);
        }
    }

    #[test]
    fn stored_numbers_round_trip_and_others_are_refused() {
        for status in RunStatus::ALL {
            assert_eq!(RunStatus::from_u8(status.as_u8()), Some(status));
        }
        assert_eq!(RunStatus::from_u8(5), None);
    }
}
