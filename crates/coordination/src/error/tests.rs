use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use tessera_contracts::cursor::CursorViolation;
use tessera_contracts::split::CoverageError;
use tessera_contracts::{
    FenceEpoch, LogicalTime, OpId, PayloadHash, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId,
    WorkerId,
};
use tessera_stdx::SlabFull;

use super::*;
use crate::record::status::ShardStatus;
use crate::run::status::RunStatus;
use crate::shard_limits::{LimitScope, ShardLimitViolation};

const KEY: ShardKey = ShardKey::new(RunId::new(3), ShardId::new(4));

/// One of each of the thirteen reasons.
fn every_reason() -> Vec<CoordError> {
    let hash = |stored| PayloadHash::from_stored(stored).unwrap();
    Vec::from([
        CoordError::TenantMismatch { expected: TenantId::from_bytes([1; 32]) },
        CoordError::ShardNotFound { key: KEY },
        CoordError::OtherIncarnation {
            run: RunId::new(3),
            presented: RunIncarnation::new(1),
            current: RunIncarnation::new(2),
        },
        CoordError::RunNotActive { run: RunId::new(3), status: RunStatus::Cancelled },
        CoordError::ShardTerminal { status: ShardStatus::Done },
        CoordError::StaleFence { presented: FenceEpoch::new(2), current: FenceEpoch::new(3) },
        CoordError::LeaseExpired {
            deadline: LogicalTime::new(5),
            now: LogicalTime::new(6),
            because: ExpiredBecause::Deadline,
        },
        CoordError::OwnerDivergence { presented: WorkerId::new(9) },
        CoordError::OpIdConflict(OpIdConflict::new(OpId::new(7), hash(0xdead_beef), hash(0xcafe_f00d))),
        CoordError::CheckpointMissingKey,
        CoordError::CursorRegression(CursorViolation::Regression { old_len: 2, new_len: 1 }),
        CoordError::CursorOutOfBounds(CursorViolation::AboveRange { len: 1 }),
        CoordError::SplitInvalid(SplitRefused::Coverage(CoverageError::Gap { child: 0, next: 1 })),
    ])
}

/// Which of the thirteen reasons an operation can give; the others come out as a mixed-up backend.
fn accepted<E: From<CoordError> + OperationError>() -> Vec<bool> {
    every_reason()
        .into_iter()
        .map(|reason| {
            let error = E::from(reason);
            assert!(!error.is_transient(), "{error}: a refusal or a mix-up does not pass by itself");
            error.refusal().map(CoordError::from) == Some(reason)
        })
        .collect()
}

#[test]
fn each_operation_gives_the_reasons_it_can_have_and_no_other() {
    const ACCESS: [bool; 4] = [true; 4];
    let lease = [true; 4];
    let no_cursor = [false; 3];
    let row = |lease: [bool; 4], op_id: bool, cursor: [bool; 3], split: bool| {
        [&ACCESS[..], &lease, &[op_id], &cursor, &[split]].concat()
    };
    assert_eq!(accepted::<RenewError>(), row(lease, false, no_cursor, false));
    assert_eq!(accepted::<CheckpointError>(), row(lease, true, [true; 3], false));
    assert_eq!(accepted::<CompleteError>(), row(lease, true, [true; 3], false));
    assert_eq!(accepted::<ReleaseError>(), row(lease, true, [true; 3], false));
    assert_eq!(accepted::<ParkError>(), row(lease, true, no_cursor, false));
    assert_eq!(accepted::<SplitReplaceError>(), row(lease, true, no_cursor, true));
    assert_eq!(accepted::<SplitResidualError>(), row(lease, true, no_cursor, true));
    assert_eq!(accepted::<OrderError>(), row(lease, false, no_cursor, false));
    assert_eq!(accepted::<AcquireError>(), row([true, false, false, false], false, no_cursor, false));
}

#[test]
fn unpark_speaks_of_parking_where_a_lease_would_be_spoken_of() {
    let status = ShardStatus::Done;
    assert_eq!(UnparkError::from(CoordError::ShardTerminal { status }), UnparkError::NotParked { status });
    let (presented, current) = (FenceEpoch::new(2), FenceEpoch::new(3));
    assert_eq!(
        UnparkError::from(CoordError::StaleFence { presented, current }),
        UnparkError::FenceMoved { expected: presented, current }
    );
    assert!(matches!(UnparkError::from(CoordError::CheckpointMissingKey), UnparkError::BackendError(_)));
}

#[test]
fn a_reason_an_operation_cannot_have_is_reported_as_a_mixed_up_backend() {
    let error = RenewError::from(CoordError::CheckpointMissingKey);
    assert!(matches!(error, RenewError::BackendError(InfraError::Corruption { operation: "renew", .. })));
}

#[test]
fn reasons_survive_the_way_through_the_building_blocks() {
    for reason in every_reason() {
        assert_eq!(CoordError::from(Refusal::from(reason)), reason);
        assert!(!reason.to_string().is_empty());
    }
    assert_eq!(every_reason().len(), 13);
}

#[test]
fn a_tenant_mismatch_shows_the_callers_tenant_only() {
    let lease = crate::record::lease::Lease::new(
        TenantId::from_bytes([0xbb; 32]),
        KEY,
        WorkerId::new(1),
        ShardEpoch::new(RunIncarnation::new(1), FenceEpoch::new(2)),
        LogicalTime::new(3),
    );
    let caller = TenantId::from_bytes([0xaa; 32]);
    let error = lease.presented_by(caller).unwrap_err();
    assert_eq!(error, AccessRefused::TenantMismatch { expected: caller });
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("aaaaaaaa") && !shown.contains("bbbbbbbb"), "{shown}");
    assert!(lease.presented_by(TenantId::from_bytes([0xbb; 32])).is_ok());
}

#[test]
fn a_held_lease_does_not_tell_its_owner() {
    let held = AlreadyLeased::new(KEY, LogicalTime::new(50), WorkerId::new(0x5ec2e7));
    let error = AcquireError::from(held);
    let shown = format!("{error} {error:?} {held} {held:?}");
    assert!(!shown.contains("5ec2e7") && shown.contains("<redacted>"), "{shown}");
    assert_eq!(held.current_owner(), WorkerId::new(0x5ec2e7));
}

#[test]
fn an_op_id_conflict_does_not_tell_the_fingerprints() {
    let hash = |stored| PayloadHash::from_stored(stored).unwrap();
    let conflict = OpIdConflict::new(OpId::new(7), hash(0xdead_beef), hash(0xcafe_f00d));
    let error = CheckpointError::from(conflict);
    let shown = format!("{error} {error:?} {conflict} {conflict:?}").to_lowercase();
    for leak in ["deadbeef", "cafef00d", "3735928559", "3405705229"] {
        assert!(!shown.contains(leak), "{shown}");
    }
    assert_eq!(conflict.hashes(), (hash(0xdead_beef), hash(0xcafe_f00d)));
    assert!(format!("{conflict:?}").contains("0000000000000007"), "but it tells which id: {conflict:?}");
}

#[test]
fn losing_shard_or_lease_ends_a_session_and_nothing_else_does() {
    let ends: Vec<bool> =
        every_reason().into_iter().map(|reason| CheckpointError::from(reason).ends_session()).collect();
    assert_eq!(ends, [true, true, true, true, true, true, true, true, false, false, false, false, false]);
    assert!(!CheckpointError::from(InfraError::transient("checkpoint.txn", "timeout")).ends_session());
}

#[test]
fn a_store_failure_is_the_source_of_the_operations_error() {
    use core::error::Error;
    let infra = InfraError::transient("renew.txn", "timeout");
    let of_every_operation: [(&str, &dyn Error); 15] = [
        ("acquire", &AcquireError::BackendError(infra.clone())),
        ("renew", &RenewError::BackendError(infra.clone())),
        ("checkpoint", &CheckpointError::BackendError(infra.clone())),
        ("complete", &CompleteError::BackendError(infra.clone())),
        ("park", &ParkError::BackendError(infra.clone())),
        ("split", &SplitError::BackendError(infra.clone())),
        ("release", &ReleaseError::BackendError(infra.clone())),
        ("unpark", &UnparkError::BackendError(infra.clone())),
        ("order", &OrderError::BackendError(infra.clone())),
        ("create_run", &CreateRunError::BackendError(infra.clone())),
        ("register_shards", &RegisterShardsError::BackendError(infra.clone())),
        ("settle_run", &RunTransitionError::BackendError(infra.clone())),
        ("get_run", &GetRunError::BackendError(infra.clone())),
        ("get_shard", &GetShardError::BackendError(infra.clone())),
        ("claim", &ClaimError::BackendError(infra.clone())),
    ];
    for (operation, error) in of_every_operation {
        assert!(error.to_string().contains("renew.txn"), "{operation} says at which step: {error}");
        let source = error.source().and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&infra), "{operation}");
    }
    assert!(RenewError::BackendError(infra).is_transient());
}

/// The compiler asks for every block where a `match` has no wildcard. This looks for the wildcards.
#[test]
fn every_operation_routes_every_building_block_by_name() {
    let source = include_str!("ops.rs");
    let routes: Vec<_> = source
        .split("impl From<Refusal> for ")
        .skip(1)
        .map(|text| (text.split(' ').next().unwrap(), text.split("impl OperationError").next().unwrap()))
        .collect();
    // Checkpoint, complete and release share one.
    assert_eq!(routes.len(), 7, "acquire, renew, park, split, unpark, order, and the three that record a cursor");
    for (operation, body) in routes {
        for block in ["Access", "Lease", "OpId", "Cursor", "Split"] {
            assert!(body.contains(&format!("Refusal::{block}(")), "{operation} does not name {block}");
        }
        assert!(!body.contains("_ =>") && !body.contains("| _"), "{operation} has a wildcard");
    }
}

/// What a caller's loop asks of an error before it tries again.
#[test]
fn what_may_pass_by_itself_invites_another_try_and_nothing_else_does() {
    let busy = || InfraError::transient("txn", "timeout");
    let broken = || InfraError::corruption("txn", "unknown version");
    let full = SlabFull { requested_bytes: 9, available_bytes: 8, capacity_bytes: 16 };
    let over = ShardLimitViolation { scope: LimitScope::Tenant, held: 8, added: 3, max: 10 };
    let held = AlreadyLeased::new(KEY, LogicalTime::new(50), WorkerId::new(1));
    let (expected, current) = (FenceEpoch::new(2), FenceEpoch::new(3));
    let stale = LeaseRefused::StaleFence { presented: expected, current };
    let status = ShardStatus::Done;
    assert!(AcquireError::from(held).is_transient(), "its lease ends");
    assert!(ParkError::from(full).is_transient(), "room may be made");
    assert!(SplitError::from(full).is_transient() && SplitError::from(over).is_transient());
    assert!(CheckpointError::from(full).is_transient());
    for busy_and_broken in [
        [busy(), broken()].map(|error| AcquireError::from(error).is_transient()),
        [busy(), broken()].map(|error| RenewError::from(error).is_transient()),
        [busy(), broken()].map(|error| CheckpointError::from(error).is_transient()),
        [busy(), broken()].map(|error| ParkError::from(error).is_transient()),
        [busy(), broken()].map(|error| SplitError::from(error).is_transient()),
        [busy(), broken()].map(|error| UnparkError::from(error).is_transient()),
        [busy(), broken()].map(|error| OrderError::from(error).is_transient()),
        [busy(), broken()].map(|error| ClaimError::from(error).is_transient()),
    ] {
        assert_eq!(busy_and_broken, [true, false]);
    }
    for refused in [
        AcquireError::Terminal { status }.is_transient(),
        AcquireError::UnassignedWorker.is_transient(),
        AcquireError::RetriesExhausted { key: KEY, acquisitions: 3 }.is_transient(),
        RenewError::from(stale).is_transient(),
        ParkError::from(stale).is_transient(),
        SplitError::from(stale).is_transient(),
        UnparkError::NotParked { status }.is_transient(),
        UnparkError::FenceMoved { expected, current }.is_transient(),
        OrderError::from(stale).is_transient(),
        OrderError::NotLeased { key: KEY }.is_transient(),
        ClaimError::from(RunNotFound { run: KEY.run }).is_transient(),
        ClaimError::RunNotActive { run: KEY.run, status: RunStatus::Done }.is_transient(),
        ClaimError::UnassignedWorker.is_transient(),
    ] {
        assert!(!refused);
    }
    assert!(ClaimError::NoneAvailable { earliest_deadline: None }.is_transient(), "someone may release one");
    assert!(ClaimError::Throttled { retry_after: LogicalTime::new(9) }.is_transient());
}

#[test]
fn what_is_not_the_protocols_refusal_has_no_reason_of_the_protocol() {
    let access = AccessRefused::ShardNotFound { key: KEY };
    assert_eq!(UnparkError::from(access).refusal(), Some(Refusal::Access(access)));
    let status = ShardStatus::Done;
    let settled = AcquireError::Terminal { status }.refusal();
    assert_eq!(settled, Some(Refusal::Lease(LeaseRefused::Terminal { status })));
    assert_eq!(UnparkError::NotParked { status }.refusal(), None);
    assert_eq!(OrderError::NotLeased { key: KEY }.refusal(), None);
    assert_eq!(AcquireError::UnassignedWorker.refusal(), None);
}

/// Each sentence says what is wrong and what to do about it.
#[test]
fn operators_read_what_happened_and_what_to_do() {
    let hash = |stored| PayloadHash::from_stored(stored).unwrap();
    let expired = |because| LeaseRefused::Expired { deadline: LogicalTime::new(5), now: LogicalTime::new(6), because };
    let over = |scope| ShardLimitViolation { scope, held: 8, added: 3, max: 10 };
    for (error, words) in [
        (
            expired(ExpiredBecause::Deadline).to_string(),
            "lease has expired (deadline 5, now 6); acquire the shard again",
        ),
        (
            expired(ExpiredBecause::SessionLost).to_string(),
            "lease ended with its worker's session (deadline 5, now 6); acquire the shard again",
        ),
        (
            OpIdConflict::new(OpId::new(7), hash(1), hash(2)).to_string(),
            "operation id 0000000000000007 was used before with other parameters; use a fresh id for each new operation",
        ),
        (
            OpIdConflict::unassigned(hash(2)).to_string(),
            "operation id 0000000000000000 means unassigned; use a fresh id for each new operation",
        ),
        (
            ClaimError::NoneAvailable { earliest_deadline: Some(LogicalTime::new(9)) }.to_string(),
            "no shard can be claimed now; ask again at 9",
        ),
        (
            ClaimError::NoneAvailable { earliest_deadline: None }.to_string(),
            "no shard can be claimed now; none is leased either",
        ),
        (
            over(LimitScope::Tenant).to_string(),
            "3 more shards on top of 8 would exceed the limit of 10 for this tenant; retire settled runs or raise the limit",
        ),
        (
            over(LimitScope::Coordinator).to_string(),
            "3 more shards on top of 8 would exceed the limit of 10 for all tenants together; retire settled runs or \
             raise the limit",
        ),
    ] {
        assert_eq!(error, words);
    }
    let reason = CoordError::CheckpointMissingKey;
    assert_eq!(reason.to_string(), Refusal::from(reason).to_string());
}

#[test]
fn an_answer_is_the_same_however_it_came_about_and_only_the_first_was_carried_out() {
    for (outcome, executed) in [
        (IdempotentOutcome::Executed(7), true),
        (IdempotentOutcome::Replayed(7), false),
        (IdempotentOutcome::Superseded(7), false),
    ] {
        assert_eq!((outcome.is_executed(), *outcome.get(), outcome.into_inner()), (executed, 7, 7));
        let mapped = outcome.map(|answer| answer + 1);
        assert_eq!((mapped.is_executed(), mapped.into_inner()), (executed, 8));
    }
    assert_eq!(IdempotentOutcome::Superseded(1).map(|one| one * 2), IdempotentOutcome::Superseded(2));
}
