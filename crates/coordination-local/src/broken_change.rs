//! An operation that violates an invariant stops, nothing of it reaches the file, and the file is where the next start
//! goes on.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::{CheckpointError, InfraError};
use tessera_coordination::events::NoEvents;
use tessera_coordination::record::state::{Change, Head};
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, RunManagement};

use crate::LocalCoordinator;

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const NOW: LogicalTime = LogicalTime::new(1);

#[test]
fn a_change_stopped_by_a_broken_rule_is_not_in_the_file_and_the_next_start_goes_on_from_before_it() {
    let folder = std::env::temp_dir().join(format!("tessera-local-broken-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("runs.redb");
    let open = || LocalCoordinator::open(&path, CoordinatorRuntimeConfig::default()).unwrap();
    let key = |key| CursorUpdate::at_key(key).unwrap();

    let mut local = open();
    let shards = [InitialShardInput::new(KEY.shard, b"a", b"m")];
    local
        .create_run_with_shards(NOW, TENANT, KEY.run, INCARNATION, RunConfig::default(), &shards, OpId::new(1))
        .unwrap();
    let scratch = &mut AcquireScratch::new();
    let lease = local.acquire_and_restore_into(NOW, TENANT, KEY, WorkerId::new(1), scratch).unwrap().lease;
    local.checkpoint(NOW, TENANT, &lease, key(b"b"), OpId::new(5)).unwrap();
    let before = local.get_shard(TENANT, KEY).unwrap();

    // The operation has changed memory and told of it, and then meets a rule it would break.
    let stopped = catch_unwind(AssertUnwindSafe(|| {
        local.pass(&mut NoEvents, |memory, events| {
            memory.checkpoint_with_events(NOW, TENANT, &lease, key(b"c"), OpId::new(6), events)?;
            let mut record = memory.get_shard(TENANT, KEY).unwrap();
            let head = Head { status: ShardStatus::Done, ..record.state.head };
            record.apply(&Change::of_head(head), &[]);
            Ok::<_, CheckpointError>(())
        })
    }));
    let words = stopped.unwrap_err().downcast::<String>().unwrap();
    assert!(words.contains("invariant 3"), "{words}");

    // Memory may be ahead of the file now, so nothing is answered from it, and nothing is written.
    let refused = local.checkpoint(NOW, TENANT, &lease, key(b"d"), OpId::new(7)).unwrap_err();
    assert!(matches!(refused, CheckpointError::BackendError(InfraError::Corruption { .. })), "{refused:?}");
    assert!(refused.to_string().contains("restart to go on from the file"), "{refused}");
    assert!(local.get_run(TENANT, KEY.run).is_err());
    drop(local);

    let mut again = open();
    assert_eq!(again.get_shard(TENANT, KEY).unwrap(), before);
    again.checkpoint(NOW, TENANT, &lease, key(b"d"), OpId::new(7)).unwrap();
    drop(again);
    std::fs::remove_dir_all(&folder).unwrap();
}
