//! The names that a worker and a submitter need, in one line.
//!
//! ```
//! use tessera_coordination::prelude::*;
//! ```

pub use tessera_contracts::manifest::InitialShardInput;
pub use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};

pub use crate::backend::{CoordinationBackend, RunManagement, ShardClaiming};
pub use crate::error::{ClaimError, IdempotentOutcome, OperationError};
pub use crate::memory::InMemoryCoordinator;
pub use crate::record::lease::Lease;
pub use crate::run::config::RunConfig;
pub use crate::session::WorkerSession;
