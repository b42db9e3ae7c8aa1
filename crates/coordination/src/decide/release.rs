//! Release: the holder gives the shard back, now rather than at its deadline.
//!
//! The fence stays: it rises when the next owner is granted the shard, and until then nobody may write, since nobody
//! holds it. A release is not a failure, so its acquisition does not count against the retry budget: a fleet that
//! restarts often must not park healthy shards. A worker that cannot make progress parks instead. A worker that cannot reach
//! the target says so, and `decide::unreachable` tells what comes of that.

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_stdx::SlabFull;

use super::unreachable::{self, Judgement, Peers};
use super::{Verdict, replayed};
use crate::error::{CursorRefused, ReleaseError};
use crate::operation::{Address, Guard, ShardOperation};
use crate::payload;
use crate::record::history::ReleaseReason;
use crate::record::lease::Presented;
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, DetailChange, Head};
use crate::record::unreachable::Unreachable;
use crate::record::view::ShardView;
use crate::validation::{Admission, admit, validate_cursor_update};

/// What a holder says when it gives its shard back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release<'r> {
    /// How far it came, if further than its last checkpoint: recorded first, as a checkpoint would.
    pub cursor: Option<CursorUpdate<'r>>,
    /// Why.
    pub reason: ReleaseReason<'r>,
}

/// The holder of a shard gives it back.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseShard<'a> {
    /// The holder's right to the shard.
    pub lease: Presented<'a>,
    /// What it says.
    pub release: Release<'a>,
    /// The idempotency key.
    pub op_id: OpId,
}

impl ShardOperation for ReleaseShard<'_> {
    const NAME: &'static str = "release";
    const GUARD: Guard = Guard::SessionStands;
    type Answer = ();
    type Refused = ReleaseError;

    fn address(&self) -> Address {
        self.lease.address()
    }

    fn asks_for_peers(&self) -> bool {
        matches!(self.release.reason, ReleaseReason::Unreachable(_))
    }

    #[inline]
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        peers: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>>, ReleaseError> {
        decide(view, self.lease, self.release, peers, self.op_id, now)
    }

    fn answer(&self, _: &Change<'_>) {}

    fn no_room(full: SlabFull) -> Self::Refused {
        full.into()
    }
}

/// Decides whether the shard is free again, or parked because nobody is left who might reach it. `peers` matters only for
/// that.
#[inline]
pub fn decide<'r, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    release: Release<'r>,
    peers: Peers<'_>,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<Change<'r>>, ReleaseError> {
    let Release { cursor, reason } = release;
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
    let change = Change { logged: Some(operation.executed_at(now)), cursor, ..Change::of_head(head) };
    Ok(Verdict::Execute(match reason {
        ReleaseReason::Unreachable(said) => reported(view, lease, said, peers, now, change),
        ReleaseReason::Released | ReleaseReason::Yielded | ReleaseReason::Drained => change,
    }))
}

/// The change of a release, with the report in it and what follows from that.
fn reported<'r, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    said: Unreachable<'r>,
    peers: Peers<'_>,
    now: LogicalTime,
    change: Change<'r>,
) -> Change<'r> {
    let report = unreachable::report(view.run.lease_duration, lease.lease().owner(), said.retry_after, now);
    let Judgement { reports, parks } = unreachable::judge(view.unreachable, Some(report), peers);
    Change {
        head: if parks { unreachable::parked(change.head, report.retry_after) } else { change.head },
        park_detail: said.detail.map_or(DetailChange::Clear, DetailChange::Set),
        unreachable: reports,
        ..change
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use tessera_contracts::ids::WorkerId;

    use super::*;
    use crate::decide::testing::{LEASE_DURATION, OTHER, Shard, TENANT, WORKER, at, epoch, key, op, run};
    use crate::error::{IdempotentOutcome, LeaseRefused};
    use crate::record::history::MoveReason;
    use crate::record::park::ParkInfo;
    use crate::record::status::{ParkReason, ShardStatus};
    use crate::record::unreachable::{HELD_BACK_LEASES_MAX, UNREACHABLE_REPORTS_MAX, UnreachableReport};

    /// Of no consequence but for a report.
    const ALONE: Peers<'_> = Peers::Guessed(&[]);

    #[test]
    fn a_released_shard_is_free_at_once_with_its_progress_and_its_fence() {
        let (mut shard, lease) = Shard::<16>::leased();
        let outcome = run!(
            shard,
            lease,
            decide,
            Release { cursor: Some(key(b"d")), reason: ReleaseReason::Drained },
            ALONE,
            op(1),
            at(1001)
        );
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
        run!(shard, lease, decide, Release { cursor: None, reason: ReleaseReason::Yielded }, ALONE, op(1), at(1001))
            .unwrap();
        assert_eq!(shard.record.state.head.orders, StandingOrders::NONE);
    }

    #[test]
    fn a_released_lease_opens_nothing_though_its_fence_is_current() {
        let (mut shard, lease) = Shard::<16>::leased();
        run!(shard, lease, decide, Release { cursor: None, reason: ReleaseReason::Released }, ALONE, op(1), at(1001))
            .unwrap();
        let again = run!(
            shard,
            lease,
            decide,
            Release { cursor: None, reason: ReleaseReason::Released },
            ALONE,
            op(2),
            at(1001)
        );
        assert_eq!(again, Err(LeaseRefused::OwnerDivergence { presented: WORKER }.into()));
        let replayed = run!(
            shard,
            lease,
            decide,
            Release { cursor: None, reason: ReleaseReason::Released },
            ALONE,
            op(1),
            at(1001)
        );
        assert_eq!(replayed, Ok(IdempotentOutcome::Replayed(())));
    }

    #[test]
    fn progress_given_back_obeys_the_rules_of_progress() {
        let (mut shard, lease) = Shard::<16>::leased();
        let mut give_back = |cursor| {
            run!(
                shard,
                lease,
                decide,
                Release { cursor: Some(cursor), reason: ReleaseReason::Released },
                ALONE,
                op(1),
                at(1001)
            )
            .unwrap_err()
        };
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
        run!(shard, lease, decide, Release { cursor: None, reason: ReleaseReason::Released }, ALONE, op(1), at(1101))
            .unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 1);
        let lease = shard.acquire(WORKER, 1102);
        run!(
            shard,
            lease,
            decide,
            Release { cursor: Some(key(b"c")), reason: ReleaseReason::Released },
            ALONE,
            op(2),
            at(1103)
        )
        .unwrap();
        assert_eq!(shard.record.state.head.stalled_acquisitions, 0);
    }

    #[test]
    fn cursor_and_reason_are_part_of_the_operation() {
        for (cursor, reason) in [(None, ReleaseReason::Yielded), (Some(key(b"c")), ReleaseReason::Released)] {
            let (mut shard, lease) = Shard::<16>::leased();
            run!(
                shard,
                lease,
                decide,
                Release { cursor: None, reason: ReleaseReason::Released },
                ALONE,
                op(1),
                at(1001)
            )
            .unwrap();
            let conflict = run!(shard, lease, decide, Release { cursor, reason }, ALONE, op(1), at(1001));
            assert!(matches!(conflict, Err(ReleaseError::OpIdConflict(_))));
        }
    }

    const UNREACHABLE: ReleaseReason<'_> = ReleaseReason::Unreachable(Unreachable::NONE);

    fn worker(number: u64) -> WorkerId {
        WorkerId::new(number)
    }

    /// Acquires the shard for this worker and reports it unreachable; says whether that parked it.
    fn reports(shard: &mut Shard, number: u64, reason: ReleaseReason<'_>, peers: Peers<'_>, now: u64) -> bool {
        let lease = shard.acquire(worker(number), now);
        let release = Release { cursor: None, reason };
        run!(shard, lease, decide, release, peers, op(1_000 + now), at(now)).unwrap();
        shard.record.state.head.status == ShardStatus::Parked
    }

    fn reporters(shard: &Shard) -> Vec<u64> {
        shard.record.unreachable.iter().map(|report| report.worker.get()).collect()
    }

    #[test]
    fn a_report_frees_the_shard_for_others_and_says_why() {
        let mut shard = Shard::new();
        let said = Unreachable::because("mount point is empty").with_retry_after(at(1050));
        assert!(!reports(
            &mut shard,
            1,
            ReleaseReason::Unreachable(said),
            Peers::Sessions(&[worker(1), worker(2)]),
            1000
        ));
        let head = shard.record.state.head;
        assert_eq!((head.lease, head.freed, head.stalled_acquisitions), (None, MoveReason::Unreachable, 0));
        let report = UnreachableReport { worker: worker(1), at: at(1000), retry_after: Some(at(1050)) };
        assert_eq!(shard.record.unreachable, [report]);
        assert_eq!(shard.record.park_detail.as_deref(), Some("mount point is empty"));
    }

    #[test]
    fn sessions_park_when_every_live_one_has_reported() {
        let mut shard = Shard::new();
        let live = [1, 2, 3].map(worker);
        assert!(!reports(&mut shard, 1, UNREACHABLE, Peers::Sessions(&live), 1000));
        assert!(!reports(&mut shard, 2, UNREACHABLE, Peers::Sessions(&live), 1001));
        let said = Unreachable::because("no route to host").with_retry_after(at(1100));
        assert!(reports(&mut shard, 3, ReleaseReason::Unreachable(said), Peers::Sessions(&live), 1002));
        let park = ParkInfo { reason: ParkReason::Unreachable, retry_after: Some(at(1100)) };
        assert_eq!(shard.record.state.head.park, Some(park));
        assert_eq!(shard.record.park_detail.as_deref(), Some("no route to host"));
        assert_eq!(reporters(&shard), [1, 2, 3]);
    }

    #[test]
    fn a_lone_session_parks_at_its_first_report() {
        assert!(reports(&mut Shard::new(), 1, UNREACHABLE, Peers::Sessions(&[worker(1)]), 1000));
    }

    #[test]
    fn the_report_of_a_session_that_ended_counts_no_more() {
        let mut shard = Shard::new();
        assert!(!reports(&mut shard, 1, UNREACHABLE, Peers::Sessions(&[worker(1), worker(9)]), 1000));
        assert!(!reports(&mut shard, 2, UNREACHABLE, Peers::Sessions(&[worker(2), worker(9)]), 1001));
        assert_eq!(reporters(&shard), [2], "worker 1 is gone, and so is its report");
    }

    #[test]
    fn the_sixteenth_report_is_remembered_and_the_seventeenth_parks() {
        let mut shard = Shard::new();
        let live: Vec<WorkerId> = (1..=18).map(worker).collect();
        for number in 1..=16 {
            assert!(
                !reports(&mut shard, number, UNREACHABLE, Peers::Sessions(&live), 1000 + number),
                "report {number}"
            );
        }
        assert_eq!(shard.record.unreachable.len(), UNREACHABLE_REPORTS_MAX);
        assert!(reports(&mut shard, 17, UNREACHABLE, Peers::Sessions(&live), 1100));
        assert_eq!(shard.record.unreachable.len(), UNREACHABLE_REPORTS_MAX);
    }

    #[test]
    fn without_sessions_the_third_report_parks_or_the_one_after_which_nobody_else_takes_part() {
        let all = [1, 2, 3].map(worker);
        let mut shard = Shard::new();
        assert!(!reports(&mut shard, 1, UNREACHABLE, Peers::Guessed(&all), 1000));
        assert!(!reports(&mut shard, 2, UNREACHABLE, Peers::Guessed(&all), 1001));
        assert!(reports(&mut shard, 4, UNREACHABLE, Peers::Guessed(&all), 1002), "the third, though worker 3 is there");
        assert!(reports(&mut Shard::new(), 1, UNREACHABLE, Peers::Guessed(&[worker(1)]), 1000));
        assert!(reports(&mut Shard::new(), 1, UNREACHABLE, Peers::Guessed(&[]), 1000));
        let mut shard = Shard::new();
        assert!(!reports(&mut shard, 1, UNREACHABLE, Peers::Guessed(&all[..2]), 1000));
        assert!(reports(&mut shard, 2, UNREACHABLE, Peers::Guessed(&all[..2]), 1001), "both of two");
    }

    #[test]
    fn no_worker_can_withhold_a_shard_for_ever() {
        let mut shard = Shard::new();
        let said = Unreachable::NONE.with_retry_after(LogicalTime::MAX);
        let live = [1, 2].map(worker);
        assert!(!reports(&mut shard, 1, ReleaseReason::Unreachable(said), Peers::Sessions(&live), 1000));
        let latest = at(1000 + HELD_BACK_LEASES_MAX * LEASE_DURATION);
        assert_eq!(shard.record.unreachable[0].retry_after, Some(latest));
    }

    #[test]
    fn progress_and_splits_of_others_leave_reports_as_they_are_and_unparking_clears_them() {
        let mut shard = Shard::new();
        let live = [1, 2].map(worker);
        reports(&mut shard, 1, UNREACHABLE, Peers::Sessions(&live), 1000);
        let lease = shard.acquire(worker(2), 1001);
        run!(shard, lease, super::super::checkpoint::decide, key(b"c"), op(1), at(1002)).unwrap();
        assert_eq!(reporters(&shard), [1]);
        let release = Release { cursor: Some(key(b"d")), reason: UNREACHABLE };
        run!(shard, lease, decide, release, Peers::Sessions(&live), op(2), at(1003)).unwrap();
        assert_eq!((shard.record.state.head.status, reporters(&shard)), (ShardStatus::Parked, alloc::vec![1, 2]));
        assert_eq!(shard.record.cursor.last_key(), Some(&b"d"[..]), "what was done before counts");
        let unparked = super::super::unpark::decide(&shard.view(), epoch(3), op(3), at(1004)).unwrap();
        let Verdict::Execute(change) = unparked else { panic!("a fresh unpark is executed") };
        shard.record.apply(&change, &[]);
        assert_eq!((reporters(&shard), shard.record.park_detail.as_deref()), (alloc::vec![], None));
        shard.acquire(worker(1), 1005);
    }

    #[test]
    fn a_retry_of_a_report_is_answered_and_counts_once() {
        let mut shard = Shard::<16>::new();
        let live = [1, 2].map(worker);
        let lease = shard.acquire(worker(1), 1000);
        let release = Release { cursor: None, reason: UNREACHABLE };
        run!(shard, lease, decide, release, Peers::Sessions(&live), op(1), at(1001)).unwrap();
        let again = run!(shard, lease, decide, release, Peers::Sessions(&live[..1]), op(1), at(1001));
        assert_eq!(again, Ok(IdempotentOutcome::Replayed(())), "although the other has gone meanwhile");
        assert_eq!(reporters(&shard), [1]);
        let other = Release { reason: ReleaseReason::Unreachable(Unreachable::because("words")), ..release };
        let conflict = run!(shard, lease, decide, other, Peers::Sessions(&live), op(1), at(1001));
        assert!(matches!(conflict, Err(ReleaseError::OpIdConflict(_))));
    }
}
