//! A split whose child's name is taken is refused and changes nothing, whether it is one transaction or many.
//!
//! Names of children are 63 bits of a hash, so they never collide in practice; the other shard is put there by hand.

use crate::fixtures::{self, KEY, NOW, TENANT, coordinator, everything, plant, register};
use crate::roots::taken_name;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{DerivedShardKind, plan_split_replace, plan_split_residual};
use tessera_contracts::{CursorUpdate, OpId, ShardId, ShardKey, ShardSpec, WorkerId};
use tessera_coordination::backend::{CoordinationBackend, RunManagement};
use tessera_coordination::error::{InfraError, SplitError};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

const SPLIT: OpId = OpId::new(9);

fn leased(kv: &SimKv) -> (SimEtcdCoordinator, Lease) {
    let mut etcd = coordinator(kv);
    let shards = [InitialShardInput::new(KEY.shard, b"a", b"m"), InitialShardInput::new(ShardId::new(2), b"m", b"z")];
    register(&mut etcd, &shards);
    let lease = fixtures::acquire(&mut etcd, KEY.shard);
    (etcd, lease)
}

fn take(kv: &SimKv, kind: DerivedShardKind, index: u32) -> ShardKey {
    let (taken, puts) = taken_name(&EtcdConfig::default().namespace, TENANT, KEY, SPLIT, kind, index);
    plant(kv, puts);
    taken
}

/// The split was refused by the backend, the store is as it was to the revision, and holder and other shard go on.
fn assert_refused(kv: &SimKv, etcd: &mut SimEtcdCoordinator, lease: &Lease, taken: ShardKey, act: impl Split) {
    let stored = everything(kv);
    let refused = act(etcd, SPLIT).expect_err("it wrote over another shard");
    assert!(matches!(refused, SplitError::BackendError(InfraError::Corruption { .. })), "{refused:?}");
    assert_eq!(everything(kv), stored);
    let theirs = coordinator(kv).get_shard(TENANT, taken).expect("there");
    assert_eq!((theirs.state.parent, theirs.spec.metadata()), (Some(ShardId::new(2)), &b"of another"[..]));
    let scratch = &mut AcquireScratch::new();
    coordinator(kv).acquire_and_restore_into(NOW, TENANT, taken, WorkerId::new(2), scratch).expect("free as before");
    etcd.checkpoint(NOW, TENANT, lease, CursorUpdate::at_key(b"a").expect("valid"), OpId::new(5)).expect("recorded");
    // Another op id is another name.
    act(etcd, OpId::new(10)).expect("split");
}

trait Split: Fn(&mut SimEtcdCoordinator, OpId) -> Result<(), SplitError> {}

impl<F: Fn(&mut SimEtcdCoordinator, OpId) -> Result<(), SplitError>> Split for F {}

#[test]
fn a_child_whose_name_is_taken_is_not_written_over_by_a_split_of_one_transaction() {
    for index in [0, 1] {
        let kv = SimKv::new(1);
        let (mut etcd, lease) = leased(&kv);
        let taken = take(&kv, DerivedShardKind::Child, index);
        let plan = plan_split_replace(parent().view(), &[b"f"]).expect("valid");
        assert_refused(&kv, &mut etcd, &lease, taken, |etcd: &mut SimEtcdCoordinator, op| {
            etcd.split_replace(NOW, TENANT, &lease, &plan, op).map(drop)
        });
    }
}

#[test]
fn a_child_whose_name_is_taken_is_not_written_over_by_a_split_of_many_transactions() {
    let points: Vec<[u8; 2]> = (0..199).map(|point| [b'b', point]).collect();
    let points: Vec<&[u8]> = points.iter().map(<[u8; 2]>::as_slice).collect();
    let plan = plan_split_replace(parent().view(), &points).expect("valid");
    for index in [0, 199] {
        let kv = SimKv::new(1);
        let (mut etcd, lease) = leased(&kv);
        let taken = take(&kv, DerivedShardKind::Child, index);
        assert_refused(&kv, &mut etcd, &lease, taken, |etcd: &mut SimEtcdCoordinator, op| {
            etcd.split_replace(NOW, TENANT, &lease, &plan, op).map(drop)
        });
    }
}

#[test]
fn a_residual_whose_name_is_taken_is_not_written_over() {
    let kv = SimKv::new(1);
    let (mut etcd, lease) = leased(&kv);
    let taken = take(&kv, DerivedShardKind::Residual, 0);
    let plan = plan_split_residual(parent().view(), None, b"f").expect("valid");
    assert_refused(&kv, &mut etcd, &lease, taken, |etcd: &mut SimEtcdCoordinator, op| {
        etcd.split_residual(NOW, TENANT, &lease, &plan, op).map(drop)
    });
}

fn parent() -> ShardSpec {
    ShardSpec::new(b"a", b"m", b"").expect("valid")
}
