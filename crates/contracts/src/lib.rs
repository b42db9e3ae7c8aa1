//! The words that every other crate speaks: ids, hashes, key ranges, cursors, split plans, manifests.
//!
//! These are values and the rules that belong to them. Nothing here names a clock, a socket, a thread or a store;
//! what is random or timed comes in as an argument. Two families share the crate because they share hashing and hex:
//!
//! * *work*: a [`ShardSpec`] is a range of keys, a [`Cursor`] says how far it was processed, a
//!   [`SplitReplacePlan`](split::SplitReplacePlan) cuts it, and ids say whose it is;
//! * *points*: a [`NodeId`] and a [`ContentId`] are 256-bit places in XOR space, and a
//!   [`PrefixMap`](prefix_map::PrefixMap) says which lane owns them.
//!
//! A customer's key bytes never appear in a `Debug` or in an error: both show lengths.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod canonical;
pub mod cursor;
pub mod domain;
mod hex;
pub mod ids;
pub mod keyspace;
pub mod limits;
pub mod manifest;
pub mod payload_hash;
pub mod point;
pub mod pooled;
pub mod prefix_map;
pub mod redact;
pub mod restored_state;
pub mod shard_spec;
pub mod source_family;
pub mod split;

pub use arena::{ShardArena, ShardSpecHandle};
pub use canonical::{CanonicalBytes, CanonicalSink};
pub use cursor::{Cursor, CursorUpdate};
pub use ids::{FenceEpoch, LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId};
pub use payload_hash::PayloadHash;
pub use point::{ContentId, Distance, NodeId, Point};
pub use pooled::{PooledCursor, PooledShardSpec};
pub use restored_state::RestoredShardState;
pub use shard_spec::{CursorSemantics, KeyRange, ShardSpec, ShardSpecRef};
