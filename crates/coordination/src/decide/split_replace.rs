//! Replacing split: the parent retires and its children take over all of its range.
//!
//! The parent is terminal afterwards, so nothing pushes the operation out of its op-log and a retry is recognised for
//! ever. A child whose range holds the parent's last key starts from there: what was processed is not done again.
//! (Children that lie wholly behind the cursor start afresh; a planner cuts ahead of it.)

use alloc::vec::Vec;

use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey};
use tessera_contracts::limits::MAX_SPAWNED_PER_SHARD;
use tessera_contracts::split::{DerivedShardKind, SplitReplacePlan, derive_split_shard_id, validate_split_coverage};
use tessera_contracts::{CursorUpdate, ShardSpec};

use super::{Birth, Split, Verdict};
use crate::error::{IdempotentOutcome, SplitError, SplitRefused};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::state::{Change, Head};
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::shard_limits::{ShardCensus, check_shard_limits};
use crate::validation::{Admission, admit};

/// Decides whether the shard is replaced; the answer is the children's ids in key order.
pub fn decide<'p: 'v, 'v, const LOG: usize>(
    view: &ShardView<'v, LOG>,
    lease: Presented<'_>,
    plan: &'p SplitReplacePlan,
    op_id: OpId,
    census: &ShardCensus,
    now: LogicalTime,
) -> Result<Verdict<Split<'p, 'v, Vec<ShardId>>, Vec<ShardId>>, SplitError> {
    let operation = payload::split_replace(op_id, plan);
    if let Admission::Replay(_) = admit::<SplitError, LOG>(view, lease, &operation, now)? {
        let made_by_this = view.spawned.iter().filter(|child| child.payload_hash == operation.payload_hash);
        return Ok(Verdict::Replay(IdempotentOutcome::Replayed(made_by_this.map(|child| child.id).collect())));
    }
    validate_split_coverage(view.spec.range(), plan).map_err(SplitRefused::from)?;
    check_spawn_cap(view.spawned.len(), plan.children().len())?;
    check_shard_limits(census, plan.children().len() as u64)?;
    let birth = |(position, spec): (usize, &'p ShardSpec)| {
        let index = (view.spawned.len() + position) as u32;
        let id = derive_split_shard_id(view.key.run, view.key.shard, op_id, DerivedShardKind::Child, index);
        Birth {
            key: ShardKey::new(view.key.run, id),
            spec: spec.view(),
            cursor: inherited_cursor(view, spec),
            cursor_semantics: view.state.cursor_semantics,
            parent: Some(view.key.shard),
            payload_hash: operation.payload_hash,
        }
    };
    let births: Vec<_> = plan.children().iter().enumerate().map(birth).collect();
    let answer = births.iter().map(|birth| birth.key.shard).collect();
    let head = Head { stalled_acquisitions: 0, ..view.state.head.settled(ShardStatus::Split) };
    let change = Change { logged: Some(operation.executed_at(now)), ..Change::of_head(head) };
    Ok(Verdict::Execute(Split { change, births, answer }))
}

/// Where a child starts: at the parent's last key if that lies in its range. The token stays behind: it belongs to the
/// parent's way through the parent's range.
fn inherited_cursor<'r, const LOG: usize>(view: &ShardView<'r, LOG>, child: &ShardSpec) -> CursorUpdate<'r> {
    view.cursor
        .last_key()
        .filter(|key| child.range().contains(key))
        .and_then(|key| CursorUpdate::at_key(key).ok())
        .unwrap_or_default()
}

/// Whether the shard may spawn `added` more in its life.
pub(super) const fn check_spawn_cap(spawned: usize, added: usize) -> Result<(), SplitRefused> {
    if spawned + added > MAX_SPAWNED_PER_SHARD {
        return Err(SplitRefused::SpawnCap { spawned, added, max: MAX_SPAWNED_PER_SHARD });
    }
    Ok(())
}
