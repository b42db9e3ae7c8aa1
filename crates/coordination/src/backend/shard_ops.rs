//! The contract of every backend, for operations on one shard.
//!
//! Synchronous results are the primary contract; [`AsyncCoordinationBackend`](super::AsyncCoordinationBackend) is the same
//! for backends that wait on I/O. Time is an argument everywhere. Each operation has a `_with_events` form, which backends
//! implement, and a plain form, which is that with nobody listening.
//!
//! What every backend guarantees: a request of one tenant never reads or writes another's shards; the fence epoch of a
//! shard never falls and rises with each owner; an op id takes effect once; a cursor never moves back and stays in range;
//! the children of a split tile their parent; a settled shard changes no more, and neither does a shard of a settled run.

use alloc::vec::Vec;

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};

use crate::decide::renew::RenewResult;
use crate::error::{
    AcquireError, CheckpointError, CompleteError, IdempotentOutcome, ParkError, ReleaseError, RenewError,
    SplitReplaceError, SplitResidualError,
};
use crate::events::{EventSink, NoEvents};
use crate::record::history::ReleaseReason;
use crate::record::lease::Lease;
use crate::record::park::Park;
use crate::record::snapshot::{AcquireResultView, AcquireScratch};

/// One shard a worker holds, as it hands it back.
#[derive(Clone, Copy, Debug)]
pub struct HeldShard<'a> {
    /// The right to it.
    pub lease: &'a Lease,
    /// How far it came, if further than its last checkpoint.
    pub cursor: Option<CursorUpdate<'a>>,
    /// The idempotency key of the release.
    pub op_id: OpId,
}

/// Operations on one shard.
pub trait CoordinationBackend {
    /// [`Self::acquire_and_restore_into`], telling `events`.
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError>;

    /// [`Self::renew`], telling `events`.
    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError>;

    /// [`Self::checkpoint`], telling `events`.
    fn checkpoint_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CheckpointError>;

    /// [`Self::complete`], telling `events`.
    fn complete_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CompleteError>;

    /// [`Self::park_shard`], telling `events`.
    fn park_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        park: Park<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ParkError>;

    /// [`Self::split_replace`], telling `events`.
    fn split_replace_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitReplacePlan,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError>;

    /// [`Self::split_residual`], telling `events`.
    fn split_residual_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitResidualPlan,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError>;

    /// [`Self::release`], telling `events`.
    #[expect(clippy::too_many_arguments, reason = "the protocol's arguments, each with its own type")]
    fn release_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: Option<CursorUpdate<'_>>,
        reason: ReleaseReason<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ReleaseError>;

    /// [`Self::renew_many`], telling `events`. Backends that pay per round trip put many renewals into one.
    fn renew_many_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        leases: &[Lease],
        answers: &mut Vec<Result<RenewResult, RenewError>>,
        events: &mut dyn EventSink,
    ) {
        answers.clear();
        for lease in leases {
            answers.push(self.renew_with_events(now, tenant, lease, events));
        }
    }

    /// Grants a shard to a worker and copies where to resume into `scratch`.
    ///
    /// The shard must be active and free, or its holder's lease must have ended. Not idempotent: each grant raises the
    /// fence epoch.
    fn acquire_and_restore_into<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        self.acquire_and_restore_into_with_events(now, tenant, key, worker, scratch, &mut NoEvents)
    }

    /// Extends a lease and hears what is asked of its holder. The fence stays; repeating it is harmless.
    fn renew(&mut self, now: LogicalTime, tenant: TenantId, lease: &Lease) -> Result<RenewResult, RenewError> {
        self.renew_with_events(now, tenant, lease, &mut NoEvents)
    }

    /// Renews many leases; `answers` holds one answer for each, in their order.
    fn renew_many(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        leases: &[Lease],
        answers: &mut Vec<Result<RenewResult, RenewError>>,
    ) {
        self.renew_many_with_events(now, tenant, leases, answers, &mut NoEvents);
    }

    /// Records progress. The cursor has a key, in range and not before the recorded one.
    fn checkpoint(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, CheckpointError> {
        self.checkpoint_with_events(now, tenant, lease, cursor, op_id, &mut NoEvents)
    }

    /// Settles a shard as done, with its final cursor; one without a key says that the range was empty.
    fn complete(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, CompleteError> {
        self.complete_with_events(now, tenant, lease, cursor, op_id, &mut NoEvents)
    }

    /// Halts a shard until someone unparks it.
    fn park_shard(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        park: Park<'_>,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, ParkError> {
        self.park_shard_with_events(now, tenant, lease, park, op_id, &mut NoEvents)
    }

    /// Replaces a shard by children that tile its range; answers their ids in key order.
    fn split_replace(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitReplacePlan,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError> {
        self.split_replace_with_events(now, tenant, lease, plan, op_id, &mut NoEvents)
    }

    /// Shrinks a shard and makes a new one of the rest; answers the new one's id. The lease goes on.
    fn split_residual(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitResidualPlan,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError> {
        self.split_residual_with_events(now, tenant, lease, plan, op_id, &mut NoEvents)
    }

    /// Gives a shard back at once, recording `cursor` first if there is one. With the reason
    /// [`Unreachable`](ReleaseReason::Unreachable) the shard is left to other workers, and parked once none is left; see
    /// [`decide::unreachable`](crate::decide::unreachable).
    fn release(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: Option<CursorUpdate<'_>>,
        reason: ReleaseReason<'_>,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, ReleaseError> {
        self.release_with_events(now, tenant, lease, cursor, reason, op_id, &mut NoEvents)
    }

    /// Gives back all that a worker holds, before a planned stop; `answers` holds one answer for each, in their order.
    /// One that fails does not keep the others.
    fn drain(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        held: &[HeldShard<'_>],
        answers: &mut Vec<Result<IdempotentOutcome<()>, ReleaseError>>,
    ) {
        self.drain_with_events(now, tenant, held, answers, &mut NoEvents);
    }

    /// [`Self::drain`], telling `events`.
    fn drain_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        held: &[HeldShard<'_>],
        answers: &mut Vec<Result<IdempotentOutcome<()>, ReleaseError>>,
        events: &mut dyn EventSink,
    ) {
        answers.clear();
        for HeldShard { lease, cursor, op_id } in held {
            let reason = ReleaseReason::Drained;
            answers.push(self.release_with_events(now, tenant, lease, *cursor, reason, *op_id, events));
        }
    }
}
