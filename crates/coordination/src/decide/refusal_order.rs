//! Of several things that are wrong, which is told: one table for every operation on a shard or a run.
//!
//! A ladder lists what can be wrong with a request, in the order in which it is checked. Everything is made wrong, and then
//! put right from the first rung on: at every step the answer must be the first rung that is still wrong.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, TenantId, WorkerId};
use tessera_contracts::manifest::{InitialShardInput, validate_manifest};
use tessera_contracts::split::{DerivedShardKind, SplitReplacePlan, SplitResidualPlan, derive_split_shard_id};
use tessera_contracts::{Cursor, CursorUpdate, PayloadHash, ShardSpec};

use super::order::OrderRequest;
use super::release::Release;
use super::settle_run::Settlement;
use super::testing::{INCARNATION, KEY, OTHER, Shard, TENANT, WORKER, at, fence};
use super::unreachable::Peers;
use super::{
    Verdict, acquire, checkpoint, complete, create_run, order, park, register_shards, release, renew, settle_run,
    split_replace, split_residual, unpark,
};
use crate::error::IdempotentOutcome;
use crate::record::history::ReleaseReason;
use crate::record::lease::Lease;
use crate::record::op_log::{OpKind, OpLogEntry, OpResult};
use crate::record::park::Park;
use crate::record::state::Spawned;
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::unreachable::UnreachableReport;
use crate::run::config::RunConfig;
use crate::run::progress::ShardCounts;
use crate::run::record::{RunOpKind, RunOpLogEntry, RunRecord};
use crate::run::status::RunStatus;
use crate::shard_limits::{ShardCensus, ShardLimits};

/// A request with all it is decided on. As made, nothing is wrong with it.
struct Case {
    shard: Shard,
    lease: Lease,
    tenant: TenantId,
    worker: WorkerId,
    now: LogicalTime,
    cursor: Cursor,
    epoch: ShardEpoch,
    incarnation: RunIncarnation,
    census: ShardCensus,
    replace: SplitReplacePlan,
    residual: SplitResidualPlan,
    run: RunRecord,
    run_name: RunId,
    run_exists: bool,
    config: RunConfig,
    counts: ShardCounts,
}

fn spec(start: &[u8], end: &[u8]) -> ShardSpec {
    ShardSpec::new(start, end, b"").unwrap()
}

impl Case {
    fn new() -> Self {
        let (shard, lease) = Shard::leased();
        Self {
            shard,
            lease,
            tenant: TENANT,
            worker: WORKER,
            now: at(1050),
            cursor: CursorUpdate::at_key(b"c").unwrap().to_owned(),
            epoch: lease.epoch(),
            incarnation: INCARNATION,
            census: ShardCensus::default(),
            replace: SplitReplacePlan::new(vec![spec(b"b", b"g"), spec(b"g", b"m")]).unwrap(),
            residual: SplitResidualPlan::new(spec(b"b", b"g"), spec(b"g", b"m")),
            run: RunRecord::newborn(TENANT, KEY.run, INCARNATION, RunConfig::default(), at(1)),
            run_name: KEY.run,
            run_exists: false,
            config: RunConfig::default(),
            counts: ShardCounts::default(),
        }
    }
}

const OP: OpId = OpId::new(1);

fn other_payload() -> PayloadHash {
    PayloadHash::from_stored(99).unwrap()
}

/// What an operation answers: `executed`, `replayed`, or the error as `Debug` shows it.
type Answer = String;

fn told<D, T, E: core::fmt::Debug>(decided: Result<Verdict<D, T>, E>) -> Answer {
    match decided {
        Ok(Verdict::Execute(_)) => "executed".into(),
        Ok(Verdict::Replay(IdempotentOutcome::Replayed(_))) => "replayed".into(),
        Ok(Verdict::Replay(_)) => "another replay".into(),
        Err(error) => format!("{error:?}"),
    }
}

macro_rules! gated {
    ($case:expr, $decide:path $(, $arg:expr)*) => {
        match $case.lease.presented_by($case.tenant) {
            Ok(presented) => told($decide(&$case.shard.view(), presented $(, $arg)*)),
            Err(refused) => format!("Access({refused:?})"),
        }
    };
}

/// One thing that can be wrong, and how the refusal that tells it begins.
type Rung = (&'static str, fn(&mut Case));

const TENANT_RUNG: Rung = ("Access(TenantMismatch", |case| case.tenant = TenantId::from_bytes([8; 32]));
const OTHER_RUN: Rung = ("Access(OtherIncarnation", |case| case.shard.record.incarnation = RunIncarnation::new(6));
const OP_LOG: Rung = ("OpIdConflict(", |case| {
    let (payload_hash, kind, result) = (other_payload(), OpKind::Checkpoint, OpResult::Completed);
    case.shard.record.state.op_log.record(OpLogEntry { op_id: OP, payload_hash, executed_at: at(1), kind, result });
});
const RUN: Rung = ("Access(RunNotActive", |case| case.shard.gate.status = RunStatus::Cancelled);
const TERMINAL: Rung = ("Lease(Terminal", |case| case.shard.record.state.head.status = ShardStatus::Done);
const FENCE: Rung = ("Lease(StaleFence", |case| case.shard.record.state.head.fence = fence(9));
const EXPIRED: Rung = ("Lease(Expired", |case| case.now = at(1100));
const OWNER: Rung = ("Lease(OwnerDivergence", |case| {
    case.shard.record.state.head.lease.as_mut().unwrap().owner = OTHER;
});
const NO_KEY: Rung = ("Cursor(MissingKey", |case| case.cursor = CursorUpdate::initial().to_owned());
const REGRESSION: Rung = ("Cursor(Regression", |case| {
    case.shard.record.cursor = CursorUpdate::at_key(b"zz").unwrap().to_owned();
});
const OUTSIDE: Rung = ("Cursor(OutOfBounds", |case| case.cursor = CursorUpdate::at_key(b"z").unwrap().to_owned());
const SPAWN_CAP: Rung = ("Split(SpawnCap", |case| {
    let child = Spawned { id: ShardId::new(ShardId::DERIVED_BIT), payload_hash: other_payload() };
    case.shard.record.spawned.extend(vec![child; 1024]);
});
const LIMIT: Rung = ("LimitExceeded(", |case| {
    case.census = ShardCensus { limits: ShardLimits { per_tenant_max: 0, total_max: 0 }, of_tenant: 0, total: 0 };
});
const LEASED: [Rung; 4] = [TERMINAL, FENCE, EXPIRED, OWNER];

/// Tenant, incarnation, op-log, run, lease, and then what is the operation's own.
fn with_lease(own: &[Rung]) -> Vec<Rung> {
    [&[TENANT_RUNG, OTHER_RUN, OP_LOG, RUN][..], &LEASED, own].concat()
}

fn run_op_log(kind: RunOpKind) -> impl Fn(&mut Case) {
    move |case| {
        let entry = RunOpLogEntry { op_id: OP, kind, payload_hash: other_payload(), executed_at: at(1) };
        case.run.op_log.push_back_overwrite(entry);
    }
}

/// A report that holds the shard back for longer than any case takes.
fn reported_by(worker: WorkerId) -> UnreachableReport {
    UnreachableReport { worker, at: at(1), retry_after: Some(at(9_999)) }
}

/// How an operation is asked, and what can be wrong with it in the order in which it is told.
type Operation = (&'static str, fn(&Case) -> Answer, Vec<Rung>);

/// Every operation.
fn operations() -> Vec<Operation> {
    vec![
        (
            "acquire_and_restore_into",
            |case| match acquire::decide(&case.shard.view(), case.worker, case.now, 0) {
                Ok(acquired) => acquired.outcome.map_or_else(|error| format!("{error:?}"), |_| "executed".into()),
                Err(error) => format!("{error:?}"),
            },
            vec![
                ("UnassignedWorker", |case| case.worker = WorkerId::UNASSIGNED),
                RUN,
                ("Terminal", TERMINAL.1),
                ("AlreadyLeased", |case| case.now = at(1099)),
                ("ReportedUnreachable", |case| case.shard.record.unreachable.push(reported_by(WORKER))),
                ("HeldBack", |case| case.shard.record.unreachable.push(reported_by(OTHER))),
                ("RetriesExhausted", |case| case.shard.gate.max_shard_retries = 1),
            ],
        ),
        (
            "renew",
            |case| match case.lease.presented_by(case.tenant) {
                Ok(presented) => renew::decide(&case.shard.view(), presented, case.now)
                    .map_or_else(|error| format!("{error:?}"), |_| "executed".into()),
                Err(refused) => format!("Access({refused:?})"),
            },
            [
                &[TENANT_RUNG, OTHER_RUN][..],
                &LEASED,
                &[("Access(RunNotActive", |case| case.shard.gate.status = RunStatus::Initializing)],
            ]
            .concat(),
        ),
        (
            "checkpoint",
            |case| gated!(case, checkpoint::decide, case.cursor.as_update(), OP, case.now),
            with_lease(&[NO_KEY, REGRESSION, OUTSIDE]),
        ),
        (
            "complete",
            |case| gated!(case, complete::decide, case.cursor.as_update(), OP, case.now),
            with_lease(&[REGRESSION, OUTSIDE]),
        ),
        (
            "park_shard",
            |case| gated!(case, park::decide, Park::because(ParkReason::Other), OP, case.now),
            with_lease(&[]),
        ),
        (
            "release",
            |case| {
                let release = Release { cursor: Some(case.cursor.as_update()), reason: ReleaseReason::Released };
                gated!(case, release::decide, release, Peers::Guessed(&[]), OP, case.now)
            },
            with_lease(&[NO_KEY, REGRESSION, OUTSIDE]),
        ),
        (
            "split_replace",
            |case| gated!(case, split_replace::decide, &case.replace, OP, &case.census, case.now),
            with_lease(&[
                ("Split(Coverage", |case| {
                    case.replace = SplitReplacePlan::new(vec![spec(b"b", b"d"), spec(b"e", b"m")]).unwrap();
                }),
                SPAWN_CAP,
                LIMIT,
            ]),
        ),
        (
            "split_residual",
            |case| gated!(case, split_residual::decide, &case.residual, OP, &case.census, case.now),
            [
                &[TENANT_RUNG, OTHER_RUN, OP_LOG][..],
                // Forgotten by the op-log, remembered by the child.
                &[("OpIdConflict(", |case| {
                    let id = derive_split_shard_id(KEY.run, KEY.shard, OP, DerivedShardKind::Residual, 0);
                    case.shard.record.spawned.insert(0, Spawned { id, payload_hash: other_payload() });
                })],
                &[RUN],
                &LEASED,
                &[
                    ("Split(Residual(Gap", |case| {
                        case.residual = SplitResidualPlan::new(spec(b"b", b"d"), spec(b"e", b"m"));
                    }),
                    ("Split(Residual(Cursor", |case| {
                        case.shard.record.cursor = CursorUpdate::at_key(b"k").unwrap().to_owned();
                    }),
                    SPAWN_CAP,
                    LIMIT,
                ],
            ]
            .concat(),
        ),
        (
            "unpark_shard",
            |case| told(unpark::decide(&case.shard.view(), case.epoch, OP, case.now)),
            vec![
                OTHER_RUN,
                OP_LOG,
                RUN,
                ("NotParked", |case| case.shard.record.state.head.status = ShardStatus::Active),
                ("FenceMoved", |case| case.epoch.fence = fence(9)),
            ],
        ),
        (
            "request_yield and request_split",
            |case| {
                let decided = order::decide(&case.shard.view(), case.lease.epoch(), OrderRequest::Yield, case.now);
                decided.map_or_else(|error| format!("{error:?}"), |_| "executed".into())
            },
            vec![OTHER_RUN, RUN, TERMINAL, FENCE, ("NotLeased", |case| case.now = at(1100))],
        ),
        (
            "create_run",
            |case| {
                let Case { run_exists, tenant, run_name, incarnation, config, now, .. } = *case;
                let made = create_run::decide(run_exists, tenant, run_name, incarnation, config, now);
                made.map_or_else(|error| format!("{error:?}"), |_| "executed".into())
            },
            vec![
                ("UnassignedTenant", |case| case.tenant = TenantId::UNASSIGNED),
                ("UnassignedRun", |case| case.run_name = RunId::UNASSIGNED),
                ("UnassignedIncarnation", |case| case.incarnation = RunIncarnation::UNASSIGNED),
                ("InvalidConfig(", |case| case.config.lease_duration = Some(0)),
                ("AlreadyExists", |case| case.run_exists = true),
            ],
        ),
        (
            "register_shards",
            |case| {
                let manifest = validate_manifest(&[InitialShardInput::new(ShardId::new(1), b"a", b"b")]).unwrap();
                told(register_shards::decide(&case.run, &manifest, OP, &case.census, case.now))
            },
            vec![
                ("OpIdConflict(", |case| run_op_log(RunOpKind::RegisterShards)(case)),
                ("NotInitializing", |case| case.run.status = RunStatus::Active),
                LIMIT,
            ],
        ),
        (
            "complete_run",
            |case| told(settle_run::decide(&case.run, Settlement::Complete, &case.counts, OP, case.now)),
            vec![
                ("OpIdConflict(", |case| run_op_log(RunOpKind::Complete)(case)),
                ("Illegal", |case| case.run.status = RunStatus::Initializing),
                ("ShardsOpen", |case| case.counts.active = 1),
            ],
        ),
    ]
}

/// A request of this operation with which nothing is wrong.
fn healthy(operation: &str) -> Case {
    let mut case = Case::new();
    match operation {
        "acquire_and_restore_into" => case.now = at(1100),
        "unpark_shard" => case.shard.record.state.head.status = ShardStatus::Parked,
        "complete_run" => {
            case.run.status = RunStatus::Active;
            case.counts.done = 1;
        }
        _ => {}
    }
    case
}

#[test]
fn of_several_faults_the_first_in_order_is_told() {
    for (operation, ask, ladder) in operations() {
        for (rung, (expected, _)) in ladder.iter().enumerate() {
            let mut case = healthy(operation);
            // The last first: an earlier one may have to spoil what a later one left as it was.
            ladder[rung..].iter().rev().for_each(|(_, make_wrong)| make_wrong(&mut case));
            let answer = ask(&case);
            assert!(answer.starts_with(expected), "{operation}: expected {expected}, answered {answer}");
        }
        assert_eq!(ask(&healthy(operation)), "executed", "{operation}");
    }
}

/// What the operation remembers of itself once it is done.
fn remember(case: &mut Case, operation: &str) {
    let entry = match operation {
        "checkpoint" => crate::payload::checkpoint(OP, case.cursor.as_update()),
        "complete" => crate::payload::complete(OP, case.cursor.as_update()),
        "park_shard" => crate::payload::park(OP, &Park::because(ParkReason::Other)),
        "release" => crate::payload::release(OP, Some(case.cursor.as_update()), ReleaseReason::Released),
        "split_replace" => crate::payload::split_replace(OP, &case.replace),
        "split_residual" => crate::payload::split_residual(OP, &case.residual),
        _ => crate::payload::unpark(OP, case.epoch),
    }
    .executed_at(at(1));
    case.shard.record.state.op_log.record(entry);
    if operation == "split_residual" {
        let id = derive_split_shard_id(KEY.run, KEY.shard, OP, DerivedShardKind::Residual, 0);
        case.shard.record.spawned.push(Spawned { id, payload_hash: entry.payload_hash });
    }
}

#[test]
fn a_retry_is_answered_whatever_else_is_wrong_by_now() {
    let with_op_id =
        ["checkpoint", "complete", "park_shard", "release", "split_replace", "split_residual", "unpark_shard"];
    for (operation, ask, _) in operations().into_iter().filter(|(name, ..)| with_op_id.contains(name)) {
        let mut case = healthy(operation);
        remember(&mut case, operation);
        for (_, make_wrong) in [RUN, TERMINAL, FENCE, EXPIRED, OWNER, REGRESSION, LIMIT] {
            make_wrong(&mut case);
        }
        assert_eq!(ask(&case), "replayed", "{operation}");
        let remembered = case.shard.record.incarnation;
        (OTHER_RUN.1)(&mut case);
        assert!(ask(&case).starts_with("Access(OtherIncarnation"), "{operation}: another run's operation is no answer");
        case.shard.record.incarnation = remembered;
        if operation != "unpark_shard" {
            (TENANT_RUNG.1)(&mut case);
            assert!(ask(&case).starts_with("Access(TenantMismatch"), "{operation}: a stranger learns nothing");
        }
    }
}
