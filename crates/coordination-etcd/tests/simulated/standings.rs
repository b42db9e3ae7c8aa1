//! One key proves to all operations of a session in a run that the run is open and the session lives; without it they prove
//! both by themselves.

use crate::fixtures::{NOW, RUN, TENANT, acquire, bounds, coordinator, everything, inputs, plant, register};
use tessera_contracts::{CursorUpdate, LogicalTime, OpId, ShardId};
use tessera_coordination::Lease;
use tessera_coordination::backend::{CoordinationBackend, RunManagement};
use tessera_coordination::error::{CheckpointError, OrderError};
use tessera_coordination_etcd::kv::{EtcdLeaseId, KeyValue, Op};
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

/// A run of three roots, all held, and the first of them with progress.
fn held() -> (SimKv, SimEtcdCoordinator, Lease) {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    register(&mut etcd, &inputs(&bounds(3)));
    let leases: Vec<Lease> = (1..=3).map(|shard| acquire(&mut etcd, ShardId::new(shard))).collect();
    checkpoint(&mut etcd, &leases[0], 10).expect("recorded");
    (kv, etcd, leases[0])
}

fn checkpoint(etcd: &mut SimEtcdCoordinator, lease: &Lease, op: u64) -> Result<(), CheckpointError> {
    let key = lease.shard().get().to_be_bytes();
    let cursor = CursorUpdate::at_key(&key).expect("valid");
    etcd.checkpoint(NOW, TENANT, lease, cursor, OpId::new(op)).map(drop)
}

fn keys_of(kv: &SimKv, part: &[u8]) -> Vec<KeyValue> {
    let all = everything(kv).into_iter();
    all.filter(|kv| kv.key.windows(part.len()).any(|at| at == part)).collect()
}

fn session(kv: &SimKv) -> EtcdLeaseId {
    keys_of(kv, b"/owner/").first().expect("held").lease
}

#[test]
fn a_session_has_one_standing_in_a_run_whatever_it_holds_and_it_goes_with_the_session() {
    let (kv, _etcd, _) = held();
    let standings = keys_of(&kv, b"/standing/");
    assert_eq!(standings.iter().map(|kv| kv.lease).collect::<Vec<_>>(), [session(&kv)]);
    kv.expire_lease(session(&kv));
    assert_eq!(keys_of(&kv, b"/standing/"), []);
}

#[test]
fn a_holder_is_refused_in_a_run_that_somebody_else_has_settled() {
    let (kv, mut etcd, lease) = held();
    coordinator(&kv).cancel_run(NOW, TENANT, RUN, OpId::new(30)).expect("cancelled");
    let stored = everything(&kv);
    let refused = checkpoint(&mut etcd, &lease, 11).expect_err("the run is over");
    assert!(format!("{refused:?}").contains("RunNotActive"), "{refused:?}");
    assert_eq!(everything(&kv), stored);
}

#[test]
fn a_holder_whose_session_the_store_has_ended_is_refused() {
    let (kv, mut etcd, lease) = held();
    kv.expire_lease(session(&kv));
    let stored = everything(&kv);
    let refused = checkpoint(&mut etcd, &lease, 11).expect_err("the session is over");
    assert!(format!("{refused:?}").contains("SessionLost"), "{refused:?}");
    assert_eq!(everything(&kv), stored);
}

#[test]
fn a_standing_that_is_gone_costs_two_more_requests_once_and_nothing_else() {
    let (kv, mut etcd, lease) = held();
    let standing = keys_of(&kv, b"/standing/").remove(0).key;
    plant(&kv, vec![Op::delete(standing)]);
    let calls = [11, 12, 13].map(|op| {
        let before = kv.calls();
        checkpoint(&mut etcd, &lease, op).expect("recorded");
        kv.calls() - before
    });
    assert_eq!(calls, [3, 1, 1], "it loses, reads and writes");
}

#[test]
fn an_order_to_a_holder_whose_session_the_store_has_ended_is_refused() {
    let (kv, mut etcd, lease) = held();
    // Past the deadline that the record has, and not past the one that only the owner key has.
    etcd.renew(LogicalTime::new(NOW.get() + 1_000), TENANT, &lease).expect("renewed");
    let late = LogicalTime::new(lease.deadline().get() + 500);
    kv.expire_lease(session(&kv));
    let stored = everything(&kv);
    let refused = etcd.request_yield(late, TENANT, lease.key(), lease.epoch());
    assert!(matches!(refused, Err(OrderError::NotLeased { .. })), "{refused:?}");
    assert_eq!(everything(&kv), stored);
}
