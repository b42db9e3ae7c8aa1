//! Large splits that follow one another on the same shard: each is staged under a marker, and none may hide another's.

use std::collections::BTreeSet;
use std::time::Duration;

use tessera_contracts::{CursorUpdate, OpId, ShardId, ShardKey, WorkerId};
use tessera_coordination::backend::{CoordinationBackend, RunManagement, ShardClaiming};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::codec::decode_count;
use tessera_coordination_etcd::kv::{Kv, Moment, Op, Txn};
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sim_kv::{SimKv, block_on};
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

use crate::fixtures::{
    NOW, RUN, TENANT, WORKER, acquire, bounds, config_of, coordinator, coordinator_of, everything, inputs, register,
    server_of,
};
use crate::roots::plan;

const ROOT: ShardId = ShardId::new(1);
/// Children of a split that takes several transactions.
const CHILDREN: u16 = 200;
/// Requests that write in the largest of these splits, and some more.
const WRITES: u64 = 10;

fn op(number: u64) -> OpId {
    OpId::new(number)
}

fn keys_with(kv: &SimKv, part: &str) -> usize {
    everything(kv).iter().filter(|kv| String::from_utf8_lossy(&kv.key).contains(part)).count()
}

/// What the counters count, of all tenants and of this one.
fn counted(kv: &SimKv) -> [u64; 2] {
    let all = everything(kv);
    ["/count/all/", "/count/of/"].map(|scope| {
        let counts = all.iter().filter(|kv| {
            let path = String::from_utf8_lossy(&kv.key);
            path.contains(scope) && !path.ends_with("/guard")
        });
        counts.map(|kv| decode_count(&kv.value).expect("a count")).sum()
    })
}

/// The store serves again.
fn mend(kv: &SimKv) {
    let nothing = || Txn::of(vec![Op::delete("nothing")]);
    while block_on(kv.txn(nothing(), Moment(Duration::from_secs(1 << 30)))).is_err() {}
}

/// Splits the root while every write fails from the one with this number on; whether the split succeeds all the same.
fn split_broken_off(kv: &SimKv, backend: &mut SimEtcdCoordinator, lease: &Lease, id: OpId, at: u64) -> bool {
    for turn in at..at + 400 {
        kv.inject(CallKind::Write, turn, Fault::Refuse);
    }
    let split = backend.split_replace(NOW, TENANT, lease, &plan(ROOT, CHILDREN), id);
    mend(kv);
    split.is_ok()
}

/// The run ends and is forgotten: the counters come back to nothing.
fn retire(kv: &SimKv, case: &str) {
    let mut operator = coordinator(kv);
    operator.cancel_run(NOW, TENANT, RUN, op(90)).expect("cancelled");
    assert_eq!(operator.retire_runs(NOW, TENANT, NOW, 10), Ok(1), "{case}");
    assert_eq!(counted(kv), [0, 0], "{case}");
    let left = keys_with(kv, "/cold/") + keys_with(kv, "/hatching/");
    assert_eq!(left, 0, "{case}");
}

/// A run of one root, held.
fn held() -> (SimKv, Lease) {
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    register(&mut backend, &inputs(&bounds(1)));
    let lease = acquire(&mut backend, ROOT);
    (kv, lease)
}

#[test]
fn a_second_large_split_leaves_nothing_of_one_that_broke_off() {
    let (kv, lease) = held();
    let begun = kv.snapshot();
    let mut broken_off = 0;
    for (at, moves_on) in (0..WRITES).flat_map(|at| [(at, false), (at, true)]) {
        let case = format!("the first breaks off at write {at}, and the parent moves on: {moves_on}");
        let kv = SimKv::from_snapshot(&begun, at);
        let mut backend = coordinator(&kv);
        if split_broken_off(&kv, &mut backend, &lease, op(18), at) {
            continue;
        }
        broken_off += 1;
        if moves_on {
            let key = ROOT.get().to_be_bytes();
            let cursor = CursorUpdate::at_key(&key).expect("valid");
            backend.checkpoint(NOW, TENANT, &lease, cursor, op(19)).expect("recorded");
        }
        let born = backend.split_replace(NOW, TENANT, &lease, &plan(ROOT, CHILDREN), op(22)).expect("split");
        assert_eq!(born.into_inner().len(), usize::from(CHILDREN), "{case}");
        assert_eq!(keys_with(&kv, "/cold/"), 1 + usize::from(CHILDREN), "{case}: the parent and its children");
        assert_eq!(keys_with(&kv, "/hatching/"), 0, "{case}");
        assert_eq!(counted(&kv), [1 + u64::from(CHILDREN); 2], "{case}");
        retire(&kv, &case);
    }
    assert!(broken_off > 8, "{broken_off}");
}

#[test]
fn the_next_holder_splits_a_shard_whose_last_holder_died_in_a_large_split() {
    let (kv, lease) = held();
    let begun = kv.snapshot();
    for at in 1..WRITES {
        let case = format!("the first breaks off at write {at}");
        let kv = SimKv::from_snapshot(&begun, at);
        if split_broken_off(&kv, &mut coordinator(&kv), &lease, op(18), at) {
            continue;
        }
        kv.advance(Duration::from_secs(20));
        let mut next = coordinator(&kv);
        let mut scratch = AcquireScratch::new();
        let key = ShardKey::new(RUN, ROOT);
        let granted = next.acquire_and_restore_into(NOW, TENANT, key, WorkerId::new(2), &mut scratch);
        let lease = granted.expect("its session has ended").lease;
        next.split_replace(NOW, TENANT, &lease, &plan(ROOT, CHILDREN), op(22)).expect("split");
        assert_eq!(keys_with(&kv, "/cold/"), 1 + usize::from(CHILDREN), "{case}");
        retire(&kv, &case);
    }
}

#[test]
fn a_split_that_was_staged_is_made_again_by_a_coordinator_that_can_do_it_in_one_transaction() {
    const FITS_THE_LARGER: u16 = 125;
    let kv = server_of(256);
    register(&mut coordinator_of(&kv, config_of(256)), &inputs(&bounds(1)));
    let lease = acquire(&mut coordinator_of(&kv, config_of(256)), ROOT);
    let begun = kv.snapshot();
    let plan = plan(ROOT, FITS_THE_LARGER);
    let mut broken_off = 0;
    for at in 0..WRITES {
        let kv = SimKv::from_snapshot(&begun, at);
        for turn in at..at + 400 {
            kv.inject(CallKind::Write, turn, Fault::Refuse);
        }
        let first = coordinator_of(&kv, config_of(128)).split_replace(NOW, TENANT, &lease, &plan, op(18));
        mend(&kv);
        broken_off += usize::from(first.is_err());
        let mut larger = coordinator_of(&kv, config_of(256));
        let born = larger.split_replace(NOW, TENANT, &lease, &plan, op(18));
        let born = born.unwrap_or_else(|error| panic!("broken off at write {at}: {error}")).into_inner();
        assert_eq!(born.len(), usize::from(FITS_THE_LARGER), "broken off at write {at}");
        assert_eq!(keys_with(&kv, "/cold/"), 1 + usize::from(FITS_THE_LARGER), "broken off at write {at}");
        let mut scratch = AcquireScratch::new();
        let mut claimed = BTreeSet::new();
        while let Ok(view) = larger.claim_next_available(NOW, TENANT, RUN, WORKER, &mut scratch) {
            assert!(claimed.insert(view.lease.shard()), "broken off at write {at}");
        }
        assert_eq!(claimed.len(), usize::from(FITS_THE_LARGER), "broken off at write {at}");
        retire(&kv, &format!("broken off at write {at}"));
    }
    assert!(broken_off > 3, "{broken_off}");
}
