//! A decision that would break an invariant stops the process before anything has changed.
//!
//! No decision of this crate does, so each is made by hand and handed to the one function through which every operation on
//! a shard writes.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::limits::MAX_SPAWNED_PER_SHARD;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{CursorUpdate, PayloadHash};

use super::InMemoryCoordinator;
use crate::backend::{CoordinationBackend, RunManagement};
use crate::record::lease::Lease;
use crate::record::op_log::{OpKind, OpLogEntry, OpResult};
use crate::record::park::ParkInfo;
use crate::record::snapshot::AcquireScratch;
use crate::record::state::{Change, Head, Spawned};
use crate::record::status::{ParkReason, ShardStatus};
use crate::run::config::RunConfig;

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const INCARNATION: RunIncarnation = RunIncarnation::new(1);

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn leased() -> (InMemoryCoordinator, Lease) {
    let mut memory = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(KEY.shard, b"a", b"m")];
    memory
        .create_run_with_shards(at(1), TENANT, KEY.run, INCARNATION, RunConfig::default(), &shards, OpId::new(1))
        .unwrap();
    let scratch = &mut AcquireScratch::new();
    let lease = memory.acquire_and_restore_into(at(2), TENANT, KEY, WorkerId::new(1), scratch).unwrap().lease;
    memory.checkpoint(at(2), TENANT, &lease, CursorUpdate::at_key(b"b").unwrap(), OpId::new(5)).unwrap();
    (memory, lease)
}

fn spawned(id: u64, count: usize) -> Vec<Spawned> {
    vec![Spawned { id: ShardId::new(id), payload_hash: PayloadHash::from_stored(1).unwrap() }; count]
}

/// What is broken, how, and with which children.
fn broken(head: Head) -> Vec<(&'static str, Change<'static>, Vec<Spawned>)> {
    let cursor = Some(CursorUpdate::at_key(b"c").unwrap());
    let only = |head: Head| Change { cursor, ..Change::of_head(head) };
    let remembered = OpLogEntry {
        op_id: OpId::new(5),
        payload_hash: PayloadHash::from_stored(1).unwrap(),
        executed_at: at(3),
        kind: OpKind::Checkpoint,
        result: OpResult::Completed,
    };
    let park = Some(ParkInfo { reason: ParkReason::Other, retry_after: None });
    let derived = ShardId::DERIVED_BIT;
    vec![
        ("invariant 1", only(Head { park, ..head }), vec![]),
        ("invariant 1", only(head.settled(ShardStatus::Parked)), vec![]),
        ("invariant 3", only(Head { status: ShardStatus::Done, ..head }), vec![]),
        ("invariant 4", only(Head { fence: FenceEpoch::new(0), ..head }), vec![]),
        ("invariant 6", only(head.settled(ShardStatus::Split)), vec![]),
        ("invariant 8", only(head), spawned(7, 1)),
        ("invariant 9", Change { logged: Some(remembered), ..only(head) }, vec![]),
        ("invariant 10", only(head), spawned(derived, MAX_SPAWNED_PER_SHARD + 1)),
    ]
}

#[test]
fn a_change_that_breaks_a_rule_stops_before_anything_has_changed() {
    let (mut memory, lease) = leased();
    let slot = memory.locate(TENANT, KEY).unwrap();
    let before = memory.get_shard(TENANT, KEY).unwrap();
    for (rule, change, births) in broken(before.state.head) {
        let stopped = catch_unwind(AssertUnwindSafe(|| memory.commit(slot, &change, births.iter().copied())));
        let words = stopped.unwrap_err().downcast::<String>().unwrap();
        assert!(words.contains(rule), "{rule}: {words}");
        assert_eq!(memory.get_shard(TENANT, KEY).unwrap(), before, "{rule}");
    }
    // Nor is the claim index: the shard is leased, and the holder goes on.
    let renewed = memory.renew(at(3), TENANT, &lease).unwrap();
    assert_eq!((renewed.capacity.available_count, renewed.capacity.earliest_deadline), (0, Some(renewed.new_deadline)));
    memory.complete(at(3), TENANT, &lease, CursorUpdate::at_key(b"c").unwrap(), OpId::new(6)).unwrap();
}

#[test]
fn a_settled_shard_cannot_be_revived_by_mistake() {
    let (mut memory, lease) = leased();
    memory.complete(at(3), TENANT, &lease, CursorUpdate::at_key(b"c").unwrap(), OpId::new(6)).unwrap();
    let slot = memory.locate(TENANT, KEY).unwrap();
    let before = memory.get_shard(TENANT, KEY).unwrap();
    let revived = Change::of_head(Head { status: ShardStatus::Active, ..before.state.head });
    let stopped = catch_unwind(AssertUnwindSafe(|| memory.commit(slot, &revived, core::iter::empty())));
    let words = stopped.unwrap_err().downcast::<String>().unwrap();
    assert!(words.contains("illegal transition from done to active"), "{words}");
    assert_eq!(memory.get_shard(TENANT, KEY).unwrap(), before);
}
