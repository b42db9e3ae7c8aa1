//! What a decision sees: a shard's record, borrowed from wherever a backend keeps it, and the little it must know besides.

use tessera_contracts::ids::{RunIncarnation, ShardEpoch, ShardKey, TenantId};
use tessera_contracts::{CursorUpdate, ShardSpecRef};

use super::op_log::OP_LOG_CAP;
use super::state::{ShardState, Spawned};
use super::unreachable::UnreachableReport;
use crate::run::status::RunGate;

/// Everything a decision about one shard may depend on.
#[derive(Clone, Copy, Debug)]
pub struct ShardView<'a, const LOG: usize = OP_LOG_CAP> {
    /// Whose shard it is.
    pub tenant: TenantId,
    /// Which shard it is.
    pub key: ShardKey,
    /// Which creation of the run it belongs to.
    pub incarnation: RunIncarnation,
    /// The fixed-size part of the record.
    pub state: &'a ShardState<LOG>,
    /// Range and metadata.
    pub spec: ShardSpecRef<'a>,
    /// Progress recorded so far.
    pub cursor: CursorUpdate<'a>,
    /// Children and residuals, oldest first.
    pub spawned: &'a [Spawned],
    /// Who reported that it cannot be reached, oldest first.
    pub unreachable: &'a [UnreachableReport],
    /// What the run says.
    pub run: RunGate,
    /// Whether the store still hears from the holder.
    pub owner: OwnerSignal,
}

/// The part of a [`ShardView`] that says who holds the shard: enough to check a lease. Decisions that ask for no more are
/// spared the range and the progress, which a store may keep elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct HoldView<'a, const LOG: usize = OP_LOG_CAP> {
    /// Whose shard it is.
    pub tenant: TenantId,
    /// Which shard it is.
    pub key: ShardKey,
    /// Which creation of the run it belongs to.
    pub incarnation: RunIncarnation,
    /// The fixed-size part of the record.
    pub state: &'a ShardState<LOG>,
    /// What the run says.
    pub run: RunGate,
    /// Whether the store still hears from the holder.
    pub owner: OwnerSignal,
}

impl<'a, const LOG: usize> From<&ShardView<'a, LOG>> for HoldView<'a, LOG> {
    #[inline]
    fn from(view: &ShardView<'a, LOG>) -> Self {
        let ShardView { tenant, key, incarnation, state, run, owner, .. } = *view;
        Self { tenant, key, incarnation, state, run, owner }
    }
}

impl<const LOG: usize> ShardView<'_, LOG> {
    /// The ownership the shard is at.
    pub const fn epoch(&self) -> ShardEpoch {
        ShardEpoch::new(self.incarnation, self.state.head.fence)
    }
}

/// The store's own sign of life of a shard's holder, beside the deadline. Both must be there for a lease to be live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OwnerSignal {
    /// The holder's session with the store stands, or the store has no such thing.
    Alive,
    /// The holder's session is gone.
    Gone,
}
