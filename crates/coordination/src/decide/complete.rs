//! Complete: the holder swept the whole range.
//!
//! The final cursor has a key, or has none because the range turned out empty: then no progress may ever have been
//! recorded. Nobody needs to invent a key that was not there.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId};

use super::{Verdict, replayed};
use crate::error::CompleteError;
use crate::payload;
use crate::record::lease::Presented;
use crate::record::state::Change;
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::validation::{Admission, admit, validate_cursor_update};

/// Decides whether the shard is done.
pub fn decide<'r, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    cursor: CursorUpdate<'r>,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'r>>, CompleteError> {
    let operation = payload::complete(op_id, cursor);
    if let Admission::Replay(result) = admit::<CompleteError, LOG>(view, lease, &operation, now)? {
        return Ok(Verdict::Replay(replayed(result, ())));
    }
    // A cursor without a key is a step back for a shard that has progress, and the first step for one that has none.
    validate_cursor_update(view, cursor)?;
    let head = super::checkpoint::after_progress(view, cursor).settled(ShardStatus::Done);
    Ok(Verdict::Execute(Change {
        logged: Some(operation.executed_at(now)),
        cursor: Some(cursor),
        ..Change::of_head(head)
    }))
}
