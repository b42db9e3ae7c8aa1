//! The protocol: one pure function per operation, from what is stored and what is asked to what is to be done.
//!
//! A decision reads a borrowed [`ShardView`](crate::record::view::ShardView), never a clock or a store, and allocates
//! nothing unless it makes shards. It is either a refusal, or what to store and what to answer. Backends carry it out; see
//! the crate's front page for how.

use tessera_contracts::ids::{RunIncarnation, ShardId, ShardKey};
use tessera_contracts::{CursorSemantics, CursorUpdate, PayloadHash, ShardSpecRef};

use crate::error::IdempotentOutcome;
use crate::record::op_log::OpResult;
use crate::record::state::{Change, Spawned};

pub mod acquire;
pub mod checkpoint;
pub mod claim;
pub mod complete;
pub mod create_run;
pub mod order;
pub mod park;
pub mod register_shards;
pub mod release;
pub mod renew;
pub mod settle_run;
pub mod split_replace;
pub mod split_residual;
pub mod unpark;
pub mod unreachable;

/// What to do about an operation that has an op id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<D, T = ()> {
    /// Store this, then answer `Executed`.
    Execute(D),
    /// Store nothing and answer this.
    Replay(IdempotentOutcome<T>),
}

/// A split to carry out: the parent's change and its children, stored together or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split<'p, 'v, T> {
    /// What becomes of the parent; borrows from the plan.
    pub change: Change<'p>,
    /// The new shards, in key order; borrow from the plan and from the parent's cursor.
    pub births: alloc::vec::Vec<Birth<'v>>,
    /// What to answer once it is stored.
    pub answer: T,
}

/// A shard to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth<'r> {
    /// Its name.
    pub key: ShardKey,
    /// The creation of the run it belongs to: a child's is its parent's.
    pub incarnation: RunIncarnation,
    /// What it covers.
    pub spec: ShardSpecRef<'r>,
    /// Where it starts.
    pub cursor: CursorUpdate<'r>,
    /// What its cursor will mean.
    pub cursor_semantics: CursorSemantics,
    /// What it was split from.
    pub parent: Option<ShardId>,
    /// Fingerprint of the operation that makes it.
    pub payload_hash: PayloadHash,
}

impl Birth<'_> {
    /// Its entry in the parent's list.
    pub const fn as_spawned(&self) -> Spawned {
        Spawned { id: self.key.shard, payload_hash: self.payload_hash }
    }
}

/// The answer to a retry: the first answer, and whether the effect still stands.
const fn replayed<T: Copy>(result: OpResult, answer: T) -> IdempotentOutcome<T> {
    match result {
        OpResult::Completed | OpResult::Error => IdempotentOutcome::Replayed(answer),
        OpResult::Superseded => IdempotentOutcome::Superseded(answer),
    }
}

#[cfg(test)]
mod refusal_order;
#[cfg(test)]
pub(crate) mod testing;
