//! The coordinator as the protocol's traits know it: each method is a decision wrapped in the loop that stores it.

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{
    CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId,
    WorkerId,
};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement, AsyncShardClaiming, HeldShard};
use tessera_coordination::decide::checkpoint::Checkpoint;
use tessera_coordination::decide::complete::Complete;
use tessera_coordination::decide::order::{Order, OrderRequest};
use tessera_coordination::decide::park::ParkShard;
use tessera_coordination::decide::release::{Release, ReleaseShard};
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::decide::unpark::Unpark;
use tessera_coordination::decide::{split_replace, split_residual};
use tessera_coordination::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError, GetShardError,
    IdempotentOutcome, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError, RunTransitionError,
    SplitReplaceError, SplitResidualError, UnparkError,
};
use tessera_coordination::events::{EventCollector, EventKind, EventScope, EventSink, NoEvents};
use tessera_coordination::operation::{Address, ShardOperation};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::lease::Lease;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::{AcquireResultView, AcquireScratch};
use tessera_coordination::record::view::ShardView;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};

use tessera_coordination::shard_limits::ShardCensus;
use tessera_coordination::store::carry_out;

use super::AsyncEtcdCoordinator;
use super::acquire::Granted;
use super::call::Call;
use super::renew::join_all;
use super::split::{Done, SplitStep};
use crate::kv::Kv;

/// Tells observers, and gives back the answer.
fn tell<T>(done: Done<T>, now: LogicalTime, tenant: TenantId, run: RunId, events: &mut dyn EventSink) -> T {
    EventScope { tenant, run, at: now }.emit(events, || done.event);
    done.answer
}

impl<K: Kv + Clone> AsyncEtcdCoordinator<K> {
    /// Copies what was granted into the caller's scratch.
    fn restored<'s>(&self, granted: Granted, scratch: &'s mut AcquireScratch) -> AcquireResultView<'s> {
        scratch.fill(&granted.shard.view(&self.inner));
        scratch.granted(granted.lease, granted.capacity)
    }

    /// Releases one shard of many, and keeps what it tells until its turn comes.
    async fn release_drained(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        shard: HeldShard<'_>,
        listens: bool,
    ) -> (Result<IdempotentOutcome<()>, ReleaseError>, EventCollector) {
        let HeldShard { lease, cursor, op_id } = shard;
        let release = Release { cursor, reason: ReleaseReason::Drained };
        let (mut told, mut nobody) = (EventCollector::new(), NoEvents);
        let told_to: &mut dyn EventSink = if listens { &mut told } else { &mut nobody };
        let released = match lease.presented_by(tenant) {
            Ok(lease) => self.call(now, &ReleaseShard { lease, release, op_id }, told_to).await,
            Err(refused) => Err(refused.into()),
        };
        (released, told)
    }

    /// Runs an operation on one shard.
    pub(super) async fn call<O: ShardOperation>(
        &self,
        now: LogicalTime,
        operation: &O,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<O::Answer>, O::Refused> {
        carry_out(&mut Call::new(&self.inner, O::NAME), now, operation, events).await
    }
}

impl<K: Kv + Clone> AsyncCoordinationBackend for AsyncEtcdCoordinator<K> {
    async fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        let acquired = self.inner.acquire(now, tenant, key, worker).await;
        EventScope { tenant, run: key.run, at: now }.emit(events, || acquired.event);
        Ok(self.restored(acquired.outcome?, scratch))
    }

    async fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        let mut answers = Vec::with_capacity(1);
        self.renew_many_with_events(now, tenant, core::slice::from_ref(lease), &mut answers, events).await;
        answers.pop().expect("one lease was renewed, so there is one answer")
    }

    async fn renew_many_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        leases: &[Lease],
        answers: &mut Vec<Result<RenewResult, RenewError>>,
        events: &mut dyn EventSink,
    ) {
        answers.clear();
        for (answer, event) in self.inner.renew_all(now, tenant, leases).await {
            if let Some((run, kind)) = event {
                EventScope { tenant, run, at: now }.emit(events, || Some(kind));
            }
            answers.push(answer);
        }
    }

    async fn checkpoint_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CheckpointError> {
        self.call(now, &Checkpoint { lease: lease.presented_by(tenant)?, cursor, op_id }, events).await
    }

    async fn complete_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CompleteError> {
        self.call(now, &Complete { lease: lease.presented_by(tenant)?, cursor, op_id }, events).await
    }

    async fn park_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        park: Park<'_>,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ParkError> {
        self.call(now, &ParkShard { lease: lease.presented_by(tenant)?, park, op_id }, events).await
    }

    async fn split_replace_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitReplacePlan,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError> {
        let presented = lease.presented_by(tenant)?;
        let decide = |view: &ShardView<'_>, record: &ShardRecord, census: &ShardCensus| {
            let verdict = split_replace::decide(view, presented, plan, op_id, census, now)?;
            Ok(SplitStep::of(record, verdict))
        };
        let done = self.inner.split("split_replace", tenant, lease, decide).await?;
        Ok(tell(done, now, tenant, lease.run(), events))
    }

    async fn split_residual_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitResidualPlan,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError> {
        let presented = lease.presented_by(tenant)?;
        let decide = |view: &ShardView<'_>, record: &ShardRecord, census: &ShardCensus| {
            let verdict = split_residual::decide(view, presented, plan, op_id, census, now)?;
            Ok(SplitStep::of(record, verdict))
        };
        let done = self.inner.split("split_residual", tenant, lease, decide).await?;
        Ok(tell(done, now, tenant, lease.run(), events))
    }

    async fn release_with_events(
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
        self.call(now, &ReleaseShard { lease: lease.presented_by(tenant)?, release, op_id }, events).await
    }

    /// All at once, so that they share requests: a planned stop takes as many as there are batches, not shards.
    async fn drain_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        held: &[HeldShard<'_>],
        answers: &mut Vec<Result<IdempotentOutcome<()>, ReleaseError>>,
        events: &mut dyn EventSink,
    ) {
        let listens = events.is_enabled();
        let releases = held.iter().map(|shard| self.release_drained(now, tenant, *shard, listens)).collect();
        answers.clear();
        for (released, mut told) in join_all(releases).await {
            told.drain_with(|event| {
                events.emit(event);
            });
            answers.push(released);
        }
    }
}

impl<K: Kv + Clone> AsyncRunManagement for AsyncEtcdCoordinator<K> {
    async fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        self.inner.create_run(now, tenant, run, incarnation, config).await?;
        EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunCreated));
        Ok(())
    }

    async fn register_shards_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError> {
        let outcome = self.inner.register_shards(now, tenant, run, shards, op_id).await?;
        if let IdempotentOutcome::Executed(shard_count) = outcome {
            EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunActivated { shard_count }));
        }
        Ok(outcome)
    }

    async fn settle_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        settlement: Settlement,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        let outcome = self.inner.settle_run(now, tenant, run, settlement, op_id).await?;
        if outcome.is_executed() {
            EventScope { tenant, run, at: now }.emit(events, || Some(settlement.event()));
        }
        Ok(outcome)
    }

    async fn unpark_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        expected: ShardEpoch,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError> {
        self.call(now, &Unpark { at: Address { tenant, key }, expected, op_id }, events).await
    }

    async fn order_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        epoch: ShardEpoch,
        order: OrderRequest,
        events: &mut dyn EventSink,
    ) -> Result<(), OrderError> {
        let asked = Order { at: Address { tenant, key }, epoch, request: order };
        self.call(now, &asked, events).await.map(IdempotentOutcome::into_inner)
    }

    async fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        let retired = self.inner.retire(tenant, settled_until, limit).await?;
        for (run, shard_count) in &retired {
            let kind = EventKind::RunRetired { shard_count: *shard_count };
            EventScope { tenant, run: *run, at: now }.emit(events, || Some(kind));
        }
        Ok(retired.len())
    }

    async fn retire_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        events: &mut dyn EventSink,
    ) -> Result<bool, GetRunError> {
        let retired = self.inner.retire_one(tenant, run, incarnation).await?;
        if let Some(shard_count) = retired {
            EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunRetired { shard_count }));
        }
        Ok(retired.is_some())
    }

    async fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        self.inner.get_run(tenant, run).await
    }

    async fn get_run_progress(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
    ) -> Result<RunProgress, GetRunError> {
        self.inner.progress(now, tenant, run).await
    }

    async fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        runs.clear();
        runs.extend(self.inner.list_runs(tenant, after, limit).await?);
        Ok(())
    }

    async fn list_shards_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        page: ShardPage,
        shards: &mut Vec<ShardSummary>,
    ) -> Result<Option<ShardPage>, GetRunError> {
        self.inner.list_shards(now, tenant, run, filter, page, shards).await
    }

    async fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        self.inner.get_shard(tenant, key).await
    }

    async fn collect_claim_candidates_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError> {
        candidates.clear();
        candidates.extend(self.inner.candidates(now, tenant, run, worker, limit).await?);
        Ok(())
    }

    async fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        self.inner.explain(now, tenant, run, worker).await
    }
}

impl<K: Kv + Clone> AsyncShardClaiming for AsyncEtcdCoordinator<K> {
    async fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        let (claimed, told) = self.inner.claim(now, tenant, run, worker).await;
        for kind in told {
            EventScope { tenant, run, at: now }.emit(events, || Some(kind));
        }
        Ok(self.restored(claimed?, scratch))
    }
}
