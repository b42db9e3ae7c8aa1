//! Release: the holder gives the shard back, now rather than at its deadline.
//!
//! The fence stays: it rises when the next owner is granted the shard, and until then nobody may write, since nobody
//! holds it. A release is not a failure, so its acquisition does not count against the retry budget: a fleet that
//! restarts often must not park healthy shards. A worker that cannot make progress parks instead.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId};

use super::{Verdict, replayed};
use crate::error::{CursorRefused, ReleaseError};
use crate::payload;
use crate::record::history::ReleaseReason;
use crate::record::lease::Presented;
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, Head};
use crate::record::view::ShardView;
use crate::validation::{Admission, admit, validate_cursor_update};

/// Decides whether the shard is free again. A cursor, if given, is recorded first, as a checkpoint would.
pub fn decide<'r, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    cursor: Option<CursorUpdate<'r>>,
    reason: ReleaseReason,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'r>>, ReleaseError> {
    let operation = payload::release(op_id, cursor, reason);
    if let Admission::Replay(result) = admit::<ReleaseError, LOG>(view, lease, &operation, now)? {
        return Ok(Verdict::Replay(replayed(result, ())));
    }
    let mut head = view.state.head;
    if let Some(cursor) = cursor {
        if cursor.is_initial() {
            return Err(CursorRefused::MissingKey.into());
        }
        validate_cursor_update(view, cursor)?;
        head = super::checkpoint::after_progress(view, cursor);
    }
    let head = Head {
        lease: None,
        freed: reason.into(),
        stalled_acquisitions: head.stalled_acquisitions.saturating_sub(1),
        orders: StandingOrders::NONE,
        ..head
    };
    Ok(Verdict::Execute(Change { logged: Some(operation.executed_at(now)), cursor, ..Change::of_head(head) }))
}
