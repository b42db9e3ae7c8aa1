//! Checkpoint: the holder says how far it came.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId};

use super::{Verdict, replayed};
use crate::error::{CheckpointError, CursorRefused};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::state::{Change, Head};
use crate::record::view::ShardView;
use crate::validation::{Admission, admit, validate_cursor_update};

/// Decides whether the progress is recorded.
pub fn decide<'r, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    cursor: CursorUpdate<'r>,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'r>>, CheckpointError> {
    let operation = payload::checkpoint(op_id, cursor);
    if let Admission::Replay(result) = admit::<CheckpointError, LOG>(view, lease, &operation, now)? {
        return Ok(Verdict::Replay(replayed(result, ())));
    }
    if cursor.is_initial() {
        return Err(CursorRefused::MissingKey.into());
    }
    validate_cursor_update(view, cursor)?;
    Ok(Verdict::Execute(Change {
        logged: Some(operation.executed_at(now)),
        cursor: Some(cursor),
        ..Change::of_head(after_progress(view, cursor))
    }))
}

/// The head once `cursor` is recorded: any step forward, in key or token, clears the count of fruitless acquisitions.
pub(super) fn after_progress<const LOG: usize>(view: &ShardView<'_, LOG>, cursor: CursorUpdate<'_>) -> Head {
    let head = view.state.head;
    if cursor == view.cursor { head } else { Head { stalled_acquisitions: 0, ..head } }
}
