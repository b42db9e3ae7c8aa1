//! A record in the store that breaks an invariant, or is no record at all, is refused as corruption: neither served nor
//! written over.

use std::iter;

use crate::fixtures::{self, KEY, NOW, TENANT, coordinator, everything, plant, register};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::plan_split_replace;
use tessera_contracts::{CursorUpdate, FenceEpoch, OpId, RunIncarnation, ShardId, ShardSpec, WorkerId};
use tessera_coordination::backend::{CoordinationBackend, RunManagement, ShardClaiming};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::ParkInfo;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::codec::{ColdPart, HotPart};
use tessera_coordination_etcd::keyspace::Keyspace;
use tessera_coordination_etcd::kv::{Op, RangeRequest};
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

fn at(key: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::at_key(key).expect("valid")
}

/// A run of one shard, held and with progress.
fn leased(kv: &SimKv) -> (SimEtcdCoordinator, Lease) {
    let mut etcd = coordinator(kv);
    register(&mut etcd, &[InitialShardInput::new(KEY.shard, b"a", b"m")]);
    let lease = fixtures::acquire(&mut etcd, KEY.shard);
    etcd.checkpoint(NOW, TENANT, &lease, at(b"b"), OpId::new(5)).expect("recorded");
    (etcd, lease)
}

fn read(kv: &SimKv, path: &[u8]) -> Vec<u8> {
    let path = path.to_vec();
    let found = kv.inspect(|store| store.range(&RangeRequest::one(path)).expect("readable"));
    found.into_one().expect("there").value.to_vec()
}

fn put(kv: &SimKv, path: &[u8], value: Vec<u8>) {
    plant(kv, vec![Op::put(path.to_vec(), value)]);
}

/// What each operation said of a shard that cannot be believed.
fn said(etcd: &mut SimEtcdCoordinator, lease: &Lease) -> Vec<(&'static str, String)> {
    let parent = ShardSpec::new(b"a", b"m", b"").expect("valid");
    let plan = plan_split_replace(parent.view(), &[b"f"]).expect("valid");
    let scratch = &mut AcquireScratch::new();
    let other = WorkerId::new(2);
    macro_rules! refused {
        ($name:literal, $answer:expr) => {
            ($name, format!("{:?}", $answer.map(|_| ()).expect_err($name)))
        };
    }
    vec![
        refused!("get_shard", etcd.get_shard(TENANT, KEY)),
        refused!("checkpoint", etcd.checkpoint(NOW, TENANT, lease, at(b"c"), OpId::new(6))),
        refused!("complete", etcd.complete(NOW, TENANT, lease, at(b"c"), OpId::new(7))),
        refused!("release", etcd.release(NOW, TENANT, lease, None, ReleaseReason::Released, OpId::new(8))),
        refused!("split", etcd.split_replace(NOW, TENANT, lease, &plan, OpId::new(9))),
        refused!("acquire", etcd.acquire_and_restore_into(NOW, TENANT, KEY, other, scratch)),
    ]
}

/// The hot and the cold part of the shard, each broken in its way, and the word that names it.
fn cases(hot: &[u8], cold: &[u8]) -> Vec<(&'static str, bool, Vec<u8>)> {
    let changed_hot = |change: &dyn Fn(&mut HotPart)| {
        let mut part = HotPart::decode(hot).expect("whole");
        change(&mut part);
        part.encode()
    };
    let mut orphan = ColdPart::decode(cold).expect("whole");
    orphan.parent = Some(ShardId::new(9));
    let mut leftover = ColdPart::decode(cold).expect("whole");
    leftover.incarnation = RunIncarnation::new(99);
    let park = Some(ParkInfo { reason: ParkReason::Other, retry_after: None });
    let split = |part: &mut HotPart| part.head = part.head.settled(ShardStatus::Split);
    let twice = |part: &mut HotPart| {
        let entry = *part.op_log.iter().next().expect("a checkpoint was made");
        part.op_log = iter::repeat_n(entry, 2).collect();
    };
    vec![
        ("invariant 1", true, changed_hot(&|part| part.head.park = park)),
        ("invariant 3", true, changed_hot(&|part| part.head.status = ShardStatus::Done)),
        ("invariant 4", true, changed_hot(&|part| part.head.fence = FenceEpoch::new(0))),
        ("invariant 6", true, changed_hot(&split)),
        ("invariant 7", false, orphan.encode()),
        ("invariant 9", true, changed_hot(&twice)),
        ("is of incarnation", true, changed_hot(&|part| part.incarnation = RunIncarnation::new(99))),
        ("is of incarnation", false, leftover.encode()),
        ("field end", true, [hot, &[0]].concat()),
        ("field version", false, [&[99], &cold[1..]].concat()),
    ]
}

#[test]
fn a_broken_record_in_the_store_is_refused_by_its_rule_and_stays_as_it_was_found() {
    let kv = SimKv::new(1);
    let (mut holder, lease) = leased(&kv);
    let space = Keyspace::new(&EtcdConfig::default().namespace);
    let (hot_path, cold_path) = (space.hot(TENANT, KEY), space.cold(TENANT, KEY));
    let (hot, cold) = (read(&kv, hot_path.as_bytes()), read(&kv, cold_path.as_bytes()));
    for (rule, is_hot, bytes) in cases(&hot, &cold) {
        let (path, whole) = if is_hot { (hot_path.as_bytes(), &hot) } else { (cold_path.as_bytes(), &cold) };
        put(&kv, path, bytes);
        let stored = everything(&kv);
        for (operation, words) in said(&mut coordinator(&kv), &lease) {
            assert!(words.contains("Corruption") && words.contains(rule), "{rule}, {operation}: {words}");
        }
        assert_eq!(everything(&kv), stored, "{rule}: the store was written to");
        put(&kv, path, whole.clone());
    }
    holder.checkpoint(NOW, TENANT, &lease, at(b"c"), OpId::new(50)).expect("whole again");
}

#[test]
fn a_holder_that_remembers_a_whole_record_does_not_write_over_a_broken_one() {
    let kv = SimKv::new(1);
    let (mut holder, lease) = leased(&kv);
    let space = Keyspace::new(&EtcdConfig::default().namespace);
    let path = space.hot(TENANT, KEY);
    let hot = read(&kv, path.as_bytes());
    let cold = read(&kv, space.cold(TENANT, KEY).as_bytes());
    let of_hot = cases(&hot, &cold).into_iter().filter(|(_, is_hot, _)| *is_hot);
    for (n, (rule, _, bytes)) in of_hot.enumerate() {
        put(&kv, path.as_bytes(), bytes);
        let stored = everything(&kv);
        let words = format!("{:?}", holder.checkpoint(NOW, TENANT, &lease, at(b"c"), OpId::new(60 + n as u64)));
        assert!(words.contains("Corruption") && words.contains(rule), "{rule}: {words}");
        assert_eq!(everything(&kv), stored, "{rule}: the store was written to");
        put(&kv, path.as_bytes(), hot.clone());
        holder.checkpoint(NOW, TENANT, &lease, at(b"b"), OpId::new(80 + n as u64)).expect("whole again");
        put(&kv, path.as_bytes(), hot.clone());
    }
}

#[test]
fn a_claim_is_not_granted_a_broken_record() {
    let kv = SimKv::new(1);
    let (mut holder, lease) = leased(&kv);
    holder.release(NOW, TENANT, &lease, None, ReleaseReason::Released, OpId::new(8)).expect("released");
    let space = Keyspace::new(&EtcdConfig::default().namespace);
    let path = space.hot(TENANT, KEY);
    let mut part = HotPart::decode(&read(&kv, path.as_bytes())).expect("whole");
    part.head.fence = FenceEpoch::new(0);
    put(&kv, path.as_bytes(), part.encode());
    let before = read(&kv, path.as_bytes());
    let scratch = &mut AcquireScratch::new();
    let claimed = coordinator(&kv).claim_next_available(NOW, TENANT, KEY.run, WorkerId::new(2), scratch).map(|_| ());
    let words = format!("{:?}", claimed.expect_err("granted"));
    assert!(words.contains("Corruption") && words.contains("invariant 4"), "{words}");
    assert_eq!(read(&kv, path.as_bytes()), before);
}
