//! What the etcd backend promises beyond the protocol: round trips, staging that is seen whole or not at all, sessions.

use std::time::Duration;

use crate::fixtures::{
    INCARNATION, NOW, RUN, TENANT, WORKER, acquire, bounds, config_of, coordinator, coordinator_of, inputs, register,
    server_of,
};

use tessera_contracts::split::{SplitReplacePlan, plan_split_replace};
use tessera_contracts::{CursorUpdate, LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, WorkerId};
use tessera_coordination::backend::{
    AsyncCoordinationBackend, BlockOn, CoordinationBackend, HeldShard, RunManagement, ShardClaiming,
};
use tessera_coordination::error::{CheckpointError, ExpiredBecause, LeaseRefused, RunTransitionError, SplitError};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::config::TXN_OPS_MIN;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};

fn op(number: u64) -> OpId {
    OpId::new(number)
}

fn start(coordinator: &mut SimEtcdCoordinator, shards: usize) {
    register(coordinator, &inputs(&bounds(shards)));
}

fn list(coordinator: &mut SimEtcdCoordinator) -> Vec<ShardSummary> {
    let (mut all, mut shards) = (Vec::new(), Vec::new());
    let mut page = Some(ShardPage::first(1_000));
    while let Some(next) = page {
        page = coordinator.list_shards_into(NOW, TENANT, RUN, &ShardFilter::all(), next, &mut shards).expect("listed");
        all.append(&mut shards);
    }
    all
}

/// How many calls to the store `act` makes.
fn calls(kv: &SimKv, act: impl FnOnce()) -> u64 {
    let before = kv.calls();
    act();
    kv.calls() - before
}

#[test]
fn operations_of_a_holder_take_one_round_trip_each() {
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    start(&mut backend, 4);
    let lease = acquire(&mut backend, ShardId::new(1));
    let key = 1u64.to_be_bytes();
    let cursor = CursorUpdate::at_key(&key).expect("valid");
    for n in 0..3 {
        let trips = calls(&kv, || {
            backend.checkpoint(NOW, TENANT, &lease, cursor, op(10 + n)).expect("recorded");
        });
        assert_eq!(trips, 1, "checkpoint");
    }
    let trips = calls(&kv, || {
        backend.complete(NOW, TENANT, &lease, cursor, op(20)).expect("done");
    });
    assert_eq!(trips, 1, "complete");
    let lease = acquire(&mut backend, ShardId::new(2));
    let reason = tessera_coordination::record::history::ReleaseReason::Released;
    let trips = calls(&kv, || {
        backend.release(NOW, TENANT, &lease, None, reason, op(21)).expect("released");
    });
    assert_eq!(trips, 1, "release");
    let trips = calls(&kv, || {
        acquire(&mut backend, ShardId::new(2));
    });
    assert_eq!(trips, 1, "acquire of a known shard with an open session");
}

#[test]
fn a_claim_is_one_round_trip_once_candidates_are_known() {
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    start(&mut backend, 1_000);
    let mut scratch = AcquireScratch::new();
    backend.claim_next_available(NOW, TENANT, RUN, WORKER, &mut scratch).expect("granted");
    let trips = calls(&kv, || {
        for _ in 0..7 {
            backend.claim_next_available(NOW, TENANT, RUN, WORKER, &mut scratch).expect("granted");
        }
    });
    assert!(trips <= 7 + 2, "{trips} calls for 7 claims");
}

#[test]
fn renewing_a_thousand_shards_takes_batches_and_not_a_thousand_calls() {
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    start(&mut backend, 1_000);
    let leases: Vec<Lease> = (1..=1_000).map(|n| acquire(&mut backend, ShardId::new(n))).collect();
    let mut answers = Vec::new();
    let trips = calls(&kv, || backend.renew_many(NOW, TENANT, &leases, &mut answers));
    assert!(answers.iter().all(Result::is_ok) && answers.len() == 1_000);
    // 64 to a batch, the first few of which go out before the others have arrived, and one hint for the run.
    assert!(trips <= 1_000 / 64 + 6, "{trips} calls");
}

#[test]
fn a_planned_stop_takes_batches_and_the_next_worker_goes_on_where_it_was() {
    let kv = SimKv::new(1);
    let (mut backend, mut heir) = (coordinator(&kv), coordinator(&kv));
    start(&mut backend, 200);
    let leases: Vec<Lease> = (1..=200).map(|n| acquire(&mut backend, ShardId::new(n))).collect();
    let keys: Vec<[u8; 8]> = leases.iter().map(|lease| lease.shard().get().to_be_bytes()).collect();
    let held: Vec<HeldShard<'_>> = leases
        .iter()
        .zip(&keys)
        .map(|(lease, key)| HeldShard { lease, cursor: Some(CursorUpdate::at_key(key).expect("valid")), op_id: op(50) })
        .collect();
    let mut answers = Vec::new();
    let (mut drained, executor) = (backend.backend.clone(), backend.executor);
    let drain = AsyncCoordinationBackend::drain(&mut drained, NOW, TENANT, &held, &mut answers);
    let trips = calls(&kv, || executor.block_on(drain));
    assert!(answers.iter().all(Result::is_ok) && answers.len() == 200);
    assert!(trips <= 200 / 64 + 4, "{trips} calls");
    let mut scratch = AcquireScratch::new();
    for _ in 0..200 {
        let view = heir.claim_next_available(NOW, TENANT, RUN, WorkerId::new(2), &mut scratch).expect("free at once");
        let key = view.lease.shard().get().to_be_bytes();
        assert_eq!(view.snapshot.cursor.last_key(), Some(&key[..]), "nothing is redone");
    }
}

#[test]
fn a_hint_is_read_once_in_its_age_and_counts_what_was_taken_meanwhile() {
    let kv = SimKv::new(1);
    let (mut one, mut other) = (coordinator(&kv), coordinator(&kv));
    start(&mut one, 10);
    let mut scratch = AcquireScratch::new();
    let mut hint = |backend: &mut SimEtcdCoordinator, shard: u64| {
        let key = ShardKey::new(RUN, ShardId::new(shard));
        let view = backend.acquire_and_restore_into(NOW, TENANT, key, WORKER, &mut scratch).expect("granted");
        (view.lease, view.capacity.available_count)
    };
    let (lease, left) = hint(&mut one, 1);
    assert_eq!(left, 9, "read in the same transaction");
    assert_eq!(hint(&mut one, 2).1, 8);
    assert_eq!(hint(&mut other, 3).1, 7, "another coordinator has its own");
    assert_eq!(hint(&mut one, 4).1, 7, "and is not heard of within the hint's age");
    let renewing = |backend: &mut SimEtcdCoordinator, now: u64| {
        let mut left = 0;
        let trips = calls(&kv, || {
            let renewed = backend.renew(LogicalTime::new(NOW.get() + now), TENANT, &lease).expect("renewed");
            left = renewed.capacity.available_count;
        });
        (trips, left)
    };
    assert_eq!(renewing(&mut one, 1), (1, 7), "a renewal needs no request for it");
    kv.advance(EtcdConfig::default().hint_age_max);
    assert_eq!(renewing(&mut one, 2), (2, 6), "read again, and true again");
    assert_eq!(renewing(&mut one, 3), (1, 6));
}

#[test]
fn a_refusal_is_never_decided_on_what_is_remembered() {
    let kv = SimKv::new(1);
    let (mut one, mut other) = (coordinator(&kv), coordinator(&kv));
    start(&mut one, 1);
    let stale = acquire(&mut one, ShardId::new(1));
    let reason = tessera_coordination::record::history::ReleaseReason::Drained;
    one.release(NOW, TENANT, &stale, None, reason, op(5)).expect("released");
    let mut scratch = AcquireScratch::new();
    let key = ShardKey::new(RUN, ShardId::new(1));
    let taken = other.acquire_and_restore_into(NOW, TENANT, key, WorkerId::new(2), &mut scratch).expect("free").lease;
    other.release(NOW, TENANT, &taken, None, reason, op(6)).expect("released");
    // `one` still remembers the shard as it left it; the grant must be on what `other` left.
    let lease = acquire(&mut one, ShardId::new(1));
    assert_eq!(lease.fence().get(), 4);
}

#[test]
fn ten_thousand_shards_are_registered_and_seen_all_at_once() {
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    start(&mut backend, 10_000);
    assert_eq!(list(&mut backend).len(), 10_000);
    assert_eq!(backend.get_run(TENANT, RUN).expect("there").root_shards.len(), 10_000);
}

#[test]
fn a_registration_that_breaks_off_anywhere_is_not_seen_and_can_be_made_again() {
    let bounds = bounds(300);
    // One write announces it, five bring the shards, one makes the run active: each in turn is the first that fails.
    for broken_at in 0..7 {
        let kv = SimKv::new(broken_at);
        let mut backend = coordinator(&kv);
        backend.create_run(NOW, TENANT, RUN, INCARNATION, RunConfig::default()).expect("created");
        // Every write from here on is refused for good: the registrar is as good as dead.
        for turn in broken_at..broken_at + 400 {
            kv.inject(CallKind::Write, turn, Fault::Refuse);
        }
        backend.register_shards(NOW, TENANT, RUN, &inputs(&bounds), op(1)).expect_err("broken off");
        let kv_after = kv.clone();
        let mut reader = coordinator(&kv_after);
        assert_eq!(list(&mut reader), [], "broken at write {broken_at}");
        assert_eq!(reader.get_run(TENANT, RUN).expect("there").status, RunStatus::Initializing);
        // Let the refusals run out, then another process makes the same registration with another manifest.
        while kv.txn_is_refused() {}
        let fewer = &bounds[..101];
        let mut next = coordinator(&kv);
        next.register_shards(NOW, TENANT, RUN, &inputs(fewer), op(2)).expect("registered");
        assert_eq!(list(&mut next).len(), 100, "broken at write {broken_at}");
        let progress = next.get_run_progress(NOW, TENANT, RUN).expect("there");
        assert_eq!(progress.counts.total(), 100);
    }
}

/// Uses up one injected refusal, if there is one.
trait Exhaust {
    fn txn_is_refused(&self) -> bool;
}

impl Exhaust for SimKv {
    fn txn_is_refused(&self) -> bool {
        use tessera_coordination_etcd::kv::{Kv, Moment, Op, Txn};
        let deadline = Moment(Duration::from_secs(1 << 30));
        let nothing = Txn::of(vec![Op::delete("nothing")]);
        tessera_coordination_etcd::sim_kv::block_on(self.txn(nothing, deadline)).is_err()
    }
}

fn plan(children: usize) -> (ShardSpec, SplitReplacePlan) {
    let parent = ShardSpec::new(&1u64.to_be_bytes(), &2u64.to_be_bytes(), b"").expect("valid");
    let points: Vec<Vec<u8>> = (1..children as u16)
        .map(|n| {
            let mut key = 1u64.to_be_bytes().to_vec();
            key.extend(n.to_be_bytes());
            key
        })
        .collect();
    let points: Vec<&[u8]> = points.iter().map(Vec::as_slice).collect();
    let plan = plan_split_replace(parent.view(), &points).expect("valid");
    (parent, plan)
}

#[test]
fn the_largest_split_is_done_and_its_children_can_be_claimed() {
    for children in [2, 120, 121, 122, 256] {
        let kv = SimKv::new(1);
        let mut backend = coordinator(&kv);
        start(&mut backend, 1);
        let lease = acquire(&mut backend, ShardId::new(1));
        let (_, plan) = plan(children);
        let born = backend.split_replace(NOW, TENANT, &lease, &plan, op(9)).expect("split").into_inner();
        assert_eq!(born.len(), children);
        let mut candidates = Vec::new();
        backend.collect_claim_candidates_into(NOW, TENANT, RUN, WORKER, 1_000, &mut candidates).expect("listed");
        assert_eq!(candidates.len(), children, "{children} children");
        let again = backend.split_replace(NOW, TENANT, &lease, &plan, op(9)).expect("replayed");
        assert!(!again.is_executed() && again.into_inner() == born);
        assert_eq!(list(&mut backend).len(), children + 1);
    }
}

#[test]
fn a_split_that_breaks_off_anywhere_is_seen_whole_or_not_at_all_and_is_finished_or_undone() {
    break_off_a_split_anywhere(128, 14);
}

#[test]
fn a_split_in_the_smallest_transactions_is_finished_or_undone_wherever_it_breaks_off() {
    break_off_a_split_anywhere(TXN_OPS_MIN, 24);
}

/// Splits a shard where the server takes so many operations at once, and breaks off at each of so many writes.
fn break_off_a_split_anywhere(txn_ops_max: usize, writes: u64) {
    let (_, plan) = plan(200);
    let coordinator = |kv: &SimKv| coordinator_of(kv, config_of(txn_ops_max));
    let kv = server_of(txn_ops_max);
    start(&mut coordinator(&kv), 1);
    let lease = acquire(&mut coordinator(&kv), ShardId::new(1));
    let begun = kv.snapshot();
    let mut outcomes = [0, 0];
    for broken_at in 0..writes {
        let kv = SimKv::from_snapshot(&begun, broken_at);
        let mut backend = coordinator(&kv);
        for turn in broken_at..broken_at + 400 {
            kv.inject(CallKind::Write, turn, Fault::Refuse);
        }
        let split = backend.split_replace(NOW, TENANT, &lease, &plan, op(9));
        let mut reader = coordinator(&kv);
        let seen = list(&mut reader).len();
        assert!(seen == 1 || seen == 201, "{seen} shards seen after breaking at write {broken_at}");
        assert_eq!(split.is_ok(), seen == 201, "broken at write {broken_at}");
        outcomes[usize::from(split.is_ok())] += 1;
        while kv.txn_is_refused() {}

        let mut scratch = AcquireScratch::new();
        if seen == 201 {
            // The next worker that looks for work finishes it: all children can be claimed, each once.
            let mut claimed = std::collections::BTreeSet::new();
            while let Ok(view) = reader.claim_next_available(NOW, TENANT, RUN, WorkerId::new(2), &mut scratch) {
                assert!(claimed.insert(view.lease.shard()));
            }
            assert_eq!(claimed.len(), 200, "broken at write {broken_at}");
        } else {
            // The holder goes on; what was staged goes once the parent has moved on, and the split can be made again.
            let key = 1u64.to_be_bytes();
            let cursor = CursorUpdate::at_key(&key).expect("valid");
            backend.checkpoint(NOW, TENANT, &lease, cursor, op(10)).expect("recorded");
            assert!(reader.claim_next_available(NOW, TENANT, RUN, WorkerId::new(2), &mut scratch).is_err());
            let cold =
                kv.inspect(|store| store.keys().filter(|key| key.windows(6).any(|part| part == b"/cold/")).count());
            assert_eq!(cold, 1, "orphans after breaking at write {broken_at}");
            let born = backend.split_replace(NOW, TENANT, &lease, &plan, op(9)).expect("split").into_inner();
            assert_eq!(born.len(), 200);
            assert_eq!(list(&mut backend).len(), 201);
        }
    }
    assert!(outcomes.iter().all(|times| *times > 1), "undone and finished: {outcomes:?}");
}

#[test]
fn a_dead_workers_shards_are_claimable_as_soon_as_its_session_ends_and_not_before() {
    let kv = SimKv::new(1);
    let (mut dead, mut other) = (coordinator(&kv), coordinator(&kv));
    start(&mut dead, 3);
    for n in 1..=3 {
        acquire(&mut dead, ShardId::new(n));
    }
    let mut scratch = AcquireScratch::new();
    let mut claim = |other: &mut SimEtcdCoordinator| {
        other.claim_next_available(NOW, TENANT, RUN, WorkerId::new(2), &mut scratch).map(|view| view.lease.shard())
    };
    kv.advance(Duration::from_millis(14_900));
    assert!(claim(&mut other).is_err(), "the session lasts 15 s");
    kv.advance(Duration::from_millis(100));
    let claimed: std::collections::BTreeSet<ShardId> = (0..3).map(|_| claim(&mut other).expect("free")).collect();
    assert_eq!(claimed.len(), 3);
}

#[test]
fn a_worker_whose_heartbeats_fail_refuses_its_own_work_before_anyone_else_can_have_it() {
    let kv = SimKv::new(1);
    let (mut cut_off, mut other) = (coordinator(&kv), coordinator(&kv));
    start(&mut cut_off, 1);
    let lease = acquire(&mut cut_off, ShardId::new(1));
    let key = 1u64.to_be_bytes();
    let cursor = CursorUpdate::at_key(&key).expect("valid");
    let mut scratch = AcquireScratch::new();
    let mut refused_at = None;
    for step in 0..200 {
        kv.advance(Duration::from_millis(100));
        let works = cut_off.checkpoint(NOW, TENANT, &lease, cursor, op(100 + step));
        if let (Err(CheckpointError::Lease(LeaseRefused::Expired { because, .. })), None) = (&works, refused_at) {
            assert_eq!(*because, ExpiredBecause::SessionLost);
            refused_at = Some(step);
        }
        let shard = ShardKey::new(RUN, ShardId::new(1));
        let taken = other.acquire_and_restore_into(NOW, TENANT, shard, WorkerId::new(2), &mut scratch);
        if taken.is_ok() {
            assert!(
                refused_at.is_some_and(|refused| refused < step),
                "taken at step {step}, refused at {refused_at:?}"
            );
            return;
        }
    }
    panic!("nobody ever took the shard");
}

#[test]
fn a_worker_that_was_cut_off_for_less_than_its_session_keeps_its_shards() {
    let kv = SimKv::new(1);
    let (mut cut_off, mut other) = (coordinator(&kv), coordinator(&kv));
    start(&mut cut_off, 2);
    let lease = acquire(&mut cut_off, ShardId::new(1));
    // No heartbeat is confirmed until the worker stops believing in its session, 1.5 s before the store ends it.
    kv.advance(Duration::from_millis(13_600));
    let mut scratch = AcquireScratch::new();
    cut_off.claim_next_available(NOW, TENANT, RUN, WORKER, &mut scratch).expect("the second");
    kv.advance(Duration::from_secs(2));
    let shard = ShardKey::new(RUN, ShardId::new(1));
    let taken = other.acquire_and_restore_into(NOW, TENANT, shard, WorkerId::new(2), &mut scratch);
    assert!(taken.is_err(), "the first shard was lost");
    let key = 1u64.to_be_bytes();
    let cursor = CursorUpdate::at_key(&key).expect("valid");
    cut_off.checkpoint(NOW, TENANT, &lease, cursor, op(10)).expect("it goes on");
}

#[test]
fn limits_hold_across_coordinators_and_are_given_back_by_retirement() {
    let kv = SimKv::new(1);
    let config = EtcdConfig { shards_per_tenant_max: 10, shards_total_max: 12, ..EtcdConfig::default() };
    let mut one = sync::simulate(kv.clone(), config.clone()).expect("valid");
    let mut other = sync::simulate(kv.clone(), config).expect("valid");
    let bounds = bounds(9);
    one.create_run_with_shards(NOW, TENANT, RUN, INCARNATION, RunConfig::default(), &inputs(&bounds), op(1))
        .expect("nine");
    let mut scratch = AcquireScratch::new();
    let key = ShardKey::new(RUN, ShardId::new(1));
    let lease = other.acquire_and_restore_into(NOW, TENANT, key, WORKER, &mut scratch).expect("granted").lease;
    let (_, two) = plan(2);
    assert!(matches!(other.split_replace(NOW, TENANT, &lease, &two, op(2)), Err(SplitError::LimitExceeded(_))));
    one.cancel_run(NOW, TENANT, RUN, op(3)).expect("cancelled");
    assert_eq!(one.retire_runs(NOW, TENANT, NOW, 10), Ok(1));
    // The worker lives on without a run; then it leaves, too.
    tessera_coordination_etcd::sim_kv::block_on(other.backend.end_session(WORKER)).expect("ended");
    let leftovers: Vec<String> = kv.inspect(|store| {
        let keys = store.keys().map(|key| String::from_utf8_lossy(key).into_owned());
        keys.filter(|key| !key.contains("/count/") && !key.contains("/retired/")).collect()
    });
    assert_eq!(leftovers, Vec::<String>::new(), "a retired run leaves nothing");
    let again = RunId::new(2);
    other
        .create_run_with_shards(NOW, TENANT, again, INCARNATION, RunConfig::default(), &inputs(&bounds), op(4))
        .expect("room again");
}

#[test]
fn a_run_is_not_completed_while_a_large_split_is_half_published() {
    let (_, plan) = plan(200);
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    start(&mut backend, 1);
    let lease = acquire(&mut backend, ShardId::new(1));
    // Marker, five chunks and the parent are written; indexing the children fails for good.
    for turn in 7..60 {
        kv.inject(CallKind::Write, turn, Fault::Refuse);
    }
    backend.split_replace(NOW, TENANT, &lease, &plan, op(9)).expect("the split itself is stored");
    while kv.txn_is_refused() {}
    let refused = backend.complete_run(NOW, TENANT, RUN, op(10)).expect_err("two hundred children are open");
    assert!(matches!(refused, RunTransitionError::ShardsOpen { active, .. } if active > 0), "{refused}");
}
