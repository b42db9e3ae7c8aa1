//! The fixed-size part of a shard's record, and how a decision changes it.
//!
//! Everything a decision reads or writes except byte strings and the list of children is here, in a few cache lines and
//! without a pointer. [`Head`] is the part that nearly every operation rewrites: it is copied, edited and put back whole,
//! so a decision states the next head rather than a list of edits. [`ShardState::apply`] is the one function that turns a
//! decision into the next state, for every backend.

use tessera_contracts::ids::{FenceEpoch, LogicalTime, ShardId};
use tessera_contracts::{CursorSemantics, CursorUpdate, PayloadHash, ShardSpecRef};

use super::history::{History, MoveReason, Ownership};
use super::lease::LeaseHolder;
use super::op_log::{OP_LOG_CAP, OpLog, OpLogEntry};
use super::orders::StandingOrders;
use super::park::{ParkDetail, ParkInfo};
use super::status::ShardStatus;
use super::unreachable::ReportChange;

/// The part of a record that most operations rewrite.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Head {
    /// Where the shard stands.
    pub status: ShardStatus,
    /// Grows at every change of owner and at every unpark; never shrinks.
    pub fence: FenceEpoch,
    /// Who holds it, if anyone does.
    pub lease: Option<LeaseHolder>,
    /// Why it is parked, exactly if it is.
    pub park: Option<ParkInfo>,
    /// Why it is free, if nobody holds it: the reason the next owner's entry in the history will give.
    pub freed: MoveReason,
    /// Acquisitions since progress was last recorded.
    pub stalled_acquisitions: u32,
    /// How often it was unparked: what the fence has grown by beside acquisitions.
    pub unparks: u32,
    /// What the owner is asked to do.
    pub orders: StandingOrders,
}

impl Head {
    /// A shard nobody has touched.
    pub const fn newborn() -> Self {
        Self {
            status: ShardStatus::Active,
            fence: FenceEpoch::INITIAL,
            lease: None,
            park: None,
            freed: MoveReason::FirstAcquire,
            stalled_acquisitions: 0,
            unparks: 0,
            orders: StandingOrders::NONE,
        }
    }

    /// The same, settled as `status`: a settled shard has no holder and no orders.
    #[must_use]
    pub const fn settled(self, status: ShardStatus) -> Self {
        Self { status, lease: None, orders: StandingOrders::NONE, ..self }
    }

    /// How often it was acquired: the fence grows by one at every acquisition and at every unpark, and nowhere else.
    pub const fn acquire_count(&self) -> u64 {
        self.fence.get().saturating_sub(FenceEpoch::INITIAL.get()).saturating_sub(self.unparks as u64)
    }

    /// Whether someone could be granted the shard without waiting for a lease to end.
    pub fn is_free(&self) -> bool {
        self.status == ShardStatus::Active && self.lease.is_none()
    }

    /// The holder, if its deadline lies ahead.
    pub fn lease_live_at(&self, now: LogicalTime) -> Option<LeaseHolder> {
        self.lease.filter(|holder| !holder.is_past(now))
    }
}

/// The fixed-size part of a record. `LOG` is the length of the op-log: [`OP_LOG_CAP`] ships, one or two are explored
/// exhaustively.
///
/// What nearly every operation reads comes first, and stays there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct ShardState<const LOG: usize = OP_LOG_CAP> {
    /// What most operations rewrite.
    pub head: Head,
    /// The shard this one was split from, exactly if its id is a derived one.
    pub parent: Option<ShardId>,
    /// The last operations.
    pub op_log: OpLog<LOG>,
    /// What the cursor's progress means; from the run's configuration, so that the record stands alone.
    pub cursor_semantics: CursorSemantics,
    /// The last owners.
    pub history: History,
}

impl<const LOG: usize> ShardState<LOG> {
    /// Where the op-log's entries begin: all that is ahead of them is read by nearly every operation.
    pub(crate) const OP_LOG_ENTRIES_AT: usize = core::mem::offset_of!(Self, op_log) + OpLog::<LOG>::ENTRIES_AT;

    /// A shard nobody has touched.
    pub const fn newborn(cursor_semantics: CursorSemantics, parent: Option<ShardId>) -> Self {
        Self { head: Head::newborn(), cursor_semantics, parent, op_log: OpLog::new(), history: History::new() }
    }

    /// Carries out the fixed-size part of a decision. The byte strings in `change` are the store's to write, before this
    /// call if writing them can fail.
    #[inline]
    pub fn apply(&mut self, change: &Change<'_>) {
        assert_transition_legal(self.head.status, change);
        if change.undoes_park {
            self.op_log.supersede_park();
        }
        if let Some(entry) = change.logged {
            self.op_log.record(entry);
        }
        if let Some(ownership) = change.ownership {
            self.history.record(ownership);
        }
        self.head = change.head;
    }
}

/// Panics before anything is written if a decision would leave a terminal state, other than by unparking.
///
/// # Panics
///
/// On such a decision, which only a bug in this crate could make.
pub fn assert_transition_legal(from: ShardStatus, change: &Change<'_>) {
    let to = change.head.status;
    let unparked = from == ShardStatus::Parked && to == ShardStatus::Active && change.undoes_park;
    assert!(!from.is_terminal() || from == to || unparked, "illegal transition from {from} to {to}");
}

/// What a decision writes into a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'r> {
    /// The next head, whole.
    pub head: Head,
    /// The operation to remember.
    pub logged: Option<OpLogEntry>,
    /// Whether the remembered park is undone by this.
    pub undoes_park: bool,
    /// The owner to remember.
    pub ownership: Option<Ownership>,
    /// The next cursor; `None` keeps the stored one.
    pub cursor: Option<CursorUpdate<'r>>,
    /// The next spec; `None` keeps the stored one.
    pub spec: Option<ShardSpecRef<'r>>,
    /// What happens to the park detail.
    pub park_detail: DetailChange<'r>,
    /// What happens to the reports that it cannot be reached.
    pub unreachable: ReportChange,
}

/// What happens to the stored park detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DetailChange<'r> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It goes.
    Clear,
    /// This takes its place.
    Set(ParkDetail<'r>),
}

impl Change<'_> {
    /// Only the head changes.
    pub const fn of_head(head: Head) -> Self {
        Self {
            head,
            logged: None,
            undoes_park: false,
            ownership: None,
            cursor: None,
            spec: None,
            park_detail: DetailChange::Keep,
            unreachable: ReportChange::Keep,
        }
    }
}

/// A child or residual in its parent's list, with the fingerprint of the split that made it. The fingerprint lets a
/// replayed residual split be told from a reused op id even after the op-log has forgotten it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spawned {
    /// The child.
    pub id: ShardId,
    /// Fingerprint of the split's parameters.
    pub payload_hash: PayloadHash,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(status: ShardStatus, undoes_park: bool) -> Change<'static> {
        Change { undoes_park, ..Change::of_head(Head { status, ..Head::newborn() }) }
    }

    #[test]
    fn an_active_shard_may_go_anywhere_and_a_settled_one_stays() {
        for from in ShardStatus::ALL {
            for to in ShardStatus::ALL {
                for undoes_park in [false, true] {
                    let revives = from == ShardStatus::Parked && to == ShardStatus::Active && undoes_park;
                    let legal = from == ShardStatus::Active || from == to || revives;
                    let outcome = std::panic::catch_unwind(|| assert_transition_legal(from, &change(to, undoes_park)));
                    assert_eq!(outcome.is_ok(), legal, "{from} to {to}, unparking {undoes_park}");
                }
            }
        }
    }

    #[test]
    fn a_settled_shard_has_no_holder_and_no_orders() {
        let mut head = Head::newborn();
        head.lease = Some(LeaseHolder { owner: tessera_contracts::WorkerId::new(1), deadline: LogicalTime::new(9) });
        head.orders.yield_requested = true;
        let done = head.settled(ShardStatus::Done);
        assert_eq!((done.status, done.lease, done.orders), (ShardStatus::Done, None, StandingOrders::NONE));
        assert_eq!(done.fence, head.fence);
    }
}
