//! One narrowed error per shard operation: exactly what that operation can answer, and no more.
//!
//! Each is made of the building blocks plus what is its own. `From<Refusal>` routes every block by name, without a
//! wildcard: a new block does not compile until each operation below has decided. A block that an operation never gives
//! (a renewal has no cursor to refuse) can only come from a backend that mixed up its answers, and is reported as that.

// A wildcard would decide for a block that does not exist yet.
#![deny(clippy::wildcard_enum_match_arm)]

use core::fmt;

use tessera_contracts::ids::{LogicalTime, ShardKey, WorkerId};
use tessera_stdx::SlabFull;

use super::blocks::{AccessRefused, CoordError, CursorRefused, LeaseRefused, OpIdConflict, Refusal};
use super::infra::InfraError;
use super::split::SplitRefused;
use crate::record::status::ShardStatus;
use crate::shard_limits::ShardLimitViolation;

/// What all operation errors have in common.
pub trait OperationError: core::error::Error + Sized {
    /// The protocol's reason, if it was the protocol that refused and not the store.
    fn refusal(&self) -> Option<Refusal>;

    /// Whether the same call may succeed later: the store failed for now, or had no room.
    fn is_transient(&self) -> bool;

    /// Whether the caller's lease is gone for good, so that a session built on it has ended.
    fn ends_session(&self) -> bool {
        matches!(self.refusal(), Some(Refusal::Access(_) | Refusal::Lease(_)))
    }
}

fn misrouted(operation: &'static str) -> InfraError {
    InfraError::corruption(operation, "the backend gave a reason this operation cannot have")
}

macro_rules! from_coord_error {
    ($($error:ident),*) => {
        $(impl From<CoordError> for $error {
            fn from(error: CoordError) -> Self {
                Refusal::from(error).into()
            }
        })*
    };
}

from_coord_error!(
    AcquireError,
    RenewError,
    CheckpointError,
    CompleteError,
    ParkError,
    SplitError,
    ReleaseError,
    UnparkError,
    OrderError
);

/// The shard is held. Who holds it is for [`AlreadyLeased::current_owner`] to say, not for a log.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("shard {key} is leased until {until}; try again then")]
pub struct AlreadyLeased {
    /// The shard asked for.
    pub key: ShardKey,
    /// When the lease ends, if it is not renewed; the claimant's allowance for clock skew comes on top.
    pub until: LogicalTime,
    owner: WorkerId,
}

impl AlreadyLeased {
    pub(crate) const fn new(key: ShardKey, until: LogicalTime, owner: WorkerId) -> Self {
        Self { key, until, owner }
    }

    /// The holder, for code that may know; no text shows it.
    pub const fn current_owner(&self) -> WorkerId {
        self.owner
    }
}

impl fmt::Debug for AlreadyLeased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlreadyLeased")
            .field("key", &self.key)
            .field("until", &self.until)
            .field("current_owner", &"<redacted>")
            .finish()
    }
}

/// `acquire_and_restore_into` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The shard is settled.
    #[error("shard is {status} and takes no further work")]
    Terminal {
        /// The state it settled in.
        status: ShardStatus,
    },
    /// Someone holds it.
    #[error(transparent)]
    AlreadyLeased(#[from] AlreadyLeased),
    /// Zero stands for "no worker".
    #[error("worker id 0 means unassigned; give the worker an id")]
    UnassignedWorker,
    /// The shard was acquired too often in a row without progress, so instead of being granted once more it was parked
    /// by this very call.
    #[error(
        "shard {key} was acquired {acquisitions} times in a row without progress and is now parked as \
         too many errors; find out why, then unpark it"
    )]
    RetriesExhausted {
        /// The shard.
        key: ShardKey,
        /// How many acquisitions brought nothing.
        acquisitions: u32,
    },
    /// This worker reported that it cannot reach the shard.
    #[error(
        "this worker reported that it cannot reach shard {key}; the shard is left to other workers until it is unparked"
    )]
    ReportedUnreachable {
        /// The shard.
        key: ShardKey,
    },
    /// Another worker reported that it cannot reach the shard, and that waiting may help.
    #[error("shard {key} was reported unreachable and is held back until {until}; try again then")]
    HeldBack {
        /// The shard.
        key: ShardKey,
        /// Until when; the claimant's allowance for clock skew comes on top.
        until: LogicalTime,
    },
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

impl From<Refusal> for AcquireError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(refused) => Self::Access(refused),
            Refusal::Lease(LeaseRefused::Terminal { status }) => Self::Terminal { status },
            Refusal::Lease(
                LeaseRefused::StaleFence { .. } | LeaseRefused::Expired { .. } | LeaseRefused::OwnerDivergence { .. },
            )
            | Refusal::OpId(_)
            | Refusal::Cursor(_)
            | Refusal::Split(_) => Self::BackendError(misrouted("acquire_and_restore_into")),
        }
    }
}

impl OperationError for AcquireError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Access(refused) => Some(Refusal::Access(*refused)),
            Self::Terminal { status } => Some(Refusal::Lease(LeaseRefused::Terminal { status: *status })),
            Self::AlreadyLeased(_)
            | Self::UnassignedWorker
            | Self::RetriesExhausted { .. }
            | Self::ReportedUnreachable { .. }
            | Self::HeldBack { .. }
            | Self::BackendError(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::AlreadyLeased(_) | Self::HeldBack { .. } => true,
            Self::BackendError(error) => error.is_transient(),
            Self::Access(_)
            | Self::Terminal { .. }
            | Self::UnassignedWorker
            | Self::RetriesExhausted { .. }
            | Self::ReportedUnreachable { .. } => false,
        }
    }
}

/// `renew` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenewError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The lease does not open it.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

impl From<Refusal> for RenewError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(refused) => Self::Access(refused),
            Refusal::Lease(refused) => Self::Lease(refused),
            Refusal::OpId(_) | Refusal::Cursor(_) | Refusal::Split(_) => Self::BackendError(misrouted("renew")),
        }
    }
}

impl OperationError for RenewError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Access(refused) => Some(Refusal::Access(*refused)),
            Self::Lease(refused) => Some(Refusal::Lease(*refused)),
            Self::BackendError(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::BackendError(error) => error.is_transient(),
            Self::Access(_) | Self::Lease(_) => false,
        }
    }
}

/// An operation that records progress was refused: `checkpoint`, `complete` or `release`.
macro_rules! progress_error {
    ($(#[$doc:meta])* $name:ident, $operation:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        pub enum $name {
            /// The shard is out of reach.
            #[error(transparent)]
            Access(#[from] AccessRefused),
            /// The lease does not open it.
            #[error(transparent)]
            Lease(#[from] LeaseRefused),
            /// The op id was reused.
            #[error(transparent)]
            OpIdConflict(#[from] OpIdConflict),
            /// The progress is not accepted.
            #[error(transparent)]
            Cursor(#[from] CursorRefused),
            /// The backend has no room for the cursor.
            #[error("no room to store the cursor: {0}")]
            ResourceExhausted(#[from] SlabFull),
            /// The store failed.
            #[error("{0}")]
            BackendError(#[from] InfraError),
        }

        impl From<Refusal> for $name {
            fn from(refusal: Refusal) -> Self {
                match refusal {
                    Refusal::Access(refused) => Self::Access(refused),
                    Refusal::Lease(refused) => Self::Lease(refused),
                    Refusal::OpId(conflict) => Self::OpIdConflict(conflict),
                    Refusal::Cursor(refused) => Self::Cursor(refused),
                    Refusal::Split(_) => Self::BackendError(misrouted($operation)),
                }
            }
        }

        impl OperationError for $name {
            fn refusal(&self) -> Option<Refusal> {
                match self {
                    Self::Access(refused) => Some(Refusal::Access(*refused)),
                    Self::Lease(refused) => Some(Refusal::Lease(*refused)),
                    Self::OpIdConflict(conflict) => Some(Refusal::OpId(*conflict)),
                    Self::Cursor(refused) => Some(Refusal::Cursor(*refused)),
                    Self::ResourceExhausted(_) | Self::BackendError(_) => None,
                }
            }

            fn is_transient(&self) -> bool {
                match self {
                    Self::ResourceExhausted(_) => true,
                    Self::BackendError(error) => error.is_transient(),
                    Self::Access(_) | Self::Lease(_) | Self::OpIdConflict(_) | Self::Cursor(_) => false,
                }
            }
        }
    };
}

progress_error! {
    /// `checkpoint` was refused.
    CheckpointError, "checkpoint"
}
progress_error! {
    /// `complete` was refused.
    CompleteError, "complete"
}
progress_error! {
    /// `release` was refused.
    ReleaseError, "release"
}

/// `park_shard` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParkError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The lease does not open it.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The op id was reused.
    #[error(transparent)]
    OpIdConflict(#[from] OpIdConflict),
    /// The backend has no room for the detail text.
    #[error("no room to store the park detail: {0}")]
    ResourceExhausted(#[from] SlabFull),
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

impl From<Refusal> for ParkError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(refused) => Self::Access(refused),
            Refusal::Lease(refused) => Self::Lease(refused),
            Refusal::OpId(conflict) => Self::OpIdConflict(conflict),
            Refusal::Cursor(_) | Refusal::Split(_) => Self::BackendError(misrouted("park_shard")),
        }
    }
}

impl OperationError for ParkError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Access(refused) => Some(Refusal::Access(*refused)),
            Self::Lease(refused) => Some(Refusal::Lease(*refused)),
            Self::OpIdConflict(conflict) => Some(Refusal::OpId(*conflict)),
            Self::ResourceExhausted(_) | Self::BackendError(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::ResourceExhausted(_) => true,
            Self::BackendError(error) => error.is_transient(),
            Self::Access(_) | Self::Lease(_) | Self::OpIdConflict(_) => false,
        }
    }
}

/// `split_replace` or `split_residual` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The lease does not open it.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The op id was reused.
    #[error(transparent)]
    OpIdConflict(#[from] OpIdConflict),
    /// The split is not accepted.
    #[error(transparent)]
    Split(#[from] SplitRefused),
    /// The tenant or the coordinator holds as many shards as it may.
    #[error(transparent)]
    LimitExceeded(#[from] ShardLimitViolation),
    /// The backend has no room for the children.
    #[error("no room to store the children: {0}")]
    ResourceExhausted(#[from] SlabFull),
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

/// `split_replace` was refused.
pub type SplitReplaceError = SplitError;

/// `split_residual` was refused.
pub type SplitResidualError = SplitError;

impl From<Refusal> for SplitError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(refused) => Self::Access(refused),
            Refusal::Lease(refused) => Self::Lease(refused),
            Refusal::OpId(conflict) => Self::OpIdConflict(conflict),
            Refusal::Split(refused) => Self::Split(refused),
            Refusal::Cursor(_) => Self::BackendError(misrouted("split")),
        }
    }
}

impl OperationError for SplitError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Access(refused) => Some(Refusal::Access(*refused)),
            Self::Lease(refused) => Some(Refusal::Lease(*refused)),
            Self::OpIdConflict(conflict) => Some(Refusal::OpId(*conflict)),
            Self::Split(refused) => Some(Refusal::Split(*refused)),
            Self::LimitExceeded(_) | Self::ResourceExhausted(_) | Self::BackendError(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::LimitExceeded(_) | Self::ResourceExhausted(_) => true,
            Self::BackendError(error) => error.is_transient(),
            Self::Access(_) | Self::Lease(_) | Self::OpIdConflict(_) | Self::Split(_) => false,
        }
    }
}

/// `unpark_shard` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnparkError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The op id was reused.
    #[error(transparent)]
    OpIdConflict(#[from] OpIdConflict),
    /// Only a parked shard can be unparked.
    #[error("shard is {status}; only a parked shard can be unparked")]
    NotParked {
        /// The state it is in.
        status: ShardStatus,
    },
    /// The shard was unparked and worked on since the caller looked: a late duplicate, or a stale decision.
    #[error("shard is at fence epoch {current}, not {expected}; look again before unparking it")]
    FenceMoved {
        /// The epoch the caller expected.
        expected: tessera_contracts::FenceEpoch,
        /// The epoch of the shard.
        current: tessera_contracts::FenceEpoch,
    },
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

impl From<Refusal> for UnparkError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(refused) => Self::Access(refused),
            Refusal::OpId(conflict) => Self::OpIdConflict(conflict),
            Refusal::Lease(LeaseRefused::Terminal { status }) => Self::NotParked { status },
            Refusal::Lease(LeaseRefused::StaleFence { presented, current }) => {
                Self::FenceMoved { expected: presented, current }
            }
            Refusal::Lease(LeaseRefused::Expired { .. } | LeaseRefused::OwnerDivergence { .. })
            | Refusal::Cursor(_)
            | Refusal::Split(_) => Self::BackendError(misrouted("unpark_shard")),
        }
    }
}

impl OperationError for UnparkError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Access(refused) => Some(Refusal::Access(*refused)),
            Self::OpIdConflict(conflict) => Some(Refusal::OpId(*conflict)),
            Self::NotParked { .. } | Self::FenceMoved { .. } | Self::BackendError(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::BackendError(error) => error.is_transient(),
            Self::Access(_) | Self::OpIdConflict(_) | Self::NotParked { .. } | Self::FenceMoved { .. } => false,
        }
    }
}

/// `request_yield` or `request_split` was refused: there is no such owner to give an order to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The owner the order was meant for does not hold the shard.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// Nobody holds the shard.
    #[error("shard {key} is not leased; there is nobody to give an order to")]
    NotLeased {
        /// The shard.
        key: ShardKey,
    },
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

impl From<Refusal> for OrderError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(refused) => Self::Access(refused),
            Refusal::Lease(refused) => Self::Lease(refused),
            Refusal::OpId(_) | Refusal::Cursor(_) | Refusal::Split(_) => Self::BackendError(misrouted("order")),
        }
    }
}

impl OperationError for OrderError {
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Access(refused) => Some(Refusal::Access(*refused)),
            Self::Lease(refused) => Some(Refusal::Lease(*refused)),
            Self::NotLeased { .. } | Self::BackendError(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::BackendError(error) => error.is_transient(),
            Self::Access(_) | Self::Lease(_) | Self::NotLeased { .. } => false,
        }
    }
}
