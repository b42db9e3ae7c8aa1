//! Hundreds of leases that begin and end in no order: hints stay exact, and nothing is allocated for them.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeMap;

use alloc_counter::{CountingAllocator, count};
use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, InMemoryCoordinator, Lease, RunManagement,
    ShardClaiming,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const TENANT: TenantId = TenantId::from_bytes([6; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const SHARDS: u64 = 300;
const LEASE: u64 = 1_000;

fn coordinator() -> InMemoryCoordinator {
    let mut coordinator = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(SHARDS as usize)).unwrap();
    let edges: Vec<[u8; 2]> = (0..=SHARDS as u16).map(u16::to_be_bytes).collect();
    let shards: Vec<InitialShardInput<'_>> = (0..SHARDS as usize)
        .map(|at| InitialShardInput::new(ShardId::new(at as u64 + 1), &edges[at], &edges[at + 1]))
        .collect();
    let config = RunConfig { lease_duration: Some(LEASE), max_shard_retries: 0, ..RunConfig::default() };
    coordinator
        .create_run_with_shards(LogicalTime::new(1), TENANT, RUN, INCARNATION, config, &shards, OpId::new(1))
        .unwrap();
    coordinator
}

/// The same numbers on every machine.
fn dice(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn hints_are_exact_among_hundreds_of_leases_whatever_the_order_of_their_deadlines() {
    let mut coordinator = coordinator();
    let mut scratch = AcquireScratch::new();
    let mut held: BTreeMap<u64, Lease> = BTreeMap::new();
    let mut state = 7;
    for op in 0..6_000 {
        // Clocks differ wildly, but no lease ends while this goes on.
        let now = LogicalTime::new(2_000 + dice(&mut state) % 900);
        let shard = 1 + dice(&mut state) % SHARDS;
        let key = ShardKey::new(RUN, ShardId::new(shard));
        let hint = match held.get(&shard).copied() {
            None => {
                let granted = coordinator.acquire_and_restore_into(now, TENANT, key, WorkerId::new(1), &mut scratch);
                let granted = granted.unwrap();
                held.insert(shard, granted.lease);
                granted.capacity
            }
            Some(lease) if dice(&mut state).is_multiple_of(3) => {
                let (reason, op) = (ReleaseReason::Released, OpId::new(100 + op));
                coordinator.release(now, TENANT, &lease, None, reason, op).unwrap();
                held.remove(&shard);
                continue;
            }
            Some(lease) => {
                let renewed = coordinator.renew(now, TENANT, &lease).unwrap();
                held.insert(shard, lease.extended_to(renewed.new_deadline));
                renewed.capacity
            }
        };
        assert_eq!(u64::from(hint.available_count), SHARDS - held.len() as u64, "after {op} operations");
        let earliest = held.values().map(Lease::deadline).min();
        assert_eq!(hint.earliest_deadline, earliest, "after {op} operations, {} leases", held.len());
    }
}

#[test]
fn leases_out_of_order_allocate_nothing() {
    let mut coordinator = coordinator();
    let mut scratch = AcquireScratch::new();
    let mut acquire = |shard: u64, now: u64| {
        let key = ShardKey::new(RUN, ShardId::new(shard));
        let now = LogicalTime::new(now);
        coordinator.acquire_and_restore_into(now, TENANT, key, WorkerId::new(1), &mut scratch).unwrap();
    };
    acquire(1, 5_000);
    // Each ends before all that came before it.
    let (allocations, ()) = count(|| (2..=SHARDS).for_each(|shard| acquire(shard, 5_000 - shard)));
    assert_eq!(allocations, 0);
}

#[test]
fn leases_that_end_together_are_taken_over_in_the_order_they_were_granted_whatever_their_holders_did_meanwhile() {
    let mut coordinator = coordinator();
    let mut scratch = AcquireScratch::new();
    let mut claim = |coordinator: &mut InMemoryCoordinator, now: u64| {
        let granted =
            coordinator.claim_next_available(LogicalTime::new(now), TENANT, RUN, WorkerId::new(1), &mut scratch);
        granted.unwrap().lease
    };
    let granted: Vec<Lease> = (0..SHARDS).map(|_| claim(&mut coordinator, 5)).collect();
    for (op, lease) in (10..).zip(granted.iter().step_by(3)) {
        let edge = (lease.shard().get() as u16 - 1).to_be_bytes();
        let cursor = CursorUpdate::at_key(&edge).unwrap();
        coordinator.checkpoint(LogicalTime::new(6), TENANT, lease, cursor, OpId::new(op)).unwrap();
    }
    let taken_over: Vec<ShardId> = granted.iter().map(|_| claim(&mut coordinator, 5 + LEASE).shard()).collect();
    assert_eq!(taken_over, granted.iter().map(Lease::shard).collect::<Vec<_>>());
}
