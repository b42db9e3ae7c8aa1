//! Requests and answers that are lost, one at a time: what is in doubt is resolved by looking, and never done twice.

use core::time::Duration;

use crate::fixtures::{self, KEY, NOW, TENANT, WORKER, register};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{CursorUpdate, FenceEpoch, OpId, RunId, ShardId, ShardKey};
use tessera_coordination::backend::{CoordinationBackend, RunManagement, ShardClaiming};
use tessera_coordination::error::OperationError as _;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};

/// A run with one shard, and a coordinator that has its session open.
fn world() -> (SimKv, SimEtcdCoordinator) {
    let kv = SimKv::new(1);
    let mut backend = sync::simulate(kv.clone(), EtcdConfig::default()).expect("valid");
    let shards = [InitialShardInput::new(KEY.shard, b"a", b"m"), InitialShardInput::new(ShardId::new(2), b"m", b"z")];
    register(&mut backend, &shards);
    fixtures::acquire(&mut backend, ShardId::new(2));
    (kv, backend)
}

fn acquire(backend: &mut SimEtcdCoordinator, key: ShardKey) -> Lease {
    fixtures::acquire(backend, key.shard)
}

#[test]
fn a_creation_that_arrives_late_does_not_bring_back_a_run_that_has_come_and_gone() {
    let kv = SimKv::new(1);
    let mut backend = sync::simulate(kv.clone(), EtcdConfig::default()).expect("valid");
    kv.inject(CallKind::Write, 0, Fault::Late(Duration::from_secs(2)));
    let created = backend.create_run(NOW, TENANT, KEY.run, fixtures::INCARNATION, RunConfig::default());
    created.expect("it asks again when nobody answers");
    backend.cancel_run(NOW, TENANT, KEY.run, OpId::new(1)).expect("cancelled");
    assert_eq!(backend.retire_runs(NOW, TENANT, NOW, 10), Ok(1));
    kv.advance(Duration::from_secs(5));
    backend.get_run(TENANT, KEY.run).expect_err("it was retired");
}

/// It is known by its attempt: that of another vouches for shards which this one did not count.
#[test]
fn an_announcement_that_was_lost_is_not_taken_for_that_of_an_earlier_registration() {
    let config = EtcdConfig { shards_per_tenant_max: 600, ..EtcdConfig::default() };
    let kv = SimKv::new(1);
    let mut first = sync::simulate(kv.clone(), config.clone()).expect("valid");
    first.create_run(NOW, TENANT, KEY.run, fixtures::INCARNATION, RunConfig::default()).expect("created");
    // It announces its attempt, writes some shards, and is never heard of again.
    (2..4_000).for_each(|write| kv.inject(CallKind::Write, write, Fault::Refuse));
    let many = fixtures::bounds(500);
    first.register_shards(NOW, TENANT, KEY.run, &fixtures::inputs(&many), OpId::new(1)).expect_err("broken off");
    let kv = SimKv::from_snapshot(&kv.snapshot(), 2);
    let mut second = sync::simulate(kv.clone(), config).expect("valid");
    kv.inject(CallKind::Write, 0, Fault::LoseRequest);
    let bounds = fixtures::bounds(300);
    let roots = fixtures::inputs(&bounds);
    let registered = second.register_shards(NOW, TENANT, KEY.run, &roots, OpId::new(2)).expect("registered");
    assert_eq!(registered.into_inner(), 300);
    let other = RunId::new(2);
    let created = second.create_run_with_shards(
        NOW,
        TENANT,
        other,
        fixtures::INCARNATION,
        RunConfig::default(),
        &roots,
        OpId::new(3),
    );
    created.expect("there is room for as many once more");
}

#[test]
fn an_acquire_whose_answer_was_lost_is_known_by_its_owner_and_fence() {
    for (fault, fence) in [(Fault::LoseAnswer, 2), (Fault::LoseRequest, 2)] {
        let (kv, mut backend) = world();
        kv.inject(CallKind::Write, 0, fault);
        let lease = acquire(&mut backend, KEY);
        assert_eq!(lease.fence(), FenceEpoch::new(fence), "granted once after {fault:?}");
        let stored = backend.get_shard(TENANT, KEY).expect("there");
        assert_eq!((stored.state.head.fence, stored.state.history.iter().len()), (lease.fence(), 1), "{fault:?}");
    }
}

#[test]
fn a_checkpoint_whose_answer_was_lost_is_known_by_its_op_id() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        let (kv, mut backend) = world();
        let lease = acquire(&mut backend, KEY);
        kv.inject(CallKind::Write, 0, fault);
        let cursor = CursorUpdate::at_key(b"b").expect("valid");
        let outcome = backend.checkpoint(NOW, TENANT, &lease, cursor, OpId::new(7)).expect("recorded");
        assert!(outcome.is_executed(), "it was this call that did it, whatever the way: {fault:?}");
        let stored = backend.get_shard(TENANT, KEY).expect("there");
        let logged = stored.state.op_log.iter().filter(|entry| entry.op_id == OpId::new(7)).count();
        assert_eq!((stored.cursor.last_key(), logged), (Some(&b"b"[..]), 1), "{fault:?}");
    }
}

#[test]
fn a_lost_race_costs_one_more_round_trip_since_the_refusal_brings_what_it_takes() {
    let (kv, mut backend) = world();
    let mut operator = sync::simulate(kv.clone(), EtcdConfig::default()).expect("valid");
    let lease = acquire(&mut backend, KEY);
    operator.request_yield(NOW, TENANT, KEY, lease.epoch()).expect("ordered");
    let before = kv.calls();
    let cursor = CursorUpdate::at_key(b"b").expect("valid");
    backend.checkpoint(NOW, TENANT, &lease, cursor, OpId::new(7)).expect("recorded on what the operator wrote");
    assert_eq!(kv.calls() - before, 2);
    let stored = backend.get_shard(TENANT, KEY).expect("there");
    assert!(stored.state.head.orders.yield_requested, "the order stands");
}

#[test]
fn a_claim_that_lost_its_answer_leaves_no_shard_held_by_nobody() {
    let (kv, mut backend) = world();
    kv.inject(CallKind::Write, 0, Fault::LoseAnswer);
    let mut scratch = AcquireScratch::new();
    let claimed = backend.claim_next_available(NOW, TENANT, KEY.run, WORKER, &mut scratch).expect("granted").lease;
    assert_eq!(claimed.key(), KEY);
    let stored = backend.get_shard(TENANT, KEY).expect("there");
    assert_eq!(stored.state.head.lease.map(|holder| holder.owner), Some(WORKER));
    assert_eq!(stored.state.head.fence, claimed.fence());
}

/// A worker that has lost faith in its session is refused. But a write of its that is still under way may be carried out
/// for as long as the store believes in the session, and a refusal would say that it was not.
#[test]
fn what_is_refused_for_good_does_not_happen_later() {
    let mut happened_later = 0;
    let ttl = EtcdConfig::default().session_ttl;
    for moment in 0..30 {
        let (kv, mut backend) = world();
        let lease = acquire(&mut backend, KEY);
        kv.advance(ttl * moment / 30);
        (0..20).for_each(|call| kv.inject(CallKind::KeepAlive, call, Fault::LoseRequest));
        kv.inject(CallKind::Write, 0, Fault::Late(Duration::from_millis(100)));
        let cursor = CursorUpdate::at_key(b"b").expect("valid");
        let answer = backend.checkpoint(NOW, TENANT, &lease, cursor, OpId::new(7));
        kv.advance(Duration::from_secs(1));
        let is_there = backend.get_shard(TENANT, KEY).expect("there").cursor.last_key() == Some(&b"b"[..]);
        match answer {
            Ok(_) => assert!(is_there),
            Err(error) if error.is_transient() => happened_later += u32::from(is_there),
            Err(error) => assert!(!is_there, "{error}, and it happened all the same"),
        }
    }
    assert!(happened_later > 0, "no moment was tried at which it matters");
}
