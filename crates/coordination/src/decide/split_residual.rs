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
use crate::validation::{check_op_idempotency, validate_lease};

/// Decides whether the shard is shrunk; the answer is the residual's id.
pub fn decide<'p: 'v, 'v, const LOG: usize>(
    view: &ShardView<'v, LOG>,
    lease: Presented<'_>,
    plan: &'p SplitResidualPlan,
    op_id: OpId,
    census: &ShardCensus,
    now: LogicalTime,
) -> Result<Verdict<Split<'p, 'v, ShardId>, ShardId>, SplitError> {
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
