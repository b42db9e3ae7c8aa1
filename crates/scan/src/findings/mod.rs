//! Findings made durable before the cursor moves, and merged when they are read.
//!
//! A folder holds one append-only file for each time a worker started. No worker writes to another's file, so there is nothing
//! to lock, and a shared folder serves a fleet. Each file belongs to one creation of one run and says so; each record names
//! the shard and the fence epoch it was written under.
//!
//! The unit is the *segment*: what one worker did on one shard between two checkpoints. Its findings come first, then the
//! segment itself with its counts and the keys it covers; then the file is synced; then the cursor moves. A worker that
//! dies in between leaves a segment that nobody checkpointed, and the next owner does the same keys again. So that nothing
//! counts twice, each owner first writes the cursor it was given, and the merge keeps a segment only if it ends at or
//! before the cursor of every later owner ([`merge()`]). A worker that was fenced off and does not know it yet writes only
//! segments beyond that cursor, and they are dropped by the same rule.

pub mod merge;
pub mod occurrence;
pub mod record;
pub mod tally;
pub mod watch;

mod draft;
mod file;
mod lazy;

pub use draft::Draft;
pub(crate) use draft::plan_failed;
pub use file::{FileSink, SinkError};
pub use lazy::LazySink;
pub use merge::{Damage, Merged, merge};

use crate::findings::occurrence::Occurrence;
use crate::run::label::RunKey;
use record::Segment;
use tessera_contracts::{FenceEpoch, ShardId};

/// Where findings go. One for each worker and each creation of a run.
pub trait FindingsSink {
    /// Which creation of which run it takes findings of. A worker that is granted a shard of another must not write here.
    fn key(&self) -> RunKey;

    /// A worker was granted a shard, to go on after `cursor`.
    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError>;

    /// A finding of the segment under way.
    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError>;

    /// Ends the segment. When this returns, it and its findings are durable.
    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError>;

    /// Forgets the findings added since the last commit.
    fn abandon(&mut self);
}
