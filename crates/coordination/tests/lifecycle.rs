//! A run from creation to completion on the in-memory coordinator, through the public traits only.

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::plan_split_residual;
use tessera_contracts::{
    CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_coordination::error::{CheckpointError, LeaseRefused};
use tessera_coordination::events::{EventCollector, EventKind};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, IdempotentOutcome, InMemoryCoordinator, RunManagement, ShardClaiming,
};

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn op(id: u64) -> OpId {
    OpId::new(id)
}

fn key(bytes: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::at_key(bytes).expect("a short key is a valid cursor")
}

#[test]
fn a_run_is_created_swept_taken_over_split_and_completed() {
    let tenant = TenantId::from_name("acme");
    let mut events = EventCollector::new();
    let mut coordinator = InMemoryCoordinator::default();
    let config = RunConfig { lease_duration: Some(100), ..RunConfig::default() };
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"z")];
    coordinator.create_run_with_events(at(1), tenant, RUN, INCARNATION, config, &mut events).unwrap();
    coordinator.register_shards_with_events(at(1), tenant, RUN, &shards, op(1), &mut events).unwrap();

    let mut scratch = AcquireScratch::new();
    let first = coordinator
        .claim_next_available_with_events(at(2), tenant, RUN, WorkerId::new(1), &mut scratch, &mut events)
        .unwrap();
    assert_eq!(first.lease.fence(), FenceEpoch::new(2));
    assert_eq!(first.capacity.available_count, 0);
    assert_eq!(first.capacity.earliest_deadline, Some(at(102)));
    let zombie = first.lease;
    coordinator.checkpoint(at(3), tenant, &zombie, key(b"c"), op(2)).unwrap();

    // The first worker goes quiet; the second takes over and resumes where it stopped.
    let second = coordinator.claim_next_available(at(102), tenant, RUN, WorkerId::new(2), &mut scratch).unwrap();
    let lease = second.lease;
    assert_eq!(second.snapshot.cursor, key(b"c"));
    let refused = coordinator.checkpoint(at(103), tenant, &zombie, key(b"d"), op(3)).unwrap_err();
    assert!(matches!(refused, CheckpointError::Lease(LeaseRefused::StaleFence { .. })));
    let replayed = coordinator.checkpoint(at(103), tenant, &zombie, key(b"c"), op(2)).unwrap();
    assert_eq!(replayed, IdempotentOutcome::Replayed(()));

    let plan = plan_split_residual(second.snapshot.spec, Some(b"c"), b"m").unwrap();
    let residual = coordinator.split_residual(at(104), tenant, &lease, &plan, op(4)).unwrap().into_inner();
    coordinator.complete(at(105), tenant, &lease, key(b"l"), op(5)).unwrap();
    assert!(coordinator.complete_run(at(106), tenant, RUN, op(6)).is_err());

    let rest = ShardKey::new(RUN, residual);
    let third = coordinator.acquire_and_restore_into(at(107), tenant, rest, WorkerId::new(2), &mut scratch).unwrap();
    let lease = third.lease;
    coordinator.complete(at(108), tenant, &lease, CursorUpdate::initial(), op(7)).unwrap();
    coordinator.complete_run(at(109), tenant, RUN, op(8)).unwrap();
    assert!(matches!(events.iter().next().unwrap().kind, EventKind::RunCreated));
}
