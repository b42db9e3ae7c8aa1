//! What people read is what is meant, and what must never be stored is stopped. Each of these was once a change to the code
//! that no other test noticed; see docs/MUTANTS.md.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::{Hash, Hasher};
use std::panic::catch_unwind;

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::decide::claim::CLAIM_ATTEMPTS_MAX;
use tessera_coordination::error::{ClaimError, CreateRunError, InfraError, LeaseRefused, OperationError, ReleaseError};
use tessera_coordination::record::history::{History, MoveReason, Ownership};
use tessera_coordination::record::park::ParkDetail;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::record::{RunOpKind, RunRecord};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::session::SessionFailure;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement, ShardClaiming,
};

const TENANT: TenantId = TenantId::from_bytes([5; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const EDGES: [[u8; 1]; 4] = [[1], [2], [3], [4]];

fn a_shard() -> ShardRecord {
    let mut coordinator = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(4)).unwrap();
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"m")];
    let (now, config) = (LogicalTime::new(1), RunConfig::default());
    coordinator.create_run_with_shards(now, TENANT, RUN, INCARNATION, config, &shards, OpId::new(1)).unwrap();
    coordinator.get_shard(TENANT, ShardKey::new(RUN, ShardId::new(1))).unwrap()
}

#[test]
fn operators_read_the_names_of_things() {
    let words = MoveReason::ALL.map(MoveReason::as_str);
    assert_eq!(
        words,
        ["first acquire", "lease expired", "session lost", "released", "yielded", "drained", "unparked", "unreachable"]
    );
    assert_eq!(MoveReason::ALL.map(|reason| reason.to_string()), words);
    assert_eq!(ShardStatus::ALL.map(|status| status.to_string()), ["active", "done", "split", "parked"]);
    assert_eq!(RunOpKind::Cancel.to_string(), "cancel_run");
    assert_eq!(ParkDetail::new("no such bucket").unwrap().to_string(), "no such bucket");
    assert!(format!("{:?}", AcquireScratch::default()).contains("AcquireScratch"));
}

#[test]
fn a_broken_shard_record_stops_the_process_before_it_is_stored() {
    let good = a_shard();
    good.assert_invariants();
    let mut broken = good;
    broken.state.head.fence = FenceEpoch::new(0);
    assert!(broken.check_invariants().is_err());
    assert!(catch_unwind(move || broken.assert_invariants()).is_err());
}

#[test]
fn a_broken_run_record_stops_the_process_before_it_is_stored() {
    let mut run = RunRecord::newborn(TENANT, RUN, INCARNATION, RunConfig::default(), LogicalTime::new(1));
    run.assert_invariants();
    run.status = RunStatus::Cancelled;
    assert!(run.check_invariants().is_err(), "a settled run says when");
    let panic = catch_unwind(move || run.assert_invariants()).unwrap_err();
    let words = panic.downcast_ref::<String>().expect("a panic of this crate says what broke");
    assert!(words.contains("invariant"), "operators watch for that word: {words}");
}

#[test]
fn histories_that_differ_hash_differently() {
    let owner = |worker| Ownership {
        worker: WorkerId::new(worker),
        fence: FenceEpoch::new(2),
        since: LogicalTime::new(1),
        reason: MoveReason::Expired,
    };
    let hash = |owners: &[Ownership]| {
        let mut hasher = DefaultHasher::new();
        owners.iter().copied().collect::<History>().hash(&mut hasher);
        hasher.finish()
    };
    assert_eq!(hash(&[owner(1)]), hash(&[owner(1)]));
    assert_ne!(hash(&[owner(1)]), hash(&[owner(2)]));
    assert_ne!(hash(&[]), hash(&[owner(1)]));
}

#[test]
fn a_failure_of_a_session_says_whether_to_try_again_and_what_went_wrong() {
    let lost = || LeaseRefused::StaleFence { presented: FenceEpoch::new(2), current: FenceEpoch::new(3) };
    let busy = || InfraError::transient("test", "busy");
    for (error, transient) in [(ReleaseError::from(busy()), true), (ReleaseError::Lease(lost()), false)] {
        assert_eq!((error.is_transient(), error.ends_session()), (transient, !transient), "{error}");
        let failure: SessionFailure<(), ReleaseError> = SessionFailure::Lost { error: error.clone() };
        assert_eq!(failure.to_string(), format!("{error}; the session is over"));
        assert_eq!(format!("{failure:?}"), format!("Lost {{ error: {error:?}, .. }}"));
        let kept = SessionFailure::Kept { session: Box::new(()), error: error.clone() };
        assert_eq!(kept.to_string(), format!("{error}; the session stands"));
        assert_eq!(format!("{kept:?}"), format!("Kept {{ error: {error:?}, .. }}"), "without what the session holds");
        assert_eq!(Box::<dyn Error>::from(failure).downcast_ref(), Some(&error), "what `?` hands on");
        assert_eq!(Box::<dyn Error + Send + Sync>::from(kept).downcast_ref(), Some(&error));
    }
}

#[test]
fn a_claim_that_finds_nothing_says_when_to_come_back() {
    let mut coordinator = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(4)).unwrap();
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"m")];
    let config = RunConfig { lease_duration: Some(10), ..RunConfig::default() };
    coordinator
        .create_run_with_shards(LogicalTime::new(1), TENANT, RUN, INCARNATION, config, &shards, OpId::new(1))
        .unwrap();
    let mut scratch = AcquireScratch::new();
    let mut claim = |now, worker| {
        let claimed =
            coordinator.claim_next_available(LogicalTime::new(now), TENANT, RUN, WorkerId::new(worker), &mut scratch);
        claimed.map(|view| view.lease.fence().get())
    };
    assert_eq!(claim(1, 1), Ok(2));
    assert_eq!(claim(4, 2), Err(ClaimError::NoneAvailable { earliest_deadline: Some(LogicalTime::new(11)) }));
}

#[test]
fn a_claim_that_parks_all_it_finds_does_not_invite_to_come_back_at_once() {
    let count = CLAIM_ATTEMPTS_MAX as u64;
    let mut coordinator = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(count as usize)).unwrap();
    let edges: Vec<[u8; 2]> = (0..=count as u16).map(u16::to_be_bytes).collect();
    let shards: Vec<InitialShardInput<'_>> = (0..count as usize)
        .map(|at| InitialShardInput::new(ShardId::new(at as u64 + 1), &edges[at], &edges[at + 1]))
        .collect();
    let config = RunConfig { lease_duration: Some(10), max_shard_retries: 1, ..RunConfig::default() };
    coordinator
        .create_run_with_shards(LogicalTime::new(1), TENANT, RUN, INCARNATION, config, &shards, OpId::new(1))
        .unwrap();
    let mut scratch = AcquireScratch::new();
    for _ in 0..count {
        coordinator.claim_next_available(LogicalTime::new(1), TENANT, RUN, WorkerId::new(1), &mut scratch).unwrap();
    }
    let again = coordinator.claim_next_available(LogicalTime::new(20), TENANT, RUN, WorkerId::new(2), &mut scratch);
    assert_eq!(again.map(|_| ()), Err(ClaimError::NoneAvailable { earliest_deadline: None }));
}

#[test]
fn a_configuration_for_some_shards_bounds_tenant_and_total_alike() {
    let config = CoordinatorRuntimeConfig::for_shards(7);
    assert_eq!((config.max_shards_per_tenant, config.max_total_shards), (7, 7));
    assert!(config.slab_capacity < CoordinatorRuntimeConfig::default().slab_capacity);
}

#[test]
fn a_claim_from_a_run_that_gives_out_no_work_says_so_although_it_has_no_shards_to_give() {
    let mut coordinator = InMemoryCoordinator::default();
    coordinator.create_run(LogicalTime::new(1), TENANT, RUN, INCARNATION, RunConfig::default()).unwrap();
    let mut scratch = AcquireScratch::new();
    let mut claim = |coordinator: &mut InMemoryCoordinator| {
        let now = LogicalTime::new(2);
        coordinator.claim_next_available(now, TENANT, RUN, WorkerId::new(1), &mut scratch).map(|_| ())
    };
    let status = RunStatus::Initializing;
    assert_eq!(claim(&mut coordinator), Err(ClaimError::RunNotActive { run: RUN, status }));
    coordinator.cancel_run(LogicalTime::new(2), TENANT, RUN, OpId::new(1)).unwrap();
    let status = RunStatus::Cancelled;
    assert_eq!(claim(&mut coordinator), Err(ClaimError::RunNotActive { run: RUN, status }));
}

#[test]
fn a_settled_run_has_no_candidates_although_its_shards_are_free() {
    let mut coordinator = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"m")];
    let now = LogicalTime::new(1);
    coordinator
        .create_run_with_shards(now, TENANT, RUN, INCARNATION, RunConfig::default(), &shards, OpId::new(1))
        .unwrap();
    let mut candidates = Vec::new();
    coordinator.collect_claim_candidates_into(now, TENANT, RUN, WorkerId::new(1), 9, &mut candidates).unwrap();
    assert_eq!(candidates, [ShardId::new(1)]);
    coordinator.cancel_run(now, TENANT, RUN, OpId::new(2)).unwrap();
    coordinator.collect_claim_candidates_into(now, TENANT, RUN, WorkerId::new(1), 9, &mut candidates).unwrap();
    assert_eq!(candidates, []);
}

#[test]
fn an_operator_sees_how_many_shards_are_held_and_how_often_each_was_acquired() {
    let mut coordinator = InMemoryCoordinator::default();
    let shards =
        [1, 2, 3].map(|id| InitialShardInput::new(ShardId::new(id), &EDGES[id as usize - 1], &EDGES[id as usize]));
    let config = RunConfig { lease_duration: Some(10), ..RunConfig::default() };
    coordinator
        .create_run_with_shards(LogicalTime::new(1), TENANT, RUN, INCARNATION, config, &shards, OpId::new(1))
        .unwrap();
    let mut scratch = AcquireScratch::new();
    for (now, shard) in [(1, 1), (11, 1), (12, 2)] {
        let (now, key) = (LogicalTime::new(now), ShardKey::new(RUN, ShardId::new(shard)));
        coordinator.acquire_and_restore_into(now, TENANT, key, WorkerId::new(1), &mut scratch).unwrap();
    }
    let mut leased = |now| coordinator.get_run_progress(LogicalTime::new(now), TENANT, RUN).unwrap().leased;
    assert_eq!([20, 21, 22].map(&mut leased), [2, 1, 0], "a lease that has ended holds nothing");
    let (all, page) = (ShardFilter::all(), ShardPage::first(9));
    let mut listed = Vec::new();
    coordinator.list_shards_into(LogicalTime::new(12), TENANT, RUN, &all, page, &mut listed).unwrap();
    let acquired: Vec<u64> = listed.iter().map(|summary: &ShardSummary| summary.acquire_count).collect();
    assert_eq!(acquired, [2, 1, 0]);
}

#[test]
fn a_run_that_was_retired_gives_its_place_to_another_and_to_no_more() {
    let config = CoordinatorRuntimeConfig { max_total_runs: 2, ..CoordinatorRuntimeConfig::for_shards(4) };
    let mut coordinator = InMemoryCoordinator::new(config).unwrap();
    let now = LogicalTime::new(1);
    for run in 1..=9 {
        let mut create = |run| coordinator.create_run(now, TENANT, RunId::new(run), INCARNATION, RunConfig::default());
        create(run * 10).unwrap();
        create(run * 10 + 1).unwrap();
        assert_eq!(create(run * 10 + 2), Err(CreateRunError::TooManyRuns { held: 2 }));
        for (op, run) in (1..).zip([run * 10, run * 10 + 1]) {
            coordinator.cancel_run(now, TENANT, RunId::new(run), OpId::new(op)).unwrap();
        }
        assert_eq!(coordinator.retire_runs(now, TENANT, now, 9), Ok(2));
    }
}
