//! The operations of a backend with one rule broken. The other operations are passed on.

use tessera_contracts::Cursor;
use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::error::{
    AccessRefused, AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError,
    GetShardError, IdempotentOutcome, InfraError, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError,
    RunTransitionError, SplitRefused, SplitReplaceError, SplitResidualError, UnparkError,
};
use tessera_coordination::events::EventSink;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::{AcquireResultView, AcquireScratch};
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{CoordinationBackend, Lease, RunManagement, ShardClaiming};

use super::super::call::Backend;
use super::{Broken, Rule};

impl<B: Backend> CoordinationBackend for Broken<B> {
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        self.inner.acquire_and_restore_into_with_events(now, tenant, key, worker, scratch, events)
    }

    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let answer = self.inner.renew_with_events(now, tenant, lease, events);
        answer.map(|mut renewed| {
            renewed.capacity.available_count += u32::from(self.rule == Rule::HintsLie);
            renewed
        })
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
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = self.op(op_id);
        let ahead = self.one_key_ahead(tenant, lease, cursor);
        let cursor = ahead.as_ref().map_or(cursor, Cursor::as_update);
        let answer = self.inner.checkpoint_with_events(now, tenant, lease, cursor, op_id, events);
        match answer {
            Err(CheckpointError::Access(AccessRefused::RunNotActive { .. })) if self.rule == Rule::RunIgnored => {
                Ok(IdempotentOutcome::Executed(()))
            }
            Err(CheckpointError::Cursor(_)) if self.rule == Rule::CursorUnchecked => {
                Ok(IdempotentOutcome::Executed(()))
            }
            answer => answer,
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
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = self.op(op_id);
        if self.rule == Rule::NothingCompletes {
            return Err(InfraError::transient("broken.complete", "on purpose").into());
        }
        self.inner.complete_with_events(now, tenant, lease, cursor, op_id, events)
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
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = self.op(op_id);
        self.inner.park_shard_with_events(now, tenant, lease, park, op_id, events)
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
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = self.op(op_id);
        self.inner.split_replace_with_events(now, tenant, lease, plan, op_id, events)
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
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = self.op(op_id);
        let answer = self.inner.split_residual_with_events(now, tenant, lease, plan, op_id, events);
        match answer {
            Ok(IdempotentOutcome::Executed(_)) if self.rule == Rule::SplitDenied => {
                Err(SplitRefused::SpawnCap { spawned: 0, added: 1, max: 0 }.into())
            }
            answer => answer,
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
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = if self.rule == Rule::ReleaseForgotten { self.fresh_op() } else { self.op(op_id) };
        match (self.rule, reason) {
            (Rule::ReportParks, ReleaseReason::Unreachable(_)) => {
                let park = Park::because(ParkReason::Unreachable);
                let parked = self.inner.park_shard_with_events(now, tenant, lease, park, op_id, events);
                parked.map_err(|error| match error {
                    ParkError::Access(refused) => refused.into(),
                    ParkError::Lease(refused) => refused.into(),
                    ParkError::OpIdConflict(conflict) => ReleaseError::OpIdConflict(conflict),
                    ParkError::ResourceExhausted(exhausted) => ReleaseError::ResourceExhausted(exhausted),
                    ParkError::BackendError(error) => error.into(),
                })
            }
            (Rule::ReportForgotten, ReleaseReason::Unreachable(_)) => {
                let reason = ReleaseReason::Released;
                self.inner.release_with_events(now, tenant, lease, cursor, reason, op_id, events)
            }
            _ => self.inner.release_with_events(now, tenant, lease, cursor, reason, op_id, events),
        }
    }
}

impl<B: Backend> RunManagement for Broken<B> {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        self.inner.create_run_with_events(now, tenant, run, incarnation, config, events)
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
        self.inner.register_shards_with_events(now, tenant, run, shards, op_id, events)
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
        self.inner.settle_run_with_events(now, tenant, run, settlement, op_id, events)
    }

    fn unpark_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        expected: ShardEpoch,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError> {
        let (expected, op_id) = match self.inner.get_shard(tenant, key) {
            Ok(record) if self.rule == Rule::UnparkUnconditional => (record.epoch(), self.fresh_op()),
            _ => (expected, op_id),
        };
        self.inner.unpark_shard_with_events(now, tenant, key, expected, op_id, events)
    }

    fn order_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        epoch: ShardEpoch,
        order: OrderRequest,
        events: &mut dyn EventSink,
    ) -> Result<(), OrderError> {
        self.inner.order_with_events(now, tenant, key, epoch, order, events)
    }

    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        self.inner.retire_runs_with_events(now, tenant, settled_until, limit, events)
    }

    fn retire_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        events: &mut dyn EventSink,
    ) -> Result<bool, GetRunError> {
        self.inner.retire_run_with_events(now, tenant, run, incarnation, events)
    }

    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        let mut record = self.inner.get_run(tenant, run)?;
        self.reads += 1;
        match self.rule {
            Rule::ActiveRunIsSettled if record.status == RunStatus::Active => {
                record.completed_at = Some(record.created_at)
            }
            Rule::RunChangesItsMind if record.status.is_terminal() && self.reads.is_multiple_of(2) => {
                record.status = RunStatus::Failed;
            }
            _ => {}
        }
        Ok(record)
    }

    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError> {
        self.inner.get_run_progress(now, tenant, run)
    }

    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        self.inner.list_runs_into(tenant, after, limit, runs)
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
        self.inner.list_shards_into(now, tenant, run, filter, page, shards)
    }

    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        let mut record = self.inner.get_shard(tenant, key)?;
        self.reads += 1;
        self.distort(&mut record);
        Ok(record)
    }

    fn collect_claim_candidates_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError> {
        self.inner.collect_claim_candidates_into(now, tenant, run, worker, limit, candidates)
    }

    fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        self.inner.explain_claim(now, tenant, run, worker)
    }
}

impl<B: Backend> ShardClaiming for Broken<B> {
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        if self.rule == Rule::ReportStallsClaims && self.has_reported_shards(tenant, run) {
            return Err(ClaimError::NoneAvailable { earliest_deadline: None });
        }
        self.inner.claim_next_available_with_events(now, tenant, run, worker, scratch, events)
    }
}
