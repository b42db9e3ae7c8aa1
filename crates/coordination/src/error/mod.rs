//! Errors: what the protocol refuses, what the store fails at, and what a caller should do about it.

mod blocks;
mod infra;
mod ops;
mod outcome;
mod run_errors;
mod split;

pub use blocks::{AccessRefused, CoordError, CursorRefused, ExpiredBecause, LeaseRefused, OpIdConflict, Refusal};
pub use infra::InfraError;
pub use ops::{
    AcquireError, AlreadyLeased, CheckpointError, CompleteError, OperationError, OrderError, ParkError, ReleaseError,
    RenewError, SplitError, SplitReplaceError, SplitResidualError, UnparkError,
};
pub use outcome::IdempotentOutcome;
pub use run_errors::{
    ClaimError, CreateRunError, GetRunError, GetShardError, RegisterShardsError, RunNotFound, RunTransitionError,
};
pub use split::SplitRefused;

#[cfg(test)]
mod tests;
