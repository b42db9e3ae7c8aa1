//! The building blocks: each reason the protocol has for saying no, grouped by what the caller got wrong.
//!
//! Operation errors are composed of these, so a reason has one definition and one text. [`Refusal`] is the list of all
//! blocks and [`CoordError`] the flat list of all reasons; both conversions match exhaustively, so a new block or reason
//! does not compile until every operation has said what it makes of it.
//!
//! What an error may tell: a tenant mismatch shows only the caller's own tenant (SEC-1), a held lease hides its owner
//! (SEC-5), a reused op id hides both fingerprints (SEC-6), and customers' keys appear as lengths.

use core::fmt;

use tessera_contracts::PayloadHash;
use tessera_contracts::cursor::CursorViolation;
use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardKey, TenantId, WorkerId};

use super::split::SplitRefused;
use crate::record::status::ShardStatus;
use crate::run::status::RunStatus;

/// Why the caller may not touch this shard at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefused {
    /// The lease belongs to another tenant. Only the caller's own tenant is named.
    #[error("the presented lease does not belong to tenant {expected}; present it under the tenant that acquired it")]
    TenantMismatch {
        /// The tenant the caller spoke for.
        expected: TenantId,
    },
    /// The tenant has no such shard.
    #[error("shard {key} does not exist for this tenant")]
    ShardNotFound {
        /// The shard asked for.
        key: ShardKey,
    },
    /// The request names an earlier or later run of the same id. Told before anything is looked up in the op-log: what
    /// another run did is no answer to this one's request.
    #[error(
        "the request is of incarnation {presented} of run {run}, but the run is now incarnation {current}: it was \
         retired and created anew; stop working"
    )]
    OtherIncarnation {
        /// The run.
        run: RunId,
        /// The incarnation that the lease or the caller names.
        presented: RunIncarnation,
        /// The incarnation that there is.
        current: RunIncarnation,
    },
    /// The run does not accept work: it is settled, or its shards are not registered yet.
    #[error("run {run} is {status}; shards of a run that is not active cannot be worked on")]
    RunNotActive {
        /// The run.
        run: RunId,
        /// Its status.
        status: RunStatus,
    },
}

/// Why the presented lease does not open this shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefused {
    /// The shard is settled.
    #[error("shard is {status} and takes no further work")]
    Terminal {
        /// The state it settled in.
        status: ShardStatus,
    },
    /// Someone else was granted the shard since: the presenter is a zombie and must stop.
    #[error(
        "lease has fence epoch {presented} but the shard is at {current}; another owner was granted it, stop working"
    )]
    StaleFence {
        /// The epoch of the presented lease.
        presented: FenceEpoch,
        /// The epoch of the shard.
        current: FenceEpoch,
    },
    /// The lease ran out, though nobody has taken the shard yet.
    #[error("lease {because} (deadline {deadline}, now {now}); acquire the shard again")]
    Expired {
        /// The deadline in the record.
        deadline: LogicalTime,
        /// The time of the request.
        now: LogicalTime,
        /// Which of the two signs of life is missing.
        because: ExpiredBecause,
    },
    /// The epoch agrees but the holder does not: the shard was handed back, or is held under another name.
    #[error("worker {presented} does not hold the shard; acquire it again")]
    OwnerDivergence {
        /// The worker named in the presented lease.
        presented: WorkerId,
    },
}

/// Which sign of life an owner lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiredBecause {
    /// The deadline has come.
    Deadline,
    /// The owner's session with the store is gone, though the deadline lies ahead.
    SessionLost,
}

impl fmt::Display for ExpiredBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "has expired",
            Self::SessionLost => "ended with its worker's session",
        })
    }
}

/// The same op id came with other parameters, or it is 0, which names no operation and so conflicts with every one.
/// Always a bug of the caller.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("operation id {op_id} {}; use a fresh id for each new operation", self.fault())]
pub struct OpIdConflict {
    /// The reused id.
    pub op_id: OpId,
    expected_hash: PayloadHash,
    actual_hash: PayloadHash,
}

impl OpIdConflict {
    /// The id was remembered with `expected_hash` and came again with `actual_hash`.
    pub const fn new(op_id: OpId, expected_hash: PayloadHash, actual_hash: PayloadHash) -> Self {
        Self { op_id, expected_hash, actual_hash }
    }

    /// The id is 0: taking it for an id would let two operations that look alike pass for one.
    pub const fn unassigned(actual_hash: PayloadHash) -> Self {
        Self::new(OpId::UNASSIGNED, actual_hash, actual_hash)
    }

    const fn fault(&self) -> &'static str {
        if self.op_id.is_unassigned() { "means unassigned" } else { "was used before with other parameters" }
    }

    /// Both fingerprints, remembered and presented, for code that investigates; no text shows them.
    pub const fn hashes(&self) -> (PayloadHash, PayloadHash) {
        (self.expected_hash, self.actual_hash)
    }
}

impl fmt::Debug for OpIdConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpIdConflict")
            .field("op_id", &self.op_id)
            .field("expected_hash", &"<redacted>")
            .field("actual_hash", &"<redacted>")
            .finish()
    }
}

/// Why the progress reported is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorRefused {
    /// A checkpoint says how far the work came, so it has a key.
    #[error("a checkpoint needs the last key that was processed")]
    MissingKey,
    /// Progress never goes back, over the whole life of the shard.
    #[error("{0}")]
    Regression(CursorViolation),
    /// The key is not one of the shard's.
    #[error("{0}")]
    OutOfBounds(CursorViolation),
}

impl From<CursorViolation> for CursorRefused {
    fn from(violation: CursorViolation) -> Self {
        match violation {
            CursorViolation::Reset { .. } | CursorViolation::Regression { .. } => Self::Regression(violation),
            CursorViolation::BelowRange { .. } | CursorViolation::AboveRange { .. } => Self::OutOfBounds(violation),
        }
    }
}

/// All building blocks.
///
/// Code that routes them, here or in another crate, routes all of them or does not compile:
///
/// ```
/// # use tessera_coordination::error::Refusal;
/// fn code(refusal: Refusal) -> u16 {
///     match refusal {
///         Refusal::Access(_) => 403,
///         Refusal::Lease(_) => 410,
///         Refusal::OpId(_) => 409,
///         Refusal::Cursor(_) => 416,
///         Refusal::Split(_) => 422,
///     }
/// }
/// ```
///
/// ```compile_fail,E0004
/// # use tessera_coordination::error::Refusal;
/// fn code(refusal: Refusal) -> u16 {
///     match refusal {
///         Refusal::Access(_) => 403,
///         Refusal::Lease(_) => 410,
///         Refusal::OpId(_) => 409,
///         Refusal::Cursor(_) => 416,
///     }
/// }
/// ```
///
/// An operation that routes none has no error of its own to give back:
///
/// ```compile_fail,E0277
/// # use tessera_coordination::error::{CoordError, Refusal};
/// struct NewOperationError;
/// fn refuse(refusal: Refusal) -> NewOperationError {
///     refusal.into()
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The lease does not open it.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The op id was reused.
    #[error(transparent)]
    OpId(#[from] OpIdConflict),
    /// The progress is not accepted.
    #[error(transparent)]
    Cursor(#[from] CursorRefused),
    /// The split is not accepted.
    #[error(transparent)]
    Split(#[from] SplitRefused),
}

/// Every reason the protocol has for refusing an operation on a shard, in one flat list: what metrics count, what a
/// remote backend puts on the wire, what a caller matches who does not care which operation it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordError {
    /// See [`AccessRefused::TenantMismatch`].
    TenantMismatch {
        /// The tenant the caller spoke for.
        expected: TenantId,
    },
    /// See [`AccessRefused::ShardNotFound`].
    ShardNotFound {
        /// The shard asked for.
        key: ShardKey,
    },
    /// See [`AccessRefused::OtherIncarnation`].
    OtherIncarnation {
        /// The run.
        run: RunId,
        /// The incarnation that the lease or the caller names.
        presented: RunIncarnation,
        /// The incarnation that there is.
        current: RunIncarnation,
    },
    /// See [`AccessRefused::RunNotActive`].
    RunNotActive {
        /// The run.
        run: RunId,
        /// Its status.
        status: RunStatus,
    },
    /// See [`LeaseRefused::Terminal`].
    ShardTerminal {
        /// The state it settled in.
        status: ShardStatus,
    },
    /// See [`LeaseRefused::StaleFence`].
    StaleFence {
        /// The epoch of the presented lease.
        presented: FenceEpoch,
        /// The epoch of the shard.
        current: FenceEpoch,
    },
    /// See [`LeaseRefused::Expired`].
    LeaseExpired {
        /// The deadline in the record.
        deadline: LogicalTime,
        /// The time of the request.
        now: LogicalTime,
        /// Which sign of life is missing.
        because: ExpiredBecause,
    },
    /// See [`LeaseRefused::OwnerDivergence`].
    OwnerDivergence {
        /// The worker named in the presented lease.
        presented: WorkerId,
    },
    /// See [`OpIdConflict`].
    OpIdConflict(OpIdConflict),
    /// See [`CursorRefused::MissingKey`].
    CheckpointMissingKey,
    /// See [`CursorRefused::Regression`].
    CursorRegression(CursorViolation),
    /// See [`CursorRefused::OutOfBounds`].
    CursorOutOfBounds(CursorViolation),
    /// See [`SplitRefused`].
    SplitInvalid(SplitRefused),
}

impl From<CoordError> for Refusal {
    fn from(error: CoordError) -> Self {
        match error {
            CoordError::TenantMismatch { expected } => AccessRefused::TenantMismatch { expected }.into(),
            CoordError::ShardNotFound { key } => AccessRefused::ShardNotFound { key }.into(),
            CoordError::OtherIncarnation { run, presented, current } => {
                AccessRefused::OtherIncarnation { run, presented, current }.into()
            }
            CoordError::RunNotActive { run, status } => AccessRefused::RunNotActive { run, status }.into(),
            CoordError::ShardTerminal { status } => LeaseRefused::Terminal { status }.into(),
            CoordError::StaleFence { presented, current } => LeaseRefused::StaleFence { presented, current }.into(),
            CoordError::LeaseExpired { deadline, now, because } => {
                LeaseRefused::Expired { deadline, now, because }.into()
            }
            CoordError::OwnerDivergence { presented } => LeaseRefused::OwnerDivergence { presented }.into(),
            CoordError::OpIdConflict(conflict) => conflict.into(),
            CoordError::CheckpointMissingKey => CursorRefused::MissingKey.into(),
            CoordError::CursorRegression(violation) => CursorRefused::Regression(violation).into(),
            CoordError::CursorOutOfBounds(violation) => CursorRefused::OutOfBounds(violation).into(),
            CoordError::SplitInvalid(refused) => refused.into(),
        }
    }
}

impl From<Refusal> for CoordError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Access(AccessRefused::TenantMismatch { expected }) => Self::TenantMismatch { expected },
            Refusal::Access(AccessRefused::ShardNotFound { key }) => Self::ShardNotFound { key },
            Refusal::Access(AccessRefused::OtherIncarnation { run, presented, current }) => {
                Self::OtherIncarnation { run, presented, current }
            }
            Refusal::Access(AccessRefused::RunNotActive { run, status }) => Self::RunNotActive { run, status },
            Refusal::Lease(LeaseRefused::Terminal { status }) => Self::ShardTerminal { status },
            Refusal::Lease(LeaseRefused::StaleFence { presented, current }) => Self::StaleFence { presented, current },
            Refusal::Lease(LeaseRefused::Expired { deadline, now, because }) => {
                Self::LeaseExpired { deadline, now, because }
            }
            Refusal::Lease(LeaseRefused::OwnerDivergence { presented }) => Self::OwnerDivergence { presented },
            Refusal::OpId(conflict) => Self::OpIdConflict(conflict),
            Refusal::Cursor(CursorRefused::MissingKey) => Self::CheckpointMissingKey,
            Refusal::Cursor(CursorRefused::Regression(violation)) => Self::CursorRegression(violation),
            Refusal::Cursor(CursorRefused::OutOfBounds(violation)) => Self::CursorOutOfBounds(violation),
            Refusal::Split(refused) => Self::SplitInvalid(refused),
        }
    }
}

impl fmt::Display for CoordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Refusal::from(*self).fmt(f)
    }
}

impl core::error::Error for CoordError {}
