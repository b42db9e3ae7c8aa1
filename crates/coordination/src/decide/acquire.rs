//! Acquire: a worker asks for a shard, by name or by way of a claim.
//!
//! The only operation that needs no lease, because it grants one. Not idempotent: every grant raises the fence, even for
//! the same worker, since its own old writes may still be in flight.
//!
//! The retry budget is enforced here and nowhere else. A worker that dies takes its report with it, so failures are
//! counted where the next attempt begins: acquisitions since the last progress. When that many brought nothing, the
//! attempt parks the shard instead, and its answer says so.
//!
//! A worker that has reported a shard unreachable is not granted it again, and where a report asked for it nobody is before
//! that time; see [`unreachable`](super::unreachable).

use tessera_contracts::ids::{LogicalTime, ShardEpoch, WorkerId};

use crate::error::{AcquireError, AlreadyLeased, InfraError};
use crate::events::EventKind;
use crate::record::history::{MoveReason, Ownership};
use crate::record::lease::{Lease, LeaseHolder};
use crate::record::orders::StandingOrders;
use crate::record::park::{ParkDetail, ParkInfo};
use crate::record::state::{Change, DetailChange, Head};
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::view::{OwnerSignal, ShardView};

use super::unreachable::{held_back_until, is_reported_by};

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
#[inline]
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    worker: WorkerId,
    now: LogicalTime,
    skew: u64,
) -> Result<Acquisition, AcquireError> {
    if worker.is_unassigned() {
        return Err(AcquireError::UnassignedWorker);
    }
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
    check_reports(view, worker, now, skew)?;
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
        outcome: Ok(Lease::new(view.tenant, view.key, worker, ShardEpoch::new(view.incarnation, fence), deadline)),
        event: EventKind::ShardAcquired { shard, worker, fence_epoch: fence, reason },
    })
}

/// Whether reports that the shard cannot be reached stand between it and `worker`.
fn check_reports<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    worker: WorkerId,
    now: LogicalTime,
    skew: u64,
) -> Result<(), AcquireError> {
    if view.unreachable.is_empty() {
        return Ok(());
    }
    if is_reported_by(view.unreachable, worker) {
        return Err(AcquireError::ReportedUnreachable { key: view.key });
    }
    match held_back_until(view.unreachable) {
        Some(until) if now < until.saturating_add(skew) => Err(AcquireError::HeldBack { key: view.key, until }),
        Some(_) | None => Ok(()),
    }
}

/// Whether nobody holds the shard at `now`: what hints count. In a run that is not active, that is of no use to anyone.
pub fn is_open<const LOG: usize>(view: &ShardView<'_, LOG>, now: LogicalTime, skew: u64) -> bool {
    let head = &view.state.head;
    view.run.check_active(view.key.run).is_ok()
        && head.status == ShardStatus::Active
        && head.lease.is_none_or(|holder| freed_by(holder, view.owner, WorkerId::UNASSIGNED, now, skew).is_some())
}

/// Whether the shard could be granted to a stranger at `now`: what listings call available.
pub fn is_claimable<const LOG: usize>(view: &ShardView<'_, LOG>, now: LogicalTime, skew: u64) -> bool {
    is_claimable_by(view, WorkerId::UNASSIGNED, now, skew)
}

/// Whether a claim of `worker` could be granted the shard at `now`. The worker is not spared the allowance for its own past
/// lease: only an acquire by name is.
pub fn is_claimable_by<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    worker: WorkerId,
    now: LogicalTime,
    skew: u64,
) -> bool {
    is_open(view, now, skew) && check_reports(view, worker, now, skew).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{KEY, LEASE_DURATION, OTHER, Shard, WORKER, at, fence};
    use crate::error::AccessRefused;
    use crate::run::status::RunStatus;

    fn acquire(shard: &Shard, worker: WorkerId, now: u64, skew: u64) -> Result<Lease, AcquireError> {
        decide(&shard.view(), worker, at(now), skew).and_then(|acquired| acquired.outcome)
    }

    #[test]
    fn the_first_owner_holds_fence_two_until_the_lease_ends() {
        let acquired = decide(&Shard::<16>::new().view(), WORKER, at(1000), 0).unwrap();
        let lease = acquired.outcome.unwrap();
        assert_eq!((lease.fence(), lease.deadline()), (fence(2), at(1000 + LEASE_DURATION)));
        assert_eq!((lease.owner(), lease.key()), (WORKER, KEY));
        let reason = MoveReason::FirstAcquire;
        assert_eq!(
            acquired.event,
            EventKind::ShardAcquired { shard: KEY.shard, worker: WORKER, fence_epoch: fence(2), reason }
        );
    }

    #[test]
    fn a_live_lease_is_refused_until_its_deadline_even_to_its_owner() {
        let (shard, _) = Shard::leased();
        for worker in [WORKER, OTHER] {
            let refused = acquire(&shard, worker, 1099, 0).unwrap_err();
            assert_eq!(refused, AlreadyLeased::new(KEY, at(1100), WORKER).into());
            assert_eq!(acquire(&shard, worker, 1100, 0).unwrap().fence(), fence(3));
        }
    }

    #[test]
    fn a_stranger_waits_out_the_skew_and_the_owner_does_not() {
        let (shard, _) = Shard::leased();
        assert!(acquire(&shard, OTHER, 1104, 5).is_err());
        assert!(acquire(&shard, OTHER, 1105, 5).is_ok());
        assert!(acquire(&shard, WORKER, 1100, 5).is_ok());
        assert!(!is_claimable(&shard.view(), at(1104), 5));
        assert!(is_claimable(&shard.view(), at(1105), 5));
    }

    #[test]
    fn a_lost_session_frees_the_shard_before_its_deadline() {
        let (mut shard, _) = Shard::<16>::leased();
        shard.owner = OwnerSignal::Gone;
        let acquired = decide(&shard.view(), OTHER, at(1001), 5).unwrap();
        assert_eq!(acquired.change.ownership.unwrap().reason, MoveReason::SessionLost);
        assert!(is_claimable(&shard.view(), at(1001), 5));
    }

    #[test]
    fn history_says_who_took_over_and_why() {
        let (mut shard, _) = Shard::<16>::leased();
        shard.acquire(OTHER, 1100);
        let owners: alloc::vec::Vec<_> = shard.record.state.history.iter().map(|o| (o.worker, o.reason)).collect();
        assert_eq!(owners, [(WORKER, MoveReason::FirstAcquire), (OTHER, MoveReason::Expired)]);
    }

    #[test]
    fn a_settled_shard_and_a_run_that_is_not_active_give_nothing() {
        for status in [ShardStatus::Done, ShardStatus::Split, ShardStatus::Parked] {
            let mut shard = Shard::new();
            shard.record.state.head = shard.record.state.head.settled(status);
            assert_eq!(acquire(&shard, WORKER, 1000, 0), Err(AcquireError::Terminal { status }));
            assert!(!is_claimable(&shard.view(), at(1000), 0));
        }
        for status in RunStatus::ALL {
            let mut shard = Shard::new();
            shard.gate.status = status;
            let refused = AcquireError::Access(AccessRefused::RunNotActive { run: KEY.run, status });
            let expected = if status == RunStatus::Active { None } else { Some(refused) };
            assert_eq!(is_claimable(&shard.view(), at(1000), 0), expected.is_none());
            assert_eq!(acquire(&shard, WORKER, 1000, 0).err(), expected);
        }
    }

    #[test]
    fn a_worker_without_an_id_is_refused() {
        let refused = acquire(&Shard::new(), WorkerId::UNASSIGNED, 1000, 0);
        assert_eq!(refused, Err(AcquireError::UnassignedWorker));
    }

    #[test]
    fn the_attempt_after_the_last_retry_parks_the_shard_and_says_so() {
        let mut shard = Shard::<16>::new();
        shard.gate.max_shard_retries = 2;
        shard.acquire(WORKER, 1000);
        shard.acquire(WORKER, 1100);
        let acquired = decide(&shard.view(), OTHER, at(1200), 0).unwrap();
        assert_eq!(acquired.outcome, Err(AcquireError::RetriesExhausted { key: KEY, acquisitions: 2 }));
        let reason = ParkReason::TooManyErrors;
        assert_eq!(acquired.event, EventKind::ShardParked { shard: KEY.shard, reason });
        shard.record.apply(&acquired.change, &[]);
        let head = shard.record.state.head;
        assert_eq!((head.status, head.lease, head.fence), (ShardStatus::Parked, None, fence(3)));
        assert_eq!(head.park, Some(ParkInfo { reason, retry_after: None }));
        assert_eq!(shard.record.park_detail.as_deref(), Some(RETRIES_EXHAUSTED_DETAIL));
    }

    #[test]
    fn a_live_lease_is_not_parked_for_its_retries() {
        let mut shard = Shard::<16>::new();
        shard.gate.max_shard_retries = 1;
        shard.acquire(WORKER, 1000);
        assert!(matches!(decide(&shard.view(), OTHER, at(1099), 0), Err(AcquireError::AlreadyLeased(_))));
    }

    #[test]
    fn zero_retries_means_no_limit() {
        let mut shard = Shard::<16>::new();
        for attempt in 0..50 {
            shard.acquire(WORKER, 1000 + attempt * LEASE_DURATION);
        }
        assert_eq!(shard.record.state.head.stalled_acquisitions, 50);
    }

    #[test]
    fn orders_for_one_owner_do_not_reach_the_next() {
        let (mut shard, _) = Shard::<16>::leased();
        shard.record.state.head.orders.yield_requested = true;
        shard.acquire(OTHER, 1100);
        assert_eq!(shard.record.state.head.orders, StandingOrders::NONE);
    }

    #[test]
    fn the_last_fence_epoch_has_no_successor_and_is_not_wrapped() {
        let mut shard = Shard::new();
        shard.record.state.head.fence = fence(u64::MAX);
        assert!(matches!(
            acquire(&shard, WORKER, 1, 0),
            Err(AcquireError::BackendError(InfraError::Corruption { .. }))
        ));
    }
}
