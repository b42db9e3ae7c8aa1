//! A worker's commands about one shard, and the leases they are given with.

use std::fmt::Display;

use tessera_contracts::split::{
    DerivedShardKind, SplitReplacePlan, SplitResidualPlan, derive_split_shard_id, plan_split_replace_evenly,
    plan_split_residual_at_fraction,
};
use tessera_contracts::{LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, TenantId, WorkerId};
use tessera_coordination::backend::HeldShard;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::events::EventCollector;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::snapshot::{AcquireResultView, CapacityHint};
use tessera_coordination::{CoordinationFacade, IdempotentOutcome, Lease};

use crate::answer::{Refused, line_of, outcome};
use crate::command::{Command, Holder, ReplaceText, ResidualText};
use crate::line::{Answer, Line};
use crate::text::{CursorText, RangeText, ShardName};

use super::words::{orders, percent, semantics, with_capacity, worker};
use super::{Held, World, tenant_called};

impl<B: CoordinationFacade> World<B> {
    pub(super) fn play_shard_command(
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
                let done = self.backend.release_with_events(now, tenant, &lease, cursor, reason.build(), op, events);
                line_of(&done, outcome).into()
            }
            Command::Drain { holder, held, .. } => {
                let mut parts = Vec::new();
                for (index, (shard, cursor)) in held.iter().enumerate() {
                    let held = self.held(tenant, holder, shard)?;
                    let lease = self.leases[held].lease;
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

    fn granted(&mut self, tenant: TenantId, granted: &AcquireResultView<'_>) -> Line {
        let AcquireResultView { lease, snapshot, capacity } = granted;
        self.leases.push(Held {
            lease: *lease,
            spec: snapshot.spec.to_owned(),
            last_key: snapshot.cursor.last_key().map(Into::into),
        });
        let line = Line::new("granted")
            .fact("shard", self.name(tenant, lease.key()))
            .fact("incarnation", lease.incarnation().get())
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

    /// The lease a command presents.
    fn held(&mut self, tenant: TenantId, holder: &Holder, shard: &ShardName) -> Result<usize, String> {
        let owner = holder.tenant.as_deref().map_or(tenant, tenant_called);
        let key = self.resolve(owner, shard)?;
        let found = self.leases.iter().rposition(|held| {
            let lease = &held.lease;
            lease.tenant() == owner
                && lease.key() == key
                && lease.owner().get() == holder.worker
                && holder.epoch.is_none_or(|epoch| epoch.names(lease.epoch()))
        });
        let found = found.ok_or_else(|| {
            format!("{holder} was never granted shard {shard} in this story; let it acquire it first")
        })?;
        self.presented.push(self.leases[found].lease);
        Ok(found)
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

fn spec(range: &RangeText) -> Result<ShardSpec, String> {
    ShardSpec::new(&range.start, &range.end, &range.metadata).map_err(|error| error.to_string())
}

fn unbuildable(problem: impl Display) -> Answer {
    Line::new("unbuildable").fact("because", problem).into()
}
