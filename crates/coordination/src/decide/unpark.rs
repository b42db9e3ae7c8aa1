//! Unpark: an operator revives a parked shard.
//!
//! Not lease-gated, since nobody holds a parked shard. So nothing fences a late duplicate whose op id was forgotten: the
//! shard may have been worked on and parked again since. The caller therefore names the incarnation and the fence epoch it
//! saw; unparking raises the fence, so a duplicate finds another one and is refused.

use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, ShardEpoch};

use super::unreachable::Peers;
use super::{Verdict, replayed};
use crate::error::{InfraError, UnparkError};
use crate::operation::{Address, Guard, ShardOperation};
use crate::payload;
use crate::record::history::MoveReason;
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, DetailChange, Head};
use crate::record::status::ShardStatus;
use crate::record::unreachable::ReportChange;
use crate::record::view::ShardView;
use crate::validation::{check_incarnation, check_op_idempotency};

/// An operator opens a parked shard again.
#[derive(Clone, Copy, Debug)]
pub struct Unpark {
    /// Which shard.
    pub at: Address,
    /// The ownership it was last seen at.
    pub expected: ShardEpoch,
    /// The idempotency key.
    pub op_id: OpId,
}

impl ShardOperation for Unpark {
    const NAME: &'static str = "unpark_shard";
    const GUARD: Guard = Guard::Nothing;
    type Answer = FenceEpoch;
    type Refused = UnparkError;

    fn address(&self) -> Address {
        self.at
    }

    #[inline]
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        _: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>, FenceEpoch>, UnparkError> {
        decide(view, self.expected, self.op_id, now)
    }

    fn answer(&self, change: &Change<'_>) -> FenceEpoch {
        change.head.fence
    }
}

/// Decides whether the shard is open again; the answer is its new fence epoch.
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    expected: ShardEpoch,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'static>, FenceEpoch>, UnparkError> {
    check_incarnation(view, expected.incarnation)?;
    let operation = payload::unpark(op_id, expected);
    let next = expected.fence.next();
    if let (Some(result), Some(fence)) = (check_op_idempotency(&view.state.op_log, &operation)?, next) {
        return Ok(Verdict::Replay(replayed(result, fence)));
    }
    view.run.check_active(view.key.run)?;
    let head = view.state.head;
    if head.status != ShardStatus::Parked {
        return Err(UnparkError::NotParked { status: head.status });
    }
    if head.fence != expected.fence {
        return Err(UnparkError::FenceMoved { expected: expected.fence, current: head.fence });
    }
    let fence = next.ok_or_else(|| InfraError::corruption("unpark.next_fence", "the fence epoch has no successor"))?;
    Ok(Verdict::Execute(Change {
        logged: Some(operation.executed_at(now)),
        undoes_park: true,
        park_detail: DetailChange::Clear,
        // The operator says that things have changed: every worker may try again.
        unreachable: ReportChange::CLEAR,
        ..Change::of_head(Head {
            status: ShardStatus::Active,
            fence,
            lease: None,
            park: None,
            freed: MoveReason::Unparked,
            stalled_acquisitions: 0,
            unparks: head.unparks.saturating_add(1),
            orders: StandingOrders::NONE,
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::park;
    use crate::decide::testing::{OTHER, Shard, TENANT, WORKER, at, epoch, fence, op, run};
    use crate::error::{AccessRefused, IdempotentOutcome};
    use crate::record::park::Park;
    use crate::record::status::ParkReason;
    use crate::run::status::RunStatus;

    type Answer = Result<IdempotentOutcome<FenceEpoch>, UnparkError>;

    fn unpark<const LOG: usize>(shard: &mut Shard<LOG>, expected: u64, id: u64) -> Answer {
        let decided = decide(&shard.view(), epoch(expected), op(id), at(1050));
        decided.map(|verdict| match verdict {
            Verdict::Execute(change) => {
                shard.record.apply(&change, &[]);
                IdempotentOutcome::Executed(change.head.fence)
            }
            Verdict::Replay(outcome) => outcome,
        })
    }

    const WHY: Park<'_> = Park::because(ParkReason::Poisoned);

    fn parked<const LOG: usize>() -> Shard<LOG> {
        let (mut shard, lease) = Shard::leased();
        run!(shard, lease, park::decide, WHY.with_detail("odd"), op(1), at(1001)).unwrap();
        shard
    }

    #[test]
    fn an_unparked_shard_is_open_fenced_and_forgets_why() {
        let mut shard = parked::<16>();
        assert_eq!(unpark(&mut shard, 2, 2), Ok(IdempotentOutcome::Executed(fence(3))));
        let head = shard.record.state.head;
        assert_eq!((head.status, head.park, head.fence), (ShardStatus::Active, None, fence(3)));
        assert_eq!((head.stalled_acquisitions, shard.record.park_detail.as_deref()), (0, None));
        shard.acquire(OTHER, 1060);
        assert_eq!(shard.record.state.history.iter().next_back().unwrap().reason, MoveReason::Unparked);
    }

    #[test]
    fn only_a_parked_shard_of_an_active_run_is_unparked() {
        let mut shard = Shard::<16>::new();
        assert_eq!(unpark(&mut shard, 1, 1), Err(UnparkError::NotParked { status: ShardStatus::Active }));
        let mut shard = parked::<16>();
        shard.settle_run();
        let settled = unpark(&mut shard, 2, 2);
        assert!(matches!(
            settled,
            Err(UnparkError::Access(AccessRefused::RunNotActive { status: RunStatus::Cancelled, .. }))
        ));
    }

    #[test]
    fn another_fence_than_expected_is_refused() {
        let mut shard = parked::<16>();
        let moved = |expected| Err(UnparkError::FenceMoved { expected: fence(expected), current: fence(2) });
        assert_eq!(unpark(&mut shard, 1, 2), moved(1));
        assert_eq!(unpark(&mut shard, 3, 2), moved(3));
    }

    #[test]
    fn a_replay_answers_the_same_fence_after_the_run_settled_and_the_fence_moved_on() {
        let mut shard = parked::<16>();
        unpark(&mut shard, 2, 2).unwrap();
        shard.acquire(OTHER, 1060);
        shard.settle_run();
        assert_eq!(unpark(&mut shard, 2, 2), Ok(IdempotentOutcome::Replayed(fence(3))));
        assert!(matches!(unpark(&mut shard, 4, 2), Err(UnparkError::OpIdConflict(_))));
    }

    /// Acquire, park, unpark, acquire, park: with an op-log of one the first unpark is forgotten, and only the fence it
    /// names keeps its late duplicate from reviving the shard a second time.
    #[test]
    fn a_late_duplicate_whose_id_was_forgotten_does_not_revive_the_shard_again() {
        let mut shard = parked::<1>();
        unpark(&mut shard, 2, 2).unwrap();
        let lease = shard.acquire(WORKER, 1060);
        run!(shard, lease, park::decide, WHY, op(3), at(1061)).unwrap();
        let late = unpark(&mut shard, 2, 2);
        assert_eq!(late, Err(UnparkError::FenceMoved { expected: fence(2), current: fence(4) }));
        assert_eq!(shard.record.state.head.status, ShardStatus::Parked);
    }

    #[test]
    fn a_replayed_park_says_that_it_was_undone() {
        let (mut shard, lease) = Shard::<16>::leased();
        run!(shard, lease, park::decide, WHY, op(1), at(1001)).unwrap();
        assert_eq!(run!(shard, lease, park::decide, WHY, op(1), at(1002)), Ok(IdempotentOutcome::Replayed(())));
        unpark(&mut shard, 2, 2).unwrap();
        assert_eq!(run!(shard, lease, park::decide, WHY, op(1), at(1002)), Ok(IdempotentOutcome::Superseded(())));
        assert_eq!(shard.record.state.head.status, ShardStatus::Active);
    }
}
