//! What the in-memory coordinator adds to the decisions: storage, limits, listings, claims, events.

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::{InitialShardInput, ManifestError};
use tessera_contracts::split::{DerivedShardKind, derive_split_shard_id, plan_split_replace, plan_split_residual};
use tessera_contracts::{CursorUpdate, keyspace::Fraction};
use tessera_coordination::backend::{HeldShard, claim_from_candidates};
use tessera_coordination::decide::claim::CLAIM_ATTEMPTS_MAX;
use tessera_coordination::error::{
    AccessRefused, AcquireError, CheckpointError, ClaimError, CreateRunError, GetRunError, InfraError, LeaseRefused,
    RegisterShardsError, RenewError, RunNotFound, SplitError,
};
use tessera_coordination::events::{EventCollector, EventKind, NoEvents};
use tessera_coordination::record::history::{MoveReason, ReleaseReason};
use tessera_coordination::record::park::Park;
use tessera_coordination::record::state::ShardState;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimVerdict;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::straggler::ask_for_work;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::shard_limits::LimitScope;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, IdempotentOutcome, InMemoryCoordinator, Lease,
    RunManagement, ShardClaiming,
};

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const WORKER: WorkerId = WorkerId::new(7);
const CONFIG: RunConfig = RunConfig {
    cursor_semantics: tessera_contracts::CursorSemantics::Completed,
    lease_duration: Some(100),
    max_shard_retries: 2,
};

fn tenant() -> TenantId {
    TenantId::from_name("acme")
}

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn op(id: u64) -> OpId {
    OpId::new(id)
}

fn shard(id: u64) -> ShardKey {
    ShardKey::new(RUN, ShardId::new(id))
}

fn key(bytes: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::at_key(bytes).expect("a short key is a valid cursor")
}

/// Shards 1, 2, … over `[b, c)`, `[c, d)`, ….
fn manifest(count: u8) -> Vec<[Vec<u8>; 2]> {
    (0..count).map(|index| [vec![b'b' + index], vec![b'c' + index]]).collect()
}

fn inputs(bounds: &[[Vec<u8>; 2]]) -> Vec<InitialShardInput<'_>> {
    let numbered = (1..).zip(bounds);
    numbered.map(|(id, [start, end])| InitialShardInput::new(ShardId::new(id), start, end)).collect()
}

fn with_shards(config: CoordinatorRuntimeConfig, count: u8) -> InMemoryCoordinator {
    let mut coordinator = InMemoryCoordinator::new(config).expect("a valid configuration");
    let bounds = manifest(count);
    coordinator
        .create_run_with_shards(at(1), tenant(), RUN, INCARNATION, CONFIG, &inputs(&bounds), op(1))
        .expect("a valid manifest");
    coordinator
}

fn small() -> CoordinatorRuntimeConfig {
    CoordinatorRuntimeConfig { slab_capacity: 64 << 10, ..CoordinatorRuntimeConfig::default() }
}

fn acquire(coordinator: &mut InMemoryCoordinator, id: u64, now: u64) -> Result<Lease, AcquireError> {
    let mut scratch = AcquireScratch::new();
    let acquired = coordinator.acquire_and_restore_into(at(now), tenant(), shard(id), WORKER, &mut scratch);
    acquired.map(|acquired| acquired.lease)
}

fn claim(coordinator: &mut InMemoryCoordinator, worker: u64, now: u64) -> Result<Lease, ClaimError> {
    let mut scratch = AcquireScratch::new();
    let claimed = coordinator.claim_next_available(at(now), tenant(), RUN, WorkerId::new(worker), &mut scratch);
    claimed.map(|claimed| claimed.lease)
}

#[test]
fn a_tenant_sees_nothing_of_another() {
    let mut coordinator = with_shards(small(), 1);
    let lease = acquire(&mut coordinator, 1, 2).unwrap();
    let stranger = TenantId::from_name("other");
    let mut scratch = AcquireScratch::new();
    let missing = AccessRefused::ShardNotFound { key: shard(1) };
    let refused = coordinator.acquire_and_restore_into(at(3), stranger, shard(1), WORKER, &mut scratch).unwrap_err();
    assert_eq!(refused, missing.into());
    let refused = coordinator.checkpoint(at(3), stranger, &lease, key(b"b"), op(2)).unwrap_err();
    assert_eq!(refused, AccessRefused::TenantMismatch { expected: stranger }.into());
    assert_eq!(coordinator.get_run(stranger, RUN), Err(RunNotFound { run: RUN }.into()));
    assert!(coordinator.get_shard(stranger, shard(1)).is_err());
    // The same names under another tenant are other things.
    let bounds = manifest(1);
    coordinator.create_run_with_shards(at(4), stranger, RUN, INCARNATION, CONFIG, &inputs(&bounds), op(1)).unwrap();
    coordinator.cancel_run(at(5), stranger, RUN, op(2)).unwrap();
    assert_eq!(coordinator.get_run(tenant(), RUN).unwrap().status, RunStatus::Active);
}

#[test]
fn registration_is_validated_idempotent_and_all_or_nothing() {
    let mut coordinator = InMemoryCoordinator::new(small()).unwrap();
    let derived = [InitialShardInput::new(ShardId::new(ShardId::DERIVED_BIT | 1), b"a", b"b")];
    let missing = coordinator.register_shards(at(1), tenant(), RUN, &derived, op(1)).unwrap_err();
    assert_eq!(missing, RunNotFound { run: RUN }.into());
    coordinator.create_run(at(1), tenant(), RUN, INCARNATION, CONFIG).unwrap();
    let taken = coordinator.create_run(at(1), tenant(), RUN, INCARNATION, CONFIG).unwrap_err();
    assert_eq!(taken, CreateRunError::AlreadyExists { run: RUN });
    let refused = coordinator.register_shards(at(1), tenant(), RUN, &derived, op(1)).unwrap_err();
    assert!(matches!(refused, RegisterShardsError::Manifest(ManifestError::DerivedId { .. })), "{refused:?}");
    // A manifest that does not fit the slab leaves the run as it was.
    let long = vec![b'x'; 4000];
    let big: Vec<_> =
        (0..20_u8).map(|index| [[&long[..], &[index]].concat(), [&long[..], &[index + 1]].concat()]).collect();
    let refused = coordinator.register_shards(at(1), tenant(), RUN, &inputs(&big), op(1)).unwrap_err();
    assert!(matches!(refused, RegisterShardsError::ResourceExhausted(_)));
    assert_eq!(coordinator.total_shard_count(), 0);
    assert_eq!(coordinator.get_run(tenant(), RUN).unwrap().status, RunStatus::Initializing);

    let bounds = manifest(3);
    let first = coordinator.register_shards(at(1), tenant(), RUN, &inputs(&bounds), op(1)).unwrap();
    assert_eq!(first, IdempotentOutcome::Executed(3));
    let again =
        coordinator.create_run_with_shards(at(2), tenant(), RUN, INCARNATION, CONFIG, &inputs(&bounds), op(1)).unwrap();
    assert_eq!(again, IdempotentOutcome::Replayed(3));
    let other = RunConfig { max_shard_retries: 9, ..CONFIG };
    let refused = coordinator.create_run_with_shards(at(2), tenant(), RUN, INCARNATION, other, &inputs(&bounds), op(1));
    assert_eq!(refused, Err(RegisterShardsError::ConfigMismatch { run: RUN }));
    assert_eq!(coordinator.total_shard_count(), 3);
}

#[test]
fn limits_hold_for_tenant_and_coordinator_and_for_runs() {
    let config =
        CoordinatorRuntimeConfig { max_shards_per_tenant: 3, max_total_shards: 5, max_total_runs: 3, ..small() };
    let mut coordinator = with_shards(config, 2);
    let lease = acquire(&mut coordinator, 1, 2).unwrap();
    let spec = coordinator.get_shard(tenant(), shard(1)).unwrap().spec;
    let plan = plan_split_replace(spec.view(), &[b"bm"]).unwrap();
    let refused = coordinator.split_replace(at(3), tenant(), &lease, &plan, op(2)).unwrap_err();
    assert!(matches!(refused, SplitError::LimitExceeded(over) if over.scope == LimitScope::Tenant && over.held == 2));
    let residual = plan_split_residual(spec.view(), None, b"bm").unwrap();
    coordinator.split_residual(at(3), tenant(), &lease, &residual, op(2)).unwrap();

    let other = TenantId::from_name("other");
    let bounds = manifest(3);
    let refused = coordinator
        .create_run_with_shards(at(4), other, RUN, INCARNATION, CONFIG, &inputs(&bounds), op(1))
        .unwrap_err();
    assert!(matches!(refused, RegisterShardsError::LimitExceeded(over) if over.scope == LimitScope::Coordinator));
    coordinator.register_shards(at(4), other, RUN, &inputs(&bounds)[..2], op(1)).unwrap();
    assert_eq!(coordinator.total_shard_count(), 5);
    coordinator.create_run(at(4), other, RunId::new(2), INCARNATION, CONFIG).unwrap();
    let refused = coordinator.create_run(at(4), other, RunId::new(3), INCARNATION, CONFIG);
    assert_eq!(refused, Err(CreateRunError::TooManyRuns { held: 3 }));
}

#[test]
fn a_full_slab_refuses_and_leaves_everything_as_it_was() {
    let config = CoordinatorRuntimeConfig { slab_capacity: 512, ..small() };
    let mut coordinator = with_shards(config, 1);
    let lease = acquire(&mut coordinator, 1, 2).unwrap();
    coordinator.checkpoint(at(3), tenant(), &lease, key(b"bb"), op(2)).unwrap();
    let before = coordinator.get_shard(tenant(), shard(1)).unwrap();
    let long = |first: &[u8], len: usize| [first, &vec![b'z'; len]].concat();
    let refused = coordinator.checkpoint(at(4), tenant(), &lease, key(&long(b"b", 600)), op(3)).unwrap_err();
    assert!(matches!(refused, CheckpointError::ResourceExhausted(_)));
    // The first child fits and the second does not.
    let points: Vec<_> = [b"bc", b"bd", b"be"].map(|first| long(first, 300)).into();
    let points: Vec<_> = points.iter().map(Vec::as_slice).collect();
    let plan = plan_split_replace(before.spec.view(), &points).unwrap();
    let refused = coordinator.split_replace(at(4), tenant(), &lease, &plan, op(4)).unwrap_err();
    assert!(matches!(refused, SplitError::ResourceExhausted(_)));
    let plan = plan_split_residual(before.spec.view(), Some(b"bb"), &long(b"bc", 600)).unwrap();
    let refused = coordinator.split_residual(at(4), tenant(), &lease, &plan, op(5)).unwrap_err();
    assert!(matches!(refused, SplitError::ResourceExhausted(_)));
    assert_eq!(coordinator.get_shard(tenant(), shard(1)).unwrap(), before);
    assert_eq!(coordinator.total_shard_count(), 1);
    // Nothing leaked on the way: one value may still fill the slab.
    coordinator.checkpoint(at(5), tenant(), &lease, key(&long(b"bc", 500)), op(60)).unwrap();
}

#[test]
fn a_child_whose_name_is_taken_is_refused_and_changes_nothing() {
    let mut coordinator = with_shards(small(), 1);
    let lease = acquire(&mut coordinator, 1, 2).unwrap();
    let before = coordinator.get_shard(tenant(), shard(1)).unwrap();
    // 63 bits never collide in practice, so the other shard is put there by hand.
    for (op_id, kind) in [(op(9), DerivedShardKind::Residual), (op(10), DerivedShardKind::Child)] {
        let mut taken = before.clone();
        taken.key = ShardKey::new(RUN, derive_split_shard_id(RUN, ShardId::new(1), op_id, kind, 0));
        taken.state = ShardState::newborn(before.state.cursor_semantics, Some(ShardId::new(7)));
        coordinator.restore_shard(&taken).unwrap();
    }
    let plan = plan_split_residual(before.spec.view(), None, b"bm").unwrap();
    let residual = coordinator.split_residual(at(3), tenant(), &lease, &plan, op(9)).unwrap_err();
    let plan = plan_split_replace(before.spec.view(), &[b"bm"]).unwrap();
    let replaced = coordinator.split_replace(at(3), tenant(), &lease, &plan, op(10)).unwrap_err();
    for refused in [residual, replaced] {
        assert!(matches!(&refused, SplitError::BackendError(InfraError::Corruption { .. })), "{refused:?}");
    }
    assert_eq!(coordinator.get_shard(tenant(), shard(1)).unwrap(), before);
    assert_eq!(coordinator.total_shard_count(), 3);
    // Another op id is another name.
    coordinator.split_replace(at(3), tenant(), &lease, &plan, op(11)).unwrap();
}

#[test]
fn claims_go_round_the_free_shards_and_then_the_expired_ones() {
    let mut coordinator = with_shards(small(), 3);
    let first = claim(&mut coordinator, 1, 10).unwrap();
    let second = claim(&mut coordinator, 2, 20).unwrap();
    let third = claim(&mut coordinator, 3, 30).unwrap();
    assert_eq!([first.shard(), second.shard(), third.shard()], [1, 2, 3].map(ShardId::new));
    let nothing = |until| Err(ClaimError::NoneAvailable { earliest_deadline: Some(at(until)) });
    assert_eq!(claim(&mut coordinator, 4, 109), nothing(110));
    let taken = claim(&mut coordinator, 4, 110).unwrap();
    assert_eq!((taken.shard(), taken.fence()), (ShardId::new(1), FenceEpoch::new(3)));
    coordinator.release(at(111), tenant(), &third, None, ReleaseReason::Released, op(2)).unwrap();
    assert_eq!(claim(&mut coordinator, 5, 111).unwrap().shard(), ShardId::new(3));
    // A request with an earlier time sees what was true then: shard 2 is leased until 120.
    assert_eq!(claim(&mut coordinator, 6, 119), nothing(120));
    let history = coordinator.get_shard(tenant(), shard(3)).unwrap().state.history;
    let reasons: Vec<_> = history.iter().map(|owner| owner.reason).collect();
    assert_eq!(reasons, [MoveReason::FirstAcquire, MoveReason::Released]);
}

#[test]
fn a_claim_that_gives_up_says_that_there_is_more_to_try_at_once() {
    let used_up = CLAIM_ATTEMPTS_MAX as u8 + 2;
    let mut coordinator = with_shards(small(), used_up);
    for time in [10, 110] {
        for id in 1..=u64::from(used_up) {
            acquire(&mut coordinator, id, time).unwrap();
        }
    }
    let nothing = |earliest_deadline| Err(ClaimError::NoneAvailable { earliest_deadline });
    assert_eq!(claim(&mut coordinator, 1, 210), nothing(Some(at(210))), "two shards were not tried");
    assert_eq!(claim(&mut coordinator, 1, 210), nothing(None), "all are parked");
    let progress = coordinator.get_run_progress(at(210), tenant(), RUN).unwrap();
    assert_eq!(progress.counts.parked, u32::from(used_up));
}

#[test]
fn a_claim_passes_over_shards_that_used_up_their_retries_and_parks_them() {
    let mut coordinator = with_shards(small(), 2);
    for time in [10, 110] {
        acquire(&mut coordinator, 1, time).unwrap();
    }
    let mut events = EventCollector::new();
    let mut scratch = AcquireScratch::new();
    let claimed = coordinator
        .claim_next_available_with_events(at(210), tenant(), RUN, WORKER, &mut scratch, &mut events)
        .unwrap();
    assert_eq!(claimed.lease.shard(), ShardId::new(2));
    let second =
        coordinator.claim_next_available_with_events(at(211), tenant(), RUN, WORKER, &mut scratch, &mut events);
    assert_eq!(second.unwrap_err(), ClaimError::NoneAvailable { earliest_deadline: Some(at(310)) });
    let parked = coordinator.get_shard(tenant(), shard(1)).unwrap();
    assert_eq!(parked.state.head.park.unwrap().reason, ParkReason::TooManyErrors);
    let kinds: Vec<_> = events.drain().into_iter().map(|event| event.kind).collect();
    assert!(kinds.contains(&EventKind::ShardParked { shard: ShardId::new(1), reason: ParkReason::TooManyErrors }));
}

#[test]
fn a_worker_cools_down_between_claims_and_another_does_not_wait_for_it() {
    let config = CoordinatorRuntimeConfig { claim_cooldown_interval: 10, ..small() };
    let mut coordinator = with_shards(config, 3);
    claim(&mut coordinator, 1, 10).unwrap();
    assert_eq!(claim(&mut coordinator, 1, 19), Err(ClaimError::Throttled { retry_after: at(20) }));
    let explained = coordinator.explain_claim(at(19), tenant(), RUN, WorkerId::new(1)).unwrap();
    assert_eq!(explained.verdict(), ClaimVerdict::CoolingDown { until: at(20) });
    claim(&mut coordinator, 2, 19).unwrap();
    claim(&mut coordinator, 1, 20).unwrap();
    // Only a claim that succeeded counts.
    assert!(matches!(claim(&mut coordinator, 3, 30), Err(ClaimError::NoneAvailable { .. })));
    assert!(matches!(claim(&mut coordinator, 3, 31), Err(ClaimError::NoneAvailable { .. })));
}

#[test]
fn a_claimant_with_a_fast_clock_waits_out_the_skew() {
    let config = CoordinatorRuntimeConfig { clock_skew_allowance: 5, ..small() };
    let mut coordinator = with_shards(config, 1);
    claim(&mut coordinator, 1, 10).unwrap();
    assert_eq!(claim(&mut coordinator, 2, 114), Err(ClaimError::NoneAvailable { earliest_deadline: Some(at(110)) }));
    assert!(claim(&mut coordinator, 2, 115).is_ok());
}

#[test]
fn a_claim_from_candidates_is_a_claim() {
    let mut coordinator = with_shards(small(), 3);
    let (mut scratch, mut candidates) = (AcquireScratch::new(), Vec::new());
    let mut claimed = Vec::new();
    for now in 10..13 {
        let one = claim_from_candidates(
            &mut coordinator,
            at(now),
            tenant(),
            RUN,
            WORKER,
            &mut scratch,
            &mut candidates,
            &mut NoEvents,
        );
        claimed.push(one.unwrap().lease.shard().get());
    }
    claimed.sort_unstable();
    assert_eq!(claimed, [1, 2, 3]);
    let mut again = |run| {
        let (scratch, candidates) = (&mut scratch, &mut candidates);
        claim_from_candidates(&mut coordinator, at(13), tenant(), run, WORKER, scratch, candidates, &mut NoEvents)
            .map(drop)
    };
    assert_eq!(again(RUN), Err(ClaimError::NoneAvailable { earliest_deadline: None }));
    assert_eq!(again(RunId::new(9)), Err(RunNotFound { run: RunId::new(9) }.into()));
}

#[test]
fn listings_are_filtered_and_paged_by_shard_id() {
    let mut coordinator = with_shards(small(), 5);
    let lease = acquire(&mut coordinator, 2, 10).unwrap();
    let spec = coordinator.get_shard(tenant(), shard(2)).unwrap().spec;
    coordinator.checkpoint(at(10), tenant(), &lease, CursorUpdate::at_key(b"cb").unwrap(), op(4)).unwrap();
    let plan = plan_split_residual(spec.view(), Some(b"cb"), b"cm").unwrap();
    coordinator.split_residual(at(11), tenant(), &lease, &plan, op(2)).unwrap();
    let lease = acquire(&mut coordinator, 3, 10).unwrap();
    let park = Park::because(ParkReason::NotFound).with_retry_after(at(500));
    coordinator.park_shard(at(12), tenant(), &lease, park, op(3)).unwrap();

    let mut list = |filter: ShardFilter, page| {
        let mut shards = Vec::new();
        let next = coordinator.list_shards_into(at(20), tenant(), RUN, &filter, page, &mut shards).unwrap();
        let ids: Vec<u64> = shards.iter().map(|summary| summary.shard.get() & !ShardId::DERIVED_BIT).collect();
        (ids, next, shards)
    };
    let (ids, next, shards) = list(ShardFilter::all(), ShardPage::first(4));
    assert_eq!(ids, [1, 2, 3, 4]);
    assert_eq!((shards[1].lease_deadline(), shards[1].acquire_count, shards[1].spawned_count), (Some(at(110)), 1, 1));
    assert_eq!(shards[2].park.unwrap().retry_after, Some(at(500)));
    assert_eq!((shards[1].status, shards[2].status), (ShardStatus::Active, ShardStatus::Parked));
    let (start, end, last_key) = (&shards[1].start, &shards[1].end, &shards[1].last_key);
    assert_eq!(
        [start, end, last_key].map(|key| key.expose()),
        [Some(spec.start()), Some(&b"cm"[..]), Some(&b"cb"[..])]
    );
    let (rest, next, shards) = list(ShardFilter::all(), next.unwrap());
    assert_eq!((rest.len(), rest[0], next), (2, 5, None));
    assert_eq!(shards[1].parent, Some(ShardId::new(2)));
    assert_eq!(list(ShardFilter::all().roots(), ShardPage::first(10)).0, [1, 2, 3, 4, 5]);
    assert_eq!(list(ShardFilter::parked(), ShardPage::first(10)).0, [3]);
    assert_eq!(list(ShardFilter::active().roots(), ShardPage::first(10)).0, [1, 2, 4, 5]);
    assert_eq!(list(ShardFilter::available().roots(), ShardPage::first(10)).0, [1, 4, 5]);
    assert_eq!(list(ShardFilter::all(), ShardPage::first(0)).0.len(), 1, "a page shows at least one");
}

#[test]
fn an_operator_learns_why_nothing_is_claimable() {
    let mut coordinator = with_shards(small(), 3);
    let explain =
        |coordinator: &mut InMemoryCoordinator, now| coordinator.explain_claim(at(now), tenant(), RUN, WORKER).unwrap();
    assert_eq!(explain(&mut coordinator, 2).verdict(), ClaimVerdict::Claimable);
    let leases: Vec<_> = (1..=3).map(|id| acquire(&mut coordinator, id, 10 + id).unwrap()).collect();
    let explained = explain(&mut coordinator, 20);
    assert_eq!(explained.verdict(), ClaimVerdict::AllLeased { until: at(111) });
    assert_eq!(explained.to_string(), "all 3 open shards are leased, the soonest until 111");
    coordinator.complete(at(20), tenant(), &leases[0], CursorUpdate::initial(), op(2)).unwrap();
    for (lease, reason) in [(&leases[1], ParkReason::NotFound), (&leases[2], ParkReason::Poisoned)] {
        let park = Park::because(reason).with_retry_after(at(600));
        coordinator.park_shard(at(21), tenant(), lease, park, OpId::new(lease.shard().get() + 10)).unwrap();
    }
    let explained = explain(&mut coordinator, 22);
    assert_eq!((explained.verdict(), explained.settled), (ClaimVerdict::OnlyParkedLeft, 1));
    assert_eq!(
        explained.to_string(),
        "every shard that is not finished is parked; parked: 1 not found, 1 poisoned; a retry was advised from 600 on"
    );
    coordinator.fail_run(at(23), tenant(), RUN, op(30)).unwrap();
    assert_eq!(explain(&mut coordinator, 24).verdict(), ClaimVerdict::RunNotActive(RunStatus::Failed));
}

#[test]
fn a_run_that_is_retired_by_name_is_the_creation_that_was_named_and_has_settled() {
    let mut coordinator = with_shards(small(), 2);
    let other = RunIncarnation::new(INCARNATION.get() + 1);
    assert_eq!(coordinator.retire_run(at(100), tenant(), RUN, INCARNATION), Ok(false), "it is active");
    coordinator.cancel_run(at(10), tenant(), RUN, op(2)).unwrap();
    assert_eq!(coordinator.retire_run(at(100), tenant(), RUN, other), Ok(false), "another creation");
    let mut events = EventCollector::new();
    assert_eq!(coordinator.retire_run_with_events(at(100), tenant(), RUN, INCARNATION, &mut events), Ok(true));
    assert_eq!(events.iter().next().unwrap().kind, EventKind::RunRetired { shard_count: 2 });
    assert_eq!(coordinator.total_shard_count(), 0);
    assert_eq!(coordinator.retire_run(at(100), tenant(), RUN, INCARNATION), Ok(false), "it is gone");
}

#[test]
fn settled_runs_are_retired_by_age_and_give_their_room_back() {
    let mut coordinator = with_shards(small(), 2);
    let bounds = manifest(2);
    for id in 2..=3 {
        let run = RunId::new(id);
        coordinator.create_run_with_shards(at(1), tenant(), run, INCARNATION, CONFIG, &inputs(&bounds), op(1)).unwrap();
        coordinator.cancel_run(at(id * 10), tenant(), run, op(2)).unwrap();
    }
    assert_eq!(coordinator.retire_runs(at(100), tenant(), at(19), 10), Ok(0));
    let mut events = EventCollector::new();
    let retired = coordinator.retire_runs_with_events(at(100), tenant(), at(30), 1, &mut events);
    assert_eq!((retired, coordinator.total_shard_count()), (Ok(1), 4));
    assert_eq!(events.iter().next().unwrap().kind, EventKind::RunRetired { shard_count: 2 });
    assert_eq!(
        coordinator.get_run(tenant(), RunId::new(2)),
        Err(GetRunError::RunNotFound(RunNotFound { run: RunId::new(2) }))
    );
    assert_eq!(coordinator.retire_runs(at(100), tenant(), at(30), 10), Ok(1));
    let mut runs = Vec::new();
    coordinator.list_runs_into(tenant(), None, 10, &mut runs).unwrap();
    assert_eq!(runs.iter().map(|run| (run.run, run.status)).collect::<Vec<_>>(), [(RUN, RunStatus::Active)]);
    // The slots of what was retired are used again.
    coordinator
        .create_run_with_shards(at(101), tenant(), RunId::new(4), INCARNATION, CONFIG, &inputs(&bounds), op(1))
        .unwrap();
    assert_eq!(coordinator.total_shard_count(), 4);
    assert!(acquire(&mut coordinator, 1, 102).is_ok());
}

#[test]
fn runs_are_listed_by_id_and_page_by_page() {
    let mut coordinator = InMemoryCoordinator::new(small()).unwrap();
    for id in [5, 2, 9] {
        coordinator.create_run(at(id), tenant(), RunId::new(id), INCARNATION, CONFIG).unwrap();
    }
    let mut runs = Vec::new();
    coordinator.list_runs_into(tenant(), None, 2, &mut runs).unwrap();
    assert_eq!(runs.iter().map(|run| run.run.get()).collect::<Vec<_>>(), [2, 5]);
    coordinator.list_runs_into(tenant(), Some(RunId::new(5)), 2, &mut runs).unwrap();
    assert_eq!(runs.iter().map(|run| run.run.get()).collect::<Vec<_>>(), [9]);
    coordinator.list_runs_into(TenantId::from_name("other"), None, 2, &mut runs).unwrap();
    assert!(runs.is_empty());
}

#[test]
fn a_settled_run_freezes_its_shards() {
    let mut coordinator = with_shards(small(), 2);
    let lease = acquire(&mut coordinator, 1, 10).unwrap();
    coordinator.checkpoint(at(11), tenant(), &lease, key(b"bb"), op(2)).unwrap();
    coordinator.cancel_run(at(12), tenant(), RUN, op(3)).unwrap();
    let before = coordinator.get_shard(tenant(), shard(1)).unwrap();
    let settled = AccessRefused::RunNotActive { run: RUN, status: RunStatus::Cancelled };
    let (now, owner) = (at(13), tenant());
    let spec = before.spec.view();
    let replace = plan_split_replace(spec, &[b"bm"]).unwrap();
    let residual = plan_split_residual(spec, Some(b"bb"), b"bm").unwrap();
    let park = Park::because(ParkReason::Other);
    let reason = ReleaseReason::Released;
    assert_eq!(acquire(&mut coordinator, 2, 13), Err(settled.into()));
    assert!(matches!(claim(&mut coordinator, 1, 13), Err(ClaimError::RunNotActive { .. })));
    assert_eq!(coordinator.checkpoint(now, owner, &lease, key(b"bc"), op(4)), Err(settled.into()));
    assert_eq!(coordinator.complete(now, owner, &lease, key(b"bc"), op(4)), Err(settled.into()));
    assert_eq!(coordinator.park_shard(now, owner, &lease, park, op(4)), Err(settled.into()));
    assert_eq!(coordinator.release(now, owner, &lease, None, reason, op(4)), Err(settled.into()));
    assert_eq!(coordinator.split_replace(now, owner, &lease, &replace, op(4)), Err(settled.into()));
    assert_eq!(coordinator.split_residual(now, owner, &lease, &residual, op(4)), Err(settled.into()));
    assert_eq!(coordinator.request_yield(now, owner, shard(1), lease.epoch()), Err(settled.into()));
    assert_eq!(coordinator.unpark_shard(now, owner, shard(1), lease.epoch(), op(4)), Err(settled.into()));
    let renewed = coordinator.renew(now, owner, &lease).unwrap();
    assert_eq!((renewed.orders.cancelled, renewed.capacity.available_count), (Some(RunStatus::Cancelled), 0));
    assert_eq!(coordinator.get_shard(tenant(), shard(1)).unwrap(), before);
    let replayed = coordinator.checkpoint(now, owner, &lease, key(b"bb"), op(2));
    assert_eq!(replayed, Ok(IdempotentOutcome::Replayed(())));
}

#[test]
fn many_leases_are_renewed_and_drained_in_one_call_each_with_its_own_answer() {
    let mut coordinator = with_shards(small(), 3);
    let leases: Vec<_> = (1..=3).map(|id| acquire(&mut coordinator, id, id * 10).unwrap()).collect();
    let mut answers = Vec::new();
    coordinator.renew_many(at(115), tenant(), &leases, &mut answers);
    assert!(matches!(answers[0], Err(RenewError::Lease(LeaseRefused::Expired { .. }))));
    assert_eq!(answers[1].as_ref().unwrap().new_deadline, at(215));
    assert!(answers[2].is_ok() && answers.len() == 3);
    let held: Vec<_> = (leases.iter().zip(50..))
        .map(|(lease, id)| HeldShard { lease, cursor: (id == 51).then(|| key(b"cc")), op_id: op(id) })
        .collect();
    let mut released = Vec::new();
    coordinator.drain(at(116), tenant(), &held, &mut released);
    assert!(released[0].is_err() && released[1].is_ok() && released[2].is_ok());
    let drained = coordinator.get_shard(tenant(), shard(2)).unwrap();
    assert_eq!((drained.state.head.freed, drained.cursor.last_key()), (MoveReason::Drained, Some(&b"cc"[..])));
    let progress = coordinator.get_run_progress(at(116), tenant(), RUN).unwrap();
    assert_eq!((progress.counts.active, progress.leased), (3, 0));
    assert_eq!(progress.watermark.expose(), Some(&b"cc"[..]));
}

#[test]
fn every_operation_tells_what_happened_once_and_a_replay_tells_nothing() {
    let mut coordinator = InMemoryCoordinator::new(small()).unwrap();
    let (owner, bounds) = (tenant(), manifest(4));
    let events = &mut EventCollector::new();
    let ids = |id: u64| ShardId::new(id);
    let last = |events: &mut EventCollector| {
        let mut drained = events.drain();
        assert_eq!(drained.len(), 1, "one event for one operation: {drained:?}");
        drained.remove(0).kind
    };
    coordinator.create_run_with_events(at(1), owner, RUN, INCARNATION, CONFIG, events).unwrap();
    assert_eq!(last(events), EventKind::RunCreated);
    coordinator.register_shards_with_events(at(1), owner, RUN, &inputs(&bounds), op(1), events).unwrap();
    assert_eq!(last(events), EventKind::RunActivated { shard_count: 4 });
    coordinator.register_shards_with_events(at(1), owner, RUN, &inputs(&bounds), op(1), events).unwrap();
    assert!(events.is_empty());

    let mut scratch = AcquireScratch::new();
    let mut leases = Vec::new();
    for id in 1..=4 {
        let acquired = coordinator
            .acquire_and_restore_into_with_events(at(2), owner, shard(id), WORKER, &mut scratch, events)
            .unwrap();
        leases.push(acquired.lease);
        let (fence_epoch, reason) = (FenceEpoch::new(2), MoveReason::FirstAcquire);
        assert_eq!(last(events), EventKind::ShardAcquired { shard: ids(id), worker: WORKER, fence_epoch, reason });
    }
    coordinator.renew_with_events(at(3), owner, &leases[0], events).unwrap();
    assert_eq!(last(events), EventKind::ShardLeaseRenewed { shard: ids(1), new_deadline: at(103) });
    coordinator.checkpoint_with_events(at(3), owner, &leases[0], key(b"bb"), op(2), events).unwrap();
    assert!(matches!(last(events), EventKind::ShardCheckpointed { last_key, .. } if last_key.expose() == Some(b"bb")));
    coordinator.checkpoint_with_events(at(3), owner, &leases[0], key(b"bb"), op(2), events).unwrap();
    assert!(events.is_empty());
    coordinator
        .order_with_events(
            at(3),
            owner,
            shard(1),
            leases[0].epoch(),
            tessera_coordination::decide::order::OrderRequest::Split(Fraction::HALF),
            events,
        )
        .unwrap();
    assert!(matches!(last(events), EventKind::ShardOrdered { .. }));
    let spec = coordinator.get_shard(owner, shard(1)).unwrap().spec;
    let plan = plan_split_residual(spec.view(), Some(b"bb"), b"bm").unwrap();
    let residual = coordinator.split_residual_with_events(at(4), owner, &leases[0], &plan, op(3), events).unwrap();
    assert_eq!(last(events), EventKind::ShardResidualCreated { parent: ids(1), residual: residual.into_inner() });
    coordinator.complete_with_events(at(5), owner, &leases[0], key(b"bl"), op(4), events).unwrap();
    assert_eq!(last(events), EventKind::ShardCompleted { shard: ids(1) });
    let plan = plan_split_replace(coordinator.get_shard(owner, shard(2)).unwrap().spec.view(), &[b"cm"]).unwrap();
    let children = coordinator.split_replace_with_events(at(5), owner, &leases[1], &plan, op(5), events).unwrap();
    assert_eq!(last(events), EventKind::ShardSplit { parent: ids(2), children: children.into_inner() });
    let (cursor, reason) = (None, ReleaseReason::Released);
    coordinator.release_with_events(at(5), owner, &leases[2], cursor, reason, op(6), events).unwrap();
    assert_eq!(last(events), EventKind::ShardReleased { shard: ids(3), reason: MoveReason::Released });
    let park = Park::because(ParkReason::Poisoned).with_detail("odd bytes");
    coordinator.park_shard_with_events(at(6), owner, &leases[3], park, op(7), events).unwrap();
    assert_eq!(last(events), EventKind::ShardParked { shard: ids(4), reason: ParkReason::Poisoned });
    assert_eq!(coordinator.get_shard(owner, shard(4)).unwrap().park_detail.as_deref(), Some("odd bytes"));
    coordinator
        .unpark_shard_with_events(
            at(7),
            owner,
            shard(4),
            ShardEpoch::new(INCARNATION, FenceEpoch::new(2)),
            op(8),
            events,
        )
        .unwrap();
    assert_eq!(last(events), EventKind::ShardUnparked { shard: ids(4), new_fence_epoch: FenceEpoch::new(3) });
    assert_eq!(coordinator.get_shard(owner, shard(4)).unwrap().park_detail, None);
    use tessera_coordination::decide::settle_run::Settlement;
    coordinator.settle_run_with_events(at(8), owner, RUN, Settlement::Cancel, op(9), events).unwrap();
    assert_eq!(last(events), EventKind::RunCancelled);
    coordinator.settle_run_with_events(at(8), owner, RUN, Settlement::Cancel, op(9), events).unwrap();
    assert!(events.is_empty());
    for (run, settlement, told) in
        [(2, Settlement::Fail, EventKind::RunFailed), (3, Settlement::Complete, EventKind::RunCompleted)]
    {
        let run = RunId::new(run);
        coordinator
            .create_run_with_shards(at(9), owner, run, INCARNATION, CONFIG, &inputs(&bounds[..1]), op(1))
            .unwrap();
        let key = ShardKey::new(run, ids(1));
        let lease = coordinator.acquire_and_restore_into(at(9), owner, key, WORKER, &mut scratch).unwrap().lease;
        coordinator.complete(at(9), owner, &lease, CursorUpdate::initial(), op(2)).unwrap();
        coordinator.settle_run_with_events(at(9), owner, run, settlement, op(3), events).unwrap();
        assert_eq!(last(events), told);
    }
    assert_eq!(coordinator.get_shard(owner, shard(2)).unwrap().state.head.status, ShardStatus::Split);
}

#[test]
fn an_idle_worker_asks_the_holder_with_most_ahead_and_not_twice() {
    let mut coordinator = with_shards(small(), 2);
    let first = acquire(&mut coordinator, 1, 10).unwrap();
    acquire(&mut coordinator, 2, 10).unwrap();
    coordinator.checkpoint(at(11), tenant(), &first, key(b"b\x80"), op(2)).unwrap();
    let mut seen = Vec::new();
    let mut ask = |coordinator: &mut InMemoryCoordinator, now| {
        ask_for_work(coordinator, at(now), tenant(), RUN, None, Fraction::HALF, &mut seen)
    };
    assert_eq!(ask(&mut coordinator, 12), Ok(Some(ShardId::new(2))), "the other is half done");
    assert_eq!(ask(&mut coordinator, 13), Ok(Some(ShardId::new(1))));
    assert_eq!(ask(&mut coordinator, 14), Ok(None), "everyone was asked");
    let told = coordinator.renew(at(15), tenant(), &first).unwrap().orders;
    assert_eq!(told.standing.split_requested, Some(Fraction::HALF));
    coordinator.cancel_run(at(16), tenant(), RUN, op(9)).unwrap();
    assert_eq!(ask(&mut coordinator, 17), Ok(None));
}
