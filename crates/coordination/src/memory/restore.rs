//! Filling a coordinator from records that were stored elsewhere, and what is to be stored of them.
//!
//! A backend that keeps its records in a file works on them here and writes down what changed; after a restart it hands the
//! records back. Nothing is decided: a record is taken as it is, or refused if it could not have come from here.

use tessera_contracts::ids::{RunId, ShardKey, TenantId};

use super::pooled_record::PooledRecord;
use super::{InMemoryCoordinator, Standing, standing};
use crate::error::{GetShardError, InfraError};
use crate::record::shard_record::ShardRecord;
use crate::run::record::RunRecord;
use crate::stored::{HotView, check_same_incarnation};

impl InMemoryCoordinator {
    /// Takes in a run as it was. Its shards follow by [`restore_shard`](Self::restore_shard).
    pub fn restore_run(&mut self, record: RunRecord) -> Result<(), InfraError> {
        let (tenant, run) = (record.tenant, record.run);
        if self.locate_run(tenant, run).is_ok() {
            return Err(corrupt_run(run, "is there twice"));
        }
        if let Err(violation) = record.check_invariants() {
            return Err(corrupt_run(run, violation));
        }
        self.insert_run(record);
        Ok(())
    }

    /// The often-written part of a shard's record, where it lies: a backend that stores many at a time need not copy them.
    pub fn hot_part(&mut self, tenant: TenantId, key: ShardKey) -> Result<HotView<'_>, GetShardError> {
        let slot = self.locate(tenant, key)?;
        let record = self.arena.get(slot);
        Ok(record.hot(self.run(record.run).record.incarnation, &self.slab))
    }

    /// Takes in a shard as it was. Its run must be there.
    pub fn restore_shard(&mut self, record: &ShardRecord) -> Result<(), InfraError> {
        let (tenant, key) = (record.tenant, record.key);
        let Ok(run_slot) = self.locate_run(tenant, key.run) else {
            return Err(corrupt_shard(key, "belongs to no run"));
        };
        if self.locate(tenant, key).is_ok() {
            return Err(corrupt_shard(key, "is there twice"));
        }
        let of_run = self.run(run_slot).record.incarnation;
        if let Err(mismatch) = check_same_incarnation(of_run, record.incarnation) {
            return Err(corrupt_shard(key, mismatch));
        }
        if let Err(violation) = record.check_invariants() {
            return Err(corrupt_shard(key, violation));
        }
        let pooled = PooledRecord::restored(record, run_slot, &mut self.slab)
            .map_err(|full| InfraError::transient("restore.shard", alloc::format!("shard {key}: {full}")))?;
        let head = pooled.state.head;
        let slot = self.arena.insert(pooled);
        let held = self.tenants.get_mut(tenant).expect("a tenant that has a run is there");
        held.shards.insert(key, slot);
        let run = self.runs[run_slot as usize].as_mut().expect("a run slot in use holds a run");
        run.shards.insert(key.shard, slot);
        *run.counts.of_mut(head.status) += 1;
        run.index.reserve(1);
        match standing(&head) {
            Standing::Free => run.index.add_free(slot, &mut self.arena.places),
            Standing::Leased(deadline) => run.index.add_leased(slot, deadline, &mut self.arena.places),
            Standing::Settled => {}
        }
        self.total_shard_count += 1;
        Ok(())
    }
}

fn corrupt_run(run: RunId, why: impl core::fmt::Display) -> InfraError {
    InfraError::corruption("restore.run", alloc::format!("run {run}: {why}"))
}

fn corrupt_shard(key: ShardKey, why: impl core::fmt::Display) -> InfraError {
    InfraError::corruption("restore.shard", alloc::format!("shard {key}: {why}"))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
    use tessera_contracts::manifest::InitialShardInput;
    use tessera_contracts::split::plan_split_residual;
    use tessera_contracts::{CursorUpdate, ShardSpecRef};

    use super::*;
    use crate::backend::{CoordinationBackend, RunManagement, ShardClaiming};
    use crate::record::park::Park;
    use crate::record::snapshot::AcquireScratch;
    use crate::record::status::ParkReason;
    use crate::run::config::RunConfig;
    use crate::run::summary::{ShardFilter, ShardPage};

    const TENANT: TenantId = TenantId::from_bytes([5; 32]);
    const RUN: RunId = RunId::new(1);
    const INCARNATION: RunIncarnation = RunIncarnation::new(1);

    fn at(time: u64) -> LogicalTime {
        LogicalTime::new(time)
    }

    /// A run with a leased, a free, a residual and a parked shard.
    fn busy() -> InMemoryCoordinator {
        let mut memory = InMemoryCoordinator::default();
        let config = RunConfig { lease_duration: Some(10), ..RunConfig::default() };
        let shards = [(1, "a", "g"), (2, "g", "m"), (3, "m", "z")].map(|(id, start, end)| InitialShardInput {
            metadata: b"meta",
            ..InitialShardInput::new(ShardId::new(id), start.as_bytes(), end.as_bytes())
        });
        memory.create_run_with_shards(at(1), TENANT, RUN, INCARNATION, config, &shards, OpId::new(1)).unwrap();
        let mut scratch = AcquireScratch::default();
        let mut acquire = |memory: &mut InMemoryCoordinator, shard: u64, worker: u64| {
            let key = ShardKey::new(RUN, ShardId::new(shard));
            let granted = memory.acquire_and_restore_into(at(2), TENANT, key, WorkerId::new(worker), &mut scratch);
            granted.unwrap().lease
        };
        let first = acquire(&mut memory, 1, 7);
        let third = acquire(&mut memory, 3, 8);
        let cursor = CursorUpdate::new(Some(b"b"), Some(b"page 2")).unwrap();
        memory.checkpoint(at(3), TENANT, &first, cursor, OpId::new(2)).unwrap();
        let plan = plan_split_residual(ShardSpecRef::new(b"a", b"g", b"meta").unwrap(), Some(b"b"), b"d").unwrap();
        memory.split_residual(at(4), TENANT, &first, &plan, OpId::new(3)).unwrap();
        let why = Park::because(ParkReason::PermissionDenied).with_detail("403");
        memory.park_shard(at(4), TENANT, &third, why, OpId::new(4)).unwrap();
        memory
    }

    fn records(memory: &mut InMemoryCoordinator) -> Vec<ShardRecord> {
        let mut found = Vec::new();
        memory.list_shards_into(at(5), TENANT, RUN, &ShardFilter::all(), ShardPage::first(100), &mut found).unwrap();
        let keys: Vec<ShardKey> = found.iter().map(|summary| ShardKey::new(RUN, summary.shard)).collect();
        keys.into_iter().map(|key| memory.get_shard(TENANT, key).unwrap()).collect()
    }

    #[test]
    fn a_restored_coordinator_answers_as_the_first_one() {
        let mut first = busy();
        let mut second = InMemoryCoordinator::default();
        second.restore_run(first.get_run(TENANT, RUN).unwrap()).unwrap();
        for record in records(&mut first) {
            second.restore_shard(&record).unwrap();
        }
        assert_eq!(records(&mut second), records(&mut first));
        assert_eq!(second.total_shard_count(), 4);
        assert_eq!(second.get_run_progress(at(5), TENANT, RUN), first.get_run_progress(at(5), TENANT, RUN));
        // What is free, what is leased and until when: the claim index was rebuilt, not only the records.
        for now in [5, 5, 12, 12] {
            let mut scratches = (AcquireScratch::default(), AcquireScratch::default());
            let worker = WorkerId::new(9);
            let claimed = first.claim_next_available(at(now), TENANT, RUN, worker, &mut scratches.0);
            let again = second.claim_next_available(at(now), TENANT, RUN, worker, &mut scratches.1);
            assert_eq!(claimed.is_ok(), again.is_ok());
            assert_eq!(
                claimed.map_err(|error| error.to_string()).err(),
                again.map_err(|error| error.to_string()).err()
            );
        }
        assert_eq!(second.get_run_progress(at(13), TENANT, RUN), first.get_run_progress(at(13), TENANT, RUN));
    }

    #[test]
    fn a_shard_that_finds_no_room_gives_back_what_it_had_begun_to_take() {
        let mut first = busy();
        let mut record = records(&mut first).remove(0);
        record.spec = tessera_contracts::ShardSpec::new(b"a", b"d", &[7; 300]).unwrap();
        let config = crate::memory::CoordinatorRuntimeConfig { slab_capacity: 512, ..*first.config() };
        let mut second = InMemoryCoordinator::new(config).unwrap();
        second.restore_run(first.get_run(TENANT, RUN).unwrap()).unwrap();
        let detailed = ShardRecord { park_detail: Some("long ".repeat(20)), ..record.clone() };
        assert!(second.restore_shard(&detailed).unwrap_err().is_transient());
        second.restore_shard(&record).unwrap();
    }

    #[test]
    fn records_that_cannot_have_come_from_here_are_refused_by_name() {
        let mut first = busy();
        let run = first.get_run(TENANT, RUN).unwrap();
        let record = records(&mut first).remove(0);
        let mut second = InMemoryCoordinator::default();
        assert!(second.restore_shard(&record).unwrap_err().to_string().contains("belongs to no run"));
        second.restore_run(run.clone()).unwrap();
        assert!(second.restore_run(run).unwrap_err().to_string().contains("is there twice"));
        let retired = ShardRecord { incarnation: RunIncarnation::new(99), ..record.clone() };
        assert!(second.restore_shard(&retired).unwrap_err().to_string().contains("is of incarnation"));
        second.restore_shard(&record).unwrap();
        assert!(second.restore_shard(&record).unwrap_err().to_string().contains("is there twice"));
        let mut broken = record;
        broken.key = ShardKey::new(RUN, ShardId::new(77));
        broken.state.parent = Some(ShardId::new(1));
        assert!(second.restore_shard(&broken).unwrap_err().to_string().contains("invariant 7"));
    }
}
