//! Orders: asking a holder to give its shard back, or to split it.
//!
//! An order is for one ownership, named by its fence epoch; the next owner does not inherit it. Asking twice is asking
//! once. It waits in the record and is told with the holder's next renewal.

use tessera_contracts::ids::{FenceEpoch, LogicalTime};
use tessera_contracts::keyspace::Fraction;

use crate::error::{LeaseRefused, OrderError};
use crate::record::orders::StandingOrders;
use crate::record::state::{Change, Head};
use crate::record::view::{OwnerSignal, ShardView};

/// What is to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OrderRequest {
    /// Give the shard back at the next safe point.
    Yield,
    /// Keep this fraction of what remains and split off the rest; a later request replaces an earlier one.
    Split(Fraction),
}

/// Decides whether there is such an owner to ask.
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    fence: FenceEpoch,
    request: OrderRequest,
    now: LogicalTime,
) -> Result<Change<'static>, OrderError> {
    view.run.check_active(view.key.run)?;
    let head = view.state.head;
    if head.status.is_terminal() {
        return Err(LeaseRefused::Terminal { status: head.status }.into());
    }
    if head.fence != fence {
        return Err(LeaseRefused::StaleFence { presented: fence, current: head.fence }.into());
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
