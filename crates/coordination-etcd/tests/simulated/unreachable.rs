//! Shards that workers cannot reach, over several coordinators: who is there is told by sessions, and nobody is overlooked.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use crate::fixtures::{INCARNATION, KEY, NOW, RUN, TENANT, acquire, bounds, coordinator, everything, inputs, register};
use tessera_contracts::{CursorUpdate, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::backend::{
    AsyncCoordinationBackend as _, AsyncShardClaiming as _, CoordinationBackend, RunManagement, ShardClaiming,
};
use tessera_coordination::error::{AcquireError, ClaimError, RunTransitionError};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::record::unreachable::Unreachable;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::keyspace::{Keyspace, ShardIndex, Window};
use tessera_coordination_etcd::kv::{Keys, RangeRequest, Revision};
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sim_kv::{SimKv, block_on};
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

const UNREACHABLE: ReleaseReason<'_> = ReleaseReason::Unreachable(Unreachable::NONE);

fn worker(number: u64) -> WorkerId {
    WorkerId::new(number)
}

fn acquire_as(etcd: &mut SimEtcdCoordinator, shard: u64, number: u64) -> Result<Lease, AcquireError> {
    let (key, scratch) = (ShardKey::new(RUN, ShardId::new(shard)), &mut AcquireScratch::new());
    etcd.acquire_and_restore_into(NOW, TENANT, key, worker(number), scratch).map(|granted| granted.lease)
}

fn claim_as(etcd: &mut SimEtcdCoordinator, number: u64) -> Result<Lease, ClaimError> {
    let scratch = &mut AcquireScratch::new();
    etcd.claim_next_available(NOW, TENANT, RUN, worker(number), scratch).map(|granted| granted.lease)
}

/// The worker acquires the shard and reports it.
fn report_as(etcd: &mut SimEtcdCoordinator, shard: u64, number: u64) {
    let lease = acquire_as(etcd, shard, number).expect("granted");
    let op = OpId::new(1_000 * shard + number);
    etcd.release(NOW, TENANT, &lease, None, UNREACHABLE, op).expect("released");
}

fn status(etcd: &mut SimEtcdCoordinator, shard: u64) -> (ShardStatus, Option<ParkReason>) {
    let record = etcd.get_shard(TENANT, ShardKey::new(RUN, ShardId::new(shard))).expect("there");
    (record.state.head.status, record.state.head.park.map(|park| park.reason))
}

const PARKED: (ShardStatus, Option<ParkReason>) = (ShardStatus::Parked, Some(ParkReason::Unreachable));
const OPEN: (ShardStatus, Option<ParkReason>) = (ShardStatus::Active, None);

fn keys_of(kv: &SimKv, part: &str) -> usize {
    let holds = |key: &[u8]| key.windows(part.len()).any(|at| at == part.as_bytes());
    everything(kv).iter().filter(|kv| holds(&kv.key)).count()
}

#[test]
fn workers_of_other_coordinators_are_seen_by_their_sessions() {
    let kv = SimKv::new(1);
    let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
    register(&mut one, &inputs(&bounds(2)));
    acquire_as(&mut two, 2, 22).expect("granted");
    report_as(&mut one, 1, 11);
    assert_eq!(status(&mut one, 1), OPEN, "a worker of the other coordinator may reach it");
    report_as(&mut two, 1, 22);
    assert_eq!(status(&mut one, 1), PARKED);
}

#[test]
fn a_worker_that_asked_in_vain_is_there_until_its_session_ends() {
    let kv = SimKv::new(1);
    let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
    register(&mut one, &inputs(&bounds(1)));
    let lease = acquire_as(&mut one, 1, 11).expect("granted");
    assert!(matches!(claim_as(&mut two, 22), Err(ClaimError::NoneAvailable { .. })));
    let presences = keys_of(&kv, "/present/");
    assert_eq!(presences, 2, "one for the holder and one for the worker that waits");
    assert!(matches!(claim_as(&mut two, 22), Err(ClaimError::NoneAvailable { .. })));
    assert_eq!(keys_of(&kv, "/present/"), presences, "waiting on leaves no more of them");
    one.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(5)).expect("released");
    assert_eq!(status(&mut one, 1), OPEN);
    assert_eq!(claim_as(&mut two, 22).expect("granted").shard(), ShardId::new(1));
}

/// Two coordinators, and a worker of the second that has met no run, or only another one.
#[test]
fn a_live_worker_that_has_not_met_the_run_yet_keeps_its_shards_open() {
    for works_elsewhere in [false, true] {
        let kv = SimKv::new(1);
        let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
        register(&mut one, &inputs(&bounds(1)));
        if works_elsewhere {
            let (bounds, other) = (bounds(1), RunId::new(RUN.get() + 1));
            let config = RunConfig::default();
            two.create_run_with_shards(NOW, TENANT, other, INCARNATION, config, &inputs(&bounds), OpId::new(1))
                .expect("registered");
            let scratch = &mut AcquireScratch::new();
            two.claim_next_available(NOW, TENANT, other, worker(22), scratch).expect("granted");
        } else {
            block_on(two.backend.join(TENANT, worker(22))).expect("known");
        }
        report_as(&mut one, 1, 11);
        assert_eq!(status(&mut one, 1), OPEN, "works elsewhere: {works_elsewhere}");
        claim_as(&mut one, 11).expect_err("it has reported the only shard");
        assert_eq!(status(&mut one, 1), OPEN, "works elsewhere: {works_elsewhere}");
        let lease = claim_as(&mut two, 22).expect("granted");
        two.complete(NOW, TENANT, &lease, CursorUpdate::initial(), OpId::new(8)).expect("completed");
    }
}

#[test]
fn a_worker_of_another_tenant_is_not_waited_for() {
    let kv = SimKv::new(1);
    let (mut one, two) = (coordinator(&kv), coordinator(&kv));
    register(&mut one, &inputs(&bounds(1)));
    block_on(two.backend.join(TenantId::from_bytes([9; 32]), worker(22))).expect("known");
    report_as(&mut one, 1, 11);
    assert_eq!(status(&mut one, 1), PARKED);
}

/// A live worker that never serves the run keeps no shard open: it leaves, its session lapses, or it says that it cannot.
#[test]
fn a_live_worker_that_will_not_come_is_not_waited_for_in_vain() {
    let ways: [fn(&SimKv, &SimEtcdCoordinator); 3] = [
        |_, two| block_on(two.backend.end_session(worker(22))).expect("ended"),
        |kv, _| {
            let presence = Keyspace::new(&EtcdConfig::default().namespace).presences_of(TENANT, worker(22));
            let found = kv.inspect(|store| store.range(&RangeRequest::of(presence)).expect("readable").kvs);
            kv.expire_lease(found[0].lease);
        },
        |_, two| block_on(two.backend.abstain(TENANT, RUN, INCARNATION, worker(22))).expect("said"),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        for before_the_report in [false, true] {
            let kv = SimKv::new(1);
            let (mut one, two) = (coordinator(&kv), coordinator(&kv));
            register(&mut one, &inputs(&bounds(1)));
            block_on(two.backend.join(TENANT, worker(22))).expect("known");
            if before_the_report {
                way(&kv, &two);
                report_as(&mut one, 1, 11);
            } else {
                report_as(&mut one, 1, 11);
                claim_as(&mut one, 11).expect_err("it has reported the only shard");
                assert_eq!(status(&mut one, 1), OPEN, "way {number}");
                way(&kv, &two);
                claim_as(&mut one, 11).expect_err("it has reported the only shard");
            }
            assert_eq!(status(&mut one, 1), PARKED, "way {number}, before the report: {before_the_report}");
        }
    }
}

#[test]
fn an_abstention_is_for_one_creation_of_a_run_and_one_session_and_can_be_taken_back() {
    type Step = fn(&SimEtcdCoordinator, RunIncarnation);
    let other = RunIncarnation::new(INCARNATION.get() + 1);
    let cases: [(&str, Step); 3] = [
        ("another creation", |two, other| {
            block_on(two.backend.abstain(TENANT, RUN, other, worker(22))).expect("said");
        }),
        ("another worker", |two, _| {
            block_on(two.backend.join(TENANT, worker(33))).expect("known");
            block_on(two.backend.abstain(TENANT, RUN, INCARNATION, worker(33))).expect("said");
        }),
        ("taken back", |two, _| {
            block_on(two.backend.abstain(TENANT, RUN, INCARNATION, worker(22))).expect("said");
            block_on(two.backend.take_part(TENANT, RUN, INCARNATION, worker(22))).expect("said");
        }),
    ];
    for (name, abstain) in cases {
        let kv = SimKv::new(1);
        let (mut one, two) = (coordinator(&kv), coordinator(&kv));
        register(&mut one, &inputs(&bounds(1)));
        block_on(two.backend.join(TENANT, worker(22))).expect("known");
        abstain(&two, other);
        report_as(&mut one, 1, 11);
        assert_eq!(status(&mut one, 1), OPEN, "{name}");
    }
}

/// A thread of the worker cannot serve the run, and another of its threads can: each has a session of its own.
#[test]
fn a_worker_abstains_when_all_its_sessions_do_and_says_it_anew_for_a_new_session() {
    let kv = SimKv::new(1);
    let (mut one, two, three) = (coordinator(&kv), coordinator(&kv), coordinator(&kv));
    register(&mut one, &inputs(&bounds(1)));
    let abstain = |thread: &SimEtcdCoordinator| {
        block_on(thread.backend.join(TENANT, worker(22))).expect("known");
        block_on(thread.backend.abstain(TENANT, RUN, INCARNATION, worker(22))).expect("said");
    };
    abstain(&two);
    block_on(three.backend.join(TENANT, worker(22))).expect("known");
    report_as(&mut one, 1, 11);
    assert_eq!(status(&mut one, 1), OPEN, "the other thread may serve it");
    // The store forgets the first thread's session; its next look opens another.
    block_on(two.backend.end_session(worker(22))).expect("ended");
    abstain(&two);
    let keys = keys_of(&kv, "/abstains/");
    abstain(&two);
    assert_eq!((keys, keys_of(&kv, "/abstains/")), (1, 1), "said once for a session");
    abstain(&three);
    claim_as(&mut one, 11).expect_err("it has reported the only shard");
    assert_eq!(status(&mut one, 1), PARKED);
    one.cancel_run(NOW, TENANT, RUN, OpId::new(6)).expect("cancelled");
    assert_eq!(keys_of(&kv, "/abstains/"), 0, "they go with the run");
}

/// A machine has a session for each of its threads: far more sessions than one request reads, and few workers.
#[test]
fn a_claim_parks_what_nobody_reaches_however_many_sessions_there_are() {
    let kv = SimKv::new(1);
    let mut one = coordinator(&kv);
    register(&mut one, &inputs(&bounds(1)));
    let threads: Vec<SimEtcdCoordinator> = (0..80).map(|_| coordinator(&kv)).collect();
    for thread in &threads {
        block_on(thread.backend.join(TENANT, worker(1))).expect("known");
    }
    let last_hope = coordinator(&kv);
    block_on(last_hope.backend.join(TENANT, worker(99))).expect("known");
    for number in [1, 11] {
        report_as(&mut one, 1, number);
        assert_eq!(status(&mut one, 1), OPEN);
    }
    block_on(last_hope.backend.end_session(worker(99))).expect("ended");
    claim_as(&mut one, 11).expect_err("it has reported the only shard");
    assert_eq!(status(&mut one, 1), PARKED);
}

/// The last worker that might have reached the shard goes; the one that cannot is still asking for work.
#[test]
fn a_shard_whose_last_hope_has_gone_is_parked_by_the_next_claim() {
    for holds_it in [false, true] {
        let kv = SimKv::new(1);
        let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
        register(&mut one, &inputs(&bounds(1)));
        let lease = acquire_as(&mut one, 1, 11).expect("granted");
        claim_as(&mut two, 22).expect_err("nothing is free");
        one.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(5)).expect("released");
        if holds_it {
            acquire_as(&mut two, 1, 22).expect("granted");
        }
        claim_as(&mut one, 11).expect_err("it has reported the only shard");
        assert_eq!(status(&mut one, 1), OPEN);
        block_on(two.backend.end_session(worker(22))).expect("ended");
        let told = claim_as(&mut one, 11);
        assert!(matches!(told, Err(ClaimError::NoneAvailable { .. })), "{told:?}");
        assert_eq!(status(&mut one, 1), PARKED, "held by the other: {holds_it}");
        assert_eq!((keys_of(&kv, "/reported/"), keys_of(&kv, "/held/"), keys_of(&kv, "/parked/")), (0, 0, 1));
    }
}

/// Lets the future go on so many times, then lets `meanwhile` happen, then ends it.
fn interrupted<F: Future>(future: F, polls: usize, meanwhile: impl FnOnce()) -> F::Output {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(ended) = future.as_mut().poll(&mut context) {
            meanwhile();
            return ended;
        }
    }
    meanwhile();
    block_on(future)
}

/// When the shard was parked, and when the worker became present: the store's revisions.
fn parked_and_came(kv: &SimKv, number: u64) -> (Option<Revision>, Option<Revision>) {
    let space = Keyspace::new(&EtcdConfig::default().namespace);
    let written = |keys: Keys| {
        let found = kv.inspect(|store| store.range(&RangeRequest::of(keys)).expect("readable").kvs);
        found.iter().map(|kv| kv.mod_revision).min()
    };
    (
        written(space.indexed(ShardIndex::Parked, TENANT, RUN, Window::ALL)),
        written(space.presences_of(TENANT, worker(number))),
    )
}

/// Between the look at who is there and the write that parks, another worker comes: it may yet reach the shard.
#[test]
fn who_comes_at_the_last_moment_is_not_overlooked() {
    for (by_claim, returns) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut parked, mut left_open) = (0, 0);
        for polls in 0..32 {
            let kv = SimKv::new(1);
            let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
            register(&mut one, &inputs(&bounds(1)));
            let lease = acquire_as(&mut one, 1, 11).expect("granted");
            if returns {
                // It is known, and cannot serve the run; then it can.
                block_on(two.backend.join(TENANT, worker(22))).expect("known");
                block_on(two.backend.abstain(TENANT, RUN, INCARNATION, worker(22))).expect("said");
            }
            let mut come = || {
                if returns {
                    block_on(two.backend.take_part(TENANT, RUN, INCARNATION, worker(22))).expect("said");
                } else {
                    drop(claim_as(&mut two, 22));
                }
            };
            if by_claim {
                // Worker 33 is the last hope, and goes.
                claim_as(&mut one, 33).expect_err("nothing is free");
                one.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(5)).expect("released");
                block_on(one.backend.end_session(worker(33))).expect("ended");
                let mut scratch = AcquireScratch::new();
                let claim = one.backend.claim_next_available(NOW, TENANT, RUN, worker(11), &mut scratch);
                let _ = interrupted(claim, polls, come);
            } else {
                let release = one.backend.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(5));
                interrupted(release, polls, &mut come).expect("released");
            }
            match parked_and_came(&kv, 22) {
                (Some(parked_at), Some(came)) if parked_at > came => {
                    panic!(
                        "after {polls} polls, by claim {by_claim}, returns {returns}: parked at {parked_at:?}, though one came at {came:?}"
                    )
                }
                (Some(_), _) => parked += 1,
                (None, _) => left_open += 1,
            }
        }
        assert!(parked > 0 && left_open > 0, "both were met: {parked} and {left_open}");
    }
}

#[test]
fn a_reported_shard_is_open_work_and_no_run_is_completed_with_one() {
    let kv = SimKv::new(1);
    let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
    register(&mut one, &inputs(&bounds(1)));
    let lease = acquire_as(&mut one, 1, 11).expect("granted");
    claim_as(&mut two, 22).expect_err("nothing is free");
    one.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(5)).expect("released");
    assert_eq!((keys_of(&kv, "/reported/"), keys_of(&kv, "/free/"), keys_of(&kv, "/held/")), (1, 0, 0));
    let refused = one.complete_run(NOW, TENANT, RUN, OpId::new(6));
    assert!(matches!(refused, Err(RunTransitionError::ShardsOpen { active: 1, parked: 0, .. })), "{refused:?}");
    let lease = claim_as(&mut two, 22).expect("granted");
    let hint = two.renew(NOW, TENANT, &lease).expect("renewed").capacity;
    assert_eq!((hint.available_count, keys_of(&kv, "/reported/")), (0, 0));
    two.release(NOW, TENANT, &lease, None, ReleaseReason::Released, OpId::new(7)).expect("released");
    assert_eq!(keys_of(&kv, "/reported/"), 1, "released for another reason, it is still reported by the first");
    let lease = claim_as(&mut two, 22).expect("granted");
    two.complete(NOW, TENANT, &lease, CursorUpdate::initial(), OpId::new(8)).expect("completed");
    one.complete_run(NOW, TENANT, RUN, OpId::new(9)).expect("completed");
    one.retire_runs(NOW, TENANT, NOW, 1).expect("retired");
    assert_eq!((keys_of(&kv, "/reported/"), keys_of(&kv, "/standing/")), (0, 0));
}

/// Far more shards than one claim looks at, all reported by one worker and one of them by nobody else.
#[test]
fn a_claim_goes_on_where_the_last_one_ended_until_it_has_seen_all_reported_shards() {
    let kv = SimKv::new(1);
    let (mut one, mut two, mut three) = (coordinator(&kv), coordinator(&kv), coordinator(&kv));
    let shards = 200;
    register(&mut one, &inputs(&bounds(shards)));
    claim_as(&mut three, 33).expect("granted");
    for _ in 1..shards {
        let lease = claim_as(&mut one, 11).expect("granted");
        let op = OpId::new(10_000 + lease.shard().get());
        one.release(NOW, TENANT, &lease, None, UNREACHABLE, op).expect("released");
    }
    claim_as(&mut one, 11).expect_err("it has reported them all");
    // The second worker reports all but one of them.
    let mut reported = 0;
    let spared = loop {
        let lease = claim_as(&mut two, 22).expect("granted");
        if reported == shards - 2 {
            break lease;
        }
        two.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(20_000 + lease.shard().get())).expect("released");
        reported += 1;
    };
    two.release(NOW, TENANT, &spared, None, ReleaseReason::Released, OpId::new(30_000)).expect("released");
    let found = (0..8).find_map(|_| claim_as(&mut two, 22).ok());
    assert_eq!(found.map(|lease| lease.shard()), Some(spared.shard()), "within a few claims");
}

/// Workers of one coordinator share what a look found; what one of them has reported is for the others all the same.
#[test]
fn workers_of_one_coordinator_share_candidates_and_not_reports() {
    let kv = SimKv::new(1);
    let mut one = coordinator(&kv);
    register(&mut one, &inputs(&bounds(4)));
    let first = claim_as(&mut one, 11).expect("granted");
    claim_as(&mut one, 22).expect("granted");
    one.release(NOW, TENANT, &first, None, UNREACHABLE, OpId::new(5)).expect("released");
    let mut of_first: Vec<u64> = Vec::new();
    while let Ok(lease) = claim_as(&mut one, 11) {
        of_first.push(lease.shard().get());
    }
    assert_eq!(of_first.len(), 2, "all that is left but its own report: {of_first:?}");
    assert!(!of_first.contains(&first.shard().get()));
    assert_eq!(claim_as(&mut one, 22).expect("granted").shard(), first.shard());
}

#[test]
fn a_report_that_was_not_answered_is_made_once_and_known_by_its_op_id() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::CompareMiss] {
        let kv = SimKv::new(1);
        let (mut one, mut two) = (coordinator(&kv), coordinator(&kv));
        register(&mut one, &inputs(&bounds(1)));
        let lease = acquire(&mut one, KEY.shard);
        claim_as(&mut two, 22).expect_err("nothing is free");
        kv.inject(CallKind::Write, 0, fault);
        let done = one.release(NOW, TENANT, &lease, None, UNREACHABLE, OpId::new(5)).expect("released");
        assert!(done.is_executed(), "{fault:?}");
        let record = one.get_shard(TENANT, KEY).expect("there");
        assert_eq!((record.unreachable.len(), record.state.head.status), (1, ShardStatus::Active), "{fault:?}");
    }
}

/// A new run of the same id has nothing of the reports of the old one.
#[test]
fn reports_go_with_their_run() {
    let kv = SimKv::new(1);
    let mut one = coordinator(&kv);
    register(&mut one, &inputs(&bounds(1)));
    report_as(&mut one, 1, 11);
    assert_eq!(status(&mut one, 1), PARKED);
    one.cancel_run(NOW, TENANT, RUN, OpId::new(6)).expect("cancelled");
    one.retire_runs(NOW, TENANT, NOW, 1).expect("retired");
    let next = tessera_contracts::RunIncarnation::new(INCARNATION.get() + 1);
    let (bounds, config) = (bounds(1), RunConfig::default());
    one.create_run_with_shards(NOW, TENANT, RUN, next, config, &inputs(&bounds), OpId::new(1)).expect("registered");
    assert_eq!(claim_as(&mut one, 11).expect("granted").incarnation(), next);
}
