//! Residual split: the parent keeps the lower part of its range and goes on; a new shard takes the rest.
//!
//! The parent stays active, so later operations can push this one out of its op-log. A retry is then still recognised,
//! because the child's id follows from the op id: [`find_replayed_residual`] looks for it among the parent's children, and
//! the fingerprint kept beside it tells a retry from a reused id.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey};
use tessera_contracts::split::{DerivedShardKind, SplitResidualPlan, derive_split_shard_id, validate_residual_split};

use super::split_replace::check_spawn_cap;
use super::{Birth, Split, Verdict, replayed};
use crate::error::{InfraError, OpIdConflict, SplitError, SplitRefused};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::op_log::OpResult;
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, Head, Spawned};
use crate::record::view::ShardView;
use crate::shard_limits::{ShardCensus, check_shard_limits};
use crate::validation::{check_incarnation, check_op_idempotency, validate_lease};

/// Decides whether the shard is shrunk; the answer is the residual's id.
pub fn decide<'p: 'v, 'v, const LOG: usize>(
    view: &ShardView<'v, LOG>,
    lease: Presented<'_>,
    plan: &'p SplitResidualPlan,
    op_id: OpId,
    census: &ShardCensus,
    now: LogicalTime,
) -> Result<Verdict<Split<'p, 'v, ShardId>, ShardId>, SplitError> {
    check_incarnation(view, lease.lease().incarnation())?;
    let operation = payload::split_residual(op_id, plan);
    let remembered = check_op_idempotency(&view.state.op_log, &operation)?;
    if let Some(child) = find_replayed_residual(view.key, op_id, view.spawned) {
        if child.payload_hash != operation.payload_hash {
            return Err(OpIdConflict::new(op_id, child.payload_hash, operation.payload_hash).into());
        }
        return Ok(Verdict::Replay(replayed(remembered.unwrap_or(OpResult::Completed), child.id)));
    }
    if remembered.is_some() {
        return Err(InfraError::corruption("split_residual.replay", "a remembered split has no child").into());
    }
    view.run.check_active(view.key.run)?;
    validate_lease(view, lease, now)?;
    validate_residual_split(view.spec.range(), view.cursor.last_key(), plan).map_err(SplitRefused::from)?;
    check_spawn_cap(view.spawned.len(), 1)?;
    check_shard_limits(census, 1)?;
    let residual = Birth {
        key: ShardKey::new(view.key.run, residual_id(view.key, op_id, view.spawned.len())),
        incarnation: view.incarnation,
        spec: plan.residual().view(),
        cursor: CursorUpdate::initial(),
        cursor_semantics: view.state.cursor_semantics,
        parent: Some(view.key.shard),
        payload_hash: operation.payload_hash,
    };
    let head = view.state.head;
    let orders = StandingOrders { split_requested: None, ..head.orders };
    let change = Change {
        logged: Some(operation.executed_at(now)),
        spec: Some(plan.kept().view()),
        ..Change::of_head(Head { stalled_acquisitions: 0, orders, ..head })
    };
    Ok(Verdict::Execute(Split { change, births: alloc::vec![residual], answer: residual.key.shard }))
}

/// The residual that `op_id` made of the shard `key`, if it made one.
pub fn find_replayed_residual(key: ShardKey, op_id: OpId, spawned: &[Spawned]) -> Option<Spawned> {
    spawned
        .iter()
        .enumerate()
        .find(|(index, child)| child.id == residual_id(key, op_id, *index))
        .map(|(_, child)| *child)
}

fn residual_id(key: ShardKey, op_id: OpId, index: usize) -> ShardId {
    derive_split_shard_id(key.run, key.shard, op_id, DerivedShardKind::Residual, index as u32)
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ShardSpec;
    use tessera_contracts::split::{ResidualError, plan_split_residual};

    use super::*;
    use crate::decide::checkpoint;
    use crate::decide::testing::{KEY, OTHER, Shard, TENANT, at, key, op, run};
    use crate::error::{AccessRefused, IdempotentOutcome, LeaseRefused};
    use crate::events::EventKind;
    use crate::record::lease::Lease;
    use crate::record::op_log::OP_LOG_CAP;
    use crate::record::status::ShardStatus;
    use crate::shard_limits::ShardLimits;

    type Answer = Result<IdempotentOutcome<ShardId>, SplitError>;

    fn split(shard: &mut Shard, lease: &Lease, plan: &SplitResidualPlan, id: u64) -> Answer {
        split_with(shard, lease, plan, id, &ShardCensus::default())
    }

    fn split_with(shard: &mut Shard, lease: &Lease, plan: &SplitResidualPlan, id: u64, census: &ShardCensus) -> Answer {
        let record = shard.record.clone();
        let view = record.view(shard.gate, shard.owner);
        let decided = decide(&view, lease.presented_by(TENANT).unwrap(), plan, op(id), census, at(1001));
        decided.map(|verdict| match verdict {
            Verdict::Execute(split) => {
                let residual = split.answer;
                let told = EventKind::ShardResidualCreated { parent: KEY.shard, residual };
                assert_eq!(EventKind::of_split(KEY.shard, &split), Some(told));
                shard.record.apply(&split.change, &split.births);
                IdempotentOutcome::Executed(residual)
            }
            Verdict::Replay(outcome) => outcome,
        })
    }

    /// The shard as it is now, cut at `at`.
    fn cut(shard: &Shard, at: &[u8]) -> SplitResidualPlan {
        plan_split_residual(shard.record.spec.view(), shard.record.cursor.last_key(), at).unwrap()
    }

    #[test]
    fn the_parent_goes_on_with_what_it_keeps() {
        let (mut shard, lease) = Shard::leased();
        shard.record.state.head.orders.yield_requested = true;
        shard.record.state.head.orders.split_requested = Some(tessera_contracts::keyspace::Fraction::HALF);
        let plan = cut(&shard, b"g");
        let residual = split(&mut shard, &lease, &plan, 1).unwrap().into_inner();
        let derived = derive_split_shard_id(KEY.run, KEY.shard, op(1), DerivedShardKind::Residual, 0);
        assert_eq!(residual, derived);
        let head = shard.record.state.head;
        assert_eq!((head.status, head.fence), (ShardStatus::Active, lease.fence()));
        assert!(head.lease.is_some() && head.orders.yield_requested);
        assert_eq!(head.orders.split_requested, None, "the order is answered");
        assert_eq!((shard.record.spec.start(), shard.record.spec.end()), (&b"b"[..], &b"g"[..]));
        assert_eq!(shard.record.spawned.len(), 1);
    }

    #[test]
    fn a_retry_is_recognised_by_its_child_after_the_op_log_forgot_it() {
        let (mut shard, lease) = Shard::leased();
        let plan = cut(&shard, b"g");
        let first = split(&mut shard, &lease, &plan, 1).unwrap().into_inner();
        for id in 2..2 + OP_LOG_CAP as u64 {
            assert_eq!(split(&mut shard, &lease, &plan, 1), Ok(IdempotentOutcome::Replayed(first)));
            run!(shard, lease, checkpoint::decide, key(b"c"), op(id), at(1001)).unwrap();
        }
        assert!(shard.record.state.op_log.find(op(1)).is_none());
        assert_eq!(split(&mut shard, &lease, &plan, 1), Ok(IdempotentOutcome::Replayed(first)));
        shard.record.state.head = shard.record.state.head.settled(ShardStatus::Done);
        assert_eq!(split(&mut shard, &lease, &plan, 1), Ok(IdempotentOutcome::Replayed(first)));
        let other = plan_split_residual(Shard::<16>::new().record.spec.view(), None, b"h").unwrap();
        assert!(matches!(split(&mut shard, &lease, &other, 1), Err(SplitError::OpIdConflict(_))));
    }

    #[test]
    fn every_split_of_a_long_life_is_recognised() {
        let (mut shard, lease) = Shard::leased();
        let mut made = alloc::vec::Vec::new();
        for (id, at) in (1..).zip(b"lkjihgf".chunks(1)) {
            let plan = cut(&shard, at);
            made.push((plan.clone(), id, split(&mut shard, &lease, &plan, id).unwrap().into_inner()));
        }
        for (plan, id, residual) in made {
            assert_eq!(split(&mut shard, &lease, &plan, id), Ok(IdempotentOutcome::Replayed(residual)));
            assert_eq!(
                find_replayed_residual(KEY, op(id), &shard.record.spawned).map(|child| child.id),
                Some(residual)
            );
        }
        assert_eq!(find_replayed_residual(KEY, op(99), &shard.record.spawned), None);
    }

    #[test]
    fn progress_stays_with_the_parent() {
        let (mut shard, lease) = Shard::leased();
        run!(shard, lease, checkpoint::decide, key(b"g"), op(1), at(1001)).unwrap();
        let spec = |start: &[u8], end: &[u8]| ShardSpec::new(start, end, b"").unwrap();
        let behind = SplitResidualPlan::new(spec(b"b", b"g"), spec(b"g", b"m"));
        let refused = split(&mut shard, &lease, &behind, 2);
        assert!(matches!(refused, Err(SplitError::Split(SplitRefused::Residual(ResidualError::Cursor(_))))));
        let ahead = SplitResidualPlan::new(spec(b"b", b"g\0"), spec(b"g\0", b"m"));
        assert!(split(&mut shard, &lease, &ahead, 2).is_ok());
    }

    #[test]
    fn a_plan_made_for_another_range_is_refused() {
        let (mut shard, lease) = Shard::leased();
        let old = cut(&shard, b"k");
        let first = cut(&shard, b"g");
        split(&mut shard, &lease, &first, 1).unwrap();
        let refused = split(&mut shard, &lease, &old, 2);
        assert_eq!(refused, Err(SplitRefused::Residual(ResidualError::ResidualEnd).into()));
    }

    #[test]
    fn a_zombie_and_a_settled_run_split_nothing() {
        let (mut shard, lease) = Shard::leased();
        let plan = cut(&shard, b"g");
        shard.acquire(OTHER, 1100);
        let zombie = split(&mut shard, &lease, &plan, 1);
        assert!(matches!(zombie, Err(SplitError::Lease(LeaseRefused::StaleFence { .. }))));
        shard.settle_run();
        let settled = split(&mut shard, &lease, &plan, 1);
        assert!(matches!(settled, Err(SplitError::Access(AccessRefused::RunNotActive { .. }))));
    }

    #[test]
    fn caps_and_limits_hold() {
        let (mut shard, lease) = Shard::leased();
        let plan = cut(&shard, b"g");
        let limits = ShardLimits { per_tenant_max: 5, total_max: 5 };
        let full = ShardCensus { limits, of_tenant: 5, total: 5 };
        assert!(matches!(split_with(&mut shard, &lease, &plan, 1, &full), Err(SplitError::LimitExceeded(_))));
        let child = Spawned {
            id: ShardId::new(ShardId::DERIVED_BIT),
            payload_hash: tessera_contracts::PayloadHash::from_stored(9).unwrap(),
        };
        shard.record.spawned = alloc::vec![child; 1024];
        let capped = SplitRefused::SpawnCap { spawned: 1024, added: 1, max: 1024 };
        assert_eq!(split(&mut shard, &lease, &plan, 1), Err(capped.into()));
        shard.record.spawned.pop();
        assert!(split_with(&mut shard, &lease, &plan, 1, &ShardCensus { total: 4, of_tenant: 4, ..full }).is_ok());
    }

    #[test]
    fn a_split_counts_as_progress() {
        let (mut shard, lease) = Shard::leased();
        let plan = cut(&shard, b"g");
        split(&mut shard, &lease, &plan, 1).unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 0);
    }
}
