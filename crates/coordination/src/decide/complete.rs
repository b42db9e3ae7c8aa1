//! Complete: the holder swept the whole range.
//!
//! The final cursor has a key, or has none because the range turned out empty: then no progress may ever have been
//! recorded. Nobody needs to invent a key that was not there.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_stdx::SlabFull;

use super::unreachable::Peers;
use super::{Verdict, replayed};
use crate::error::CompleteError;
use crate::operation::{Address, Guard, ShardOperation};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::state::Change;
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::validation::{Admission, admit, validate_cursor_update};

/// The holder of a shard has swept all of it.
#[derive(Clone, Copy, Debug)]
pub struct Complete<'a> {
    /// The holder's right to the shard.
    pub lease: Presented<'a>,
    /// Its last progress; none if the range turned out empty.
    pub cursor: CursorUpdate<'a>,
    /// The idempotency key.
    pub op_id: OpId,
}

impl ShardOperation for Complete<'_> {
    const NAME: &'static str = "complete";
    const GUARD: Guard = Guard::SessionStands;
    type Answer = ();
    type Refused = CompleteError;

    fn address(&self) -> Address {
        self.lease.address()
    }

    #[inline]
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        _: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>>, CompleteError> {
        decide(view, self.lease, self.cursor, self.op_id, now)
    }

    fn answer(&self, _: &Change<'_>) {}

    fn no_room(full: SlabFull) -> Self::Refused {
        full.into()
    }
}

/// Decides whether the shard is done.
#[inline]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::checkpoint;
    use crate::decide::testing::{Shard, TENANT, at, key, op, run};
    use crate::error::{CursorRefused, IdempotentOutcome, LeaseRefused, OpIdConflict};

    #[test]
    fn a_completed_shard_is_done_free_and_at_its_final_cursor() {
        let (mut shard, lease) = Shard::<16>::leased();
        let done = run!(shard, lease, decide, key(b"l"), op(1), at(1099)).unwrap();
        assert_eq!(done, IdempotentOutcome::Executed(()));
        let head = shard.record.state.head;
        assert_eq!((head.status, head.lease, head.fence), (ShardStatus::Done, None, lease.fence()));
        assert_eq!(shard.record.cursor.last_key(), Some(&b"l"[..]));
        let replayed = run!(shard, lease, decide, key(b"l"), op(1), at(9999)).unwrap();
        assert_eq!(replayed, IdempotentOutcome::Replayed(()));
        let again = run!(shard, lease, decide, key(b"l"), op(2), at(1099)).unwrap_err();
        assert_eq!(again, LeaseRefused::Terminal { status: ShardStatus::Done }.into());
    }

    #[test]
    fn an_empty_range_is_completed_without_a_key() {
        let (mut shard, lease) = Shard::<16>::leased();
        assert!(run!(shard, lease, decide, CursorUpdate::initial(), op(1), at(1001)).is_ok());
        assert!(shard.record.cursor.is_initial());
    }

    #[test]
    fn recorded_progress_is_not_forgotten_by_completing_without_a_key() {
        let (mut shard, lease) = Shard::<16>::leased();
        run!(shard, lease, checkpoint::decide, key(b"c"), op(1), at(1001)).unwrap();
        let refused = run!(shard, lease, decide, CursorUpdate::initial(), op(2), at(1001)).unwrap_err();
        assert!(matches!(refused, CompleteError::Cursor(CursorRefused::Regression(_))));
        let refused = run!(shard, lease, decide, key(b"bb"), op(2), at(1001)).unwrap_err();
        assert!(matches!(refused, CompleteError::Cursor(CursorRefused::Regression(_))));
        let refused = run!(shard, lease, decide, key(b"m"), op(2), at(1001)).unwrap_err();
        assert!(matches!(refused, CompleteError::Cursor(CursorRefused::OutOfBounds(_))));
        assert!(run!(shard, lease, decide, key(b"c"), op(2), at(1001)).is_ok());
    }

    #[test]
    fn a_checkpoint_and_a_completion_of_one_cursor_do_not_pass_for_each_other() {
        let (mut shard, lease) = Shard::<16>::leased();
        run!(shard, lease, checkpoint::decide, key(b"c"), op(1), at(1001)).unwrap();
        let conflict = run!(shard, lease, decide, key(b"c"), op(1), at(1001)).unwrap_err();
        assert!(matches!(conflict, CompleteError::OpIdConflict(OpIdConflict { .. })));
    }
}
