//! Runs that have the same id one after the other: what a coordinator remembers of the first opens nothing in the second.

use crate::fixtures::{INCARNATION, KEY, NOW, RUN, TENANT, WORKER, acquire, coordinator, everything, register};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{plan_split_replace, plan_split_residual};
use tessera_contracts::{CursorUpdate, OpId, RunIncarnation, ShardId, ShardSpecRef};
use tessera_coordination::backend::{CoordinationBackend, HeldShard, RunManagement, ShardClaiming};
use tessera_coordination::error::{AccessRefused, CreateRunError, OperationError, Refusal};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

const NEXT: RunIncarnation = RunIncarnation::new(2);
const ROOTS: [InitialShardInput<'static>; 2] =
    [InitialShardInput::new(ShardId::new(1), b"a", b"m"), InitialShardInput::new(ShardId::new(2), b"m", b"z")];

/// A holder with a view of both shards, and a standing; then another coordinator replaces the run by one of the same id.
fn replaced() -> (SimKv, SimEtcdCoordinator, SimEtcdCoordinator, Lease) {
    let kv = SimKv::new(1);
    let (mut holder, mut operator) = (coordinator(&kv), coordinator(&kv));
    register(&mut holder, &ROOTS);
    let lease = acquire(&mut holder, KEY.shard);
    acquire(&mut holder, ShardId::new(2));
    holder.checkpoint(NOW, TENANT, &lease, at(b"c"), OpId::new(10)).expect("recorded");
    operator.cancel_run(NOW, TENANT, RUN, OpId::new(11)).expect("cancelled");
    assert_eq!(operator.retire_runs(NOW, TENANT, NOW, 10), Ok(1));
    create_next(&mut operator);
    (kv, holder, operator, lease)
}

fn create_next(operator: &mut SimEtcdCoordinator) {
    let config = RunConfig::default();
    operator.create_run_with_shards(NOW, TENANT, RUN, NEXT, config, &ROOTS, OpId::new(1)).expect("registered");
}

fn at(key: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::at_key(key).expect("valid")
}

fn is_of_another_run<T: std::fmt::Debug>(answer: Result<T, impl OperationError>) -> bool {
    let refused = answer.expect_err("refused").refusal();
    let due = AccessRefused::OtherIncarnation { run: RUN, presented: INCARNATION, current: NEXT };
    refused == Some(Refusal::Access(due))
}

#[test]
fn a_retirement_by_name_forgets_no_other_creation_of_the_run_and_none_that_is_open() {
    let (kv, _, mut operator, _) = replaced();
    let mut named = |incarnation| coordinator(&kv).retire_run(NOW, TENANT, RUN, incarnation);
    assert_eq!([INCARNATION, NEXT].map(&mut named), [Ok(false), Ok(false)], "the next run is open");
    operator.cancel_run(NOW, TENANT, RUN, OpId::new(12)).expect("cancelled");
    assert_eq!([INCARNATION, NEXT, NEXT].map(&mut named), [Ok(false), Ok(true), Ok(false)]);
    assert!(operator.get_run(TENANT, RUN).is_err());
}

/// Asks with a lease of the retired run, and says whether it was refused because of the incarnation.
type Ask = fn(&mut SimEtcdCoordinator, &Lease) -> bool;

const OP: OpId = OpId::new(20);

/// Every operation that presents a lease or names an ownership.
const OPERATIONS: [(&str, Ask); 13] = [
    ("renew", |etcd, lease| is_of_another_run(etcd.renew(NOW, TENANT, lease))),
    ("checkpoint", |etcd, lease| is_of_another_run(etcd.checkpoint(NOW, TENANT, lease, at(b"d"), OP))),
    ("a replay", |etcd, lease| is_of_another_run(etcd.checkpoint(NOW, TENANT, lease, at(b"c"), OpId::new(10)))),
    ("complete", |etcd, lease| is_of_another_run(etcd.complete(NOW, TENANT, lease, at(b"d"), OP))),
    ("park", |etcd, lease| {
        is_of_another_run(etcd.park_shard(NOW, TENANT, lease, Park::because(ParkReason::Other), OP))
    }),
    ("split_replace", |etcd, lease| {
        let plan = plan_split_replace(spec(), &[b"d"]).expect("fits");
        is_of_another_run(etcd.split_replace(NOW, TENANT, lease, &plan, OP))
    }),
    ("split_residual", |etcd, lease| {
        let plan = plan_split_residual(spec(), None, b"d").expect("fits");
        is_of_another_run(etcd.split_residual(NOW, TENANT, lease, &plan, OP))
    }),
    ("release", |etcd, lease| is_of_another_run(etcd.release(NOW, TENANT, lease, None, ReleaseReason::Released, OP))),
    ("renew_many", |etcd, lease| {
        let mut answers = Vec::new();
        etcd.renew_many(NOW, TENANT, &[*lease], &mut answers);
        is_of_another_run(answers.remove(0))
    }),
    ("drain", |etcd, lease| {
        let mut answers = Vec::new();
        etcd.drain(NOW, TENANT, &[HeldShard { lease, cursor: None, op_id: OP }], &mut answers);
        is_of_another_run(answers.remove(0))
    }),
    ("request_yield", |etcd, lease| is_of_another_run(etcd.request_yield(NOW, TENANT, KEY, lease.epoch()))),
    ("request_split", |etcd, lease| {
        is_of_another_run(etcd.request_split(NOW, TENANT, KEY, lease.epoch(), Fraction::HALF))
    }),
    ("unpark", |etcd, lease| is_of_another_run(etcd.unpark_shard(NOW, TENANT, KEY, lease.epoch(), OP))),
];

fn spec() -> ShardSpecRef<'static> {
    ShardSpecRef::new(b"a", b"m", b"").expect("valid")
}

#[test]
fn a_view_kept_of_a_retired_run_opens_nothing_in_a_run_whose_shards_nobody_has_touched() {
    for (operation, is_refused) in OPERATIONS {
        let (kv, mut holder, _, lease) = replaced();
        let stored = everything(&kv);
        assert!(is_refused(&mut holder, &lease), "{operation}");
        assert_eq!(everything(&kv), stored, "{operation} wrote something");
    }
}

#[test]
fn a_view_kept_of_a_retired_run_opens_nothing_where_the_same_worker_holds_the_same_fence() {
    for (operation, is_refused) in OPERATIONS {
        let (kv, mut holder, mut operator, lease) = replaced();
        let again = acquire(&mut operator, KEY.shard);
        assert_eq!((again.owner(), again.fence(), again.incarnation()), (lease.owner(), lease.fence(), NEXT));
        let stored = everything(&kv);
        assert!(is_refused(&mut holder, &lease), "{operation}");
        assert_eq!(everything(&kv), stored, "{operation} wrote something");
        operator.checkpoint(NOW, TENANT, &again, at(b"b"), OpId::new(10)).expect("the new lease is good");
    }
}

/// The session and the path of its standing are the same in both runs.
#[test]
fn a_standing_in_the_next_run_does_not_vouch_for_a_lease_of_the_retired_one() {
    for (operation, is_refused) in OPERATIONS {
        for warm in [false, true] {
            let (kv, mut holder, _, lease) = replaced();
            let again = acquire(&mut holder, KEY.shard);
            assert_eq!((again.fence(), again.incarnation()), (lease.fence(), NEXT));
            if warm {
                holder.checkpoint(NOW, TENANT, &again, at(b"b"), OpId::new(12)).expect("recorded");
            }
            let stored = everything(&kv);
            assert!(is_refused(&mut holder, &lease), "{operation}");
            assert_eq!(everything(&kv), stored, "{operation} wrote something");
        }
    }
}

#[test]
fn what_is_granted_on_a_view_kept_of_a_retired_run_is_a_lease_of_the_run_that_there_is() {
    for by_claim in [false, true] {
        let kv = SimKv::new(1);
        let (mut holder, mut operator) = (coordinator(&kv), coordinator(&kv));
        register(&mut holder, &ROOTS);
        // A claim reads the records of all candidates ahead, and keeps those it does not take.
        let mut scratch = AcquireScratch::new();
        let taken = holder.claim_next_available(NOW, TENANT, RUN, WORKER, &mut scratch).expect("granted").lease;
        operator.cancel_run(NOW, TENANT, RUN, OpId::new(11)).expect("cancelled");
        assert_eq!(operator.retire_runs(NOW, TENANT, NOW, 10), Ok(1));
        create_next(&mut operator);
        let lease = if by_claim {
            holder.claim_next_available(NOW, TENANT, RUN, WORKER, &mut scratch).expect("granted").lease
        } else {
            acquire(&mut holder, ShardId::new(3 - taken.shard().get()))
        };
        assert_eq!((lease.incarnation(), lease.fence().get()), (NEXT, 2), "by claim: {by_claim}");
        holder.renew(NOW, TENANT, &lease).expect("it is good");
    }
}

/// An attempt whose answer was lost succeeded if the run that is there is its own, which its incarnation tells.
#[test]
fn a_creator_whose_answer_was_lost_takes_no_other_creators_run_for_its_own() {
    let kv = SimKv::new(1);
    let (mut first, mut second) = (coordinator(&kv), coordinator(&kv));
    kv.inject(CallKind::Write, 0, Fault::LoseAnswer);
    first.create_run(NOW, TENANT, RUN, INCARNATION, RunConfig::default()).expect("it was this one that created it");
    let taken = second.create_run(NOW, TENANT, RUN, NEXT, RunConfig::default());
    assert_eq!(taken, Err(CreateRunError::AlreadyExists { run: RUN }));

    let kv = SimKv::new(1);
    let (mut first, mut second) = (coordinator(&kv), coordinator(&kv));
    // The first attempt never arrives and is in doubt; before it is repeated, another creator has the id.
    second.create_run(NOW, TENANT, RUN, NEXT, RunConfig::default()).expect("created");
    kv.inject(CallKind::Write, 0, Fault::LoseRequest);
    let taken = first.create_run(NOW, TENANT, RUN, INCARNATION, RunConfig::default());
    assert_eq!(taken, Err(CreateRunError::AlreadyExists { run: RUN }));
    // A creator that lost no answer does not even take one of its own number for its own.
    let taken = second.create_run(NOW, TENANT, RUN, NEXT, RunConfig::default());
    assert_eq!(taken, Err(CreateRunError::AlreadyExists { run: RUN }));
}

/// Both creators draw an incarnation and go on with the run that there is; one of them gives it its shards.
#[test]
fn of_two_creators_one_gives_the_run_its_shards_and_both_see_the_same_incarnation() {
    let kv = SimKv::new(1);
    let (mut first, mut second) = (coordinator(&kv), coordinator(&kv));
    let config = RunConfig::default();
    first.create_run(NOW, TENANT, RUN, INCARNATION, config).expect("created");
    let made = second.create_run_with_shards(NOW, TENANT, RUN, NEXT, config, &ROOTS, OpId::new(2)).expect("registered");
    assert!(made.is_executed());
    let late = first.register_shards(NOW, TENANT, RUN, &ROOTS[..1], OpId::new(1));
    assert!(late.expect_err("the run has its shards").to_string().contains("shards are registered once"));
    for creator in [&mut first, &mut second] {
        let run = creator.get_run(TENANT, RUN).expect("there");
        assert_eq!((run.incarnation, run.root_shards.len()), (INCARNATION, 2));
    }
    assert_eq!(acquire(&mut second, KEY.shard).incarnation(), INCARNATION);
}
