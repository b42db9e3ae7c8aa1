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
#[inline]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{OTHER, Shard, TENANT, WORKER, at, key, op, run};
    use crate::error::{IdempotentOutcome, LeaseRefused};
    use crate::record::history::MoveReason;

    #[test]
    fn a_released_shard_is_free_at_once_with_its_progress_and_its_fence() {
        let (mut shard, lease) = Shard::<16>::leased();
        let outcome = run!(shard, lease, decide, Some(key(b"d")), ReleaseReason::Drained, op(1), at(1001));
        assert_eq!(outcome, Ok(IdempotentOutcome::Executed(())));
        assert!(shard.record.state.head.is_free());
        assert_eq!(shard.record.state.head.fence, lease.fence());
        assert_eq!(shard.record.cursor.last_key(), Some(&b"d"[..]));
        let next = shard.acquire(OTHER, 1002);
        assert!(next.fence() > lease.fence());
        assert_eq!(shard.record.state.history.iter().next_back().unwrap().reason, MoveReason::Drained);
    }

    #[test]
    fn what_was_asked_of_a_holder_is_not_asked_of_the_next() {
        let (mut shard, lease) = Shard::<16>::leased();
        shard.record.state.head.orders.yield_requested = true;
        run!(shard, lease, decide, None, ReleaseReason::Yielded, op(1), at(1001)).unwrap();
        assert_eq!(shard.record.state.head.orders, StandingOrders::NONE);
    }

    #[test]
    fn a_released_lease_opens_nothing_though_its_fence_is_current() {
        let (mut shard, lease) = Shard::<16>::leased();
        run!(shard, lease, decide, None, ReleaseReason::Released, op(1), at(1001)).unwrap();
        let again = run!(shard, lease, decide, None, ReleaseReason::Released, op(2), at(1001));
        assert_eq!(again, Err(LeaseRefused::OwnerDivergence { presented: WORKER }.into()));
        let replayed = run!(shard, lease, decide, None, ReleaseReason::Released, op(1), at(1001));
        assert_eq!(replayed, Ok(IdempotentOutcome::Replayed(())));
    }

    #[test]
    fn progress_given_back_obeys_the_rules_of_progress() {
        let (mut shard, lease) = Shard::<16>::leased();
        let mut give_back =
            |cursor| run!(shard, lease, decide, Some(cursor), ReleaseReason::Released, op(1), at(1001)).unwrap_err();
        assert_eq!(give_back(CursorUpdate::initial()), CursorRefused::MissingKey.into());
        assert!(matches!(give_back(key(b"m")), ReleaseError::Cursor(CursorRefused::OutOfBounds(_))));
        assert!(matches!(give_back(key(b"a")), ReleaseError::Cursor(CursorRefused::OutOfBounds(_))));
        assert!(!shard.record.state.head.is_free());
    }

    #[test]
    fn a_release_does_not_count_as_a_fruitless_acquisition() {
        let mut shard = Shard::<16>::new();
        shard.acquire(WORKER, 1000);
        let lease = shard.acquire(WORKER, 1100);
        assert_eq!(shard.record.state.head.stalled_acquisitions, 2);
        run!(shard, lease, decide, None, ReleaseReason::Released, op(1), at(1101)).unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 1);
        let lease = shard.acquire(WORKER, 1102);
        run!(shard, lease, decide, Some(key(b"c")), ReleaseReason::Released, op(2), at(1103)).unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 0);
    }

    #[test]
    fn cursor_and_reason_are_part_of_the_operation() {
        for (cursor, reason) in [(None, ReleaseReason::Yielded), (Some(key(b"c")), ReleaseReason::Released)] {
            let (mut shard, lease) = Shard::<16>::leased();
            run!(shard, lease, decide, None, ReleaseReason::Released, op(1), at(1001)).unwrap();
            let conflict = run!(shard, lease, decide, cursor, reason, op(1), at(1001));
            assert!(matches!(conflict, Err(ReleaseError::OpIdConflict(_))));
        }
    }
}
