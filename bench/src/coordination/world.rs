//! Ours: a coordinator full of shards.
//!
//! Every operation takes a random shard and reads its lease from a table, as its caller would.

use std::hint::black_box;

use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, PayloadHash, RunId, RunIncarnation, ShardId, ShardKey, ShardSpecRef, TenantId,
    WorkerId,
};
use tessera_coordination::decide::Birth;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, InMemoryCoordinator, Lease, ShardClaiming,
};

use super::{Random, place};

/// Which shards are leased to begin with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    All,
    None,
}

const WORKER: WorkerId = WorkerId::new(7);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);

/// So long that nothing expires while we measure.
const LEASE_DURATION: u64 = 1 << 40;

/// A coordinator full of shards, and workers that hold all or none of them.
pub(super) struct World {
    coordinator: InMemoryCoordinator,
    tenant: TenantId,
    shards: Vec<ShardKey>,
    /// By shard, in the same order.
    leases: Vec<Lease>,
    scratch: AcquireScratch,
    random: Random,
    key_len: usize,
    /// Shards in a random order, and how many of them were completed.
    order: Vec<usize>,
    completed: usize,
    /// Counts operations: the time, the next op id, and the place in the shard that a cursor names. All only grow.
    step: u64,
}

impl World {
    /// `shards` in runs of `per_run` each, with keys of `key_len` bytes.
    pub(super) fn new(shards: u64, per_run: u64, key_len: usize, held: Held) -> Self {
        let config = CoordinatorRuntimeConfig {
            slab_capacity: 512 * shards as usize,
            ..CoordinatorRuntimeConfig::for_shards(shards as usize)
        };
        let mut coordinator = InMemoryCoordinator::new(config).expect("the configuration is valid");
        let tenant = TenantId::from_name("bench");
        let run_config =
            RunConfig { lease_duration: Some(LEASE_DURATION), max_shard_retries: 0, ..RunConfig::default() };
        let mut keys = Vec::new();
        for index in 0..shards {
            let key = ShardKey::new(RunId::new(1 + index / per_run), ShardId::new(1 + index % per_run));
            if index % per_run == 0 {
                let run = RunRecord::newborn(tenant, key.run, INCARNATION, run_config, LogicalTime::new(1));
                let active = RunRecord { status: RunStatus::Active, root_shards: vec![key.shard], ..run };
                coordinator.restore_run(active).expect("a new run may be restored");
            }
            let (start, end) = (place(index, 0), place(index + 1, 0));
            let record = ShardRecord::newborn(
                tenant,
                &Birth {
                    key,
                    incarnation: INCARNATION,
                    spec: ShardSpecRef::new(&start[..key_len], &end[..key_len], b"").expect("places are in order"),
                    cursor: CursorUpdate::initial(),
                    cursor_semantics: run_config.cursor_semantics,
                    parent: None,
                    payload_hash: PayloadHash::of("bench", &index),
                },
            );
            coordinator.restore_shard(&record).expect("there is room for every shard");
            keys.push(key);
        }
        let mut world = Self {
            coordinator,
            tenant,
            shards: keys,
            leases: Vec::new(),
            scratch: AcquireScratch::new(),
            random: Random(1),
            key_len,
            order: (0..shards as usize).collect(),
            completed: 0,
            step: 1,
        };
        let leases: Vec<Lease> = (0..shards as usize).map(|index| world.acquire(index)).collect();
        world.leases = leases;
        world.remember_sixteen_each();
        world.shuffle();
        if held == Held::None {
            world.release_all_in_random_order();
        }
        world
    }

    pub(super) fn checkpoint(&mut self) {
        let index = self.random.below(self.shards.len());
        self.checkpoint_of(index);
    }

    pub(super) fn renew(&mut self) {
        let index = self.random.below(self.shards.len());
        self.step += 1;
        let renewed = self.coordinator.renew(LogicalTime::new(self.step), self.tenant, &self.leases[index]);
        black_box(renewed).expect("the lease is live");
    }

    pub(super) fn cycle(&mut self) {
        let index = self.random.below(self.shards.len());
        let lease = self.acquire(index);
        self.release(index, &lease);
    }

    /// The queue of free shards was shuffled, so the next one is a random one too.
    pub(super) fn claim(&mut self) {
        self.step += 1;
        let run = self.shards[self.random.below(self.shards.len())].run;
        let now = LogicalTime::new(self.step);
        let claimed = self.coordinator.claim_next_available(now, self.tenant, run, WORKER, &mut self.scratch);
        let lease = claimed.expect("a shard is free").lease;
        let per_run = self.shards.len() as u64 / self.shards[self.shards.len() - 1].run.get();
        self.release(((lease.run().get() - 1) * per_run + lease.shard().get() - 1) as usize, &lease);
    }

    /// Acquires a shard that was not completed, and completes it.
    pub(super) fn complete(&mut self) {
        let index = self.order[self.completed];
        self.completed += 1;
        let lease = self.acquire(index);
        self.step += 1;
        let key = place(index as u64, self.step);
        let cursor = CursorUpdate::at_key(&key[..self.key_len]).expect("the key is short");
        let (now, op_id) = (LogicalTime::new(self.step), OpId::new(self.step));
        let done = self.coordinator.complete(now, self.tenant, &lease, cursor, op_id);
        black_box(done).expect("the lease is live and the cursor advances");
    }

    /// How many shards are not completed.
    pub(super) fn left(&self) -> u64 {
        (self.order.len() - self.completed) as u64
    }

    fn checkpoint_of(&mut self, index: usize) {
        self.step += 1;
        let key = place(index as u64, self.step);
        let cursor = CursorUpdate::at_key(&key[..self.key_len]).expect("the key is short");
        let (now, op_id) = (LogicalTime::new(self.step), OpId::new(self.step));
        let done = self.coordinator.checkpoint(now, self.tenant, &self.leases[index], cursor, op_id);
        black_box(done).expect("the lease is live and the cursor advances");
    }

    fn acquire(&mut self, index: usize) -> Lease {
        self.step += 1;
        let (now, key) = (LogicalTime::new(self.step), self.shards[index]);
        let acquired = self.coordinator.acquire_and_restore_into(now, self.tenant, key, WORKER, &mut self.scratch);
        black_box(acquired).expect("the shard is free").lease
    }

    fn release(&mut self, index: usize, lease: &Lease) {
        self.step += 1;
        let key = place(index as u64, self.step);
        let cursor = Some(CursorUpdate::at_key(&key[..self.key_len]).expect("the key is short"));
        let (now, op_id) = (LogicalTime::new(self.step), OpId::new(self.step));
        let done = self.coordinator.release(now, self.tenant, lease, cursor, ReleaseReason::Released, op_id);
        black_box(done).expect("the lease is live and the cursor advances");
    }

    fn remember_sixteen_each(&mut self) {
        for index in 0..self.shards.len() {
            (0..16).for_each(|_| self.checkpoint_of(index));
        }
    }

    fn shuffle(&mut self) {
        for left in (1..self.order.len()).rev() {
            let other = self.random.below(left + 1);
            self.order.swap(left, other);
        }
    }

    fn release_all_in_random_order(&mut self) {
        for place in 0..self.order.len() {
            let index = self.order[place];
            let lease = self.leases[index];
            self.release(index, &lease);
        }
    }
}
