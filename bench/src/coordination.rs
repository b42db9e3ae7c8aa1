//! The in-memory coordinator beside the least that any coordinator must do.
//!
//! The *floor* is what remains of an operation when every rule is left out: find the shard through tenant and id, hash the
//! payload, look through sixteen remembered operations, copy the cursor. It stands on the same hash maps, hashes the same
//! bytes with the same function, and its records are as large as ours and lie as far apart. Both sides take a random shard
//! each time and read its lease from an equal table, as their caller would.
//!
//! `-floor` figures count an operation against one pass of the floor; a cycle of two operations against two passes over
//! one shard. `-flat` figures have ours on both sides: one run of 100,000 shards beside a hundred runs of 1,000.

use std::hint::black_box;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, PayloadHash, RunId, ShardId, ShardKey, ShardSpecRef, TenantId, WorkerId,
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

use crate::harness::{Figure, Pair};

/// A million, but few where a test only wants to see that it runs.
const MANY: u64 = if cfg!(test) { 2_000 } else { 1_000_000 };
const SOME: u64 = if cfg!(test) { 2_000 } else { 100_000 };
const FEW: u64 = 1_000;

pub(crate) fn figures() -> Vec<Figure> {
    let floor = |name, asks, shards, operation: fn(&mut World), passes| {
        Figure::cost(name, asks, move || against_floor(shards, operation, passes))
    };
    let flat =
        |name, asks, operation: fn(&mut World)| Figure::cost(name, asks, move || large_run_against_small(operation));
    vec![
        floor(
            "coordination/checkpoint-floor-1k",
            "checkpoint among 1,000 shards, beside the floor",
            FEW,
            World::checkpoint,
            1,
        )
        .gated(3.0),
        floor("coordination/checkpoint-floor-100k", "the same among 100,000", SOME, World::checkpoint, 1),
        floor("coordination/checkpoint-floor-1m", "the same among 1,000,000", MANY, World::checkpoint, 1),
        floor(
            "coordination/renew-floor-1k",
            "renew among 1,000 shards, beside the floor of a checkpoint",
            FEW,
            World::renew,
            1,
        )
        .gated(3.0),
        floor("coordination/renew-floor-100k", "the same among 100,000", SOME, World::renew, 1),
        floor("coordination/renew-floor-1m", "the same among 1,000,000", MANY, World::renew, 1),
        floor(
            "coordination/cycle-floor-1k",
            "acquire and release among 1,000 shards, beside two floors",
            FEW,
            World::cycle,
            2,
        ),
        floor("coordination/cycle-floor-100k", "the same among 100,000", SOME, World::cycle, 2),
        floor("coordination/cycle-floor-1m", "the same among 1,000,000", MANY, World::cycle, 2),
        floor(
            "coordination/claim-floor-1k",
            "claim and release among 1,000 free shards, beside two floors",
            FEW,
            World::claim,
            2,
        ),
        floor("coordination/claim-floor-100k", "the same among 100,000", SOME, World::claim, 2),
        floor("coordination/claim-floor-1m", "the same among 1,000,000", MANY, World::claim, 2),
        flat(
            "coordination/checkpoint-flat",
            "checkpoint in one run of 100,000, beside a hundred of 1,000",
            World::checkpoint,
        ),
        flat("coordination/renew-flat", "renew in one run of 100,000, beside a hundred of 1,000", World::renew),
        flat(
            "coordination/claim-flat",
            "claim and release in one run of 100,000, beside a hundred of 1,000",
            World::claim,
        ),
    ]
}

fn against_floor(shards: u64, operation: fn(&mut World), passes: u32) -> Pair {
    let mut world = World::new(shards, shards, operation);
    let mut floor = Floor::new(shards);
    Pair::new(
        move |times| (0..times).for_each(|_| operation(&mut world)),
        move |times| (0..times).for_each(|_| floor.operation(passes)),
    )
}

fn large_run_against_small(operation: fn(&mut World)) -> Pair {
    let mut large = World::new(SOME, SOME, operation);
    let mut small = World::new(SOME, FEW, operation);
    Pair::new(
        move |times| (0..times).for_each(|_| operation(&mut large)),
        move |times| (0..times).for_each(|_| operation(&mut small)),
    )
}

const WORKER: WorkerId = WorkerId::new(7);

/// So long that nothing expires while we measure.
const LEASE_DURATION: u64 = 1 << 40;

/// A coordinator full of shards, and workers that hold all or none of them.
struct World {
    coordinator: InMemoryCoordinator,
    tenant: TenantId,
    shards: Vec<ShardKey>,
    /// By shard, in the same order.
    leases: Vec<Lease>,
    scratch: AcquireScratch,
    random: Random,
    /// Counts operations: the time, the next op id, and the place in the shard that a cursor names. All only grow.
    step: u64,
}

impl World {
    /// `shards` in runs of `per_run` each. They are leased, or free if the operation takes free ones.
    fn new(shards: u64, per_run: u64, operation: fn(&mut World)) -> Self {
        let config = CoordinatorRuntimeConfig {
            slab_capacity: 256 * shards as usize,
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
                let run = RunRecord::newborn(tenant, key.run, run_config, LogicalTime::new(1));
                let active = RunRecord { status: RunStatus::Active, root_shards: vec![key.shard], ..run };
                coordinator.restore_run(active).expect("a new run may be restored");
            }
            let (start, end) = (place(index, 0), place(index + 1, 0));
            let record = ShardRecord::newborn(
                tenant,
                &Birth {
                    key,
                    spec: ShardSpecRef::new(&start, &end, b"").expect("places are in order"),
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
            step: 1,
        };
        let leases: Vec<Lease> = (0..shards as usize).map(|index| world.acquire(index)).collect();
        world.leases = leases;
        world.remember_sixteen_each();
        let takes_free_shards = [World::cycle as fn(&mut World), World::claim].contains(&operation);
        if takes_free_shards {
            world.release_all_in_random_order();
        }
        world
    }

    fn checkpoint(&mut self) {
        let index = self.random.below(self.shards.len());
        self.checkpoint_of(index);
    }

    fn renew(&mut self) {
        let index = self.random.below(self.shards.len());
        self.step += 1;
        let renewed = self.coordinator.renew(LogicalTime::new(self.step), self.tenant, &self.leases[index]);
        black_box(renewed).expect("the lease is live");
    }

    fn cycle(&mut self) {
        let index = self.random.below(self.shards.len());
        let lease = self.acquire(index);
        self.release(index, &lease);
    }

    /// The queue of free shards was shuffled, so the next one is a random one too.
    fn claim(&mut self) {
        self.step += 1;
        let run = self.shards[self.random.below(self.shards.len())].run;
        let now = LogicalTime::new(self.step);
        let claimed = self.coordinator.claim_next_available(now, self.tenant, run, WORKER, &mut self.scratch);
        let lease = claimed.expect("a shard is free").lease;
        let per_run = self.shards.len() as u64 / self.shards[self.shards.len() - 1].run.get();
        self.release(((lease.run().get() - 1) * per_run + lease.shard().get() - 1) as usize, &lease);
    }

    fn checkpoint_of(&mut self, index: usize) {
        self.step += 1;
        let key = place(index as u64, self.step);
        let cursor = CursorUpdate::at_key(&key).expect("the key is short");
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
        let cursor = Some(CursorUpdate::at_key(&key).expect("the key is short"));
        let (now, op_id) = (LogicalTime::new(self.step), OpId::new(self.step));
        let done = self.coordinator.release(now, self.tenant, lease, cursor, ReleaseReason::Released, op_id);
        black_box(done).expect("the lease is live and the cursor advances");
    }

    fn remember_sixteen_each(&mut self) {
        for index in 0..self.shards.len() {
            (0..16).for_each(|_| self.checkpoint_of(index));
        }
    }

    fn release_all_in_random_order(&mut self) {
        let mut order: Vec<usize> = (0..self.shards.len()).collect();
        for left in (1..order.len()).rev() {
            order.swap(left, self.random.below(left + 1));
        }
        for index in order {
            let lease = self.leases[index];
            self.release(index, &lease);
        }
    }
}

/// One remembered operation, of the size that ours have.
#[derive(Clone, Copy)]
struct Remembered {
    op_id: u64,
    _payload_hash: u64,
    _executed_at: u64,
    _kind_and_result: u64,
}

/// As large as one of ours: nineteen cache lines.
struct Plain {
    cursor: [u8; 64],
    cursor_len: usize,
    log: [Remembered; 16],
    _rest: [u8; 632],
}

/// The floor.
struct Floor {
    tenants: HashMap<TenantId, HashMap<ShardKey, u32, FixedState>, FixedState>,
    records: Vec<Plain>,
    tenant: TenantId,
    shards: Vec<ShardKey>,
    leases: Vec<[u64; 9]>,
    random: Random,
    step: u64,
}

impl Floor {
    fn new(shards: u64) -> Self {
        let mut slots = HashMap::with_hasher(FixedState::default());
        let mut keys = Vec::new();
        let remembered = |op_id| Remembered { op_id, _payload_hash: 1, _executed_at: 1, _kind_and_result: 1 };
        let record = || Plain {
            cursor: [1; 64],
            cursor_len: 0,
            log: std::array::from_fn(|op_id| remembered(op_id as u64)),
            _rest: [1; 632],
        };
        for index in 0..shards {
            let key = ShardKey::new(RunId::new(1), ShardId::new(1 + index));
            slots.insert(key, index as u32);
            keys.push(key);
        }
        let tenant = TenantId::from_name("bench");
        Self {
            tenants: [(tenant, slots)].into_iter().collect(),
            records: (0..shards).map(|_| record()).collect(),
            tenant,
            leases: keys.iter().map(|key| [key.shard.get(); 9]).collect(),
            shards: keys,
            random: Random(1),
            step: 100,
        }
    }

    fn operation(&mut self, passes: u32) {
        let index = self.random.below(self.shards.len());
        for _ in 0..passes {
            self.step += 1;
            let key = place(index as u64, self.step);
            let shard = ShardKey::new(RunId::new(1), ShardId::new(black_box(self.leases[index][0])));
            let slot =
                self.tenants.get(&self.tenant).and_then(|slots| slots.get(&shard)).expect("every shard is there");
            let record = &mut self.records[*slot as usize];
            let cursor = CursorUpdate::at_key(&key).expect("the key is short");
            black_box(PayloadHash::of("checkpoint", &cursor));
            let op_id = black_box(self.step);
            black_box(record.log.iter().any(|remembered| remembered.op_id == op_id));
            record.cursor[..key.len()].copy_from_slice(&key);
            record.cursor_len = black_box(key.len());
        }
    }
}

/// The key at `step` of the shard at `index`: 24 bytes, in the order of shards and then steps.
fn place(index: u64, step: u64) -> [u8; 24] {
    let mut key = *b"objects/0123456701234567";
    key[8..16].copy_from_slice(&index.to_be_bytes());
    key[16..].copy_from_slice(&step.to_be_bytes());
    key
}

/// Splitmix64: the same numbers for both sides, at a cost that is the same for both.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
