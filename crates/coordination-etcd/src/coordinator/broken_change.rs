//! A decision that would break an invariant stops before anything is sent to the store.
//!
//! No decision of the protocol does, so each is made by hand and handed to the two loops through which every operation on
//! a shard is stored.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{CursorUpdate, PayloadHash};
use tessera_coordination::backend::{BlockOn, CoordinationBackend, RunManagement};
use tessera_coordination::decide::{Birth, Split, Verdict};
use tessera_coordination::error::CheckpointError;
use tessera_coordination::record::park::ParkInfo;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::state::{Change, Head};
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};

use super::split::SplitStep;
use crate::EtcdConfig;
use crate::kv::{KeyValue, Keys, RangeRequest};
use crate::sim_kv::SimKv;
use crate::sync::{self, SimEtcdCoordinator};
use tessera_coordination::decide::unreachable::Peers;
use tessera_coordination::events::NoEvents;
use tessera_coordination::operation::{Address, Guard, ShardOperation};
use tessera_coordination::record::view::ShardView;

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const NOW: LogicalTime = LogicalTime::new(1_000_000);

fn coordinator(kv: &SimKv) -> SimEtcdCoordinator {
    let config = EtcdConfig { skew_tolerance: Duration::ZERO, ..EtcdConfig::default() };
    sync::simulate(kv.clone(), config).expect("valid")
}

fn leased(kv: &SimKv) -> (SimEtcdCoordinator, Lease) {
    let mut etcd = coordinator(kv);
    let shards = [InitialShardInput::new(KEY.shard, b"a", b"m")];
    etcd.create_run_with_shards(NOW, TENANT, KEY.run, INCARNATION, RunConfig::default(), &shards, OpId::new(1))
        .expect("registered");
    let scratch = &mut AcquireScratch::new();
    let lease = etcd.acquire_and_restore_into(NOW, TENANT, KEY, WorkerId::new(1), scratch).expect("granted").lease;
    etcd.checkpoint(NOW, TENANT, &lease, CursorUpdate::at_key(b"b").expect("valid"), OpId::new(5)).expect("recorded");
    (etcd, lease)
}

/// All that the store holds, with the revisions at which it was written.
fn everything(kv: &SimKv) -> Vec<KeyValue> {
    let all = Keys::with_prefix(EtcdConfig::default().namespace);
    let found = kv.inspect(|store| store.range(&RangeRequest::of(all)).expect("readable").kvs);
    assert_eq!(found.len(), kv.inspect(|store| store.keys().count()), "nothing lies elsewhere");
    found
}

/// What is broken, and how.
fn broken(head: Head) -> Vec<(&'static str, Change<'static>)> {
    let cursor = Some(CursorUpdate::at_key(b"c").expect("valid"));
    let only = |head: Head| Change { cursor, ..Change::of_head(head) };
    let park = Some(ParkInfo { reason: ParkReason::Other, retry_after: None });
    vec![
        ("invariant 1", only(Head { park, ..head })),
        ("invariant 1", only(head.settled(ShardStatus::Parked))),
        ("invariant 3", only(Head { status: ShardStatus::Done, ..head })),
        ("invariant 4", only(Head { fence: FenceEpoch::new(0), ..head })),
        ("invariant 6", only(head.settled(ShardStatus::Split))),
    ]
}

/// An operation that was decided wrongly.
struct Decided(Change<'static>);

impl ShardOperation for Decided {
    const NAME: &'static str = "broken";
    const GUARD: Guard = Guard::SessionStands;
    type Answer = ();
    type Refused = CheckpointError;

    fn address(&self) -> Address {
        Address { tenant: TENANT, key: KEY }
    }

    fn decide<const LOG: usize>(
        &self,
        _: &ShardView<'_, LOG>,
        _: Peers<'_>,
        _: LogicalTime,
    ) -> Result<Verdict<Change<'_>>, CheckpointError> {
        Ok(Verdict::Execute(self.0))
    }

    fn answer(&self, _: &Change<'_>) {}
}

/// The words of the panic with which `act` stopped.
fn stopped(act: impl FnOnce()) -> String {
    *catch_unwind(AssertUnwindSafe(act)).expect_err("it went on").downcast::<String>().expect("words")
}

/// The store, the shard for its next reader, and the holder's own work are as if nothing had been tried.
fn assert_untouched(kv: &SimKv, stored: &[KeyValue], record: &ShardRecord, rule: &str) {
    assert_eq!(everything(kv), stored, "{rule}");
    assert_eq!(&coordinator(kv).get_shard(TENANT, KEY).expect("there"), record, "{rule}");
}

#[test]
fn a_change_that_breaks_a_rule_stops_before_anything_is_stored() {
    let kv = SimKv::new(1);
    let (mut etcd, lease) = leased(&kv);
    let before = etcd.get_shard(TENANT, KEY).expect("there");
    let stored = everything(&kv);
    for (rule, change) in broken(before.state.head) {
        let (operation, mut nobody) = (Decided(change), NoEvents);
        let call = etcd.backend.call(NOW, &operation, &mut nobody);
        let words = stopped(|| drop(etcd.executor.block_on(call)));
        assert!(words.contains(rule), "{rule}: {words}");
        assert_untouched(&kv, &stored, &before, rule);
    }
    etcd.complete(NOW, TENANT, &lease, CursorUpdate::at_key(b"c").expect("valid"), OpId::new(6)).expect("it goes on");
}

#[test]
fn a_split_that_breaks_a_rule_stops_before_parent_or_children_are_stored() {
    let kv = SimKv::new(1);
    let (mut etcd, lease) = leased(&kv);
    let before = etcd.get_shard(TENANT, KEY).expect("there");
    let stored = everything(&kv);
    let child = Birth {
        // A root's name, which no child may have.
        key: ShardKey::new(KEY.run, ShardId::new(7)),
        incarnation: before.incarnation,
        spec: before.spec.view(),
        cursor: before.cursor.as_update(),
        cursor_semantics: before.state.cursor_semantics,
        parent: Some(KEY.shard),
        payload_hash: PayloadHash::from_stored(1).expect("not zero"),
    };
    // One transaction is enough for the first; the second would be staged.
    for children in [1, 200] {
        let split = Split {
            change: Change::of_head(before.state.head.settled(ShardStatus::Split)),
            births: vec![child; children],
            answer: (),
        };
        let inner = &etcd.backend.inner;
        let operation = inner
            .split("broken", TENANT, &lease, |_, record, _| Ok(SplitStep::of(record, Verdict::Execute(split.clone()))));
        let words = stopped(|| drop(etcd.executor.block_on(operation)));
        assert!(words.contains("invariant 8"), "{words}");
        assert_untouched(&kv, &stored, &before, "invariant 8");
    }
    etcd.complete(NOW, TENANT, &lease, CursorUpdate::at_key(b"c").expect("valid"), OpId::new(6)).expect("it goes on");
}
