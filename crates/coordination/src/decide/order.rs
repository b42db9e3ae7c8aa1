//! Orders: asking a holder to give its shard back, or to split it.
//!
//! An order is for one ownership, named by incarnation and fence epoch; the next owner does not inherit it. Asking twice is asking
//! once. It waits in the record and is told with the holder's next renewal.

use tessera_contracts::ids::{LogicalTime, ShardEpoch};
use tessera_contracts::keyspace::Fraction;

use super::Verdict;
use super::unreachable::Peers;
use crate::error::{LeaseRefused, OrderError};
use crate::events::EventKind;
use crate::operation::{Address, Guard, ShardOperation};
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, Head};
use crate::record::view::{OwnerSignal, ShardView};
use crate::validation::check_incarnation;

/// What is to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OrderRequest {
    /// Give the shard back at the next safe point.
    Yield,
    /// Keep this fraction of what remains and split off the rest; a later request replaces an earlier one.
    Split(Fraction),
}

/// A coordinator or operator asks something of a shard's holder.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Which shard.
    pub at: Address,
    /// The ownership that is asked.
    pub epoch: ShardEpoch,
    /// What for.
    pub request: OrderRequest,
}

impl ShardOperation for Order {
    const NAME: &'static str = "order";
    const GUARD: Guard = Guard::HolderAsSeen;
    type Answer = ();
    type Refused = OrderError;

    fn address(&self) -> Address {
        self.at
    }

    #[inline]
    fn decide<const LOG: usize>(
        &self,
        view: &ShardView<'_, LOG>,
        _: Peers<'_>,
        now: LogicalTime,
    ) -> Result<Verdict<Change<'_>>, OrderError> {
        decide(view, self.epoch, self.request, now).map(Verdict::Execute)
    }

    fn answer(&self, _: &Change<'_>) {}

    fn event(&self, _: &Change<'_>) -> Option<EventKind> {
        Some(EventKind::ShardOrdered { shard: self.at.key.shard, order: self.request })
    }
}

/// Decides whether there is such an owner to ask.
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    epoch: ShardEpoch,
    request: OrderRequest,
    now: LogicalTime,
) -> Result<Change<'static>, OrderError> {
    check_incarnation(view, epoch.incarnation)?;
    view.run.check_active(view.key.run)?;
    let head = view.state.head;
    if head.status.is_terminal() {
        return Err(LeaseRefused::Terminal { status: head.status }.into());
    }
    if head.fence != epoch.fence {
        return Err(LeaseRefused::StaleFence { presented: epoch.fence, current: head.fence }.into());
    }
    if head.lease_live_at(now).is_none() || view.owner == OwnerSignal::Gone {
        return Err(OrderError::NotLeased { key: view.key });
    }
    let orders = match request {
        OrderRequest::Yield => StandingOrders { yield_requested: true, ..head.orders },
        OrderRequest::Split(fraction) => StandingOrders { split_requested: Some(fraction), ..head.orders },
    };
    Ok(Change::of_head(Head { orders, ..head }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{KEY, OTHER, Shard, at, epoch, fence};
    use crate::error::AccessRefused;
    use crate::record::status::ShardStatus;

    #[test]
    fn orders_add_up_and_a_later_split_replaces_an_earlier_one() {
        let (mut shard, _) = Shard::<16>::leased();
        let third = Fraction::from_millionths(333_333).unwrap();
        for request in [OrderRequest::Yield, OrderRequest::Split(Fraction::HALF), OrderRequest::Split(third)] {
            let change = decide(&shard.view(), epoch(2), request, at(1099)).unwrap();
            shard.record.apply(&change, &[]);
        }
        let orders = StandingOrders { yield_requested: true, split_requested: Some(third) };
        assert_eq!(shard.record.state.head.orders, orders);
    }

    #[test]
    fn an_order_reaches_the_owner_it_was_meant_for_or_nobody() {
        let ask = |shard: &Shard, held, now| decide(&shard.view(), epoch(held), OrderRequest::Yield, at(now));
        assert_eq!(ask(&Shard::new(), 1, 1), Err(OrderError::NotLeased { key: KEY }));
        let (mut shard, _) = Shard::leased();
        assert_eq!(ask(&shard, 2, 1100), Err(OrderError::NotLeased { key: KEY }));
        shard.owner = OwnerSignal::Gone;
        assert_eq!(ask(&shard, 2, 1001), Err(OrderError::NotLeased { key: KEY }));
        shard.owner = OwnerSignal::Alive;
        shard.acquire(OTHER, 1100);
        let moved = LeaseRefused::StaleFence { presented: fence(2), current: fence(3) };
        assert_eq!(ask(&shard, 2, 1101), Err(moved.into()));
        shard.settle_run();
        assert!(matches!(ask(&shard, 3, 1101), Err(OrderError::Access(AccessRefused::RunNotActive { .. }))));
        let mut done = Shard::new();
        done.record.state.head = done.record.state.head.settled(ShardStatus::Done);
        assert_eq!(ask(&done, 1, 1), Err(LeaseRefused::Terminal { status: ShardStatus::Done }.into()));
    }
}
