//! Splits that come together share requests, and each hears what became of its own.

mod fixtures;

use core::future::{Future, poll_fn};
use core::task::Poll;

use fixtures::{NOW, RUN, TENANT, acquire, bounds, coordinator, inputs, register};
use tessera_contracts::split::{SplitReplacePlan, plan_split_replace};
use tessera_contracts::{OpId, ShardId, ShardKey, ShardSpec, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationBackend, BlockOn, CoordinationBackend, RunManagement};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

const CHILDREN: u8 = 8;

/// Into eight, of a root between two numbers.
fn plan(shard: ShardId) -> SplitReplacePlan {
    let (start, end) = (shard.get().to_be_bytes(), (shard.get() + 1).to_be_bytes());
    let spec = ShardSpec::new(&start, &end, b"").expect("valid");
    let points: Vec<Vec<u8>> = (1..CHILDREN).map(|point| [&start[..], &[point]].concat()).collect();
    let points: Vec<&[u8]> = points.iter().map(Vec::as_slice).collect();
    plan_split_replace(spec.view(), &points).expect("valid")
}

/// So many shards of a run, held; one more was split already, so that the coordinator has seen the counters.
fn held(kv: &SimKv, shards: usize) -> (SimEtcdCoordinator, Vec<Lease>) {
    let mut backend = coordinator(kv);
    register(&mut backend, &inputs(&bounds(shards + 1)));
    let mut leases: Vec<Lease> =
        (1..=shards as u64 + 1).map(|shard| acquire(&mut backend, ShardId::new(shard))).collect();
    let known = leases.pop().expect("one more");
    assert_eq!(split_all(&mut backend, &[known]), [true]);
    (backend, leases)
}

/// Splits all of them side by side, and tells which of them were executed.
fn split_all(backend: &mut SimEtcdCoordinator, leases: &[Lease]) -> Vec<bool> {
    let splits = leases.iter().map(|lease| {
        let mut coordinator = backend.backend.clone();
        let plan = plan(lease.shard());
        Box::pin(async move {
            let split = coordinator.split_replace(NOW, TENANT, lease, &plan, OpId::new(9)).await;
            split.is_ok_and(|outcome| outcome.is_executed() && outcome.into_inner().len() == usize::from(CHILDREN))
        })
    });
    let mut splits: Vec<_> = splits.collect();
    let mut done: Vec<Option<bool>> = vec![None; splits.len()];
    backend.executor.block_on(poll_fn(move |context| {
        for (split, done) in splits.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(executed) = split.as_mut().poll(context) {
                *done = Some(executed);
            }
        }
        done.iter().copied().collect::<Option<Vec<bool>>>().map_or(Poll::Pending, Poll::Ready)
    }))
}

fn shards_in_all(backend: &mut SimEtcdCoordinator) -> u64 {
    backend.get_run_progress(NOW, TENANT, RUN).expect("there").counts.total().into()
}

/// Roots, the one that was split before, and the children of so many splits beside its own.
fn expected(roots: usize, splits: usize) -> u64 {
    roots as u64 + 1 + u64::from(CHILDREN) * (splits as u64 + 1)
}

#[test]
fn eight_splits_take_one_request() {
    let kv = SimKv::new(1);
    let (mut backend, leases) = held(&kv, 8);
    let before = kv.calls();
    assert_eq!(split_all(&mut backend, &leases), [true; 8]);
    assert_eq!(kv.calls() - before, 1);
    assert_eq!(shards_in_all(&mut backend), expected(8, 8));
}

#[test]
fn more_splits_than_there_are_places_to_count_them_are_all_done_and_all_counted() {
    let kv = SimKv::new(1);
    let (mut backend, leases) = held(&kv, 40);
    let before = kv.calls();
    assert_eq!(split_all(&mut backend, &leases), [true; 40]);
    let calls = kv.calls() - before;
    assert!(calls <= 40 / 8 + 1, "{calls} calls");
    assert_eq!(shards_in_all(&mut backend), expected(40, 40));
}

#[test]
fn splits_whose_shared_answer_was_lost_are_each_known_by_their_op_id() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        let kv = SimKv::new(1);
        let (mut backend, leases) = held(&kv, 8);
        kv.inject(CallKind::Write, 0, fault);
        assert_eq!(split_all(&mut backend, &leases), [true; 8], "{fault:?}");
        assert_eq!(shards_in_all(&mut backend), expected(8, 8), "{fault:?}");
    }
}

#[test]
fn one_that_holds_its_shard_no_longer_is_refused_and_its_neighbours_are_not() {
    let kv = SimKv::new(1);
    let (mut backend, leases) = held(&kv, 8);
    let mut other = coordinator(&kv);
    other.release(NOW, TENANT, &leases[3], None, ReleaseReason::Drained, OpId::new(5)).expect("released");
    let (key, mut scratch) = (ShardKey::new(RUN, leases[3].shard()), AcquireScratch::new());
    other.acquire_and_restore_into(NOW, TENANT, key, WorkerId::new(2), &mut scratch).expect("free");
    let done = split_all(&mut backend, &leases);
    assert_eq!(done.iter().enumerate().filter(|(_, done)| !**done).map(|(at, _)| at).collect::<Vec<_>>(), [3]);
    assert_eq!(shards_in_all(&mut backend), expected(8, 7));
}

#[test]
fn those_that_wait_for_their_turn_end_by_their_deadline_too() {
    let kv = SimKv::new(1);
    let (mut backend, leases) = held(&kv, 40);
    (0..1_000).for_each(|call| kv.inject(CallKind::Write, call, Fault::LoseRequest));
    let begun = backend.backend.store_now();
    assert_eq!(split_all(&mut backend, &leases), [false; 40]);
    let EtcdConfig { call_timeout, attempt_timeout, .. } = EtcdConfig::default();
    let ended = backend.backend.store_now();
    assert!(ended <= begun.after(call_timeout + attempt_timeout), "{begun:?} to {ended:?}");
    assert!(ended >= begun.after(call_timeout / 2), "nobody answered: {begun:?} to {ended:?}");
}
