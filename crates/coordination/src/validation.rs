//! The checks that operations share, in the order in which they are made.
//!
//! Tenant, then incarnation, then op-log, then run, then lease. The tenant comes first, before the shard is even looked up
//! ([`Lease::presented_by`](crate::record::lease::Lease::presented_by)). The incarnation comes before the op-log: fence
//! epochs start anew when a run id is used again, and an operation of another run must not be answered as this one's. The op-log comes before the lease so that a retry
//! is answered although the lease has expired, the shard is settled or the run is over; a zombie can thereby learn the
//! result of its own exact past operation and nothing else. [`admit`] is that order, written once.

use tessera_contracts::cursor::{check_advance, check_in_range};
use tessera_contracts::ids::{LogicalTime, OpId, RunIncarnation};
use tessera_contracts::{CursorUpdate, PayloadHash};

use crate::error::{AccessRefused, CursorRefused, ExpiredBecause, LeaseRefused, OpIdConflict};
use crate::record::lease::{LeaseHolder, Presented};
use crate::record::op_log::{OpKind, OpLog, OpLogEntry, OpResult};
use crate::record::view::{HoldView, OwnerSignal, ShardView};

/// An operation with an op id, as the op-log will remember it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The caller's idempotency key.
    pub op_id: OpId,
    /// Which operation.
    pub kind: OpKind,
    /// Fingerprint of its parameters.
    pub payload_hash: PayloadHash,
}

impl Operation {
    /// The entry to remember if the operation takes effect at `now`.
    pub const fn executed_at(self, now: LogicalTime) -> OpLogEntry {
        let Self { op_id, kind, payload_hash } = self;
        OpLogEntry { op_id, payload_hash, executed_at: now, kind, result: OpResult::Completed }
    }
}

/// What the checks found an operation to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// New, and the lease is good: carry it out.
    Fresh(LeaseHolder),
    /// Remembered: answer as the first time.
    Replay(OpResult),
}

/// Incarnation, op-log, run, lease: the checks of every lease-gated operation that has an op id.
#[inline]
pub fn admit<E, const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    operation: &Operation,
    now: LogicalTime,
) -> Result<Admission, E>
where
    E: From<OpIdConflict> + From<AccessRefused> + From<LeaseRefused>,
{
    check_incarnation(view, lease.lease().incarnation())?;
    if let Some(result) = check_op_idempotency(&view.state.op_log, operation)? {
        return Ok(Admission::Replay(result));
    }
    view.run.check_active(view.key.run)?;
    Ok(Admission::Fresh(validate_lease(view, lease, now)?))
}

/// Whether a request of the run's incarnation `presented` is about the run that there is.
#[inline]
pub fn check_incarnation<'v, const LOG: usize>(
    view: impl Into<HoldView<'v, LOG>>,
    presented: RunIncarnation,
) -> Result<(), AccessRefused> {
    let HoldView { key, incarnation: current, .. } = view.into();
    if presented == current {
        return Ok(());
    }
    Err(AccessRefused::OtherIncarnation { run: key.run, presented, current })
}

/// Looks the operation up in the op-log: its remembered result if it is a retry, nothing if it is new, a conflict if its
/// id belongs to something else.
#[inline]
pub fn check_op_idempotency<const LOG: usize>(
    op_log: &OpLog<LOG>,
    operation: &Operation,
) -> Result<Option<OpResult>, OpIdConflict> {
    if operation.op_id.is_unassigned() {
        return Err(OpIdConflict::unassigned(operation.payload_hash));
    }
    match op_log.find(operation.op_id) {
        None => Ok(None),
        Some(entry) if entry.payload_hash == operation.payload_hash && entry.kind == operation.kind => {
            Ok(Some(entry.result))
        }
        Some(entry) => Err(OpIdConflict::new(operation.op_id, entry.payload_hash, operation.payload_hash)),
    }
}

/// Whether the presented lease opens the shard at `now`: the shard is not settled, the fence is current, both signs of
/// life are there, and the holder is who the lease says. The tenant was checked when the lease was presented, the incarnation
/// by [`check_incarnation`].
#[inline]
pub fn validate_lease<'v, const LOG: usize>(
    view: impl Into<HoldView<'v, LOG>>,
    lease: Presented<'_>,
    now: LogicalTime,
) -> Result<LeaseHolder, LeaseRefused> {
    let (view, lease) = (view.into(), lease.lease());
    debug_assert!(lease.tenant() == view.tenant && lease.key() == view.key, "the view is of the leased shard");
    debug_assert!(lease.incarnation() == view.incarnation, "the incarnation was checked before the lease");
    let head = &view.state.head;
    if head.status.is_terminal() {
        return Err(LeaseRefused::Terminal { status: head.status });
    }
    if lease.fence() != head.fence {
        return Err(LeaseRefused::StaleFence { presented: lease.fence(), current: head.fence });
    }
    let diverged = LeaseRefused::OwnerDivergence { presented: lease.owner() };
    let holder = head.lease.ok_or(diverged)?;
    if holder.is_past(now) {
        return Err(LeaseRefused::Expired { deadline: holder.deadline, now, because: ExpiredBecause::Deadline });
    }
    if view.owner == OwnerSignal::Gone {
        return Err(LeaseRefused::Expired { deadline: holder.deadline, now, because: ExpiredBecause::SessionLost });
    }
    if holder.owner != lease.owner() {
        return Err(diverged);
    }
    Ok(holder)
}

/// Whether the reported progress may follow the recorded one: it does not go back, and it lies in the shard's range.
#[inline]
pub fn validate_cursor_update<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    update: CursorUpdate<'_>,
) -> Result<(), CursorRefused> {
    check_advance(view.cursor.last_key(), update.last_key())?;
    check_in_range(view.spec.range(), update.last_key())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{OTHER, Shard, TENANT, WORKER, at};
    use crate::record::status::ShardStatus;

    #[test]
    fn an_id_belongs_to_one_kind_of_operation_even_if_the_fingerprints_were_the_same() {
        let payload_hash = PayloadHash::from_stored(9).unwrap();
        let checkpoint = Operation { op_id: OpId::new(1), kind: OpKind::Checkpoint, payload_hash };
        let log: OpLog<4> = [checkpoint.executed_at(at(1))].into_iter().collect();
        assert_eq!(check_op_idempotency(&log, &checkpoint), Ok(Some(OpResult::Completed)));
        for kind in OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Checkpoint) {
            assert!(check_op_idempotency(&log, &Operation { kind, ..checkpoint }).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn a_lease_is_good_up_to_its_last_tick() {
        let (shard, lease) = Shard::<16>::leased();
        let check = |now| validate_lease(&shard.view(), lease.presented_by(TENANT).unwrap(), at(now));
        assert!(check(1099).is_ok());
        assert!(matches!(check(1100), Err(LeaseRefused::Expired { because: ExpiredBecause::Deadline, .. })));
    }

    #[test]
    fn both_signs_of_life_are_needed() {
        let (mut shard, lease) = Shard::<16>::leased();
        shard.owner = OwnerSignal::Gone;
        let check = validate_lease(&shard.view(), lease.presented_by(TENANT).unwrap(), at(1099));
        assert!(matches!(check, Err(LeaseRefused::Expired { because: ExpiredBecause::SessionLost, .. })));
    }

    #[test]
    fn a_fence_from_the_future_is_as_stale_as_one_from_the_past() {
        let (mut shard, lease) = Shard::<16>::leased();
        shard.acquire(OTHER, 1100);
        let newer = shard.acquire(WORKER, 1200);
        shard.record.state.head.fence = tessera_contracts::FenceEpoch::new(3);
        for lease in [lease, newer] {
            let check = validate_lease(&shard.view(), lease.presented_by(TENANT).unwrap(), at(1201));
            assert!(matches!(check, Err(LeaseRefused::StaleFence { .. })));
        }
    }

    #[test]
    fn a_settled_shard_is_named_before_anything_else_of_the_lease() {
        let (mut shard, lease) = Shard::<16>::leased();
        shard.acquire(OTHER, 1100);
        shard.record.state.head = shard.record.state.head.settled(ShardStatus::Split);
        let check = validate_lease(&shard.view(), lease.presented_by(TENANT).unwrap(), at(9999));
        assert_eq!(check, Err(LeaseRefused::Terminal { status: ShardStatus::Split }));
    }
}
