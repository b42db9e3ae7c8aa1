//! Renew: the holder says it is alive, and hears what is asked of it.
//!
//! No op id: a repeated renewal only extends again. The fence stays. In a settled run the lease is not extended; the
//! answer is still an answer and not an error, because telling the worker to stop is what a renewal is for.

use tessera_contracts::ids::LogicalTime;

use crate::error::RenewError;
use crate::events::EventKind;
use crate::record::lease::{LeaseHolder, Presented};
use crate::record::orders::Orders;
use crate::record::snapshot::CapacityHint;
use crate::record::state::{Change, Head};
use crate::record::view::HoldView;
use crate::validation::{check_incarnation, validate_lease};

/// What to store, if anything, and what to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// What becomes of the record, and what to tell observers; nothing if the run is settled.
    pub extension: Option<(Change<'static>, EventKind)>,
    /// The deadline that holds from now on.
    pub deadline: LogicalTime,
    /// What is asked of the worker.
    pub orders: Orders,
}

impl Renewal {
    /// The answer to the worker.
    pub const fn answer(&self, capacity: CapacityHint) -> RenewResult {
        RenewResult { new_deadline: self.deadline, capacity, orders: self.orders }
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RenewResult {
    /// The lease is good until then.
    pub new_deadline: LogicalTime,
    /// How much of the run is waiting.
    pub capacity: CapacityHint,
    /// What is asked of the worker.
    pub orders: Orders,
}

/// Decides whether the lease goes on.
#[inline]
pub fn decide<'v, const LOG: usize>(
    view: impl Into<HoldView<'v, LOG>>,
    lease: Presented<'_>,
    now: LogicalTime,
) -> Result<Renewal, RenewError> {
    let view = view.into();
    check_incarnation(view, lease.lease().incarnation())?;
    let holder = validate_lease(view, lease, now)?;
    let head = view.state.head;
    let status = view.run.status;
    if status.is_terminal() {
        let orders = Orders { cancelled: Some(status), standing: head.orders };
        return Ok(Renewal { extension: None, deadline: holder.deadline, orders });
    }
    view.run.check_active(view.key.run)?;
    // Never sooner than before: a worker whose clock was set back keeps what it was promised.
    let deadline = now.saturating_add(view.run.lease_duration).max(holder.deadline);
    let change = Change::of_head(Head { lease: Some(LeaseHolder { deadline, ..holder }), ..head });
    let event = EventKind::ShardLeaseRenewed { shard: view.key.shard, new_deadline: deadline };
    Ok(Renewal {
        extension: Some((change, event)),
        deadline,
        orders: Orders { cancelled: None, standing: head.orders },
    })
}

#[cfg(test)]
mod tests {
    use tessera_contracts::keyspace::Fraction;

    use super::*;
    use crate::decide::testing::{LEASE_DURATION, OTHER, Shard, TENANT, at};
    use crate::error::{AccessRefused, ExpiredBecause, LeaseRefused};
    use crate::record::lease::Lease;
    use crate::record::orders::StandingOrders;
    use crate::record::view::OwnerSignal;
    use crate::run::status::RunStatus;

    fn renew(shard: &Shard, lease: &Lease, now: u64) -> Result<Renewal, RenewError> {
        decide(&shard.view(), lease.presented_by(TENANT).unwrap(), at(now))
    }

    #[test]
    fn a_lease_is_extended_up_to_its_last_tick_and_not_after() {
        let (shard, lease) = Shard::leased();
        let renewed = renew(&shard, &lease, 1099).unwrap();
        assert_eq!(renewed.deadline, at(1099 + LEASE_DURATION));
        let (change, event) = renewed.extension.unwrap();
        assert_eq!(change.head.lease.unwrap().deadline, renewed.deadline);
        assert_eq!(change.head.fence, lease.fence());
        assert_eq!(event, EventKind::ShardLeaseRenewed { shard: lease.shard(), new_deadline: renewed.deadline });
        let because = ExpiredBecause::Deadline;
        let expired = LeaseRefused::Expired { deadline: at(1100), now: at(1100), because };
        assert_eq!(renew(&shard, &lease, 1100), Err(expired.into()));
    }

    #[test]
    fn a_clock_set_back_does_not_shorten_a_lease() {
        let (shard, lease) = Shard::leased();
        assert_eq!(renew(&shard, &lease, 10).unwrap().deadline, at(1100));
    }

    #[test]
    fn a_lost_session_cannot_renew() {
        let (mut shard, lease) = Shard::leased();
        shard.owner = OwnerSignal::Gone;
        assert!(matches!(
            renew(&shard, &lease, 1001),
            Err(RenewError::Lease(LeaseRefused::Expired { because: ExpiredBecause::SessionLost, .. }))
        ));
    }

    #[test]
    fn a_zombie_cannot_renew() {
        let (mut shard, lease) = Shard::leased();
        shard.acquire(OTHER, 1100);
        assert!(matches!(renew(&shard, &lease, 1101), Err(RenewError::Lease(LeaseRefused::StaleFence { .. }))));
    }

    #[test]
    fn a_settled_run_is_told_and_the_lease_not_extended() {
        for status in [RunStatus::Done, RunStatus::Failed, RunStatus::Cancelled] {
            let (mut shard, lease) = Shard::leased();
            shard.gate.status = status;
            shard.record.state.head.orders.yield_requested = true;
            let renewed = renew(&shard, &lease, 1001).unwrap();
            assert_eq!((renewed.extension, renewed.deadline), (None, at(1100)));
            assert_eq!(renewed.orders.cancelled, Some(status));
            assert!(renewed.orders.standing.yield_requested, "what was asked before is told too");
        }
        let (mut shard, lease) = Shard::leased();
        shard.gate.status = RunStatus::Initializing;
        assert!(matches!(renew(&shard, &lease, 1001), Err(RenewError::Access(AccessRefused::RunNotActive { .. }))));
    }

    #[test]
    fn standing_orders_come_with_the_answer_and_stay_until_answered() {
        let (mut shard, lease) = Shard::leased();
        let standing = StandingOrders { yield_requested: true, split_requested: Some(Fraction::HALF) };
        shard.record.state.head.orders = standing;
        let renewed = renew(&shard, &lease, 1001).unwrap();
        assert_eq!(renewed.orders, Orders { cancelled: None, standing });
        assert_eq!(renewed.extension.unwrap().0.head.orders, standing);
    }
}
