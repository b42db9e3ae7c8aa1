//! Unpark: an operator revives a parked shard.
//!
//! Not lease-gated, since nobody holds a parked shard. So nothing fences a late duplicate whose op id was forgotten: the
//! shard may have been worked on and parked again since. The caller therefore names the fence epoch it saw; unparking
//! raises it, so a duplicate finds another one and is refused.

use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId};

use super::{Verdict, replayed};
use crate::error::{InfraError, UnparkError};
use crate::payload;
use crate::record::history::MoveReason;
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, DetailChange, Head};
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::validation::check_op_idempotency;

/// Decides whether the shard is open again; the answer is its new fence epoch.
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    expected: FenceEpoch,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'static>, FenceEpoch>, UnparkError> {
    let operation = payload::unpark(op_id, expected);
    let next = expected.next();
    if let (Some(result), Some(fence)) = (check_op_idempotency(&view.state.op_log, &operation)?, next) {
        return Ok(Verdict::Replay(replayed(result, fence)));
    }
    view.run.check_active(view.key.run)?;
    let head = view.state.head;
    if head.status != ShardStatus::Parked {
        return Err(UnparkError::NotParked { status: head.status });
    }
    if head.fence != expected {
        return Err(UnparkError::FenceMoved { expected, current: head.fence });
    }
    let fence = next.ok_or_else(|| InfraError::corruption("unpark.next_fence", "the fence epoch has no successor"))?;
    Ok(Verdict::Execute(Change {
        logged: Some(operation.executed_at(now)),
        undoes_park: true,
        park_detail: DetailChange::Clear,
        ..Change::of_head(Head {
            status: ShardStatus::Active,
            fence,
            lease: None,
            park: None,
            freed: MoveReason::Unparked,
            stalled_acquisitions: 0,
            orders: StandingOrders::NONE,
        })
    }))
}
