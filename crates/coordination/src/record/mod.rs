//! A shard's record and its parts.

pub mod history;
pub mod invariants;
pub mod lease;
pub mod op_log;
pub mod orders;
pub mod park;
pub mod shard_record;
pub mod snapshot;
pub mod state;
pub mod status;
pub mod unreachable;
pub mod view;
