//! What a backend offers: the four traits, the claim, and adapters between sync and async.

mod asynchronous;
mod claiming;
mod run_ops;
mod shard_ops;
mod wrapper;

pub use asynchronous::{
    AsyncCoordinationBackend, AsyncCoordinationFacade, AsyncRunManagement, AsyncShardClaiming, BlockOn, Blocking,
    NeverWaits, Ready,
};
pub use claiming::{CoordinationFacade, ShardClaiming, claim_from_candidates};
pub use run_ops::RunManagement;
pub use shard_ops::{CoordinationBackend, HeldShard};
pub use wrapper::Wrapper;
