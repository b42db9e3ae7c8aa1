//! Why the protocol says no: every reason of every operation, in one flat list that can be compared.

use tessera_coordination::error::{
    AccessRefused, AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, CursorRefused,
    GetRunError, InfraError, LeaseRefused, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError,
    RunTransitionError, SplitError, SplitRefused, UnparkError,
};

use super::call::Answer;

/// Why the protocol says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The lease opens nothing any more.
    Lease(LeaseRefused),
    /// The run is settled, or has not begun.
    RunSettled,
    /// The lease is another tenant's.
    OtherTenant,
    /// The lease is of another run that had this one's id.
    OtherIncarnation,
    /// The tenant has no such shard.
    NoSuchShard,
    /// The tenant has no such run.
    NoSuchRun,
    /// The op id means another operation, or none.
    OpIdReused,
    /// A checkpoint names no key.
    MissingKey,
    /// Progress would go back.
    CursorBack,
    /// Progress lies outside the shard.
    CursorOutside,
    /// The parts of a split are not the whole, or progress would leave it.
    SplitUnfit,
    /// One shard would have too many children.
    TooManyChildren,
    /// There would be too many shards.
    TooManyShards,
    /// The shard was acquired too often without progress.
    RetriesExhausted,
    /// The worker said that it cannot reach the shard.
    ReportedUnreachable,
    /// The shard is not parked.
    NotParked,
    /// The fence is not the expected one.
    FenceMoved,
    /// No worker holds the shard.
    NotLeased,
    /// The run has shards that are not finished.
    ShardsOpen,
    /// The run has its shards already.
    NotInitializing,
    /// The list of shards is wrong.
    BadManifest,
    /// The run is there already.
    RunExists,
    /// The worker has no name.
    UnassignedWorker,
    /// The store is full, or a configuration makes no sense; neither is simulated.
    Unexpected,
}

/// An error as an answer.
pub(super) fn refused(error: impl Told) -> Answer {
    error.told()
}

/// Results that can be told as an answer.
pub(super) trait Told {
    fn told(self) -> Answer;
}

fn infra(error: &InfraError) -> Answer {
    match error {
        InfraError::Transient { .. } => Answer::Failed,
        InfraError::Corruption { .. } => panic!("the backend calls its own records corrupt: {error}"),
        InfraError::Refused { .. } => panic!("the simulated store refuses no caller: {error}"),
    }
}

impl From<AccessRefused> for Refusal {
    fn from(refused: AccessRefused) -> Self {
        match refused {
            AccessRefused::RunNotActive { .. } => Self::RunSettled,
            AccessRefused::TenantMismatch { .. } => Self::OtherTenant,
            AccessRefused::OtherIncarnation { .. } => Self::OtherIncarnation,
            AccessRefused::ShardNotFound { .. } => Self::NoSuchShard,
        }
    }
}

impl From<CursorRefused> for Refusal {
    fn from(refused: CursorRefused) -> Self {
        match refused {
            CursorRefused::MissingKey => Self::MissingKey,
            CursorRefused::Regression(_) => Self::CursorBack,
            CursorRefused::OutOfBounds(_) => Self::CursorOutside,
        }
    }
}

impl From<SplitRefused> for Refusal {
    fn from(refused: SplitRefused) -> Self {
        match refused {
            SplitRefused::Coverage(_) | SplitRefused::Residual(_) => Self::SplitUnfit,
            SplitRefused::SpawnCap { .. } => Self::TooManyChildren,
        }
    }
}

/// The refusal for each variant of each error. A variant not listed is the store's failure.
macro_rules! told {
    ($($error:ident { $($variant:pat => $refusal:expr),* $(,)? })*) => {$(
        impl Told for $error {
            fn told(self) -> Answer {
                Answer::Refused(match self {
                    $($variant => $refusal,)*
                    Self::BackendError(error) => return infra(&error),
                })
            }
        }
    )*};
}

told! {
    CheckpointError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::Cursor(refused) => refused.into(),
        Self::ResourceExhausted(_) => Refusal::Unexpected,
    }
    CompleteError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::Cursor(refused) => refused.into(),
        Self::ResourceExhausted(_) => Refusal::Unexpected,
    }
    ReleaseError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::Cursor(refused) => refused.into(),
        Self::ResourceExhausted(_) => Refusal::Unexpected,
    }
    ParkError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::ResourceExhausted(_) => Refusal::Unexpected,
    }
    SplitError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::Split(refused) => refused.into(),
        Self::LimitExceeded(_) => Refusal::TooManyShards,
        Self::ResourceExhausted(_) => Refusal::Unexpected,
    }
    RenewError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
    }
    OrderError {
        Self::Access(refused) => refused.into(),
        Self::Lease(refused) => Refusal::Lease(refused),
        Self::NotLeased { .. } => Refusal::NotLeased,
    }
    UnparkError {
        Self::Access(refused) => refused.into(),
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::NotParked { .. } => Refusal::NotParked,
        Self::FenceMoved { .. } => Refusal::FenceMoved,
    }
    AcquireError {
        Self::Access(refused) => refused.into(),
        Self::Terminal { status } => Refusal::Lease(LeaseRefused::Terminal { status }),
        Self::AlreadyLeased(_) | Self::HeldBack { .. } => return Answer::NoShard,
        Self::ReportedUnreachable { .. } => Refusal::ReportedUnreachable,
        Self::UnassignedWorker => Refusal::UnassignedWorker,
        Self::RetriesExhausted { .. } => Refusal::RetriesExhausted,
    }
    ClaimError {
        Self::RunNotFound(_) => Refusal::NoSuchRun,
        Self::RunNotActive { .. } => Refusal::RunSettled,
        Self::UnassignedWorker => Refusal::UnassignedWorker,
        Self::NoneAvailable { .. } => return Answer::NoShard,
        Self::Throttled { .. } => return Answer::Throttled,
    }
    RunTransitionError {
        Self::RunNotFound(_) => Refusal::NoSuchRun,
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::Illegal { .. } => Refusal::RunSettled,
        Self::ShardsOpen { .. } => Refusal::ShardsOpen,
    }
    GetRunError {
        Self::RunNotFound(_) => Refusal::NoSuchRun,
    }
    CreateRunError {
        Self::AlreadyExists { .. } => Refusal::RunExists,
        Self::UnassignedRun | Self::UnassignedTenant => Refusal::NoSuchRun,
        Self::UnassignedIncarnation | Self::InvalidConfig(_) | Self::TooManyRuns { .. } => Refusal::Unexpected,
    }
    RegisterShardsError {
        Self::RunNotFound(_) => Refusal::NoSuchRun,
        Self::NotInitializing { .. } => Refusal::NotInitializing,
        Self::OpIdConflict(_) => Refusal::OpIdReused,
        Self::Manifest(_) => Refusal::BadManifest,
        Self::LimitExceeded(_) => Refusal::TooManyShards,
        Self::Create(error) => return error.told(),
        Self::ConfigMismatch { .. } | Self::ResourceExhausted(_) => Refusal::Unexpected,
    }
}
