//! Park: the holder cannot go on, and says why.

use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_stdx::SlabFull;

use super::unreachable::Peers;
use super::{Verdict, replayed};
use crate::error::ParkError;
use crate::operation::{Address, Guard, ShardOperation};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::park::{Park, ParkInfo};
use crate::record::state::{Change, DetailChange, Head};
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::validation::{Admission, admit};

/// The holder of a shard cannot go on.
#[derive(Clone, Copy, Debug)]
pub struct ParkShard<'a> {
    /// The holder's right to the shard.
    pub lease: Presented<'a>,
    /// Why.
    pub park: Park<'a>,
    /// The idempotency key.
    pub op_id: OpId,
}

impl ShardOperation for ParkShard<'_> {
    const NAME: &'static str = "park_shard";
    const GUARD: Guard = Guard::SessionStands;
    type Answer = ();
    type Refused = ParkError;

    fn address(&self) -> Address {
        self.lease.address()
    }

    #[inline]
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        _: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>>, ParkError> {
        decide(view, self.lease, self.park, self.op_id, now)
    }

    fn answer(&self, _: &Change<'_>) {}

    fn no_room(full: SlabFull) -> Self::Refused {
        full.into()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{Shard, TENANT, at, op, run};
    use crate::error::{IdempotentOutcome, LeaseRefused};
    use crate::record::park::ParkDetail;
    use crate::record::status::ParkReason;

    #[test]
    fn words_of_an_earlier_park_do_not_stay() {
        let (shard, lease) = Shard::<16>::leased();
        for (park, expected) in [
            (Park::because(ParkReason::Other), DetailChange::Clear),
            (Park::because(ParkReason::Other).with_detail("403"), DetailChange::Set(ParkDetail::new("403").unwrap())),
        ] {
            let presented = lease.presented_by(TENANT).unwrap();
            let Ok(Verdict::Execute(change)) = decide(&shard.view(), presented, park, op(1), at(1001)) else {
                panic!("a fresh park is executed")
            };
            assert_eq!(change.park_detail, expected);
        }
    }

    #[test]
    fn a_parked_shard_keeps_reason_words_and_advice_and_is_held_by_nobody() {
        let (mut shard, lease) = Shard::<16>::leased();
        let why = Park::because(ParkReason::PermissionDenied).with_detail("401 from host").with_retry_after(at(2000));
        assert_eq!(run!(shard, lease, decide, why, op(1), at(1001)), Ok(IdempotentOutcome::Executed(())));
        let head = shard.record.state.head;
        assert_eq!((head.status, head.lease), (ShardStatus::Parked, None));
        let info = ParkInfo { reason: ParkReason::PermissionDenied, retry_after: Some(at(2000)) };
        assert_eq!(head.park, Some(info));
        assert_eq!(shard.record.park_detail.as_deref(), Some("401 from host"));
        assert_eq!(run!(shard, lease, decide, why, op(1), at(9999)), Ok(IdempotentOutcome::Replayed(())));
        let status = ShardStatus::Parked;
        assert_eq!(run!(shard, lease, decide, why, op(2), at(1001)), Err(LeaseRefused::Terminal { status }.into()));
    }

    #[test]
    fn reason_words_and_advice_are_all_part_of_the_operation() {
        let why = Park::because(ParkReason::Other).with_detail("x").with_retry_after(at(2000));
        for other in [
            Park { reason: ParkReason::Poisoned, ..why },
            why.with_detail("y"),
            Park { detail: None, ..why },
            why.with_retry_after(at(2001)),
        ] {
            let (mut shard, lease) = Shard::<16>::leased();
            run!(shard, lease, decide, why, op(1), at(1001)).unwrap();
            let conflict = run!(shard, lease, decide, other, op(1), at(1001));
            assert!(matches!(conflict, Err(ParkError::OpIdConflict(_))), "{other:?}");
        }
    }
}
