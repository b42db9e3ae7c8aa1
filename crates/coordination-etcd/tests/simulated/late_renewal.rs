//! A renewal that reaches the store long after its caller gave it up.

use core::time::Duration;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::AcquireScratch;
use tessera_coordination::backend::{CoordinationBackend, RunManagement};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sync;

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const INCARNATION: RunIncarnation = RunIncarnation::new(1);

/// A coordinator that takes the old deadline for the true one would take the shard from a worker that holds it.
#[test]
fn a_late_renewal_does_not_put_back_the_deadline_of_a_later_one() {
    let kv = SimKv::new(1);
    // Sessions that outlast what is waited for here.
    let ttl = Duration::from_secs(60);
    let etcd = EtcdConfig { session_ttl: ttl, session_ttl_min: ttl, ..EtcdConfig::default() };
    let mut backend = sync::simulate(kv.clone(), etcd).expect("valid");
    let config = RunConfig { lease_duration: Some(100), ..RunConfig::default() };
    let at = LogicalTime::new;
    let root = [InitialShardInput::new(KEY.shard, b"a", b"z")];
    backend
        .create_run_with_shards(at(1_000), TENANT, KEY.run, INCARNATION, config, &root, OpId::new(1))
        .expect("registered");
    let mut scratch = AcquireScratch::new();
    let lease = backend
        .acquire_and_restore_into(at(1_000), TENANT, KEY, WorkerId::new(1), &mut scratch)
        .expect("granted")
        .lease;
    kv.inject(CallKind::Write, 0, Fault::Late(Duration::from_secs(2)));
    let before = kv.calls();
    let first = backend.renew(at(1_010), TENANT, &lease).expect("it is asked again when nobody answers");
    assert_eq!(first.new_deadline, at(1_110));
    assert!(kv.calls() - before > 1, "one of them is on its way still");
    let second = backend.renew(at(1_080), TENANT, &lease).expect("renewed");
    assert_eq!(second.new_deadline, at(1_180));
    kv.advance(Duration::from_secs(5));
    let holder = backend.get_shard(TENANT, KEY).expect("there").state.head.lease.expect("held");
    assert_eq!(holder.deadline, at(1_180), "the late one was for 1110");
}
