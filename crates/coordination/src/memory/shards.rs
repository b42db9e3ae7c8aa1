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
use crate::decide::release::Release;
use crate::decide::renew::RenewResult;
use crate::decide::unreachable::Peers;
use crate::decide::{
    Birth, Split, Verdict, acquire, checkpoint, complete, park, release, renew, split_replace, split_residual,
};
use crate::error::{
    AcquireError, CheckpointError, CompleteError, IdempotentOutcome, InfraError, ParkError, ReleaseError, RenewError,
    SplitError, SplitReplaceError, SplitResidualError,
};
use crate::events::{EventKind, EventScope, EventSink};
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

    /// Stores a change that the holder asked for and that makes no shards, and tells of it.
    fn execute(
        &mut self,
        now: LogicalTime,
        slot: Slot,
        lease: &Lease,
        change: &Change<'_>,
        events: &mut dyn EventSink,
    ) -> Result<(), SlabFull> {
        self.commit(slot, change, core::iter::empty())?;
        let scope = EventScope { tenant: lease.tenant(), run: lease.run(), at: now };
        scope.emit(events, || EventKind::of_change(lease.shard(), change));
        Ok(())
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
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        match checkpoint::decide(&self.view(slot), presented, cursor, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                Ok(IdempotentOutcome::Executed(self.execute(now, slot, lease, &change, events)?))
            }
        }
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
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        match complete::decide(&self.view(slot), presented, cursor, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                Ok(IdempotentOutcome::Executed(self.execute(now, slot, lease, &change, events)?))
            }
        }
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
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        match park::decide(&self.view(slot), presented, park, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                Ok(IdempotentOutcome::Executed(self.execute(now, slot, lease, &change, events)?))
            }
        }
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
        let presented = lease.presented_by(tenant)?;
        let slot = self.locate(tenant, lease.key())?;
        let takes_part = match reason {
            ReleaseReason::Unreachable(_) => self.takes_part(self.arena.get(slot).run, now),
            ReleaseReason::Released | ReleaseReason::Yielded | ReleaseReason::Drained => Vec::new(),
        };
        let (release, peers) = (Release { cursor, reason }, Peers::Guessed(&takes_part));
        match release::decide(&self.view(slot), presented, release, peers, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                Ok(IdempotentOutcome::Executed(self.execute(now, slot, lease, &change, events)?))
            }
        }
    }
}
