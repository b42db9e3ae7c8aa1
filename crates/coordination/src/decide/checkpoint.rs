//! Checkpoint: the holder says how far it came.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_stdx::SlabFull;

use super::unreachable::Peers;
use super::{Verdict, replayed};
use crate::error::{CheckpointError, CursorRefused};
use crate::operation::{Address, Guard, ShardOperation};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::state::{Change, Head};
use crate::record::view::ShardView;
use crate::validation::{Admission, admit, validate_cursor_update};

/// The holder of a shard records how far it came.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint<'a> {
    /// The holder's right to the shard.
    pub lease: Presented<'a>,
    /// Its progress.
    pub cursor: CursorUpdate<'a>,
    /// The idempotency key.
    pub op_id: OpId,
}

impl ShardOperation for Checkpoint<'_> {
    const NAME: &'static str = "checkpoint";
    const GUARD: Guard = Guard::SessionStands;
    type Answer = ();
    type Refused = CheckpointError;

    fn address(&self) -> Address {
        self.lease.address()
    }

    #[inline]
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        _: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>>, CheckpointError> {
        decide(view, self.lease, self.cursor, self.op_id, now)
    }

    fn answer(&self, _: &Change<'_>) {}

    fn no_room(full: SlabFull) -> Self::Refused {
        full.into()
    }
}

/// Decides whether the progress is recorded.
#[inline]
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
    // The cheaper question first: most checkpoints follow others of the same owner.
    if head.stalled_acquisitions == 0 || cursor == view.cursor {
        head
    } else {
        Head { stalled_acquisitions: 0, ..head }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{KEY, OTHER, Shard, TENANT, WORKER, at, key, op, run};
    use crate::error::{AccessRefused, IdempotentOutcome, LeaseRefused, OpIdConflict};
    use crate::record::lease::Lease;
    use crate::record::status::ShardStatus;
    use crate::run::status::RunStatus;

    type Answer = Result<IdempotentOutcome<()>, CheckpointError>;

    fn checkpoint(shard: &mut Shard, lease: &Lease, cursor: CursorUpdate<'_>, id: u64, now: u64) -> Answer {
        run!(shard, lease, decide, cursor, op(id), at(now))
    }

    #[test]
    fn progress_is_recorded_and_may_stand_or_grow_but_not_shrink() {
        let (mut shard, lease) = Shard::leased();
        assert_eq!(checkpoint(&mut shard, &lease, key(b"c"), 1, 1001), Ok(IdempotentOutcome::Executed(())));
        assert_eq!(shard.record.cursor.last_key(), Some(&b"c"[..]));
        assert!(checkpoint(&mut shard, &lease, key(b"c"), 2, 1001).is_ok());
        assert!(checkpoint(&mut shard, &lease, key(b"c\0"), 3, 1001).is_ok());
        let back = checkpoint(&mut shard, &lease, key(b"c"), 4, 1001);
        assert!(matches!(back, Err(CheckpointError::Cursor(CursorRefused::Regression(_)))));
        assert_eq!(shard.record.cursor.last_key(), Some(&b"c\0"[..]));
    }

    #[test]
    fn progress_is_monotone_across_owners() {
        let (mut shard, lease) = Shard::leased();
        checkpoint(&mut shard, &lease, key(b"f"), 1, 1001).unwrap();
        let next = shard.acquire(OTHER, 1100);
        let back = checkpoint(&mut shard, &next, key(b"e"), 2, 1101);
        assert!(matches!(back, Err(CheckpointError::Cursor(CursorRefused::Regression(_)))));
    }

    #[test]
    fn the_first_key_of_the_range_is_in_and_its_end_is_out() {
        let (mut shard, lease) = Shard::leased();
        let mut outcome = |bytes: &[u8], id| checkpoint(&mut shard, &lease, key(bytes), id, 1001);
        assert!(matches!(outcome(b"a\xff", 1), Err(CheckpointError::Cursor(CursorRefused::OutOfBounds(_)))));
        assert!(outcome(b"b", 2).is_ok());
        assert!(outcome(b"l\xff", 3).is_ok());
        assert!(matches!(outcome(b"m", 4), Err(CheckpointError::Cursor(CursorRefused::OutOfBounds(_)))));
    }

    #[test]
    fn a_checkpoint_needs_a_key() {
        let (mut shard, lease) = Shard::leased();
        let refused = checkpoint(&mut shard, &lease, CursorUpdate::initial(), 1, 1001);
        assert_eq!(refused, Err(CursorRefused::MissingKey.into()));
    }

    #[test]
    fn a_retry_is_answered_without_a_second_effect_whatever_has_become_of_the_lease() {
        let (mut shard, lease) = Shard::leased();
        checkpoint(&mut shard, &lease, key(b"c"), 1, 1001).unwrap();
        let replayed = Ok(IdempotentOutcome::Replayed(()));
        let before = shard.record.clone();
        assert_eq!(checkpoint(&mut shard, &lease, key(b"c"), 1, 1001), replayed);
        assert_eq!(checkpoint(&mut shard, &lease, key(b"c"), 1, 5000), replayed, "after expiry");
        assert_eq!(shard.record, before);
        let entry = shard.record.state.op_log.find(op(1)).unwrap();
        assert_eq!(entry.executed_at, at(1001), "the first time, whenever the retries came");
        shard.acquire(OTHER, 1100);
        assert_eq!(checkpoint(&mut shard, &lease, key(b"c"), 1, 1101), replayed, "after a takeover");
        shard.settle_run();
        assert_eq!(checkpoint(&mut shard, &lease, key(b"c"), 1, 1101), replayed, "after the run settled");
        shard.record.state.head = shard.record.state.head.settled(ShardStatus::Done);
        assert_eq!(checkpoint(&mut shard, &lease, key(b"c"), 1, 1101), replayed, "after the shard settled");
    }

    #[test]
    fn an_id_reused_with_another_payload_is_refused_before_the_lease_is_looked_at() {
        let (mut shard, lease) = Shard::leased();
        checkpoint(&mut shard, &lease, key(b"c"), 1, 1001).unwrap();
        let conflict = checkpoint(&mut shard, &lease, key(b"d"), 1, 9999);
        assert!(matches!(conflict, Err(CheckpointError::OpIdConflict(OpIdConflict { op_id, .. })) if op_id == op(1)));
        let with_token = CursorUpdate::new(Some(b"c"), Some(b"t")).unwrap();
        assert!(matches!(checkpoint(&mut shard, &lease, with_token, 1, 1001), Err(CheckpointError::OpIdConflict(_))));
    }

    #[test]
    fn an_id_of_zero_is_refused() {
        let (mut shard, lease) = Shard::leased();
        let refused = checkpoint(&mut shard, &lease, key(b"c"), 0, 1001);
        assert!(matches!(refused, Err(CheckpointError::OpIdConflict(OpIdConflict { op_id, .. })) if op_id == op(0)));
    }

    #[test]
    fn a_forgotten_retry_is_caught_by_the_cursor() {
        let (mut shard, lease) = Shard::leased();
        checkpoint(&mut shard, &lease, key(b"c"), 1, 1001).unwrap();
        for id in 2..=17 {
            checkpoint(&mut shard, &lease, key(b"d"), id, 1001).unwrap();
        }
        let back = checkpoint(&mut shard, &lease, key(b"c"), 1, 1001);
        assert!(matches!(back, Err(CheckpointError::Cursor(CursorRefused::Regression(_)))));
    }

    #[test]
    fn refusals_come_in_their_order() {
        let (mut shard, lease) = Shard::<16>::leased();
        shard.acquire(OTHER, 1100);
        shard.settle_run();
        shard.record.state.head = shard.record.state.head.settled(ShardStatus::Done);
        let outside = key(b"z");
        let outcome = |shard: &mut Shard| checkpoint(shard, &lease, outside, 1, 9999).unwrap_err();
        let status = RunStatus::Cancelled;
        assert_eq!(outcome(&mut shard), AccessRefused::RunNotActive { run: KEY.run, status }.into());
        shard.gate.status = RunStatus::Active;
        assert_eq!(outcome(&mut shard), LeaseRefused::Terminal { status: ShardStatus::Done }.into());
        shard.record.state.head.status = ShardStatus::Active;
        assert!(matches!(outcome(&mut shard), CheckpointError::Lease(LeaseRefused::StaleFence { .. })));
        shard.record.state.head.fence = lease.fence();
        assert_eq!(outcome(&mut shard), LeaseRefused::OwnerDivergence { presented: WORKER }.into());
        let holder = crate::record::lease::LeaseHolder { owner: OTHER, deadline: at(9999) };
        shard.record.state.head.lease = Some(holder);
        assert!(matches!(outcome(&mut shard), CheckpointError::Lease(LeaseRefused::Expired { .. })));
        shard.record.state.head.lease = Some(crate::record::lease::LeaseHolder { deadline: at(10_000), ..holder });
        assert_eq!(outcome(&mut shard), LeaseRefused::OwnerDivergence { presented: WORKER }.into());
        let own = crate::record::lease::LeaseHolder { owner: WORKER, deadline: at(10_000) };
        shard.record.state.head.lease = Some(own);
        assert!(matches!(outcome(&mut shard), CheckpointError::Cursor(CursorRefused::OutOfBounds(_))));
    }

    #[test]
    fn a_step_forward_clears_the_count_of_fruitless_acquisitions_and_standing_still_does_not() {
        let (mut shard, lease) = Shard::leased();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 1);
        checkpoint(&mut shard, &lease, key(b"c"), 1, 1001).unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 0);
        let lease = shard.acquire(WORKER, 1100);
        checkpoint(&mut shard, &lease, key(b"c"), 2, 1101).unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 1);
        checkpoint(&mut shard, &lease, CursorUpdate::new(Some(b"c"), Some(b"t")).unwrap(), 3, 1101).unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 0);
    }
}
