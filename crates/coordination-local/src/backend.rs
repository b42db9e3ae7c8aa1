//! The coordination traits: every operation is performed in memory and made durable before it answers.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_coordination::backend::HeldShard;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError, GetShardError,
    IdempotentOutcome, InfraError, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError,
    RunTransitionError, SplitReplaceError, SplitResidualError, UnparkError,
};
use tessera_coordination::events::{EventSink, NoEvents};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::{AcquireResultView, AcquireScratch};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{CoordinationBackend, Lease, RunManagement, ShardClaiming};

use crate::coordinator::LocalCoordinator;

impl CoordinationBackend for LocalCoordinator {
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        self.perform(events, |memory, events| {
            memory.acquire_and_restore_into_with_events(now, tenant, key, worker, scratch, events)
        })
    }

    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        self.perform(events, |memory, events| memory.renew_with_events(now, tenant, lease, events))
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
        self.perform(events, |memory, events| memory.checkpoint_with_events(now, tenant, lease, cursor, op_id, events))
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
        self.perform(events, |memory, events| memory.complete_with_events(now, tenant, lease, cursor, op_id, events))
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
        self.perform(events, |memory, events| memory.park_shard_with_events(now, tenant, lease, park, op_id, events))
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
        self.perform(events, |memory, events| memory.split_replace_with_events(now, tenant, lease, plan, op_id, events))
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
        self.perform(events, |memory, events| {
            memory.split_residual_with_events(now, tenant, lease, plan, op_id, events)
        })
    }

    fn release_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: Option<CursorUpdate<'_>>,
        reason: ReleaseReason,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ReleaseError> {
        self.perform(events, |memory, events| {
            memory.release_with_events(now, tenant, lease, cursor, reason, op_id, events)
        })
    }

    /// One write for all of them.
    fn renew_many_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        leases: &[Lease],
        answers: &mut Vec<Result<RenewResult, RenewError>>,
        events: &mut dyn EventSink,
    ) {
        let done = self.perform(events, |memory, events| {
            memory.renew_many_with_events(now, tenant, leases, answers, events);
            Ok::<(), InfraError>(())
        });
        if let Err(error) = done {
            answers.clear();
            answers.extend(leases.iter().map(|_| Err(error.clone().into())));
        }
    }

    /// One write for all of them.
    fn drain_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        held: &[HeldShard<'_>],
        answers: &mut Vec<Result<IdempotentOutcome<()>, ReleaseError>>,
        events: &mut dyn EventSink,
    ) {
        let done = self.perform(events, |memory, events| {
            memory.drain_with_events(now, tenant, held, answers, events);
            Ok::<(), InfraError>(())
        });
        if let Err(error) = done {
            answers.clear();
            answers.extend(held.iter().map(|_| Err(error.clone().into())));
        }
    }
}

impl RunManagement for LocalCoordinator {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        self.perform(events, |memory, events| memory.create_run_with_events(now, tenant, run, config, events))
    }

    fn register_shards_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError> {
        self.perform(events, |memory, events| {
            memory.register_shards_with_events(now, tenant, run, shards, op_id, events)
        })
    }

    fn settle_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        settlement: Settlement,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        self.perform(events, |memory, events| {
            memory.settle_run_with_events(now, tenant, run, settlement, op_id, events)
        })
    }

    fn unpark_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        expected_fence: FenceEpoch,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError> {
        self.perform(events, |memory, events| {
            memory.unpark_shard_with_events(now, tenant, key, expected_fence, op_id, events)
        })
    }

    fn order_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        fence: FenceEpoch,
        order: OrderRequest,
        events: &mut dyn EventSink,
    ) -> Result<(), OrderError> {
        self.perform(events, |memory, events| memory.order_with_events(now, tenant, key, fence, order, events))
    }

    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        self.perform(events, |memory, events| memory.retire_runs_with_events(now, tenant, settled_until, limit, events))
    }

    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        self.perform(&mut NoEvents, |memory, _| memory.get_run(tenant, run))
    }

    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError> {
        self.perform(&mut NoEvents, |memory, _| memory.get_run_progress(now, tenant, run))
    }

    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        self.perform(&mut NoEvents, |memory, _| memory.list_runs_into(tenant, after, limit, runs))
    }

    fn list_shards_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        page: ShardPage,
        shards: &mut Vec<ShardSummary>,
    ) -> Result<Option<ShardPage>, GetRunError> {
        self.perform(&mut NoEvents, |memory, _| memory.list_shards_into(now, tenant, run, filter, page, shards))
    }

    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        self.perform(&mut NoEvents, |memory, _| memory.get_shard(tenant, key))
    }

    fn collect_claim_candidates_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError> {
        self.perform(&mut NoEvents, |memory, _| {
            memory.collect_claim_candidates_into(now, tenant, run, limit, candidates)
        })
    }

    fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        self.perform(&mut NoEvents, |memory, _| memory.explain_claim(now, tenant, run, worker))
    }
}

impl ShardClaiming for LocalCoordinator {
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        self.perform(events, |memory, events| {
            memory.claim_next_available_with_events(now, tenant, run, worker, scratch, events)
        })
    }
}
