//! One coordinator for several workers of one process.
//!
//! A coordinator in memory is a single structure, and every call to it takes microseconds; so workers take turns behind
//! one lock, which they hold for one call. It is the only thing they share. Backends with a handle for each worker (a
//! file, etcd) need none of this.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError, GetShardError, OrderError,
    ParkError, RegisterShardsError, ReleaseError, RenewError, RunTransitionError, SplitReplaceError,
    SplitResidualError, UnparkError,
};
use tessera_coordination::events::EventSink;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::{AcquireResultView, AcquireScratch};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{CoordinationBackend, IdempotentOutcome, Lease, RunManagement, ShardClaiming};

/// A backend that several workers take turns with.
#[derive(Debug)]
pub struct Locked<B>(Arc<Mutex<B>>);

impl<B> Locked<B> {
    /// Shares `backend`.
    pub fn new(backend: B) -> Self {
        Self(Arc::new(Mutex::new(backend)))
    }

    fn get(&self) -> MutexGuard<'_, B> {
        // A backend decides before it changes anything, so one that panicked holds what it held before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Clone for Locked<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: CoordinationBackend> CoordinationBackend for Locked<B> {
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        self.get().acquire_and_restore_into_with_events(now, tenant, key, worker, scratch, events)
    }

    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        self.get().renew_with_events(now, tenant, lease, events)
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
        self.get().checkpoint_with_events(now, tenant, lease, cursor, op_id, events)
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
        self.get().complete_with_events(now, tenant, lease, cursor, op_id, events)
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
        self.get().park_shard_with_events(now, tenant, lease, park, op_id, events)
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
        self.get().split_replace_with_events(now, tenant, lease, plan, op_id, events)
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
        self.get().split_residual_with_events(now, tenant, lease, plan, op_id, events)
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
        self.get().release_with_events(now, tenant, lease, cursor, reason, op_id, events)
    }
}

impl<B: ShardClaiming> ShardClaiming for Locked<B> {
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        self.get().claim_next_available_with_events(now, tenant, run, worker, scratch, events)
    }
}

impl<B: RunManagement> RunManagement for Locked<B> {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        self.get().create_run_with_events(now, tenant, run, config, events)
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
        self.get().register_shards_with_events(now, tenant, run, shards, op_id, events)
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
        self.get().settle_run_with_events(now, tenant, run, settlement, op_id, events)
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
        self.get().unpark_shard_with_events(now, tenant, key, expected_fence, op_id, events)
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
        self.get().order_with_events(now, tenant, key, fence, order, events)
    }

    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        self.get().retire_runs_with_events(now, tenant, settled_until, limit, events)
    }

    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        self.get().get_run(tenant, run)
    }

    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError> {
        self.get().get_run_progress(now, tenant, run)
    }

    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        self.get().list_runs_into(tenant, after, limit, runs)
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
        self.get().list_shards_into(now, tenant, run, filter, page, shards)
    }

    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        self.get().get_shard(tenant, key)
    }

    fn collect_claim_candidates_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError> {
        self.get().collect_claim_candidates_into(now, tenant, run, limit, candidates)
    }

    fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        self.get().explain_claim(now, tenant, run, worker)
    }
}
