//! Operations on one shard, in memory: find, decide, store, tell.

use alloc::vec::Vec;

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_stdx::SlabFull;

use super::InMemoryCoordinator;
use super::place::Slot;
use super::pooled_record::PooledRecord;
use crate::backend::CoordinationBackend;
use crate::decide::checkpoint::Checkpoint;
use crate::decide::complete::Complete;
use crate::decide::park::ParkShard;
use crate::decide::release::{Release, ReleaseShard};
use crate::decide::renew::RenewResult;
use crate::decide::unreachable::Peers;
use crate::decide::{Birth, Split, Verdict, acquire, renew, split_replace, split_residual};
use crate::error::{
    AcquireError, CheckpointError, CompleteError, IdempotentOutcome, InfraError, ParkError, ReleaseError, RenewError,
    SplitError, SplitReplaceError, SplitResidualError,
};
use crate::events::{EventKind, EventScope, EventSink};
use crate::operation::{Address, ShardOperation};
use crate::record::history::ReleaseReason;
use crate::record::lease::Lease;
use crate::record::park::Park;
use crate::record::shard_record::ShardRecord;
use crate::record::snapshot::{AcquireResultView, AcquireScratch};
use crate::record::state::{Change, Spawned};

impl InMemoryCoordinator {
    /// Decides an acquire of a shard that was found, and carries it out.
    pub(super) fn acquire_slot(
        &mut self,
        now: LogicalTime,
        slot: Slot,
        worker: WorkerId,
        events: &mut dyn EventSink,
    ) -> Result<Lease, AcquireError> {
        let view = self.view(slot);
        let (tenant, key) = (view.tenant, view.key);
        let acquired = acquire::decide(&view, worker, now, self.config.clock_skew_allowance)?;
        self.commit(slot, &acquired.change, core::iter::empty()).map_err(|full| no_room("acquire.park", full))?;
        EventScope { tenant, run: key.run, at: now }.emit(events, || Some(acquired.event));
        acquired.outcome
    }

    /// Runs an operation. Nothing waits here and nobody writes in between, so of [`carry_out`](crate::store::carry_out) one pass
    /// is left. It is written out: as a future that is polled once, a checkpoint takes a fifth more instructions.
    #[inline]
    pub(super) fn call<O: ShardOperation>(
        &mut self,
        now: LogicalTime,
        operation: &O,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<O::Answer>, O::Refused> {
        let Address { tenant, key } = operation.address();
        let slot = self.locate(tenant, key)?;
        let asks = operation.asks_for_peers();
        let workers = if asks { self.takes_part(self.arena.get(slot).run, now) } else { Vec::new() };
        match operation.decide(&self.view(slot), Peers::Guessed(&workers), now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                self.commit(slot, &change, core::iter::empty()).map_err(O::no_room)?;
                EventScope { tenant, run: key.run, at: now }.emit(events, || operation.event(&change));
                Ok(IdempotentOutcome::Executed(operation.answer(&change)))
            }
        }
    }

    /// Stores a split: children first, so that a full slab leaves everything as it was.
    fn execute_split(
        &mut self,
        now: LogicalTime,
        slot: Slot,
        split: Detached<'_>,
        events: &mut dyn EventSink,
    ) -> Result<(), SplitError> {
        let Detached { change, children, event } = split;
        let parent = self.arena.get(slot);
        let (tenant, key, run) = (parent.tenant, parent.key, parent.run);
        let Some(payload_hash) = change.logged.map(|entry| entry.payload_hash) else {
            return Err(InfraError::corruption("split.commit", "a split is always remembered").into());
        };
        if children.iter().any(|child| self.locate(tenant, child.key).is_ok()) {
            return Err(InfraError::corruption("split.insert", "a derived shard id is taken").into());
        }
        let mut stored = Vec::with_capacity(children.len());
        for child in &children {
            let birth = Birth {
                key: child.key,
                incarnation: child.incarnation,
                spec: child.spec.view(),
                cursor: child.cursor.as_update(),
                cursor_semantics: child.state.cursor_semantics,
                parent: child.state.parent,
                payload_hash,
            };
            match PooledRecord::newborn(tenant, run, &birth, &mut self.slab) {
                Ok(record) => stored.push(record),
                Err(full) => {
                    stored.into_iter().for_each(|record| record.release(&mut self.slab));
                    return Err(full.into());
                }
            }
        }
        let spawned = children.iter().map(|child| Spawned { id: child.key.shard, payload_hash });
        if let Err(full) = self.commit(slot, &change, spawned) {
            stored.into_iter().for_each(|record| record.release(&mut self.slab));
            return Err(full.into());
        }
        self.adopt(tenant, run, stored);
        EventScope { tenant, run: key.run, at: now }.emit(events, || event);
        Ok(())
    }
}

/// Children as they are stored, and the event, made while the decision still borrows from the parent.
fn detach<'p, T>(tenant: TenantId, parent: ShardId, split: Split<'p, '_, T>) -> (Detached<'p>, T) {
    let event = EventKind::of_split(parent, &split);
    let children = split.births.iter().map(|birth| ShardRecord::newborn(tenant, birth)).collect();
    (Detached { change: split.change, children, event }, split.answer)
}

struct Detached<'p> {
    change: Change<'p>,
    children: Vec<ShardRecord>,
    event: Option<EventKind>,
}

pub(super) fn no_room(operation: &'static str, full: SlabFull) -> InfraError {
    InfraError::transient(operation, alloc::format!("{full}"))
}

impl CoordinationBackend for InMemoryCoordinator {
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        let slot = self.locate(tenant, key)?;
        let run = self.arena.get(slot).run;
        self.run_mut(run).askers.note(worker, now);
        let lease = self.acquire_slot(now, slot, worker, events)?;
        scratch.fill(&self.view(slot));
        let capacity = self.capacity(self.arena.get(slot).run, now);
        Ok(scratch.granted(lease, capacity))
    }

    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        let mut renewal = renew::decide(self.hold_view(slot), presented, now)?;
        if let Some((change, event)) = renewal.extension.take() {
            self.commit(slot, &change, core::iter::empty()).map_err(|full| no_room("renew.commit", full))?;
            EventScope { tenant, run: lease.run(), at: now }.emit(events, || Some(event));
        }
        let capacity = self.capacity(self.arena.get(slot).run, now);
        Ok(renewal.answer(capacity))
    }

    fn checkpoint_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CheckpointError> {
        self.call(now, &Checkpoint { lease: lease.presented_by(tenant)?, cursor, op_id }, events)
    }

    fn complete_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CompleteError> {
        self.call(now, &Complete { lease: lease.presented_by(tenant)?, cursor, op_id }, events)
    }

    fn park_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        park: Park<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ParkError> {
        self.call(now, &ParkShard { lease: lease.presented_by(tenant)?, park, op_id }, events)
    }

    fn split_replace_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitReplacePlan,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError> {
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        match split_replace::decide(&self.view(slot), presented, plan, op_id, &self.census(tenant), now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(split) => {
                let (detached, answer) = detach(tenant, lease.shard(), split);
                self.execute_split(now, slot, detached, events)?;
                Ok(IdempotentOutcome::Executed(answer))
            }
        }
    }

    fn split_residual_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitResidualPlan,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError> {
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        match split_residual::decide(&self.view(slot), presented, plan, op_id, &self.census(tenant), now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(split) => {
                let (detached, answer) = detach(tenant, lease.shard(), split);
                self.execute_split(now, slot, detached, events)?;
                Ok(IdempotentOutcome::Executed(answer))
            }
        }
    }

    fn release_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: Option<CursorUpdate<'_>>,
        reason: ReleaseReason<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ReleaseError> {
        let release = Release { cursor, reason };
        self.call(now, &ReleaseShard { lease: lease.presented_by(tenant)?, release, op_id }, events)
    }
}
