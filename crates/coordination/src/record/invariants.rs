//! The ten things that are true of every shard record at every moment.
//!
//! They are checked at every mutation and before anything is stored: a violated one stops the operation with a panic, and
//! what was stored before stays. So corruption cannot spread from a bug; it becomes a crash that names the rule.

use tessera_contracts::ids::{FenceEpoch, OpId, ShardId, ShardKey};
use tessera_contracts::limits::MAX_SPAWNED_PER_SHARD;

use super::state::{Change, Head, ShardState, Spawned};
use super::status::ShardStatus;

/// The rule a record breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvariantViolation {
    /// 1. A park reason is there exactly if the shard is parked.
    #[error("invariant 1: status is {status} but a park reason is {}", if *.has_reason { "present" } else { "absent" })]
    ParkReasonIffParked {
        /// The status.
        status: ShardStatus,
        /// Whether there is a reason.
        has_reason: bool,
    },
    // 2. Owner and deadline are both there or neither: `Option<LeaseHolder>` cannot express anything else.
    /// 3. A settled shard is held by nobody.
    #[error("invariant 3: a {status} shard holds a lease")]
    TerminalHoldsLease {
        /// The status.
        status: ShardStatus,
    },
    /// 4. The fence epoch is at least [`FenceEpoch::INITIAL`].
    #[error("invariant 4: fence epoch {fence} is below the initial one")]
    FenceBelowInitial {
        /// The epoch.
        fence: FenceEpoch,
    },
    /// 5. The op-log is bounded. The ring buffer enforces it; this guards the ring buffer.
    #[error("invariant 5: op-log holds {len} entries, over {max}")]
    OpLogOverflow {
        /// Entries.
        len: usize,
        /// Bound.
        max: usize,
    },
    /// 6. A shard that was split has children.
    #[error("invariant 6: shard is split but has no children")]
    SplitWithoutChildren,
    /// 7. A shard has a parent exactly if its id is a derived one.
    #[error("invariant 7: shard {shard} {}", if *.has_parent { "has a parent but a root's id" } else { "has a derived id but no parent" })]
    ParentIffDerived {
        /// The shard.
        shard: ShardId,
        /// Whether it has a parent.
        has_parent: bool,
    },
    /// 8. Every child has a derived id.
    #[error("invariant 8: child {child} has a root's id")]
    ChildNotDerived {
        /// The child.
        child: ShardId,
    },
    /// 9. No op id is remembered twice.
    #[error("invariant 9: operation {op_id} is in the op-log twice")]
    DuplicateOpId {
        /// The op id.
        op_id: OpId,
    },
    /// 10. The number of children over a shard's life is bounded.
    #[error("invariant 10: shard has spawned {len}, over {max}")]
    TooManySpawned {
        /// Children.
        len: usize,
        /// Bound.
        max: usize,
    },
}

/// The first invariant that is violated.
pub fn check<const LOG: usize>(
    key: ShardKey,
    state: &ShardState<LOG>,
    spawned: &[Spawned],
) -> Result<(), InvariantViolation> {
    check_head(key, &state.head, state)?;
    if let Some(op_id) = state.op_log.duplicate() {
        return Err(InvariantViolation::DuplicateOpId { op_id });
    }
    if state.head.status == ShardStatus::Split && spawned.is_empty() {
        return Err(InvariantViolation::SplitWithoutChildren);
    }
    if let Some(child) = spawned.iter().find(|child| !child.id.is_derived()) {
        return Err(InvariantViolation::ChildNotDerived { child: child.id });
    }
    if spawned.len() > MAX_SPAWNED_PER_SHARD {
        return Err(InvariantViolation::TooManySpawned { len: spawned.len(), max: MAX_SPAWNED_PER_SHARD });
    }
    Ok(())
}

/// Whether `head` may be the head of the record that has the rest of `state`.
#[inline]
fn check_head<const LOG: usize>(key: ShardKey, head: &Head, state: &ShardState<LOG>) -> Result<(), InvariantViolation> {
    let (status, has_reason, has_parent) = (head.status, head.park.is_some(), state.parent.is_some());
    if has_reason != (status == ShardStatus::Parked) {
        return Err(InvariantViolation::ParkReasonIffParked { status, has_reason });
    }
    if status.is_terminal() && head.lease.is_some() {
        return Err(InvariantViolation::TerminalHoldsLease { status });
    }
    if head.fence < FenceEpoch::INITIAL {
        return Err(InvariantViolation::FenceBelowInitial { fence: head.fence });
    }
    if state.op_log.len() > LOG {
        return Err(InvariantViolation::OpLogOverflow { len: state.op_log.len(), max: LOG });
    }
    if has_parent != key.shard.is_derived() {
        return Err(InvariantViolation::ParentIffDerived { shard: key.shard, has_parent });
    }
    Ok(())
}

/// The first invariant that `change` would violate in a record that violates none, with `births` as its new children. Looks
/// only at what the change can break, in time that does not grow with the children that are there.
#[inline]
pub fn check_change<const LOG: usize>(
    key: ShardKey,
    state: &ShardState<LOG>,
    spawned: usize,
    change: &Change<'_>,
    mut births: impl Iterator<Item = Spawned> + Clone,
) -> Result<(), InvariantViolation> {
    check_head(key, &change.head, state)?;
    if let Some(entry) = change.logged
        && state.op_log.find(entry.op_id).is_some()
    {
        return Err(InvariantViolation::DuplicateOpId { op_id: entry.op_id });
    }
    let len = spawned + births.clone().count();
    if change.head.status == ShardStatus::Split && len == 0 {
        return Err(InvariantViolation::SplitWithoutChildren);
    }
    if let Some(child) = births.find(|child| !child.id.is_derived()) {
        return Err(InvariantViolation::ChildNotDerived { child: child.id });
    }
    if len > MAX_SPAWNED_PER_SHARD {
        return Err(InvariantViolation::TooManySpawned { len, max: MAX_SPAWNED_PER_SHARD });
    }
    Ok(())
}

/// Panics with the name of the violated invariant.
///
/// # Panics
///
/// If there is one.
pub fn assert<const LOG: usize>(key: ShardKey, state: &ShardState<LOG>, spawned: &[Spawned]) {
    if let Err(violation) = check(key, state, spawned) {
        panic!("shard {key}: {violation}");
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use tessera_contracts::ids::{LogicalTime, RunId, WorkerId};
    use tessera_contracts::{CursorSemantics, PayloadHash};

    use super::*;
    use crate::record::lease::LeaseHolder;
    use crate::record::op_log::{OpKind, OpLogEntry, OpResult};
    use crate::record::park::ParkInfo;
    use crate::record::status::ParkReason;

    const ROOT: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
    const DERIVED: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1 << 63 | 1));

    fn root() -> ShardState {
        ShardState::newborn(CursorSemantics::Completed, None)
    }

    fn child(id: u64) -> Spawned {
        Spawned { id: ShardId::new(id), payload_hash: PayloadHash::from_stored(1).unwrap() }
    }

    #[test]
    fn a_newborn_shard_violates_nothing() {
        assert_eq!(check(ROOT, &root(), &[]), Ok(()));
        let derived = ShardState::<16>::newborn(CursorSemantics::Completed, Some(ShardId::new(1)));
        assert_eq!(check(DERIVED, &derived, &[]), Ok(()));
    }

    #[test]
    fn each_broken_rule_is_named() {
        let mut state = root();
        state.head.park = Some(ParkInfo { reason: ParkReason::Other, retry_after: None });
        assert!(matches!(
            check(ROOT, &state, &[]),
            Err(InvariantViolation::ParkReasonIffParked { has_reason: true, .. })
        ));
        state = root();
        state.head.status = ShardStatus::Parked;
        assert!(matches!(
            check(ROOT, &state, &[]),
            Err(InvariantViolation::ParkReasonIffParked { has_reason: false, .. })
        ));
        state = root();
        state.head.status = ShardStatus::Done;
        state.head.lease = Some(LeaseHolder { owner: WorkerId::new(1), deadline: LogicalTime::new(1) });
        assert!(matches!(check(ROOT, &state, &[]), Err(InvariantViolation::TerminalHoldsLease { .. })));
        state = root();
        state.head.fence = FenceEpoch::new(0);
        assert!(matches!(check(ROOT, &state, &[]), Err(InvariantViolation::FenceBelowInitial { .. })));
        state = root();
        state.head.status = ShardStatus::Split;
        assert_eq!(check(ROOT, &state, &[]), Err(InvariantViolation::SplitWithoutChildren));
        assert!(check(ROOT, &state, &[child(1 << 63)]).is_ok());
        assert!(matches!(
            check(DERIVED, &root(), &[]),
            Err(InvariantViolation::ParentIffDerived { has_parent: false, .. })
        ));
        state = root();
        state.parent = Some(ShardId::new(2));
        assert!(matches!(check(ROOT, &state, &[]), Err(InvariantViolation::ParentIffDerived { has_parent: true, .. })));
        assert!(matches!(check(ROOT, &root(), &[child(7)]), Err(InvariantViolation::ChildNotDerived { .. })));
        let entry = OpLogEntry {
            op_id: OpId::new(1),
            payload_hash: PayloadHash::from_stored(1).unwrap(),
            executed_at: LogicalTime::new(1),
            kind: OpKind::Checkpoint,
            result: OpResult::Completed,
        };
        state = root();
        state.op_log = [entry, entry].into_iter().collect();
        assert!(matches!(check(ROOT, &state, &[]), Err(InvariantViolation::DuplicateOpId { .. })));
        let full = vec![child(1 << 63); MAX_SPAWNED_PER_SHARD];
        assert!(check(ROOT, &root(), &full).is_ok());
        let over = vec![child(1 << 63); MAX_SPAWNED_PER_SHARD + 1];
        assert!(matches!(check(ROOT, &root(), &over), Err(InvariantViolation::TooManySpawned { .. })));
    }

    #[test]
    #[should_panic(expected = "invariant 6")]
    fn a_violation_panics_with_its_number() {
        let mut state = root();
        state.head.status = ShardStatus::Split;
        assert(ROOT, &state, &[]);
    }

    #[test]
    fn a_change_may_make_the_last_child_of_a_life_and_not_one_more() {
        let change = Change::of_head(root().head);
        let births = |count: usize| vec![child(1 << 63); count];
        let check = |spawned, added: usize| check_change(ROOT, &root(), spawned, &change, births(added).into_iter());
        assert_eq!(check(MAX_SPAWNED_PER_SHARD - 2, 2), Ok(()));
        assert_eq!(check(MAX_SPAWNED_PER_SHARD, 0), Ok(()), "a shard at the limit stays valid");
        let (len, max) = (MAX_SPAWNED_PER_SHARD + 1, MAX_SPAWNED_PER_SHARD);
        assert_eq!(check(MAX_SPAWNED_PER_SHARD - 1, 2), Err(InvariantViolation::TooManySpawned { len, max }));
    }
}
