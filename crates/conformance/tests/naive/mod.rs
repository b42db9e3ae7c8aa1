//! The simplest backend there is: two maps of records, and the decisions. The front page of the coordination crate
//! tells authors to write just this, so it shows that this is enough to pass; and with a [`Fault`] built in, that the suite
//! notices. Unlike the in-memory coordinator it has sessions that can be lost, and hands out shards in the order of ids.

use std::collections::{BTreeMap, BTreeSet};

use tessera_conformance::BackendConfig;
use tessera_contracts::manifest::{InitialShardInput, validate_manifest};
use tessera_contracts::redact::RedactedKey;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{
    Cursor, CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey,
    TenantId, WorkerId,
};
use tessera_coordination::backend::claim_from_candidates;
use tessera_coordination::decide::acquire::{is_claimable_by, is_open};
use tessera_coordination::decide::claim::{check_cooldown, check_run, cooldown_until};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::release::Release;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::decide::unreachable::{self, Peers, held_back_until, is_reported_by};
use tessera_coordination::decide::{
    Birth, Verdict, acquire, checkpoint, complete, create_run, order, park, register_shards, release, renew,
    settle_run, split_replace, split_residual, unpark,
};
use tessera_coordination::error::*;
use tessera_coordination::events::{EventKind, EventScope, EventSink};
use tessera_coordination::record::history::{History, ReleaseReason};
use tessera_coordination::record::op_log::OpLog;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::{AcquireResultView, CapacityHint};
use tessera_coordination::record::state::Change;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::record::view::{OwnerSignal, ShardView};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::{RunProgress, ShardCounts};
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::shard_limits::{ShardCensus, ShardLimits};
use tessera_coordination::{AcquireScratch, CoordinationBackend, Lease, RunManagement, ShardClaiming};

/// A way to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Takes any lease for the current one.
    IgnoresFence,
    /// Takes a lease of a retired run for one of the run that has its id now.
    IgnoresIncarnation,
    /// Remembers no operation.
    ForgetsOperations,
    /// Records progress that goes back.
    LetsCursorRegress,
    /// Works on in settled runs.
    IgnoresRunStatus,
    /// Loses the last child of a replacing split.
    LosesAChild,
    /// Accepts leases that have ended.
    IgnoresDeadlines,
    /// Grants shards that are held.
    StealsLeases,
    /// Tells no events.
    TellsNothing,
    /// Makes shards beyond the limits.
    IgnoresLimits,
    /// Shows shards to other tenants.
    MixesTenants,
    /// Never parks for want of progress.
    IgnoresRetryBudget,
    /// Unparks without a look at the fence.
    UnparksBlindly,
    /// Stores cursors without their token.
    DropsTokens,
    /// Keeps no history.
    ForgetsOwners,
    /// Completes runs with open shards.
    CompletesOpenRuns,
    /// Hands orders on to the next owner.
    InheritsOrders,
    /// Says that nothing is waiting.
    HidesCapacity,
    /// Drops the parent's shrinking in a residual split.
    KeepsTheWholeRange,
}

pub(crate) const FAULTS: [Fault; 19] = [
    Fault::IgnoresFence,
    Fault::IgnoresIncarnation,
    Fault::ForgetsOperations,
    Fault::LetsCursorRegress,
    Fault::IgnoresRunStatus,
    Fault::LosesAChild,
    Fault::IgnoresDeadlines,
    Fault::StealsLeases,
    Fault::TellsNothing,
    Fault::IgnoresLimits,
    Fault::MixesTenants,
    Fault::IgnoresRetryBudget,
    Fault::UnparksBlindly,
    Fault::DropsTokens,
    Fault::ForgetsOwners,
    Fault::CompletesOpenRuns,
    Fault::InheritsOrders,
    Fault::HidesCapacity,
    Fault::KeepsTheWholeRange,
];

#[derive(Debug)]
pub(crate) struct Naive {
    config: BackendConfig,
    fault: Option<Fault>,
    runs: BTreeMap<(TenantId, RunId), RunRecord>,
    shards: BTreeMap<(TenantId, ShardKey), ShardRecord>,
    sessions_lost: BTreeSet<WorkerId>,
    /// The workers that ever asked for a shard of a run.
    asked: BTreeSet<(TenantId, RunId, WorkerId)>,
    last_claims: BTreeMap<(TenantId, WorkerId), LogicalTime>,
}

impl Naive {
    pub(crate) fn new(config: &BackendConfig, fault: Option<Fault>) -> Self {
        Self {
            config: *config,
            fault,
            runs: BTreeMap::new(),
            shards: BTreeMap::new(),
            sessions_lost: BTreeSet::new(),
            asked: BTreeSet::new(),
            last_claims: BTreeMap::new(),
        }
    }

    pub(crate) fn lose_session(&mut self, worker: WorkerId) {
        self.sessions_lost.insert(worker);
        self.asked.retain(|(_, _, asker)| *asker != worker);
    }

    /// Workers with a session in the run.
    fn present(&self, tenant: TenantId, run: RunId) -> Vec<WorkerId> {
        let here = self.asked.iter().filter(|(owner, asked, _)| (*owner, *asked) == (tenant, run));
        here.map(|(_, _, worker)| *worker).collect()
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn run(&self, tenant: TenantId, run: RunId) -> Result<&RunRecord, RunNotFound> {
        self.runs.get(&(tenant, run)).ok_or(RunNotFound { run })
    }

    /// A copy of a shard as a decision is to see it.
    fn load(&self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, AccessRefused> {
        let mut found = self.shards.get(&(tenant, key));
        if self.has(Fault::MixesTenants) {
            found =
                found.or_else(|| self.shards.iter().find(|((_, known), _)| *known == key).map(|(_, record)| record));
        }
        let mut record = found.cloned().ok_or(AccessRefused::ShardNotFound { key })?;
        if self.has(Fault::ForgetsOperations) {
            record.state.op_log = OpLog::new();
        }
        Ok(record)
    }

    fn view<'a>(&self, record: &'a ShardRecord) -> ShardView<'a> {
        let run = &self.runs[&(record.tenant, record.key.run)];
        let mut gate = run.gate(self.config.default_lease_duration);
        if self.has(Fault::IgnoresRunStatus) {
            gate.status = RunStatus::Active;
        }
        if self.has(Fault::IgnoresRetryBudget) {
            gate.max_shard_retries = 0;
        }
        let gone = record.state.head.lease.is_some_and(|holder| self.sessions_lost.contains(&holder.owner));
        record.view(gate, if gone { OwnerSignal::Gone } else { OwnerSignal::Alive })
    }

    /// The same, for the bearer of a lease.
    fn view_for<'a>(&self, record: &'a ShardRecord, lease: &Lease) -> ShardView<'a> {
        let mut view = self.view(record);
        if self.has(Fault::IgnoresIncarnation) {
            view.incarnation = lease.incarnation();
        }
        view
    }

    fn store(&mut self, mut record: ShardRecord, change: &Change<'_>, births: &[Birth<'_>], events: Told<'_>) {
        let orders = record.state.head.orders;
        let mut change = *change;
        if self.has(Fault::KeepsTheWholeRange) {
            change.spec = None;
        }
        record.apply(&change, births);
        if self.has(Fault::DropsTokens) {
            record.cursor = Cursor::new(record.cursor.last_key(), None).expect("a key is a cursor");
        }
        if self.has(Fault::ForgetsOwners) {
            record.state.history = History::new();
        }
        if self.has(Fault::InheritsOrders) && change.ownership.is_some() {
            record.state.head.orders = orders;
        }
        let (tenant, key) = (record.tenant, record.key);
        self.shards.insert((tenant, key), record);
        let lost = usize::from(self.has(Fault::LosesAChild) && births.len() > 1);
        for birth in &births[..births.len() - lost] {
            self.shards.insert((tenant, birth.key), ShardRecord::newborn(tenant, birth));
        }
        let Told { now, sink, event } = events;
        self.tell(now, tenant, key.run, sink, event);
    }

    fn tell(&self, now: LogicalTime, tenant: TenantId, run: RunId, sink: &mut dyn EventSink, event: Option<EventKind>) {
        if !self.has(Fault::TellsNothing) {
            EventScope { tenant, run, at: now }.emit(sink, || event);
        }
    }

    /// The time a lease is judged by.
    fn lease_time(&self, now: LogicalTime) -> LogicalTime {
        if self.has(Fault::IgnoresDeadlines) { LogicalTime::new(0) } else { now }
    }

    /// The lease that is checked.
    fn lease(&self, lease: &Lease) -> Lease {
        let held = self.shards.get(&(lease.tenant(), lease.key())).filter(|_| self.has(Fault::IgnoresFence));
        held.and_then(|record| Lease::of_holder(&self.view(record))).unwrap_or(*lease)
    }

    fn census(&self, tenant: TenantId) -> ShardCensus {
        let limits = if self.has(Fault::IgnoresLimits) { ShardLimits::default() } else { self.config.shard_limits };
        let of_tenant = self.shards.keys().filter(|(owner, _)| *owner == tenant).count() as u64;
        ShardCensus { limits, of_tenant, total: self.shards.len() as u64 }
    }

    fn shards_of(&self, tenant: TenantId, run: RunId) -> impl Iterator<Item = &ShardRecord> {
        let all = self.shards.iter().filter(move |((owner, key), _)| *owner == tenant && key.run == run);
        all.map(|(_, record)| record)
    }

    fn claimable(&self, record: &ShardRecord, worker: WorkerId, now: LogicalTime) -> bool {
        is_claimable_by(&self.view(record), worker, now, self.config.clock_skew_allowance)
    }

    fn capacity(&self, tenant: TenantId, run: RunId, now: LogicalTime) -> CapacityHint {
        if self.runs[&(tenant, run)].status != RunStatus::Active || self.has(Fault::HidesCapacity) {
            return CapacityHint::default();
        }
        let is_open = |record: &&ShardRecord| is_open(&self.view(record), now, self.config.clock_skew_allowance);
        let (free, held): (Vec<_>, Vec<_>) = self.shards_of(tenant, run).partition(is_open);
        CapacityHint {
            available_count: free.len() as u32,
            earliest_deadline: held.iter().filter_map(|record| record.state.head.lease).map(|h| h.deadline).min(),
        }
    }

    fn counts(&self, tenant: TenantId, run: RunId) -> ShardCounts {
        let mut counts = ShardCounts::default();
        self.shards_of(tenant, run).for_each(|record| *counts.of_mut(record.state.head.status) += 1);
        counts
    }
}

impl Naive {
    /// Parks shards that the worker has reported and no other worker is left for. Returns when the first of the others is given out.
    fn park_unreachable(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        events: &mut dyn EventSink,
    ) -> Option<LogicalTime> {
        let (present, skew) = (self.present(tenant, run), self.config.clock_skew_allowance);
        let reported: Vec<ShardRecord> =
            self.shards_of(tenant, run).filter(|record| !record.unreachable.is_empty()).cloned().collect();
        let mut soonest = None::<LogicalTime>;
        for record in reported {
            if is_reported_by(&record.unreachable, worker) {
                let decided = unreachable::decide(&self.view(&record), Peers::Sessions(&present), now, skew);
                if let Some((change, event)) = decided {
                    self.store(record, &change, &[], Told { now, sink: &mut *events, event: Some(event) });
                }
            } else if is_open(&self.view(&record), now, skew) {
                soonest = soonest.into_iter().chain(held_back_until(&record.unreachable)).min();
            }
        }
        soonest
    }
}

struct Told<'a> {
    now: LogicalTime,
    sink: &'a mut dyn EventSink,
    event: Option<EventKind>,
}

/// Present, load, ask, store, tell: the five steps of every operation on a leased shard.
macro_rules! on_shard {
    ($self:ident, $now:ident, $tenant:ident, $lease:ident, $events:ident, $decide:path $(, $arg:expr)*) => {{
        let lease = $self.lease($lease);
        let presented = lease.presented_by($tenant)?;
        let record = $self.load($tenant, lease.key())?;
        let decided = $decide(&$self.view_for(&record, &lease), presented $(, $arg)*, $self.lease_time($now))?;
        match decided {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                let event = EventKind::of_change(lease.shard(), &change);
                $self.store(record, &change, &[], Told { now: $now, sink: $events, event });
                Ok(IdempotentOutcome::Executed(()))
            }
        }
    }};
}

macro_rules! split {
    ($self:ident, $now:ident, $tenant:ident, $lease:ident, $events:ident, $decide:path, $plan:ident, $op:ident) => {{
        let lease = $self.lease($lease);
        let presented = lease.presented_by($tenant)?;
        let record = $self.load($tenant, lease.key())?;
        let seen = record.clone();
        let census = $self.census($tenant);
        match $decide(&$self.view_for(&seen, &lease), presented, $plan, $op, &census, $self.lease_time($now))? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(split) => {
                let event = EventKind::of_split(lease.shard(), &split);
                $self.store(record, &split.change, &split.births, Told { now: $now, sink: $events, event });
                Ok(IdempotentOutcome::Executed(split.answer))
            }
        }
    }};
}

impl CoordinationBackend for Naive {
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        let mut record = self.load(tenant, key)?;
        if self.has(Fault::StealsLeases) {
            record.state.head.lease = None;
        }
        let acquired = acquire::decide(&self.view(&record), worker, now, self.config.clock_skew_allowance)?;
        self.sessions_lost.remove(&worker);
        self.asked.insert((tenant, key.run, worker));
        self.store(record, &acquired.change, &[], Told { now, sink: events, event: Some(acquired.event) });
        let lease = acquired.outcome?;
        scratch.fill(&self.view(&self.shards[&(tenant, key)]));
        Ok(scratch.granted(lease, self.capacity(tenant, key.run, now)))
    }

    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        let lease = self.lease(lease);
        let presented = lease.presented_by(tenant)?;
        let record = self.load(tenant, lease.key())?;
        let mut renewal = renew::decide(&self.view_for(&record, &lease), presented, self.lease_time(now))?;
        if let Some((change, event)) = renewal.extension.take() {
            self.store(record, &change, &[], Told { now, sink: events, event: Some(event) });
        }
        Ok(renewal.answer(self.capacity(tenant, lease.run(), now)))
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
        let mut ask = || on_shard!(self, now, tenant, lease, events, checkpoint::decide, cursor, op_id);
        let answer = ask();
        if self.has(Fault::LetsCursorRegress)
            && let Err(CheckpointError::Cursor(CursorRefused::Regression(_))) = &answer
            && let Some(record) = self.shards.get_mut(&(tenant, lease.key()))
        {
            record.cursor = cursor.to_owned();
            return Ok(IdempotentOutcome::Executed(()));
        }
        answer
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
        on_shard!(self, now, tenant, lease, events, complete::decide, cursor, op_id)
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
        on_shard!(self, now, tenant, lease, events, park::decide, park, op_id)
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
        split!(self, now, tenant, lease, events, split_replace::decide, plan, op_id)
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
        split!(self, now, tenant, lease, events, split_residual::decide, plan, op_id)
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
        let (release, present) = (Release { cursor, reason }, self.present(tenant, lease.run()));
        on_shard!(self, now, tenant, lease, events, release::decide, release, Peers::Sessions(&present), op_id)
    }
}

impl RunManagement for Naive {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        let record = create_run::decide(self.run(tenant, run).is_ok(), tenant, run, incarnation, config, now)?;
        if self.config.runs_max.is_some_and(|max| self.runs.len() >= max) {
            return Err(CreateRunError::TooManyRuns { held: self.runs.len() });
        }
        self.runs.insert((tenant, run), record);
        self.tell(now, tenant, run, events, Some(EventKind::RunCreated));
        Ok(())
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
        let record = self.run(tenant, run)?;
        let manifest = validate_manifest(shards)?;
        let registration = match register_shards::decide(record, &manifest, op_id, &self.census(tenant), now)? {
            Verdict::Replay(outcome) => return Ok(outcome),
            Verdict::Execute(registration) => registration,
        };
        let born = registration.births.iter().map(|birth| ((tenant, birth.key), ShardRecord::newborn(tenant, birth)));
        self.shards.extend(born);
        let roots = registration.births.iter().map(|birth| birth.key.shard);
        self.runs.get_mut(&(tenant, run)).expect("found above").apply(&registration.change, roots);
        let shard_count = registration.births.len() as u32;
        self.tell(now, tenant, run, events, Some(EventKind::RunActivated { shard_count }));
        Ok(IdempotentOutcome::Executed(shard_count))
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
        let mut counts = self.counts(tenant, run);
        if self.has(Fault::CompletesOpenRuns) {
            counts = ShardCounts { done: counts.total(), ..ShardCounts::default() };
        }
        match settle_run::decide(self.run(tenant, run)?, settlement, &counts, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                self.runs.get_mut(&(tenant, run)).expect("found above").apply(&change, []);
                self.tell(now, tenant, run, events, Some(settlement.event()));
                Ok(IdempotentOutcome::Executed(()))
            }
        }
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
        let record = self.load(tenant, key)?;
        let blind = self.has(Fault::UnparksBlindly) && record.state.op_log.find(op_id).is_none();
        let expected = if blind { record.epoch() } else { expected };
        match unpark::decide(&self.view(&record), expected, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                let event = EventKind::of_change(key.shard, &change);
                self.store(record, &change, &[], Told { now, sink: events, event });
                Ok(IdempotentOutcome::Executed(change.head.fence))
            }
        }
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
        let record = self.load(tenant, key)?;
        let change = order::decide(&self.view(&record), epoch, order, now)?;
        let event = Some(EventKind::ShardOrdered { shard: key.shard, order });
        self.store(record, &change, &[], Told { now, sink: events, event });
        Ok(())
    }

    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        let old = |run: &&RunRecord| run.completed_at.is_some_and(|at| at <= settled_until);
        let runs = self.runs.iter().filter(|((owner, _), _)| *owner == tenant).map(|(_, record)| record);
        let retired: Vec<RunId> = runs.filter(old).take(limit).map(|record| record.run).collect();
        for &run in &retired {
            let shard_count = self.counts(tenant, run).total();
            self.runs.remove(&(tenant, run));
            self.shards.retain(|(owner, key), _| !(*owner == tenant && key.run == run));
            self.tell(now, tenant, run, events, Some(EventKind::RunRetired { shard_count }));
        }
        Ok(retired.len())
    }

    fn retire_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        events: &mut dyn EventSink,
    ) -> Result<bool, GetRunError> {
        let is_it = |record: &RunRecord| record.incarnation == incarnation && record.completed_at.is_some();
        if !self.run(tenant, run).is_ok_and(is_it) {
            return Ok(false);
        }
        let shard_count = self.counts(tenant, run).total();
        self.runs.remove(&(tenant, run));
        self.shards.retain(|(owner, key), _| !(*owner == tenant && key.run == run));
        self.tell(now, tenant, run, events, Some(EventKind::RunRetired { shard_count }));
        Ok(true)
    }

    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        Ok(self.run(tenant, run)?.clone())
    }

    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError> {
        self.run(tenant, run)?;
        let open = || self.shards_of(tenant, run).filter(|record| record.state.head.status == ShardStatus::Active);
        Ok(RunProgress {
            counts: self.counts(tenant, run),
            leased: open().filter(|record| record.state.head.lease_live_at(now).is_some()).count() as u32,
            watermark: RedactedKey::new(open().filter_map(|record| record.cursor.last_key()).min()),
        })
    }

    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        let listed =
            self.runs.iter().filter(|((owner, run), _)| *owner == tenant && after.is_none_or(|after| *run > after));
        runs.clear();
        runs.extend(listed.take(limit).map(|(_, record)| RunSummary::of(record)));
        Ok(())
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
        shards.clear();
        self.run(tenant, run)?;
        // Looks at so many shards a page, admitted or not: pages may be short although more follow.
        let rest = self.shards_of(tenant, run).filter(|record| page.after.is_none_or(|after| record.key.shard > after));
        let looked_at: Vec<_> = rest.take(page.effective_limit()).collect();
        let admitted =
            looked_at.iter().map(|record| (self.view(record), self.claimable(record, WorkerId::UNASSIGNED, now)));
        shards.extend(
            admitted.filter(|(view, free)| filter.admits(view, *free)).map(|(view, _)| ShardSummary::of(&view)),
        );
        Ok(looked_at.last().map(|record| ShardPage::after(record.key.shard, page.limit)))
    }

    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        Ok(self.load(tenant, key)?)
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
        candidates.clear();
        if self.run(tenant, run)?.status == RunStatus::Active {
            let free = self.shards_of(tenant, run).filter(|record| self.claimable(record, worker, now));
            candidates.extend(free.take(limit).map(|record| record.key.shard));
        }
        Ok(())
    }

    fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        let mut explanation = ClaimExplanation::new(self.run(tenant, run)?.status, worker);
        let skew = self.config.clock_skew_allowance;
        self.shards_of(tenant, run).for_each(|record| explanation.add(&self.view(record), now, skew));
        let last = self.last_claims.get(&(tenant, worker)).copied();
        explanation.cooldown_until = cooldown_until(last, self.config.claim_cooldown_interval, now);
        Ok(explanation)
    }
}

impl ShardClaiming for Naive {
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        check_run(run, &self.run(tenant, run)?.gate(self.config.default_lease_duration))?;
        let last = self.last_claims.get(&(tenant, worker)).copied();
        check_cooldown(last, self.config.claim_cooldown_interval, now)?;
        let earliest_deadline = self.capacity(tenant, run, now).earliest_deadline;
        if !worker.is_unassigned() {
            self.asked.insert((tenant, run, worker));
        }
        let mut candidates = Vec::new();
        match claim_from_candidates(self, now, tenant, run, worker, scratch, &mut candidates, events) {
            Ok(granted) => {
                self.last_claims.insert((tenant, worker), now);
                Ok(granted)
            }
            Err(ClaimError::NoneAvailable { .. }) => {
                let held_back = self.park_unreachable(now, tenant, run, worker, events);
                let earliest_deadline = earliest_deadline.into_iter().chain(held_back).min();
                Err(ClaimError::NoneAvailable { earliest_deadline })
            }
            Err(error) => Err(error),
        }
    }
}
