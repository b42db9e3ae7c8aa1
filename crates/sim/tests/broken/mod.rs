//! A backend with one rule broken: it lets in what it should refuse, forgets what it should remember, or shows records that
//! cannot be.

use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{Cursor, CursorUpdate, ShardSpec};
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
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::record::view::OwnerSignal;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::{RunGate, RunStatus};
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{CoordinationBackend, Lease, RunManagement, ShardClaiming};
use tessera_sim::coordination::call::{Backend, edge_number, key_bytes, key_number};

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    None,
    SinkUnfenced,
    SplitDenied,
    FenceUnchecked,
    ExpiryUnchecked,
    RunIgnored,
    OpLogForgotten,
    UnparkUnconditional,
    SplitShowsNoChildren,
    ActiveRunIsSettled,
    CursorBelowStart,
    CursorForgotten,
    FenceGoesBack,
    OwnerSwapped,
    DoneIsOpen,
    ChildIsShort,
    CheckpointRunsAhead,
    RunChangesItsMind,
    NoSkewTolerance,
    NoCooldown,
    HintsLie,
    NothingCompletes,
}

impl Rule {
    pub(crate) const ALL: [Self; 21] = [
        Self::SinkUnfenced,
        Self::SplitDenied,
        Self::FenceUnchecked,
        Self::ExpiryUnchecked,
        Self::RunIgnored,
        Self::OpLogForgotten,
        Self::UnparkUnconditional,
        Self::SplitShowsNoChildren,
        Self::ActiveRunIsSettled,
        Self::CursorBelowStart,
        Self::CursorForgotten,
        Self::FenceGoesBack,
        Self::OwnerSwapped,
        Self::DoneIsOpen,
        Self::ChildIsShort,
        Self::CheckpointRunsAhead,
        Self::RunChangesItsMind,
        Self::NoSkewTolerance,
        Self::NoCooldown,
        Self::HintsLie,
        Self::NothingCompletes,
    ];

    /// The property that is there for it.
    pub(crate) const fn caught_by(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::SinkUnfenced => "EffectsFenced",
            Self::SplitDenied => "EffectsInRange",
            Self::FenceUnchecked => "ControlFenced",
            Self::ExpiryUnchecked => "ExpiredIsRefused",
            Self::RunIgnored => "SettledRunIsQuiet",
            Self::OpLogForgotten => "ReplayAnswersAgree",
            Self::UnparkUnconditional => "AtMostOnce",
            Self::SplitShowsNoChildren => "RecordInvariants",
            Self::ActiveRunIsSettled => "RunInvariants",
            Self::CursorBelowStart => "CursorInBounds",
            Self::CursorForgotten => "CursorMonotonic",
            Self::FenceGoesBack => "FenceMonotonic",
            Self::OwnerSwapped => "OwnerChangeBumpsFence",
            Self::DoneIsOpen => "TerminalIrreversible",
            Self::ChildIsShort => "SplitTiles",
            Self::CheckpointRunsAhead => "Coverage",
            Self::RunChangesItsMind => "RunTerminalIrreversible",
            Self::NoSkewTolerance => "NoTheftFromLiveOwner",
            Self::NoCooldown => "ClaimCooldown",
            Self::HintsLie => "HintsAreTrue",
            Self::NothingCompletes => "RunSettles",
        }
    }
}

/// A backend that breaks one rule.
#[derive(Debug)]
pub(crate) struct Broken<B> {
    inner: B,
    rule: Rule,
    reads: u64,
    ops: u64,
}

impl<B: Backend> Broken<B> {
    pub(crate) fn new(inner: B, rule: Rule) -> Self {
        Self { inner, rule, reads: 0, ops: 1 << 40 }
    }

    fn fresh_op(&mut self) -> OpId {
        self.ops += 1;
        OpId::new(self.ops)
    }

    fn op(&mut self, op: OpId) -> OpId {
        if self.rule == Rule::OpLogForgotten { self.fresh_op() } else { op }
    }

    /// Another lease or another time than the worker showed.
    fn let_in(&mut self, now: LogicalTime, tenant: TenantId, lease: &Lease) -> (LogicalTime, Lease) {
        let Ok(record) = self.inner.get_shard(tenant, lease.key()) else { return (now, *lease) };
        let gate = RunGate { status: RunStatus::Active, lease_duration: 1, max_shard_retries: 0 };
        let current = Lease::of_holder(&record.view(gate, OwnerSignal::Alive));
        match (self.rule, current) {
            (Rule::FenceUnchecked, Some(current)) => (now, current),
            (Rule::ExpiryUnchecked, Some(current)) => {
                (LogicalTime::new(now.get().min(current.deadline().get() - 1)), *lease)
            }
            _ => (now, *lease),
        }
    }

    fn one_key_ahead(&mut self, tenant: TenantId, lease: &Lease, cursor: CursorUpdate<'_>) -> Option<Cursor> {
        if self.rule != Rule::CheckpointRunsAhead {
            return None;
        }
        let record = self.inner.get_shard(tenant, lease.key()).ok()?;
        let next = key_bytes(key_number(cursor.last_key()?) + 1);
        record.spec.range().contains(&next).then(|| Cursor::new(Some(&next), None).unwrap())
    }

    /// What cannot be, shown now and then.
    fn distort(&self, record: &mut ShardRecord) {
        let head = &mut record.state.head;
        // The first reads are true, so that there is something to differ from.
        let now_and_then = self.reads > 20 && self.reads.is_multiple_of(3);
        match self.rule {
            Rule::SplitShowsNoChildren if head.status == ShardStatus::Split => record.spawned.clear(),
            Rule::CursorBelowStart => {
                let start = edge_number(record.spec.start());
                if start > 0 && now_and_then {
                    record.cursor = Cursor::new(Some(&key_bytes(start - 1)), None).unwrap();
                }
            }
            Rule::CursorForgotten if now_and_then => record.cursor = Cursor::initial(),
            Rule::FenceGoesBack if now_and_then => head.fence = FenceEpoch::INITIAL,
            Rule::OwnerSwapped if now_and_then => {
                if let Some(holder) = &mut head.lease {
                    holder.owner = WorkerId::new(77);
                }
            }
            Rule::DoneIsOpen if now_and_then && head.status == ShardStatus::Done => head.status = ShardStatus::Active,
            Rule::ChildIsShort if record.state.parent.is_some() && record.cursor.is_initial() => {
                let (start, end) = (edge_number(record.spec.start()), edge_number(record.spec.end()));
                if end - start > 1 {
                    record.spec = ShardSpec::new(&key_bytes(start), &key_bytes(end - 1), b"").unwrap();
                }
            }
            _ => {}
        }
    }
}

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
        reason: ReleaseReason,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ReleaseError> {
        let (now, lease) = self.let_in(now, tenant, lease);
        let lease = &lease;
        let op_id = self.op(op_id);
        self.inner.release_with_events(now, tenant, lease, cursor, reason, op_id, events)
    }
}

impl<B: Backend> RunManagement for Broken<B> {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        self.inner.create_run_with_events(now, tenant, run, config, events)
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
        expected_fence: FenceEpoch,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError> {
        let (expected_fence, op_id) = match self.inner.get_shard(tenant, key) {
            Ok(record) if self.rule == Rule::UnparkUnconditional => (record.state.head.fence, self.fresh_op()),
            _ => (expected_fence, op_id),
        };
        self.inner.unpark_shard_with_events(now, tenant, key, expected_fence, op_id, events)
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
        self.inner.order_with_events(now, tenant, key, fence, order, events)
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
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError> {
        self.inner.collect_claim_candidates_into(now, tenant, run, limit, candidates)
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
        self.inner.claim_next_available_with_events(now, tenant, run, worker, scratch, events)
    }
}
