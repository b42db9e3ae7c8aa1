//! Acquire: a worker asks for a shard, by name or by way of a claim.
//!
//! The only operation that needs no lease, because it grants one. Not idempotent: every grant raises the fence, even for
//! the same worker, since its own old writes may still be in flight.
//!
//! The retry budget is enforced here and nowhere else. A worker that dies takes its report with it, so failures are
//! counted where the next attempt begins: acquisitions since the last progress. When that many brought nothing, the
//! attempt parks the shard instead, and its answer says so.

use tessera_contracts::ids::{LogicalTime, WorkerId};

use crate::error::{AcquireError, AlreadyLeased, InfraError};
use crate::events::EventKind;
use crate::record::history::{MoveReason, Ownership};
use crate::record::lease::{Lease, LeaseHolder};
use crate::record::orders::StandingOrders;
use crate::record::park::{ParkDetail, ParkInfo};
use crate::record::state::{Change, DetailChange, Head};
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::view::{OwnerSignal, ShardView};

/// What to store, and what to tell the worker once it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquisition {
    /// What becomes of the record. It changes even if the worker is refused: then the shard is parked.
    pub change: Change<'static>,
    /// The lease; or the refusal that explains the parking.
    pub outcome: Result<Lease, AcquireError>,
    /// What to tell observers.
    pub event: EventKind,
}

/// The text stored with a shard that used up its retries.
pub const RETRIES_EXHAUSTED_DETAIL: &str = "acquired too often in a row without progress";

/// Decides whether `worker` may own the shard at `now`. `skew` is how long the claimant waits beyond another's deadline
/// before it calls it passed, so that a fast clock does not steal; its own past lease it need not wait for.
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    worker: WorkerId,
    now: LogicalTime,
    skew: u64,
) -> Result<Acquisition, AcquireError> {
    view.run.check_active(view.key.run)?;
    let head = view.state.head;
    if head.status.is_terminal() {
        return Err(AcquireError::Terminal { status: head.status });
    }
    let reason = match head.lease {
        None => head.freed,
        Some(holder) => freed_by(holder, view.owner, worker, now, skew)
            .ok_or_else(|| AlreadyLeased::new(view.key, holder.deadline, holder.owner))?,
    };
    let retries_max = view.run.max_shard_retries;
    if retries_max > 0 && head.stalled_acquisitions >= retries_max {
        return Ok(parked_instead(view, head));
    }
    let fence = head
        .fence
        .next()
        .ok_or_else(|| InfraError::corruption("acquire.next_fence", "the fence epoch has no successor"))?;
    let deadline = now.saturating_add(view.run.lease_duration);
    let change = Change {
        ownership: Some(Ownership { worker, fence, since: now, reason }),
        ..Change::of_head(Head {
            fence,
            lease: Some(LeaseHolder { owner: worker, deadline }),
            stalled_acquisitions: head.stalled_acquisitions.saturating_add(1),
            orders: StandingOrders::NONE,
            ..head
        })
    };
    let shard = view.key.shard;
    Ok(Acquisition {
        change,
        outcome: Ok(Lease::new(view.tenant, view.key, worker, fence, deadline)),
        event: EventKind::ShardAcquired { shard, worker, fence_epoch: fence, reason },
    })
}

/// Whether the shard could be granted to a stranger at `now`: what listings and hints call available.
pub fn is_claimable<const LOG: usize>(view: &ShardView<'_, LOG>, now: LogicalTime, skew: u64) -> bool {
    let head = &view.state.head;
    head.status == ShardStatus::Active
        && head.lease.is_none_or(|holder| freed_by(holder, view.owner, WorkerId::UNASSIGNED, now, skew).is_some())
}

/// Why a holder has lost its shard, if it has.
fn freed_by(
    holder: LeaseHolder,
    signal: OwnerSignal,
    worker: WorkerId,
    now: LogicalTime,
    skew: u64,
) -> Option<MoveReason> {
    let allowance = if holder.owner == worker { 0 } else { skew };
    if now >= holder.deadline.saturating_add(allowance) {
        return Some(MoveReason::Expired);
    }
    match signal {
        OwnerSignal::Alive => None,
        OwnerSignal::Gone => Some(MoveReason::SessionLost),
    }
}

fn parked_instead<const LOG: usize>(view: &ShardView<'_, LOG>, head: Head) -> Acquisition {
    let reason = ParkReason::TooManyErrors;
    let parked = Head { park: Some(ParkInfo { reason, retry_after: None }), ..head.settled(ShardStatus::Parked) };
    let park_detail = ParkDetail::new(RETRIES_EXHAUSTED_DETAIL).map_or(DetailChange::Clear, DetailChange::Set);
    Acquisition {
        change: Change { park_detail, ..Change::of_head(parked) },
        outcome: Err(AcquireError::RetriesExhausted { key: view.key, acquisitions: head.stalled_acquisitions }),
        event: EventKind::ShardParked { shard: view.key.shard, reason },
    }
}
