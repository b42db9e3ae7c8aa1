//! An operation on a shard, as a value: what is asked, how it is decided, and what follows from the decision.
//!
//! Each operation lies with its decision in [`decide`](crate::decide). A backend never names one: it is a
//! [`Store`](crate::store::Store), and [`carry_out`](crate::store::carry_out) runs every operation over it.

use alloc::format;

use tessera_contracts::ids::{LogicalTime, ShardKey, TenantId};
use tessera_stdx::SlabFull;

use crate::decide::Verdict;
use crate::decide::unreachable::Peers;
use crate::error::{AccessRefused, InfraError};
use crate::events::EventKind;
use crate::record::state::Change;
use crate::record::view::ShardView;

/// Which shard an operation is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// Whose shard; an operation that presents a lease has checked that the lease is this tenant's.
    pub tenant: TenantId,
    /// Run and shard.
    pub key: ShardKey,
}

/// What a commit must prove about the shard's holder, for stores that know holders apart from records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The session of the holder still stands: the operation is the holder's.
    SessionStands,
    /// Nobody renewed or took the shard since it was read: the operation takes it.
    Untouched,
    /// If the shard was held, the holder's session stands: the operation is not the holder's, but about a holder.
    HolderAsSeen,
    /// Nothing: the operation is not the holder's.
    Nothing,
}

/// An operation on one shard that was asked for, with all its arguments but the time.
pub trait ShardOperation: Sync {
    /// How errors name it.
    const NAME: &'static str;
    /// What must still hold of the holder when it is stored.
    const GUARD: Guard;
    /// What it answers.
    type Answer: Send;
    /// Why it may be refused.
    type Refused: From<AccessRefused> + From<InfraError> + Send;

    /// Which shard it is on.
    fn address(&self) -> Address;

    /// Whether the decision depends on which workers take part in the run.
    fn asks_for_peers(&self) -> bool {
        false
    }

    /// The decision; `peers` are the workers that take part if the operation asks for them, and else none.
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        peers: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>, Self::Answer>, Self::Refused>;

    /// What to answer once `change` is stored.
    fn answer(&self, change: &Change<'_>) -> Self::Answer;

    /// What to tell observers once `change` is stored.
    fn event(&self, change: &Change<'_>) -> Option<EventKind> {
        EventKind::of_change(self.address().key.shard, change)
    }

    /// The refusal for want of room.
    fn no_room(full: SlabFull) -> Self::Refused {
        InfraError::transient(Self::NAME, format!("{full}")).into()
    }
}
