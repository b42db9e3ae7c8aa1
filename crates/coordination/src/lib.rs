//! The shard coordination protocol.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod backend;
pub mod decide;
pub mod error;
pub mod events;
pub mod memory;
pub mod payload;
pub mod record;
pub mod run;
pub mod shard_limits;
pub mod validation;

pub use backend::{CoordinationBackend, CoordinationFacade, RunManagement, ShardClaiming};
pub use error::IdempotentOutcome;
pub use memory::{CoordinatorRuntimeConfig, InMemoryCoordinator};
pub use record::lease::Lease;
pub use record::snapshot::AcquireScratch;
