//! The in-memory coordinator: the executable specification, and the backend of tests and of single processes.
//!
//! `&mut self` makes every operation atomic, so there is nothing here but storage: find the record, ask the decision, carry
//! it out, keep the indexes current. Records are found through two levels of maps, tenant first, so that a wrong tenant
//! misses at once. Records live in an arena, their byte strings in them if short and else in one slab, and what can be
//! claimed in an index per run; after registration no operation on a shard allocates unless it makes shards or reports that one
//! cannot be reached.
//!
//! A split is decided in full before anything is touched, and its children are stored before the parent changes. So a full
//! slab leaves everything as it was, and no record has to be taken out of the map to be changed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use tessera_contracts::ids::{LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_stdx::{ByteSlab, SlabFull};

mod arena;
mod askers;
#[cfg(test)]
mod broken_change;
mod claim_index;
mod claims;
mod config;
#[cfg(test)]
mod every_event;
mod lease_list;
mod place;
mod pooled_record;
mod restore;
mod runs;
mod shards;
mod stragglers;
mod tenants;

pub use config::{
    CoordinatorRuntimeConfig, DEFAULT_LEASE_DURATION, DEFAULT_MAX_AUTO_SLAB_CAPACITY, DEFAULT_MAX_RUNS,
    RuntimeConfigError, auto_slab_capacity,
};

use self::arena::Arena;
use self::askers::Askers;
use self::claim_index::ClaimIndex;
use self::place::Slot;
use self::pooled_record::{RunSeen, RunSlot};
use self::tenants::Tenants;
use crate::error::{AccessRefused, RunNotFound};
use crate::record::snapshot::CapacityHint;
use crate::record::state::{Change, Head, Spawned};
use crate::record::status::ShardStatus;
use crate::record::view::{HoldView, ShardView};
use crate::run::progress::ShardCounts;
use crate::run::record::RunRecord;
use crate::run::status::RunStatus;
use crate::shard_limits::ShardCensus;

/// A map whose iteration order is the same in every process, so that a simulation replays.
type FixedMap<K, V> = HashMap<K, V, FixedState>;

/// All coordination state of one process.
#[derive(Debug)]
pub struct InMemoryCoordinator {
    config: CoordinatorRuntimeConfig,
    slab: ByteSlab,
    arena: Arena,
    runs: Vec<Option<Run>>,
    vacant_runs: Vec<RunSlot>,
    tenants: Tenants,
    total_shard_count: usize,
}

#[derive(Debug)]
struct Tenant {
    shards: FixedMap<ShardKey, Slot>,
    runs: BTreeMap<RunId, RunSlot>,
    /// When each worker last claimed with success; only kept if there is a cooldown.
    last_claims: FixedMap<WorkerId, LogicalTime>,
}

impl Tenant {
    fn new(hash_seed: u64) -> Self {
        let hasher = || FixedState::with_seed(hash_seed);
        Self {
            shards: FixedMap::with_hasher(hasher()),
            runs: BTreeMap::new(),
            last_claims: FixedMap::with_hasher(hasher()),
        }
    }
}

#[derive(Debug)]
struct Run {
    record: RunRecord,
    shards: BTreeMap<ShardId, Slot>,
    counts: ShardCounts,
    index: ClaimIndex,
    askers: Askers,
}

impl InMemoryCoordinator {
    /// An empty coordinator.
    pub fn new(config: CoordinatorRuntimeConfig) -> Result<Self, RuntimeConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            slab: ByteSlab::with_capacity(u32::try_from(config.slab_capacity).unwrap_or(u32::MAX)),
            arena: Arena::default(),
            runs: Vec::new(),
            vacant_runs: Vec::new(),
            tenants: Tenants::new(config.hash_seed),
            total_shard_count: 0,
        })
    }

    /// How it was configured.
    pub const fn config(&self) -> &CoordinatorRuntimeConfig {
        &self.config
    }

    /// Shards of all tenants, settled ones included.
    pub const fn total_shard_count(&self) -> usize {
        self.total_shard_count
    }

    #[inline]
    fn locate(&mut self, tenant: TenantId, key: ShardKey) -> Result<Slot, AccessRefused> {
        let found = self.tenants.recall(tenant).and_then(|tenant| tenant.shards.get(&key));
        found.copied().ok_or(AccessRefused::ShardNotFound { key })
    }

    fn locate_run(&self, tenant: TenantId, run: RunId) -> Result<RunSlot, RunNotFound> {
        let found = self.tenants.get(tenant).and_then(|tenant| tenant.runs.get(&run));
        found.copied().ok_or(RunNotFound { run })
    }

    fn run(&self, slot: RunSlot) -> &Run {
        self.runs[slot as usize].as_ref().expect("a run slot in use holds a run")
    }

    fn run_mut(&mut self, slot: RunSlot) -> &mut Run {
        self.runs[slot as usize].as_mut().expect("a run slot in use holds a run")
    }

    #[inline(always)]
    fn view(&self, slot: Slot) -> ShardView<'_> {
        let record = self.arena.get(slot);
        record.view(self.run_seen(record.run), &self.slab)
    }

    /// The same without range and progress, which lie apart from the record.
    #[inline(always)]
    fn hold_view(&self, slot: Slot) -> HoldView<'_> {
        let record = self.arena.get(slot);
        record.hold_view(self.run_seen(record.run))
    }

    /// What a run tells its shards.
    #[inline(always)]
    fn run_seen(&self, slot: RunSlot) -> RunSeen {
        let record = &self.run(slot).record;
        RunSeen { incarnation: record.incarnation, gate: record.gate(self.config.default_lease_duration) }
    }

    fn census(&self, tenant: TenantId) -> ShardCensus {
        ShardCensus {
            limits: self.config.shard_limits(),
            of_tenant: self.tenants.get(tenant).map_or(0, |tenant| tenant.shards.len() as u64),
            total: self.total_shard_count as u64,
        }
    }

    /// Carries out a decision and keeps the run's counts and claim index current.
    #[inline]
    fn commit(
        &mut self,
        slot: Slot,
        change: &Change<'_>,
        births: impl Iterator<Item = Spawned> + Clone,
    ) -> Result<(), SlabFull> {
        let record = self.arena.get_mut(slot);
        let before = record.state.head;
        record.apply(change, births, &mut self.slab)?;
        let run = self.runs[record.run as usize].as_mut().expect("a run slot in use holds a run");
        let (after, places) = (change.head, &mut self.arena.places);
        if before.status != after.status {
            run.counts.shift(before.status, after.status);
        }
        match (standing(&before), standing(&after)) {
            (was, is) if was == is => {}
            (Standing::Leased(_), Standing::Leased(deadline)) => run.index.move_deadline(slot, deadline, places),
            (_, is) => {
                run.index.remove(slot, places);
                match is {
                    Standing::Free => run.index.add_free(slot, places),
                    Standing::Leased(deadline) => run.index.add_leased(slot, deadline, places),
                    Standing::Settled => {}
                }
            }
        }
        Ok(())
    }

    /// What could be claimed of a run at `now`.
    fn capacity(&mut self, run: RunSlot, now: LogicalTime) -> CapacityHint {
        let horizon = self.horizon(now);
        let places = &mut self.arena.places;
        let run = self.runs[run as usize].as_mut().expect("a run slot in use holds a run");
        run.index.see_time(horizon, places);
        if run.record.status != RunStatus::Active {
            return CapacityHint::default();
        }
        CapacityHint {
            available_count: run.index.available_count(),
            earliest_deadline: run.index.earliest_deadline(places),
        }
    }

    /// Deadlines up to here have passed for everybody, clock skew allowed for.
    fn horizon(&self, now: LogicalTime) -> LogicalTime {
        LogicalTime::new(now.get().saturating_sub(self.config.clock_skew_allowance))
    }
}

impl Default for InMemoryCoordinator {
    fn default() -> Self {
        Self::new(CoordinatorRuntimeConfig::default()).expect("the default configuration is valid")
    }
}

/// Where a shard belongs in its run's claim index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Free,
    Leased(LogicalTime),
    Settled,
}

fn standing(head: &Head) -> Standing {
    match (head.status, head.lease) {
        (ShardStatus::Active, None) => Standing::Free,
        (ShardStatus::Active, Some(holder)) => Standing::Leased(holder.deadline),
        (ShardStatus::Done | ShardStatus::Split | ShardStatus::Parked, _) => Standing::Settled,
    }
}
