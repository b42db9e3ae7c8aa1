//! Runs, and what operators ask, in memory.

use alloc::vec::Vec;
use core::ops::Bound;

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::{InitialShardInput, validate_manifest};
use tessera_contracts::redact::RedactedKey;

use super::pooled_record::{PooledRecord, RunSlot};
use super::{Askers, ClaimIndex, InMemoryCoordinator, Run, Tenant};
use crate::backend::RunManagement;
use crate::decide::acquire::{is_claimable, is_claimable_by};
use crate::decide::claim::cooldown_until;
use crate::decide::order::{Order, OrderRequest};
use crate::decide::settle_run::{self, Settlement};
use crate::decide::unpark::Unpark;
use crate::decide::{Verdict, create_run, register_shards};
use crate::error::{
    CreateRunError, GetRunError, GetShardError, IdempotentOutcome, OrderError, RegisterShardsError, RunTransitionError,
    UnparkError,
};
use crate::events::{EventKind, EventScope, EventSink};
use crate::operation::Address;
use crate::record::shard_record::ShardRecord;
use crate::record::status::ShardStatus;
use crate::run::config::RunConfig;
use crate::run::explain::ClaimExplanation;
use crate::run::progress::{RunProgress, ShardCounts};
use crate::run::record::RunRecord;
use crate::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};

impl InMemoryCoordinator {
    /// Takes in shards that were just made: names them, counts them, lets them be claimed.
    pub(super) fn adopt(&mut self, tenant: TenantId, run_slot: RunSlot, records: Vec<PooledRecord>) {
        let run = self.runs[run_slot as usize].as_mut().expect("a run slot in use holds a run");
        let tenant = self.tenants.get_mut(tenant).expect("a tenant that has a run is there");
        tenant.shards.reserve(records.len());
        run.index.reserve(records.len());
        for record in records {
            let key = record.key;
            let slot = self.arena.insert(record);
            tenant.shards.insert(key, slot);
            run.shards.insert(key.shard, slot);
            run.counts.active += 1;
            run.index.add_free(slot, &mut self.arena.places);
            self.total_shard_count += 1;
        }
    }

    /// Takes in a run that has no shards yet.
    pub(super) fn insert_run(&mut self, record: RunRecord) {
        let (tenant, run) = (record.tenant, record.run);
        let made = Run {
            record,
            shards: Default::default(),
            counts: ShardCounts::default(),
            index: ClaimIndex::default(),
            askers: Askers::default(),
        };
        let slot = self.vacant_runs.pop().unwrap_or_else(|| {
            self.runs.push(None);
            (self.runs.len() - 1) as RunSlot
        });
        self.runs[slot as usize] = Some(made);
        let seed = self.config.hash_seed;
        self.tenants.get_or_insert(tenant, || Tenant::new(seed)).runs.insert(run, slot);
    }

    fn forget_run(&mut self, tenant: TenantId, run: RunId) -> u32 {
        let Ok(slot) = self.locate_run(tenant, run) else { return 0 };
        let Some(mut gone) = self.runs[slot as usize].take() else { return 0 };
        self.vacant_runs.push(slot);
        let Some(held) = self.tenants.get_mut(tenant) else { return 0 };
        held.runs.remove(&run);
        for (&shard, &slot) in &gone.shards {
            gone.index.remove(slot, &mut self.arena.places);
            held.shards.remove(&ShardKey::new(run, shard));
            self.arena.remove(slot).release(&mut self.slab);
            self.total_shard_count -= 1;
        }
        if held.runs.is_empty() {
            self.tenants.remove(tenant);
        }
        gone.shards.len() as u32
    }

    fn run_count(&self) -> usize {
        self.runs.len() - self.vacant_runs.len()
    }
}

impl RunManagement for InMemoryCoordinator {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        let exists = self.locate_run(tenant, run).is_ok();
        let record = create_run::decide(exists, tenant, run, incarnation, config, now)?;
        if self.run_count() >= self.config.max_total_runs {
            return Err(CreateRunError::TooManyRuns { held: self.run_count() });
        }
        self.insert_run(record);
        EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunCreated));
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
        let slot = self.locate_run(tenant, run)?;
        let manifest = validate_manifest(shards)?;
        let registration =
            match register_shards::decide(&self.run(slot).record, &manifest, op_id, &self.census(tenant), now)? {
                Verdict::Replay(outcome) => return Ok(outcome),
                Verdict::Execute(registration) => registration,
            };
        let mut records = Vec::with_capacity(registration.births.len());
        for birth in &registration.births {
            match PooledRecord::newborn(tenant, slot, birth, &mut self.slab) {
                Ok(record) => records.push(record),
                Err(full) => {
                    records.into_iter().for_each(|record| record.release(&mut self.slab));
                    return Err(full.into());
                }
            }
        }
        let shard_count = records.len() as u32;
        let roots = registration.births.iter().map(|birth| birth.key.shard);
        self.run_mut(slot).record.apply(&registration.change, roots);
        self.adopt(tenant, slot, records);
        EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunActivated { shard_count }));
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
        let slot = self.locate_run(tenant, run)?;
        let Run { record, counts, .. } = self.run_mut(slot);
        match settle_run::decide(record, settlement, counts, op_id, now)? {
            Verdict::Replay(outcome) => Ok(outcome),
            Verdict::Execute(change) => {
                record.apply(&change, []);
                EventScope { tenant, run, at: now }.emit(events, || Some(settlement.event()));
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
        self.call(now, &Unpark { at: Address { tenant, key }, expected, op_id }, events)
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
        let asked = Order { at: Address { tenant, key }, epoch, request: order };
        self.call(now, &asked, events).map(IdempotentOutcome::into_inner)
    }

    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        let Some(held) = self.tenants.get(tenant) else { return Ok(0) };
        let is_due = |run: &RunRecord| run.completed_at.is_some_and(|settled| settled <= settled_until);
        let due = held.runs.iter().filter(|(_, slot)| is_due(&self.run(**slot).record)).map(|(run, _)| *run);
        let due: Vec<RunId> = due.take(limit).collect();
        for &run in &due {
            let shard_count = self.forget_run(tenant, run);
            EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunRetired { shard_count }));
        }
        Ok(due.len())
    }

    fn retire_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        events: &mut dyn EventSink,
    ) -> Result<bool, GetRunError> {
        let Ok(slot) = self.locate_run(tenant, run) else { return Ok(false) };
        let record = &self.run(slot).record;
        if record.incarnation != incarnation || record.completed_at.is_none() {
            return Ok(false);
        }
        let shard_count = self.forget_run(tenant, run);
        EventScope { tenant, run, at: now }.emit(events, || Some(EventKind::RunRetired { shard_count }));
        Ok(true)
    }

    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        let slot = self.locate_run(tenant, run)?;
        Ok(self.run(slot).record.clone())
    }

    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError> {
        let slot = self.locate_run(tenant, run)?;
        let (mut leased, mut watermark) = (0, None);
        for &shard in self.run(slot).shards.values() {
            let view = self.view(shard);
            if view.state.head.status != ShardStatus::Active {
                continue;
            }
            leased += u32::from(view.state.head.lease_live_at(now).is_some());
            watermark = match (watermark, view.cursor.last_key()) {
                (Some(least), Some(key)) => Some(key.min(least)),
                (least, key) => least.or(key),
            };
        }
        Ok(RunProgress { counts: self.run(slot).counts, leased, watermark: RedactedKey::new(watermark) })
    }

    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        runs.clear();
        let Some(held) = self.tenants.get(tenant) else { return Ok(()) };
        let above = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        runs.extend(held.runs.range(above).take(limit).map(|(_, slot)| RunSummary::of(&self.run(*slot).record)));
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
        let slot = self.locate_run(tenant, run)?;
        let above = (page.after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        for (&shard, &slot) in self.run(slot).shards.range(above) {
            let view = self.view(slot);
            if !filter.admits(&view, is_claimable(&view, now, self.config.clock_skew_allowance)) {
                continue;
            }
            shards.push(ShardSummary::of(&view));
            if shards.len() >= page.effective_limit() {
                return Ok(Some(ShardPage { after: Some(shard), ..page }));
            }
        }
        Ok(None)
    }

    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        let slot = self.locate(tenant, key)?;
        let record = self.arena.get(slot);
        Ok(record.to_owned(self.run(record.run).record.incarnation, &self.slab))
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
        let slot = self.locate_run(tenant, run)?;
        // Sorts expired leases in, and answers nothing for a run that gives out no work.
        if self.capacity(slot, now).available_count > 0 {
            let skew = self.config.clock_skew_allowance;
            let open = self.run(slot).index.candidates(&self.arena.places);
            let found = open.filter(|slot| is_claimable_by(&self.view(*slot), worker, now, skew)).take(limit);
            candidates.extend(found.map(|slot| self.arena.get(slot).key.shard));
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
        let slot = self.locate_run(tenant, run)?;
        let mut explanation = ClaimExplanation::new(self.run(slot).record.status, worker);
        for &shard in self.run(slot).shards.values() {
            explanation.add(&self.view(shard), now, self.config.clock_skew_allowance);
        }
        let last = self.tenants.get(tenant).and_then(|tenant| tenant.last_claims.get(&worker)).copied();
        explanation.cooldown_until = cooldown_until(last, self.config.claim_cooldown_interval, now);
        Ok(explanation)
    }
}
