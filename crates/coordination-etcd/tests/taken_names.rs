//! A split whose child's name is taken is refused and changes nothing, whether it is one transaction or many.
//!
//! Names of children are 63 bits of a hash, so they never collide in practice; the other shard is put there by hand.

use std::time::Duration;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{DerivedShardKind, derive_split_shard_id, plan_split_replace, plan_split_residual};
use tessera_contracts::{
    Cursor, CursorSemantics, CursorUpdate, LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, TenantId, WorkerId,
};
use tessera_coordination::backend::{CoordinationBackend, RunManagement};
use tessera_coordination::error::{InfraError, SplitError};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::codec::ColdPart;
use tessera_coordination_etcd::keyspace::{Keyspace, ShardIndex};
use tessera_coordination_etcd::kv::{KeyValue, Keys, Kv, Moment, Op, RangeRequest, Txn};
use tessera_coordination_etcd::sim_kv::{SimKv, block_on};
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const NOW: LogicalTime = LogicalTime::new(1_000_000);
const SPLIT: OpId = OpId::new(9);

fn coordinator(kv: &SimKv) -> SimEtcdCoordinator {
    let config = EtcdConfig { skew_tolerance: Duration::ZERO, ..EtcdConfig::default() };
    sync::simulate(kv.clone(), config).expect("valid")
}

/// All that the store holds, with the revisions at which it was written.
fn everything(kv: &SimKv) -> Vec<KeyValue> {
    let all = Keys::with_prefix(EtcdConfig::default().namespace);
    let found = kv.inspect(|store| store.range(&RangeRequest::of(all)).expect("readable").kvs);
    assert_eq!(found.len(), kv.inspect(|store| store.keys().count()), "nothing lies elsewhere");
    found
}

fn leased(kv: &SimKv) -> (SimEtcdCoordinator, Lease) {
    let mut etcd = coordinator(kv);
    let shards = [InitialShardInput::new(KEY.shard, b"a", b"m"), InitialShardInput::new(ShardId::new(2), b"m", b"z")];
    etcd.create_run_with_shards(NOW, TENANT, KEY.run, RunConfig::default(), &shards, OpId::new(1)).expect("registered");
    let scratch = &mut AcquireScratch::new();
    let lease = etcd.acquire_and_restore_into(NOW, TENANT, KEY, WorkerId::new(1), scratch).expect("granted").lease;
    (etcd, lease)
}

/// A free shard of the same run, split from shard 2 as it were, under the name that the split will derive.
fn take(kv: &SimKv, kind: DerivedShardKind, index: u32) -> ShardKey {
    let space = Keyspace::new(&EtcdConfig::default().namespace);
    let taken = ShardKey::new(KEY.run, derive_split_shard_id(KEY.run, KEY.shard, SPLIT, kind, index));
    let cold = ColdPart {
        spec: ShardSpec::new(b"x", b"y", b"somebody else's").expect("valid"),
        cursor_semantics: CursorSemantics::default(),
        parent: Some(ShardId::new(2)),
        born_at: Cursor::initial(),
        spawned: Vec::new(),
        staged: false,
    };
    let puts = vec![
        Op::put(space.cold(TENANT, taken), cold.encode()),
        Op::put(space.index(ShardIndex::Free, TENANT, taken), ""),
    ];
    block_on(kv.txn(Txn::of(puts), Moment(Duration::from_secs(1 << 30)))).expect("planted");
    taken
}

/// The split was refused by the backend, the store is as it was to the revision, and holder and other shard go on.
fn assert_refused(kv: &SimKv, etcd: &mut SimEtcdCoordinator, lease: &Lease, taken: ShardKey, act: impl Split) {
    let stored = everything(kv);
    let refused = act(etcd, SPLIT).expect_err("it wrote over another shard");
    assert!(matches!(refused, SplitError::BackendError(InfraError::Corruption { .. })), "{refused:?}");
    assert_eq!(everything(kv), stored);
    let theirs = coordinator(kv).get_shard(TENANT, taken).expect("there");
    assert_eq!((theirs.state.parent, theirs.spec.metadata()), (Some(ShardId::new(2)), &b"somebody else's"[..]));
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
