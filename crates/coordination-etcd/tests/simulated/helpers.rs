//! What the backend offers beyond the protocol's traits, on both of its entry points: the active runs of a tenant, and the
//! collection of runs that never got their shards.

use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
use tessera_coordination::AcquireScratch;
use tessera_coordination::backend::{BlockOn, CoordinationBackend, RunManagement};
use tessera_coordination::error::{InfraError, RegisterShardsError};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination_etcd::EtcdCoordinator;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

use crate::fixtures::{INCARNATION, NOW, TENANT, bounds, coordinator, everything, inputs};

/// Methods of their own, not of a trait: these do not compile otherwise.
#[expect(clippy::type_complexity, reason = "the signatures are what is shown")]
const ON_THE_SYNC_COORDINATOR: (
    fn(&mut EtcdCoordinator, TenantId, Option<RunId>, usize, &mut Vec<RunId>) -> Result<(), InfraError>,
    fn(&mut EtcdCoordinator, LogicalTime, usize, &mut Vec<(TenantId, RunId)>) -> Result<(), InfraError>,
) = (EtcdCoordinator::list_active_runs_into, EtcdCoordinator::gc_stale_initializing_runs_into);

fn time(after: u64) -> LogicalTime {
    LogicalTime::new(NOW.get() + after)
}

fn run(number: u64) -> RunId {
    RunId::new(number)
}

/// A run for every status, created in the order of their ids: 1 has no shards, 2 is active, 3 is done, 4 has failed, 5 is
/// cancelled, 6 is active, 7 was retired, and 8 has no shards.
fn runs_of_every_status(etcd: &mut SimEtcdCoordinator) {
    for number in 1..=8 {
        etcd.create_run(time(number), TENANT, run(number), INCARNATION, RunConfig::default()).expect("created");
    }
    let bounds = bounds(1);
    for number in 2..=7 {
        etcd.register_shards(NOW, TENANT, run(number), &inputs(&bounds), OpId::new(1)).expect("registered");
    }
    etcd.cancel_run(NOW, TENANT, run(7), OpId::new(2)).expect("cancelled");
    assert_eq!(etcd.retire_runs(NOW, TENANT, NOW, 10), Ok(1));
    let (key, mut scratch) = (tessera_contracts::ShardKey::new(run(3), ShardId::new(1)), AcquireScratch::new());
    let acquired = etcd.acquire_and_restore_into(NOW, TENANT, key, WorkerId::new(1), &mut scratch);
    let lease = acquired.expect("granted").lease;
    let nothing = tessera_contracts::CursorUpdate::initial();
    etcd.complete(NOW, TENANT, &lease, nothing, OpId::new(3)).expect("swept");
    etcd.complete_run(NOW, TENANT, run(3), OpId::new(4)).expect("done");
    etcd.fail_run(NOW, TENANT, run(4), OpId::new(4)).expect("failed");
    etcd.cancel_run(NOW, TENANT, run(5), OpId::new(4)).expect("cancelled");
}

fn active_runs(etcd: &mut SimEtcdCoordinator, after: Option<RunId>, limit: usize) -> Vec<RunId> {
    let mut runs = vec![run(99)];
    etcd.list_active_runs_into(TENANT, after, limit, &mut runs).expect("listed");
    let mut again = Vec::new();
    let listed = etcd.backend.list_active_runs_into(TENANT, after, limit, &mut again);
    etcd.executor.block_on(listed).expect("listed");
    assert_eq!(runs, again, "both entry points answer alike");
    runs
}

#[test]
fn both_entry_points_list_active_runs_and_no_others() {
    let _ = ON_THE_SYNC_COORDINATOR;
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    runs_of_every_status(&mut etcd);
    let mut runs = Vec::new();
    etcd.list_runs_into(TENANT, None, 100, &mut runs).expect("listed");
    let active = runs.iter().filter(|summary| summary.status == RunStatus::Active).map(|summary| summary.run);
    assert_eq!(active_runs(&mut etcd, None, 100), active.collect::<Vec<_>>());
    assert_eq!(active_runs(&mut etcd, None, 100), [run(2), run(6)]);
    assert_eq!(active_runs(&mut etcd, None, 1), [run(2)]);
    assert_eq!(active_runs(&mut etcd, Some(run(2)), 1), [run(6)]);
    assert_eq!(active_runs(&mut etcd, Some(run(6)), 1), []);
    assert_eq!(active_runs(&mut etcd, None, 0), []);
}

#[test]
fn a_run_whose_registration_is_under_way_is_not_active_yet() {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    etcd.create_run(NOW, TENANT, run(1), INCARNATION, RunConfig::default()).expect("created");
    // The attempt is announced, and its second chunk fails for good.
    (2..4_000).for_each(|write| kv.inject(CallKind::Write, write, Fault::Refuse));
    let bounds = bounds(500);
    etcd.register_shards(NOW, TENANT, run(1), &inputs(&bounds), OpId::new(1)).expect_err("broken off");
    assert_eq!(active_runs(&mut etcd, None, 10), []);
}

#[test]
fn both_entry_points_collect_runs_that_never_got_their_shards_by_age() {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    runs_of_every_status(&mut etcd);
    let mut removed = vec![(TENANT, run(99))];
    etcd.gc_stale_initializing_runs_into(time(1), 10, &mut removed).expect("looked");
    assert_eq!(removed, [], "the oldest was created then, and not before");
    etcd.gc_stale_initializing_runs_into(time(8), 10, &mut removed).expect("collected");
    assert_eq!(removed, [(TENANT, run(1))]);
    let mut again = Vec::new();
    let collected = etcd.backend.gc_stale_initializing_runs_into(time(9), 10, &mut again);
    etcd.executor.block_on(collected).expect("collected");
    assert_eq!(again, [(TENANT, run(8))]);
    let mut runs = Vec::new();
    etcd.list_runs_into(TENANT, None, 100, &mut runs).expect("listed");
    assert_eq!(runs.iter().map(|summary| summary.run.get()).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
}

#[test]
fn a_collected_run_leaves_nothing_of_a_registration_that_was_broken_off() {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    etcd.create_run(NOW, TENANT, run(1), INCARNATION, RunConfig::default()).expect("created");
    (3..4_000).for_each(|write| kv.inject(CallKind::Write, write, Fault::Refuse));
    let bounds = bounds(500);
    let manifest = inputs(&bounds);
    etcd.register_shards(NOW, TENANT, run(1), &manifest, OpId::new(1)).expect_err("broken off");
    let kv = SimKv::from_snapshot(&kv.snapshot(), 2);
    let mut etcd = coordinator(&kv);
    let mut removed = Vec::new();
    etcd.gc_stale_initializing_runs_into(time(1), 10, &mut removed).expect("collected");
    assert_eq!(removed, [(TENANT, run(1))]);
    let left = everything(&kv).into_iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned());
    let left: Vec<String> = left.filter(|key| !key.contains("/count/") && !key.contains("/retired/")).collect();
    assert_eq!(left, Vec::<String>::new());
    let gone = etcd.register_shards(NOW, TENANT, run(1), &manifest, OpId::new(1));
    assert!(matches!(gone, Err(RegisterShardsError::RunNotFound(_))), "{gone:?}");
    etcd.create_run(NOW, TENANT, run(1), RunIncarnation::new(2), RunConfig::default()).expect("its id is free");
    etcd.register_shards(NOW, TENANT, run(1), &manifest, OpId::new(1)).expect("and there is room");
}
