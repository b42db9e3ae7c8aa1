//! The words that every other crate speaks: ids, hashes, key ranges, cursors, split plans, manifests.
//!
//! These are values and the rules that belong to them. Nothing here names a clock, a socket, a thread or a store;
//! time and randomness come in as arguments. Two families share the crate because they share hashing and hex:
//!
//! * *work*: a [`ShardSpec`] is a range of keys, a [`Cursor`] says how far it was processed, a
//!   [`SplitReplacePlan`](split::SplitReplacePlan) cuts it, and ids say whose it is;
//! * *points*: a [`NodeId`] and a [`ContentId`] are 256-bit places in XOR space, and a
//!   [`PrefixMap`](prefix_map::PrefixMap) says which lane owns them.
//!
//! A customer's key bytes never appear in a `Debug` or in an error: both show lengths.
//!
//! ```
//! use tessera_contracts::ids::{OpId, RunId, ShardId};
//! use tessera_contracts::keyspace::Fraction;
//! use tessera_contracts::split::{self, DerivedShardKind};
//! use tessera_contracts::{CursorUpdate, ShardSpec};
//!
//! // A worker has come to "src/lib.rs" and is asked to give away half of what remains.
//! let shard = ShardSpec::new(b"src/", b"src0", b"repository 7")?;
//! let cursor = CursorUpdate::at_key(b"src/lib.rs")?;
//! let plan = split::plan_split_residual_at_fraction(shard.view(), cursor.last_key(), Fraction::HALF)?;
//!
//! // The coordinator does not trust the plan, and names the new shard as any retry would.
//! split::validate_residual_split(shard.range(), cursor.last_key(), &plan)?;
//! let op = OpId::new(0x5eed);
//! let residual = split::derive_split_shard_id(RunId::new(1), ShardId::new(1), op, DerivedShardKind::Residual, 0);
//! assert!(residual.is_derived());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod canonical;
pub mod cursor;
pub mod domain;
pub mod hex;
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
pub mod seen_text;
pub mod shard_spec;
pub mod source_family;
pub mod split;

pub use arena::{ShardArena, ShardSpecHandle};
pub use canonical::{CanonicalBytes, CanonicalSink};
pub use cursor::{Cursor, CursorUpdate};
pub use ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
pub use payload_hash::PayloadHash;
pub use point::{ContentId, Distance, NodeId, Point};
pub use pooled::{PooledCursor, PooledShardSpec};
pub use restored_state::RestoredShardState;
pub use shard_spec::{CursorSemantics, KeyRange, ShardSpec, ShardSpecRef};
