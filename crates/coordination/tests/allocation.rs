//! Operations that promise not to allocate, held to it by counting.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use alloc_counter::{CountingAllocator, count};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_coordination::events::EventCollector;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement, ShardClaiming,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const SHARDS: u64 = 64;

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn cursor(bytes: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::new(Some(bytes), Some(b"token")).expect("a short key is a valid cursor")
}

/// Keys that begin with this lie in the record; those that begin with [`LONG`] lie in the slab.
const SHORT: &[u8] = b"k";
const LONG: &[u8] = &[b'k'; 300];

/// A run of [`SHARDS`] shards nobody has touched: the first operation on each is already free of allocation.
fn fresh(tenant: TenantId, prefix: &[u8]) -> InMemoryCoordinator {
    let config = CoordinatorRuntimeConfig { claim_cooldown_interval: 1, ..CoordinatorRuntimeConfig::default() };
    let mut coordinator = InMemoryCoordinator::new(config).expect("a valid configuration");
    let bounds: Vec<Vec<u8>> = (0..=SHARDS as u8).map(|index| [prefix, &[index]].concat()).collect();
    let shards: Vec<_> = (0..SHARDS)
        .map(|id| InitialShardInput::new(ShardId::new(id + 1), &bounds[id as usize], &bounds[id as usize + 1]))
        .collect();
    let run = RunConfig { lease_duration: Some(100), max_shard_retries: 1, ..RunConfig::default() };
    coordinator
        .create_run_with_shards(at(1), tenant, RUN, INCARNATION, run, &shards, OpId::new(1))
        .expect("a valid manifest");
    coordinator
}

#[test]
fn a_shards_whole_life_allocates_nothing() {
    whole_life(SHORT);
    whole_life(LONG);
}

fn whole_life(prefix: &[u8]) {
    let tenant = TenantId::from_name("acme");
    let mut coordinator = fresh(tenant, prefix);
    let mut scratch = AcquireScratch::new();
    let worker = WorkerId::new(1);
    let claim = |coordinator: &mut InMemoryCoordinator, scratch: &mut AcquireScratch, now: u64| {
        coordinator.claim_next_available(at(now), tenant, RUN, worker, scratch).map(|claimed| claimed.lease)
    };
    // A worker's first claim makes room to remember it; that is the warm-up.
    let lease = claim(&mut coordinator, &mut scratch, 1).unwrap();
    coordinator.release(at(1), tenant, &lease, None, ReleaseReason::Released, OpId::new(2)).unwrap();

    let mut ids = 100_u64..;
    for round in 0..SHARDS {
        let now = 10 + round;
        let (allocations, lease) = count(|| claim(&mut coordinator, &mut scratch, now));
        assert_eq!(allocations, 0, "claim");
        let lease = lease.unwrap();
        let mut next = || OpId::new(ids.next().unwrap());
        let start = scratch.snapshot().unwrap().spec.start().to_vec();

        let (allocations, renewed) = count(|| coordinator.renew(at(now), tenant, &lease));
        assert_eq!((allocations, renewed.is_ok()), (0, true), "renew");
        for step in 0..20_u8 {
            let key = [&start[..], &[step]].concat();
            let op = next();
            let (allocations, done) = count(|| coordinator.checkpoint(at(now), tenant, &lease, cursor(&key), op));
            assert_eq!((allocations, done.is_ok()), (0, true), "checkpoint");
            let (allocations, replay) = count(|| coordinator.checkpoint(at(now), tenant, &lease, cursor(&key), op));
            assert_eq!((allocations, replay.is_ok()), (0, true), "replayed checkpoint");
        }
        let key = [&start[..], &[50]].concat();
        let op = next();
        let reason = ReleaseReason::Yielded;
        let (allocations, done) =
            count(|| coordinator.release(at(now), tenant, &lease, Some(cursor(&key)), reason, op));
        assert_eq!((allocations, done.is_ok()), (0, true), "release");

        let shard = ShardKey::new(RUN, lease.shard());
        let (allocations, lease) = count(|| {
            let acquired = coordinator.acquire_and_restore_into(at(now), tenant, shard, worker, &mut scratch);
            acquired.map(|acquired| acquired.lease)
        });
        assert_eq!(allocations, 0, "acquire");
        let lease = lease.unwrap();
        let op = next();
        if round % 2 == 0 {
            let (allocations, done) = count(|| coordinator.complete(at(now), tenant, &lease, cursor(&key), op));
            assert_eq!((allocations, done.is_ok()), (0, true), "complete");
        } else {
            let park = Park::because(ParkReason::Other).with_detail("because");
            let (allocations, done) = count(|| coordinator.park_shard(at(now), tenant, &lease, park, op));
            assert_eq!((allocations, done.is_ok()), (0, true), "park");
        }
    }
    let (allocations, nothing) = count(|| claim(&mut coordinator, &mut scratch, 500));
    assert_eq!((allocations, nothing.is_err()), (0, true), "claim with nothing left");
}

#[test]
fn a_collector_of_events_allocates_when_something_happens_and_not_before() {
    let (allocations, collector) = count(EventCollector::new);
    assert_eq!((allocations, collector.is_empty()), (0, true));
}

#[test]
fn takeover_and_refusal_allocate_nothing() {
    let tenant = TenantId::from_name("acme");
    let mut coordinator = fresh(tenant, SHORT);
    let mut scratch = AcquireScratch::new();
    let key = ShardKey::new(RUN, ShardId::new(1));
    let mut acquire = |coordinator: &mut InMemoryCoordinator, worker: u64, now: u64| {
        let acquired = coordinator.acquire_and_restore_into(at(now), tenant, key, WorkerId::new(worker), &mut scratch);
        acquired.map(|acquired| acquired.lease)
    };
    let zombie = acquire(&mut coordinator, 1, 10).unwrap();
    coordinator.checkpoint(at(10), tenant, &zombie, cursor(b"k\0\x01"), OpId::new(5)).unwrap();
    let (allocations, refused) = count(|| acquire(&mut coordinator, 2, 11));
    assert_eq!((allocations, refused.is_err()), (0, true), "refused acquire");
    let (allocations, taken) = count(|| acquire(&mut coordinator, 2, 110));
    assert_eq!((allocations, taken.is_ok()), (0, true), "takeover");
    let late = OpId::new(6);
    let (allocations, refused) =
        count(|| coordinator.checkpoint(at(111), tenant, &zombie, cursor(b"k\0\x02"), late).is_err());
    assert_eq!((allocations, refused), (0, true), "a zombie's checkpoint");
    // The run allows one fruitless acquisition, so the next attempt parks the shard.
    let (allocations, parked) = count(|| acquire(&mut coordinator, 1, 300));
    assert_eq!((allocations, parked.is_err()), (0, true), "parked for its retries");
}
