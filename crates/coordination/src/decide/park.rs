//! Park: the holder cannot go on, and says why.

use tessera_contracts::ids::{LogicalTime, OpId};

use super::{Verdict, replayed};
use crate::error::ParkError;
use crate::payload;
use crate::record::lease::Presented;
use crate::record::park::{Park, ParkInfo};
use crate::record::state::{Change, DetailChange, Head};
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::validation::{Admission, admit};

/// Decides whether the shard is halted.
pub fn decide<'r, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    park: Park<'r>,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'r>>, ParkError> {
    let operation = payload::park(op_id, &park);
    if let Admission::Replay(result) = admit::<ParkError, LOG>(view, lease, &operation, now)? {
        return Ok(Verdict::Replay(replayed(result, ())));
    }
    let info = ParkInfo { reason: park.reason, retry_after: park.retry_after };
    let head = Head { park: Some(info), ..view.state.head.settled(ShardStatus::Parked) };
    Ok(Verdict::Execute(Change {
        logged: Some(operation.executed_at(now)),
        park_detail: park.detail.map_or(DetailChange::Clear, DetailChange::Set),
        ..Change::of_head(head)
    }))
}
