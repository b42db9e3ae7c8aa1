//! The world of a story: a backend, the leases its workers hold, and the names of its shards.
//!
//! Playing a command calls the one operation it stands for, with a collector of events, and puts the answer into words.
//! Names of split shards are worked out here from what the protocol promises (ids derived from run, parent, operation and
//! index), not taken from the answer: a backend that names a child otherwise is answered with an id nobody knows.

use std::collections::BTreeMap;
use std::fmt::Display;

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{
    DerivedShardKind, SplitReplacePlan, SplitResidualPlan, derive_split_shard_id, plan_split_replace_evenly,
    plan_split_residual_at_fraction,
};
use tessera_contracts::{
    CursorSemantics, CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, TenantId,
    WorkerId,
};
use tessera_coordination::backend::HeldShard;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::events::{EventCollector, EventKind, StateTransitionEvent};
use tessera_coordination::record::orders::StandingOrders;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::{AcquireResultView, CapacityHint};
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::explain::ClaimVerdict;
use tessera_coordination::run::progress::{RunTerminalEvaluation, evaluate_run_terminal};
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{AcquireScratch, CoordinationFacade, IdempotentOutcome, Lease};

use crate::answer::{Refused, line_of, outcome};
use crate::command::{Command, Holder, Ops, OrderText, ReplaceText, ResidualText, Roots, reason_text};
use crate::line::{Answer, Line};
use crate::text::{CursorText, RangeText, ShardName, key_text};

pub(crate) struct World<B> {
    pub(crate) backend: B,
    scratch: AcquireScratch,
    leases: Vec<Held>,
    names: BTreeMap<(TenantId, RunId, ShardId), ShardName>,
    spawned: BTreeMap<(TenantId, ShardKey), usize>,
}

/// A lease a worker was once given, and the range it has been told since.
#[derive(Clone, Debug)]
struct Held {
    lease: Lease,
    spec: ShardSpec,
    last_key: Option<Vec<u8>>,
}

/// The tenant called `name`; `nobody` is the id that means unassigned.
pub(crate) fn tenant_called(name: &str) -> TenantId {
    if name == "nobody" { TenantId::UNASSIGNED } else { TenantId::from_name(name) }
}

impl<B: CoordinationFacade> World<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self {
            backend,
            scratch: AcquireScratch::new(),
            leases: Vec::new(),
            names: BTreeMap::new(),
            spawned: BTreeMap::new(),
        }
    }

    /// Every shard that was ever made, by tenant.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (TenantId, ShardKey)> + '_ {
        self.names.keys().map(|&(tenant, run, shard)| (tenant, ShardKey::new(run, shard)))
    }

    /// Every lease that was ever granted.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> + '_ {
        self.leases.iter().map(|held| &held.lease)
    }

    /// The id behind a name.
    pub(crate) fn resolve(&self, tenant: TenantId, name: &ShardName) -> Result<ShardKey, String> {
        let run = RunId::new(name.run);
        if name.below.is_empty() {
            return Ok(ShardKey::new(run, ShardId::new(name.root)));
        }
        let found = self.names.iter().find(|((owner, _, _), known)| *owner == tenant && *known == name);
        let ((_, run, shard), _) = found.ok_or_else(|| format!("shard {name} was never made in this story"))?;
        Ok(ShardKey::new(*run, *shard))
    }

    /// The name of an id; an id nobody knows is shown as it is.
    pub(crate) fn name(&self, tenant: TenantId, key: ShardKey) -> String {
        self.names.get(&(tenant, key.run, key.shard)).map_or_else(|| format!("unknown-{key}"), ToString::to_string)
    }

    /// Plays a command once for each of its op ids. An error is a mistake in the story, not in the backend.
    pub(crate) fn play(&mut self, now: u64, tenant: &str, command: &Command) -> Result<Vec<Answer>, String> {
        let ops = match command {
            Command::Register { op, .. }
            | Command::Start { op, .. }
            | Command::Settle { op, .. }
            | Command::Unpark { op, .. }
            | Command::Checkpoint { op, .. }
            | Command::Complete { op, .. }
            | Command::Park { op, .. }
            | Command::Replace { op, .. }
            | Command::Split { op, .. }
            | Command::Release { op, .. }
            | Command::Drain { op, .. } => *op,
            _ => Ops::one(0),
        };
        let (now, tenant) = (LogicalTime::new(now), tenant_called(tenant));
        (ops.first..=ops.last).map(|op| self.play_once(now, tenant, command, OpId::new(op))).collect()
    }

    fn play_once(&mut self, now: LogicalTime, tenant: TenantId, command: &Command, op: OpId) -> Result<Answer, String> {
        let mut events = EventCollector::new();
        let mut answer = match command {
            Command::Acquire { .. }
            | Command::Claim { .. }
            | Command::Renew { .. }
            | Command::Checkpoint { .. }
            | Command::Complete { .. }
            | Command::Park { .. }
            | Command::Replace { .. }
            | Command::Split { .. }
            | Command::Release { .. }
            | Command::Drain { .. } => self.play_shard_command(now, tenant, command, op, &mut events)?,
            _ => self.play_run_command(now, tenant, command, op, &mut events)?,
        };
        answer.events = events.iter().map(|event| self.event_line(now, tenant, event)).collect();
        Ok(answer)
    }

    fn play_shard_command(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        command: &Command,
        op: OpId,
        events: &mut EventCollector,
    ) -> Result<Answer, String> {
        Ok(match command {
            Command::Acquire { worker, shard } => {
                let key = self.resolve(tenant, shard)?;
                let mut scratch = std::mem::take(&mut self.scratch);
                let worker = WorkerId::new(*worker);
                let granted =
                    self.backend.acquire_and_restore_into_with_events(now, tenant, key, worker, &mut scratch, events);
                let answer = line_of(&granted, |granted| self.granted(tenant, granted));
                self.scratch = scratch;
                answer.into()
            }
            Command::Claim { worker, run } => {
                let (run, worker) = (RunId::new(*run), WorkerId::new(*worker));
                let mut scratch = std::mem::take(&mut self.scratch);
                let granted =
                    self.backend.claim_next_available_with_events(now, tenant, run, worker, &mut scratch, events);
                let answer = line_of(&granted, |granted| self.granted(tenant, granted));
                self.scratch = scratch;
                answer.into()
            }
            Command::Renew { holder, shards } if shards.len() == 1 => {
                let held = self.held(tenant, holder, &shards[0])?;
                let renewed = self.backend.renew_with_events(now, tenant, &self.leases[held].lease, events);
                self.renewed(held, &renewed).into()
            }
            Command::Renew { holder, shards } => {
                let held: Vec<usize> =
                    shards.iter().map(|shard| self.held(tenant, holder, shard)).collect::<Result<_, _>>()?;
                let leases: Vec<Lease> = held.iter().map(|&held| self.leases[held].lease).collect();
                let mut answers = Vec::new();
                self.backend.renew_many_with_events(now, tenant, &leases, &mut answers, events);
                // A backend may answer a batch as of its end or as of each step, so its hints are not compared.
                answers.iter_mut().flatten().for_each(|answer| answer.capacity = CapacityHint::default());
                let line = Line::new(format_args!("{} answers", answers.len()));
                let rows = held.iter().zip(&answers).map(|(&held, renewed)| self.renewed(held, renewed)).collect();
                Answer { line, rows, events: Vec::new() }
            }
            Command::Checkpoint { holder, shard, cursor, .. } => {
                let held = self.held(tenant, holder, shard)?;
                let cursor = match cursor.build() {
                    Ok(cursor) => cursor,
                    Err(error) => return Ok(unbuildable(error)),
                };
                let lease = self.leases[held].lease;
                let done = self.backend.checkpoint_with_events(now, tenant, &lease, cursor.as_update(), op, events);
                if done.as_ref().is_ok_and(IdempotentOutcome::is_executed) {
                    self.leases[held].last_key = cursor.last_key().map(Into::into);
                }
                line_of(&done, outcome).into()
            }
            Command::Complete { holder, shard, cursor, .. } => {
                let held = self.held(tenant, holder, shard)?;
                let cursor = match cursor.build() {
                    Ok(cursor) => cursor,
                    Err(error) => return Ok(unbuildable(error)),
                };
                let lease = self.leases[held].lease;
                let done = self.backend.complete_with_events(now, tenant, &lease, cursor.as_update(), op, events);
                line_of(&done, outcome).into()
            }
            Command::Park { holder, shard, reason, detail, retry_after, .. } => {
                let held = self.held(tenant, holder, shard)?;
                let mut park = Park::because(*reason);
                if let Some(detail) = detail {
                    park = park.with_detail(detail);
                }
                if let Some(retry_after) = retry_after {
                    park = park.with_retry_after(LogicalTime::new(*retry_after));
                }
                let lease = self.leases[held].lease;
                line_of(&self.backend.park_shard_with_events(now, tenant, &lease, park, op, events), outcome).into()
            }
            Command::Replace { holder, shard, plan, .. } => {
                let held = self.held(tenant, holder, shard)?;
                let plan = match self.replace_plan(held, plan) {
                    Ok(plan) => plan,
                    Err(error) => return Ok(unbuildable(error)),
                };
                let lease = self.leases[held].lease;
                let done = self.backend.split_replace_with_events(now, tenant, &lease, &plan, op, events);
                if let Ok(IdempotentOutcome::Executed(_)) = &done {
                    self.christen(tenant, lease.key(), op, DerivedShardKind::Child, plan.children().len());
                }
                line_of(&done, |done| outcome(done).list("children", self.names(tenant, lease.run(), done.get())))
                    .into()
            }
            Command::Split { holder, shard, plan, .. } => {
                let held = self.held(tenant, holder, shard)?;
                let plan = match self.residual_plan(held, plan) {
                    Ok(plan) => plan,
                    Err(error) => return Ok(unbuildable(error)),
                };
                let lease = self.leases[held].lease;
                let done = self.backend.split_residual_with_events(now, tenant, &lease, &plan, op, events);
                if let Ok(done) = &done {
                    if done.is_executed() {
                        self.christen(tenant, lease.key(), op, DerivedShardKind::Residual, 1);
                    }
                    if self.leases[held].spec.range().contains_range(plan.kept().range()) {
                        self.leases[held].spec = plan.kept().clone();
                    }
                }
                let residual = |id: &ShardId| self.name(tenant, ShardKey::new(lease.run(), *id));
                line_of(&done, |done| outcome(done).fact("residual", residual(done.get()))).into()
            }
            Command::Release { holder, shard, cursor, reason, .. } => {
                let held = self.held(tenant, holder, shard)?;
                let cursor = match cursor.as_ref().map(CursorText::build).transpose() {
                    Ok(cursor) => cursor,
                    Err(error) => return Ok(unbuildable(error)),
                };
                let cursor = cursor.as_ref().map(|cursor| cursor.as_update());
                let lease = self.leases[held].lease;
                let done = self.backend.release_with_events(now, tenant, &lease, cursor, *reason, op, events);
                line_of(&done, outcome).into()
            }
            Command::Drain { holder, held, .. } => {
                let mut parts = Vec::new();
                for (index, (shard, cursor)) in held.iter().enumerate() {
                    let lease = self.leases[self.held(tenant, holder, shard)?].lease;
                    let cursor =
                        cursor.as_ref().map(CursorText::build).transpose().map_err(|error| error.to_string())?;
                    parts.push((lease, cursor, OpId::new(op.get() + index as u64)));
                }
                let held: Vec<_> = parts
                    .iter()
                    .map(|(lease, cursor, op_id)| HeldShard {
                        lease,
                        cursor: cursor.as_ref().map(|cursor| cursor.as_update()),
                        op_id: *op_id,
                    })
                    .collect();
                let mut answers = Vec::new();
                self.backend.drain_with_events(now, tenant, &held, &mut answers, events);
                let line = Line::new(format_args!("{} answers", answers.len()));
                Answer { line, rows: answers.iter().map(|done| line_of(done, outcome)).collect(), events: Vec::new() }
            }
            _ => return Err(format!("`{command}` is not about one worker's shard")),
        })
    }

    fn play_run_command(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        command: &Command,
        op: OpId,
        events: &mut EventCollector,
    ) -> Result<Answer, String> {
        Ok(match command {
            Command::CreateRun { run, config } => {
                let created = self.backend.create_run_with_events(now, tenant, RunId::new(*run), *config, events);
                line_of(&created, |()| Line::new("created")).into()
            }
            Command::Register { run, roots, .. } => {
                let owned = numbered(roots);
                let inputs = inputs(roots, &owned);
                let run = RunId::new(*run);
                let done = self.backend.register_shards_with_events(now, tenant, run, &inputs, op, events);
                self.registered(tenant, run, &inputs, done.as_ref().is_ok_and(IdempotentOutcome::is_executed));
                line_of(&done, |done| outcome(done).fact("count", done.get())).into()
            }
            Command::Start { run, config, roots, .. } => {
                let owned = numbered(roots);
                let inputs = inputs(roots, &owned);
                let run = RunId::new(*run);
                let done = self.backend.create_run_with_shards(now, tenant, run, *config, &inputs, op);
                self.registered(tenant, run, &inputs, done.as_ref().is_ok_and(IdempotentOutcome::is_executed));
                line_of(&done, |done| outcome(done).fact("count", done.get())).into()
            }
            Command::Settle { run, settlement, .. } => {
                let run = RunId::new(*run);
                let done = self.backend.settle_run_with_events(now, tenant, run, *settlement, op, events);
                line_of(&done, outcome).into()
            }
            Command::Retire { settled_until, limit } => {
                let until = LogicalTime::new(*settled_until);
                let retired = self.backend.retire_runs_with_events(now, tenant, until, *limit, events);
                for event in events.iter().filter(|event| matches!(event.kind, EventKind::RunRetired { .. })) {
                    self.names.retain(|(owner, run, _), _| !(*owner == tenant && *run == event.run));
                    self.spawned.retain(|(owner, key), _| !(*owner == tenant && key.run == event.run));
                }
                line_of(&retired, |count| Line::new(format_args!("{count} retired"))).into()
            }
            Command::ShowRun { run } => line_of(&self.backend.get_run(tenant, RunId::new(*run)), |run| {
                Line::new(run.status)
                    .fact("created", run.created_at)
                    .optional("settled", run.completed_at)
                    .list("roots", run.root_shards.iter().map(|shard| shard.get()))
                    .optional("lease", run.config.lease_duration)
                    .fact("retries", run.config.max_shard_retries)
                    .fact("semantics", semantics(run.config.cursor_semantics))
                    .list("remembers", run.op_log.iter().map(|entry| format!("{}:{}", entry.kind, entry.op_id.get())))
            })
            .into(),
            Command::ShowShard { shard } => {
                let key = self.resolve(tenant, shard)?;
                match self.backend.get_shard(tenant, key) {
                    Ok(record) => self.shown(&record),
                    Err(error) => error.line().into(),
                }
            }
            Command::ListRuns { after, limit } => {
                let mut runs = Vec::new();
                let listed = self.backend.list_runs_into(tenant, after.map(RunId::new), *limit, &mut runs);
                let rows = runs.iter().map(|run| {
                    Line::new(run.run.get())
                        .fact("status", run.status)
                        .fact("created", run.created_at)
                        .optional("settled", run.completed_at)
                });
                let rows: Vec<_> = rows.collect();
                Answer {
                    line: line_of(&listed, |()| Line::new(format_args!("{} runs", rows.len()))),
                    rows,
                    events: Vec::new(),
                }
            }
            Command::ListShards { run, filter, limit } => {
                self.list_shards(now, tenant, RunId::new(*run), filter, *limit)
            }
            Command::Progress { run } => {
                line_of(&self.backend.get_run_progress(now, tenant, RunId::new(*run)), |progress| {
                    let evaluation = match evaluate_run_terminal(&progress.counts) {
                        RunTerminalEvaluation::StillActive => "still active",
                        RunTerminalEvaluation::HasFailures => "has failures",
                        RunTerminalEvaluation::AllDone => "all done",
                    };
                    Line::new(evaluation)
                        .fact("active", progress.counts.active)
                        .fact("done", progress.counts.done)
                        .fact("split", progress.counts.split)
                        .fact("parked", progress.counts.parked)
                        .fact("leased", progress.leased)
                        .optional("watermark", progress.watermark.expose().map(key_text))
                })
                .into()
            }
            Command::Candidates { run, limit } => {
                let run = RunId::new(*run);
                let mut candidates = Vec::new();
                let listed = self.backend.collect_claim_candidates_into(now, tenant, run, *limit, &mut candidates);
                // Which candidates come first is the backend's choice, so they are shown in order of id.
                candidates.sort_unstable();
                let count = candidates.len();
                let names = self.names(tenant, run, &candidates);
                line_of(&listed, |()| Line::new(format_args!("{count} candidates")).list("shards", names)).into()
            }
            Command::Explain { run, worker } => {
                let explained = self.backend.explain_claim(now, tenant, RunId::new(*run), WorkerId::new(*worker));
                line_of(&explained, |why| {
                    let verdict = match why.verdict() {
                        ClaimVerdict::Claimable => "claimable",
                        ClaimVerdict::RunNotActive(_) => "run not active",
                        ClaimVerdict::CoolingDown { .. } => "cooling down",
                        ClaimVerdict::AllLeased { .. } => "all leased",
                        ClaimVerdict::OnlyParkedLeft => "only parked left",
                        ClaimVerdict::AllSettled => "all settled",
                    };
                    let parked = ParkReason::ALL.into_iter().zip(why.parked).filter(|(_, count)| *count > 0);
                    Line::new(verdict)
                        .fact("run", why.run)
                        .fact("available", why.available)
                        .fact("leased", why.leased)
                        .optional("earliest", why.earliest_deadline)
                        .list("parked", parked.map(|(reason, count)| format!("{count} {}", reason_text(reason))))
                        .optional("retry after", why.soonest_retry_after)
                        .fact("settled", why.settled)
                        .optional("cooldown until", why.cooldown_until)
                })
                .into()
            }
            Command::Unpark { shard, fence, .. } => {
                let key = self.resolve(tenant, shard)?;
                let fence = FenceEpoch::new(*fence);
                let done = self.backend.unpark_shard_with_events(now, tenant, key, fence, op, events);
                line_of(&done, |done| outcome(done).fact("fence", done.get())).into()
            }
            Command::Order { shard, fence, order } => {
                let key = self.resolve(tenant, shard)?;
                let order = match order {
                    OrderText::Yield => OrderRequest::Yield,
                    OrderText::KeepPercent(kept) => OrderRequest::Split(percent(*kept)),
                };
                let asked = self.backend.order_with_events(now, tenant, key, FenceEpoch::new(*fence), order, events);
                line_of(&asked, |()| Line::new("asked")).into()
            }
            Command::LoseSession { .. } => return Err("losing a session is up to the factory of the backend".into()),
            _ => return Err(format!("`{command}` is not about a run")),
        })
    }

    fn granted(&mut self, tenant: TenantId, granted: &AcquireResultView<'_>) -> Line {
        let AcquireResultView { lease, snapshot, capacity } = granted;
        self.leases.push(Held {
            lease: *lease,
            spec: snapshot.spec.to_owned(),
            last_key: snapshot.cursor.last_key().map(Into::into),
        });
        let line = Line::new("granted")
            .fact("shard", self.name(tenant, lease.key()))
            .fact("fence", lease.fence())
            .fact("until", lease.deadline())
            .fact("owner", worker(lease.owner()))
            .fact("cursor", CursorText::of(snapshot.cursor))
            .fact("range", RangeText::of(snapshot.spec))
            .fact("semantics", semantics(snapshot.cursor_semantics))
            .optional("parent", snapshot.parent.map(|id| self.name(tenant, ShardKey::new(lease.run(), id))))
            .list("spawned", self.names(tenant, lease.run(), snapshot.spawned));
        with_capacity(line, *capacity)
    }

    fn renewed<E: Refused>(&mut self, held: usize, renewed: &Result<RenewResult, E>) -> Line {
        if let Ok(answer) = renewed {
            self.leases[held].lease = self.leases[held].lease.extended_to(answer.new_deadline);
        }
        line_of(renewed, |answer| {
            let line = Line::new("renewed")
                .fact("until", answer.new_deadline)
                .optional("stop", answer.orders.cancelled)
                .fact("asks", orders(answer.orders.standing));
            with_capacity(line, answer.capacity)
        })
    }

    /// A record in words.
    pub(crate) fn shown(&self, record: &ShardRecord) -> Answer {
        let (tenant, head) = (record.tenant, &record.state.head);
        let spawned: Vec<ShardId> = record.spawned.iter().map(|child| child.id).collect();
        let line = Line::new(head.status)
            .fact("fence", head.fence)
            .optional("holder", head.lease.map(|holder| worker(holder.owner)))
            .optional("until", head.lease.map(|holder| holder.deadline))
            .fact("range", RangeText::of(record.spec.view()))
            .fact("cursor", CursorText::of(record.cursor.as_update()))
            .fact("semantics", semantics(record.state.cursor_semantics))
            .optional("parent", record.state.parent.map(|id| self.name(tenant, ShardKey::new(record.key.run, id))))
            .list("spawned", self.names(tenant, record.key.run, &spawned))
            .fact("stalled", head.stalled_acquisitions)
            .optional("parked", head.park.map(|park| reason_text(park.reason)))
            .optional("retry after", head.park.and_then(|park| park.retry_after))
            .optional("detail", record.park_detail.as_ref().map(|detail| format!("{detail:?}")))
            .fact("asks", orders(head.orders))
            .fact("freed", head.freed)
            .fact("remembers", record.state.op_log.len());
        let rows = record.state.history.iter().map(|owner| {
            Line::new(worker(owner.worker))
                .fact("fence", owner.fence)
                .fact("since", owner.since)
                .fact("because", owner.reason)
        });
        Answer { line, rows: rows.collect(), events: Vec::new() }
    }

    /// All pages of a listing. How full a page is, is the backend's choice; what all of them show together is not.
    fn list_shards(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        limit: usize,
    ) -> Answer {
        let (mut shown, mut page, mut next) = (Vec::new(), Vec::new(), Some(ShardPage::first(limit)));
        while let Some(at) = next {
            next = match self.backend.list_shards_into(now, tenant, run, filter, at, &mut page) {
                Ok(next) => next,
                Err(error) => return error.line().into(),
            };
            if page.len() > at.effective_limit() {
                return Line::new(format_args!("a page of {} shows {}", at.effective_limit(), page.len())).into();
            }
            if next.is_some_and(|next| next.after <= at.after) {
                return Line::new("the next page begins where this one did").into();
            }
            shown.append(&mut page);
        }
        if !shown.is_sorted_by_key(|summary: &ShardSummary| summary.shard) {
            return Line::new("shards are not listed in the order of their ids").into();
        }
        let mut rows: Vec<_> = shown.iter().map(|summary| (self.name_of(tenant, run, summary), summary)).collect();
        // Ids of split shards are hashes: sorted by name they read better.
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let rows = rows.into_iter().map(|(name, summary)| {
            Line::new(name)
                .fact("status", summary.status)
                .fact("fence", summary.fence)
                .fact("changes", summary.acquire_count())
                .optional("holder", summary.lease.map(|holder| worker(holder.owner)))
                .optional("until", summary.lease_deadline())
                .optional("parked", summary.park.map(|park| reason_text(park.reason)))
                .optional("retry after", summary.park.and_then(|park| park.retry_after))
                .fact("asks", orders(summary.orders))
                .fact("stalled", summary.stalled_acquisitions)
                .optional("start", summary.start.expose().map(key_text))
                .optional("end", summary.end.expose().map(key_text))
                .optional("cursor", summary.last_key.expose().map(key_text))
                .optional("parent", summary.parent.map(|id| self.name(tenant, ShardKey::new(run, id))))
                .fact("spawned", summary.spawned_count)
        });
        let rows: Vec<_> = rows.collect();
        Answer { line: Line::new(format_args!("{} shards", rows.len())), rows, events: Vec::new() }
    }

    fn name_of(&self, tenant: TenantId, run: RunId, summary: &ShardSummary) -> String {
        self.name(tenant, ShardKey::new(run, summary.shard))
    }

    fn names(&self, tenant: TenantId, run: RunId, shards: &[ShardId]) -> Vec<String> {
        shards.iter().map(|shard| self.name(tenant, ShardKey::new(run, *shard))).collect()
    }

    fn event_line(&self, now: LogicalTime, tenant: TenantId, event: &StateTransitionEvent) -> Line {
        let name = |shard: &ShardId| self.name(event.tenant, ShardKey::new(event.run, *shard));
        let line = match &event.kind {
            EventKind::ShardAcquired { shard, worker: owner, fence_epoch, reason } => Line::new("shard acquired")
                .fact("shard", name(shard))
                .fact("by", worker(*owner))
                .fact("fence", fence_epoch)
                .fact("because", reason),
            EventKind::ShardCheckpointed { shard, last_key } => Line::new("shard checkpointed")
                .fact("shard", name(shard))
                .optional("at", last_key.expose().map(key_text)),
            EventKind::ShardResidualCreated { parent, residual } => {
                Line::new("residual created").fact("parent", name(parent)).fact("residual", name(residual))
            }
            EventKind::ShardUnparked { shard, new_fence_epoch } => {
                Line::new("shard unparked").fact("shard", name(shard)).fact("fence", new_fence_epoch)
            }
            EventKind::ShardLeaseRenewed { shard, new_deadline } => {
                Line::new("lease renewed").fact("shard", name(shard)).fact("until", new_deadline)
            }
            EventKind::ShardReleased { shard, reason } => {
                Line::new("shard released").fact("shard", name(shard)).fact("because", reason)
            }
            EventKind::ShardOrdered { shard, order } => {
                let line = Line::new("holder asked").fact("shard", name(shard));
                match order {
                    OrderRequest::Yield => line.fact("to", "yield"),
                    OrderRequest::Split(kept) => line.fact("to keep", percent_text(*kept)),
                }
            }
            EventKind::ShardCompleted { shard } => Line::new("shard completed").fact("shard", name(shard)),
            EventKind::ShardParked { shard, reason } => {
                Line::new("shard parked").fact("shard", name(shard)).fact("because", reason_text(*reason))
            }
            EventKind::ShardSplit { parent, children } => {
                Line::new("shard split").fact("parent", name(parent)).list("children", children.iter().map(name))
            }
            EventKind::RunCreated => Line::new("run created"),
            EventKind::RunActivated { shard_count } => Line::new("run activated").fact("shards", shard_count),
            EventKind::RunCompleted => Line::new("run completed"),
            EventKind::RunFailed => Line::new("run failed"),
            EventKind::RunCancelled => Line::new("run cancelled"),
            EventKind::RunRetired { shard_count } => Line::new("run retired").fact("shards", shard_count),
            other => Line::new(format_args!("{other:?}")),
        };
        let line = line.fact("run", event.run.get());
        let line = if event.tenant == tenant { line } else { line.fact("of another tenant", event.tenant) };
        if event.at == now { line } else { line.fact("at another time", event.at) }
    }

    /// The lease a command presents.
    fn held(&self, tenant: TenantId, holder: &Holder, shard: &ShardName) -> Result<usize, String> {
        let owner = holder.tenant.as_deref().map_or(tenant, tenant_called);
        let key = self.resolve(owner, shard)?;
        let found = self.leases.iter().rposition(|held| {
            let lease = &held.lease;
            lease.tenant() == owner
                && lease.key() == key
                && lease.owner().get() == holder.worker
                && holder.fence.is_none_or(|fence| lease.fence().get() == fence)
        });
        found.ok_or_else(|| format!("{holder} was never granted shard {shard} in this story; let it acquire it first"))
    }

    fn replace_plan(&self, held: usize, plan: &ReplaceText) -> Result<SplitReplacePlan, String> {
        match plan {
            ReplaceText::Evenly(count) => {
                plan_split_replace_evenly(self.leases[held].spec.view(), *count).map_err(|error| error.to_string())
            }
            ReplaceText::With(children) => {
                let specs = children.iter().map(spec).collect::<Result<_, _>>()?;
                SplitReplacePlan::new(specs).map_err(|error| error.to_string())
            }
        }
    }

    fn residual_plan(&self, held: usize, plan: &ResidualText) -> Result<SplitResidualPlan, String> {
        match plan {
            ResidualText::Parts { kept, residual } => Ok(SplitResidualPlan::new(spec(kept)?, spec(residual)?)),
            ResidualText::KeepPercent(kept) => {
                let Held { spec, last_key, .. } = &self.leases[held];
                plan_split_residual_at_fraction(spec.view(), last_key.as_deref(), percent(*kept))
                    .map_err(|error| error.to_string())
            }
        }
    }

    fn registered(&mut self, tenant: TenantId, run: RunId, roots: &[InitialShardInput<'_>], executed: bool) {
        if executed {
            let named = roots.iter().map(|root| ((tenant, run, root.shard), ShardName::root(run.get(), root.shard)));
            self.names.extend(named);
        }
    }

    /// Gives names to the shards a split must have made.
    fn christen(&mut self, tenant: TenantId, parent: ShardKey, op: OpId, kind: DerivedShardKind, count: usize) {
        let Some(parent_name) = self.names.get(&(tenant, parent.run, parent.shard)).cloned() else { return };
        let before = self.spawned.entry((tenant, parent)).or_default();
        for index in *before..*before + count {
            let id = derive_split_shard_id(parent.run, parent.shard, op, kind, index as u32);
            self.names.insert((tenant, parent.run, id), parent_name.spawned(index));
        }
        *before += count;
    }
}

fn unbuildable(problem: impl Display) -> Answer {
    Line::new("unbuildable").fact("because", problem).into()
}

fn spec(range: &RangeText) -> Result<ShardSpec, String> {
    ShardSpec::new(&range.start, &range.end, &range.metadata).map_err(|error| error.to_string())
}

fn percent(kept: u32) -> Fraction {
    Fraction::from_millionths(kept * 10_000).expect("a story's percentages lie between 1 and 99")
}

fn percent_text(kept: Fraction) -> String {
    format!("{}%", kept.millionths() / 10_000)
}

fn worker(id: WorkerId) -> String {
    format!("w{}", id.get())
}

const fn semantics(semantics: CursorSemantics) -> &'static str {
    match semantics {
        CursorSemantics::Completed => "completed",
        CursorSemantics::Dispatched => "dispatched",
    }
}

fn orders(orders: StandingOrders) -> String {
    match (orders.yield_requested, orders.split_requested) {
        (false, None) => "nothing".into(),
        (true, None) => "yield".into(),
        (false, Some(kept)) => format!("keep {}", percent_text(kept)),
        (true, Some(kept)) => format!("yield and keep {}", percent_text(kept)),
    }
}

fn with_capacity(line: Line, capacity: CapacityHint) -> Line {
    line.fact("available", capacity.available_count).optional("earliest", capacity.earliest_deadline)
}

/// The edges of numbered roots: shard `n` covers the keys that begin with `n` in eight digits.
fn numbered(roots: &Roots) -> Vec<String> {
    match roots {
        Roots::Numbered { first, last } => (*first..=last + 1).map(|number| format!("{number:08}")).collect(),
        Roots::Listed(_) => Vec::new(),
    }
}

fn inputs<'a>(roots: &'a Roots, edges: &'a [String]) -> Vec<InitialShardInput<'a>> {
    match roots {
        Roots::Numbered { first, .. } => edges
            .windows(2)
            .zip(*first..)
            .map(|(edges, shard)| InitialShardInput::new(ShardId::new(shard), edges[0].as_bytes(), edges[1].as_bytes()))
            .collect(),
        Roots::Listed(roots) => roots
            .iter()
            .map(|root| InitialShardInput {
                shard: ShardId::new(root.shard),
                start: &root.range.start,
                end: &root.range.end,
                metadata: &root.range.metadata,
                last_key: root.cursor.last_key.as_deref(),
                token: root.cursor.token.as_deref(),
            })
            .collect(),
    }
}

/// The cursor of a record, borrowed: what watchers compare.
pub(crate) fn last_key(record: &ShardRecord) -> Option<&[u8]> {
    CursorUpdate::last_key(record.cursor.as_update())
}
