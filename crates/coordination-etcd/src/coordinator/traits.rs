//! The coordinator as the protocol's traits know it: each method is a decision wrapped in the loop that stores it.

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{
    CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId,
    WorkerId,
};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement, AsyncShardClaiming, HeldShard};
use tessera_coordination::decide::order::{self, OrderRequest};
use tessera_coordination::decide::release::Release;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::decide::{
    Verdict, checkpoint, complete, park, release, split_replace, split_residual, unpark,
};
use tessera_coordination::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError, GetShardError,
    IdempotentOutcome, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError, RunTransitionError,
    SplitReplaceError, SplitResidualError, UnparkError,
};
use tessera_coordination::events::{EventKind, EventScope, EventSink};
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

use super::AsyncEtcdCoordinator;
use super::acquire::Granted;
use super::commit::Guard;
use super::mutate::{Done, OnShard, Step};
use super::present::Present;
use super::renew::join_all;
use super::split::SplitStep;
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
        let presented = lease.presented_by(tenant)?;
        let decide = |view: &ShardView<'_>, record: &ShardRecord| {
            Ok::<_, CheckpointError>(Step::of(
                view,
                record,
                checkpoint::decide(view, presented, cursor, op_id, now)?,
                (),
            ))
        };
        let done = self.inner.mutate("checkpoint", tenant, lease.key(), Guard::SessionStands, decide).await?;
        Ok(tell(done, now, tenant, lease.run(), events))
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
        let presented = lease.presented_by(tenant)?;
        let decide = |view: &ShardView<'_>, record: &ShardRecord| {
            Ok::<_, CompleteError>(Step::of(view, record, complete::decide(view, presented, cursor, op_id, now)?, ()))
        };
        let done = self.inner.mutate("complete", tenant, lease.key(), Guard::SessionStands, decide).await?;
        Ok(tell(done, now, tenant, lease.run(), events))
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
        let presented = lease.presented_by(tenant)?;
        let decide = |view: &ShardView<'_>, record: &ShardRecord| {
            Ok::<_, ParkError>(Step::of(view, record, park::decide(view, presented, park, op_id, now)?, ()))
        };
        let done = self.inner.mutate("park_shard", tenant, lease.key(), Guard::SessionStands, decide).await?;
        Ok(tell(done, now, tenant, lease.run(), events))
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
        let done = self.release_one(now, tenant, HeldShard { lease, cursor, op_id }, reason).await?;
        Ok(tell(done, now, tenant, lease.run(), events))
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
        let releases = held.iter().map(|shard| self.release_one(now, tenant, *shard, ReleaseReason::Drained));
        let released = join_all(releases.collect()).await;
        answers.clear();
        for (shard, done) in held.iter().zip(released) {
            answers.push(done.map(|done| tell(done, now, tenant, shard.lease.run(), events)));
        }
    }
}

impl<K: Kv + Clone> AsyncEtcdCoordinator<K> {
    async fn release_one(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        shard: HeldShard<'_>,
        reason: ReleaseReason<'_>,
    ) -> Result<Done<IdempotentOutcome<()>>, ReleaseError> {
        let HeldShard { lease, cursor, op_id } = shard;
        let presented = lease.presented_by(tenant)?;
        let decide = |view: &ShardView<'_>, record: &ShardRecord, present: &Present| {
            let release = Release { cursor, reason };
            let verdict = release::decide(view, presented, release, present.peers(), op_id, now)?;
            Ok::<_, ReleaseError>(Step::of(view, record, verdict, ()))
        };
        let on_shard = OnShard {
            operation: "release",
            tenant,
            key: lease.key(),
            guard: Guard::SessionStands,
            asks_who_is_there: matches!(reason, ReleaseReason::Unreachable(_)),
        };
        self.inner.mutate_among(on_shard, decide).await
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
        let decide = |view: &ShardView<'_>, record: &ShardRecord| {
            let verdict = unpark::decide(view, expected, op_id, now)?;
            let fence = match &verdict {
                Verdict::Execute(change) => change.head.fence,
                Verdict::Replay(outcome) => *outcome.get(),
            };
            Ok::<_, UnparkError>(Step::of(view, record, verdict, fence))
        };
        let done = self.inner.mutate("unpark_shard", tenant, key, Guard::Nothing, decide).await?;
        Ok(tell(done, now, tenant, key.run, events))
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
        let decide = |view: &ShardView<'_>, record: &ShardRecord| {
            let change = order::decide(view, epoch, order, now)?;
            let mut next = record.clone();
            next.apply(&change, &[]);
            let event = Some(EventKind::ShardOrdered { shard: key.shard, order });
            Ok::<_, OrderError>(Step::Store { next: next.into(), answer: IdempotentOutcome::Executed(()), event })
        };
        let done = self.inner.mutate("order", tenant, key, Guard::HolderAsSeen, decide).await?;
        tell(done, now, tenant, key.run, events);
        Ok(())
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
