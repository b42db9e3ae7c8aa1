//! What a holder does after another has written its shard: the failure branch brings the hot part, the rest is
//! remembered, and the next transaction proves that both belong together.

use crate::fixtures::{KEY, NOW, TENANT, acquire, bounds, coordinator, everything, inputs, register};
use tessera_contracts::split::plan_split_residual;
use tessera_contracts::{CursorUpdate, OpId};
use tessera_coordination::Lease;
use tessera_coordination::backend::{CoordinationBackend, RunManagement};
use tessera_coordination::error::{CheckpointError, IdempotentOutcome};
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

/// The root's first key and behind it `tail`.
fn checkpoint(
    etcd: &mut SimEtcdCoordinator,
    lease: &Lease,
    tail: u8,
    op: u64,
) -> Result<IdempotentOutcome<()>, CheckpointError> {
    let key = [&1u64.to_be_bytes()[..], &[tail]].concat();
    etcd.checkpoint(NOW, TENANT, lease, CursorUpdate::at_key(&key).expect("valid"), OpId::new(op))
}

/// A shard that one process holds, which has written it once, and a second process that knows its lease.
fn held() -> (SimKv, SimEtcdCoordinator, SimEtcdCoordinator, Lease) {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    register(&mut etcd, &inputs(&bounds(1)));
    let lease = acquire(&mut etcd, KEY.shard);
    checkpoint(&mut etcd, &lease, 1, 10).expect("recorded");
    let other = coordinator(&kv);
    (kv, etcd, other, lease)
}

/// How many requests a checkpoint takes that is recorded.
fn requests_of(kv: &SimKv, etcd: &mut SimEtcdCoordinator, lease: &Lease, tail: u8, op: u64) -> u64 {
    let before = kv.calls();
    checkpoint(etcd, lease, tail, op).expect("recorded");
    kv.calls() - before
}

/// Gives away everything from the eighth key on.
fn narrow(etcd: &mut SimEtcdCoordinator, lease: &Lease) {
    let shard = etcd.get_shard(TENANT, KEY).expect("there");
    let at = [&1u64.to_be_bytes()[..], &[8]].concat();
    let plan = plan_split_residual(shard.spec.view(), shard.cursor.last_key(), &at).expect("valid");
    etcd.split_residual(NOW, TENANT, lease, &plan, OpId::new(20)).expect("split");
}

#[test]
fn who_lost_a_race_decides_again_on_what_the_failure_branch_brought() {
    let (kv, mut etcd, mut other, lease) = held();
    checkpoint(&mut other, &lease, 2, 20).expect("recorded");
    assert_eq!(requests_of(&kv, &mut etcd, &lease, 3, 11), 2, "one that lost and one that won");
    let shard = etcd.get_shard(TENANT, KEY).expect("there");
    let logged = [10, 20, 11].map(|op| shard.state.op_log.find(OpId::new(op)).is_some());
    assert_eq!(logged, [true; 3]);
    assert_eq!(requests_of(&kv, &mut etcd, &lease, 4, 12), 1, "and knows the shard again");
}

#[test]
fn a_range_that_one_has_narrowed_oneself_is_known() {
    let (kv, mut etcd, mut other, lease) = held();
    narrow(&mut etcd, &lease);
    checkpoint(&mut other, &lease, 2, 21).expect("recorded");
    assert_eq!(requests_of(&kv, &mut etcd, &lease, 3, 11), 2, "one that lost and one that won");
}

#[test]
fn a_shard_that_was_narrowed_meanwhile_is_not_taken_for_as_wide_as_it_was() {
    let (kv, mut etcd, mut other, lease) = held();
    narrow(&mut other, &lease);
    let stored = everything(&kv);
    let refused = checkpoint(&mut etcd, &lease, 9, 11).expect_err("that key is another shard's now");
    assert!(matches!(refused, CheckpointError::Cursor(_)), "{refused:?}");
    assert_eq!(everything(&kv), stored);
    checkpoint(&mut etcd, &lease, 7, 12).expect("still its own");
}

#[test]
fn neither_a_refusal_nor_a_replay_is_decided_on_a_part_of_the_record() {
    let (kv, mut etcd, mut other, lease) = held();
    checkpoint(&mut other, &lease, 2, 20).expect("recorded");
    let before = kv.calls();
    assert_eq!(checkpoint(&mut etcd, &lease, 2, 20), Ok(IdempotentOutcome::Replayed(())));
    assert_eq!(kv.calls() - before, 2, "one that lost and one that read");
    let mut other = coordinator(&kv);
    checkpoint(&mut other, &lease, 5, 21).expect("recorded");
    other.cancel_run(NOW, TENANT, KEY.run, OpId::new(30)).expect("cancelled");
    let refused = checkpoint(&mut etcd, &lease, 6, 13).expect_err("the run is over");
    assert!(format!("{refused:?}").contains("RunNotActive"), "{refused:?}");
}
