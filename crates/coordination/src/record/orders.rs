//! What a coordinator asks of an owner, delivered with the answer to its next renewal.
//!
//! An order is meant for one owner: it names the fence epoch it was given under and dies with that ownership. It is a
//! request, answered at a safe point of the work; only a settled run is binding.

use tessera_contracts::keyspace::Fraction;

use crate::run::status::RunStatus;

/// Orders that wait in the record for the owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StandingOrders {
    /// Give the shard back at the next safe point.
    pub yield_requested: bool,
    /// Split off the part after this fraction of what remains.
    pub split_requested: Option<Fraction>,
}

impl StandingOrders {
    /// Nothing is asked.
    pub const NONE: Self = Self { yield_requested: false, split_requested: None };
}

/// What a renewal tells the worker besides its new deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Orders {
    /// The run is settled with this status: stop, nothing more will be accepted. The lease was not extended.
    pub cancelled: Option<RunStatus>,
    /// Requests for the next safe point.
    pub standing: StandingOrders,
}

/// One order, the way a worker acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Stop: the run is settled.
    Cancelled(RunStatus),
    /// Checkpoint and give the shard back.
    PleaseYield,
    /// Keep this fraction of what remains and split off the rest.
    PleaseSplit {
        /// The part to keep.
        fraction: Fraction,
    },
}

impl Orders {
    /// The order to act on first: stopping before yielding before splitting, since each makes the later ones moot.
    pub const fn most_urgent(&self) -> Option<Order> {
        if let Some(status) = self.cancelled {
            return Some(Order::Cancelled(status));
        }
        if self.standing.yield_requested {
            return Some(Order::PleaseYield);
        }
        match self.standing.split_requested {
            Some(fraction) => Some(Order::PleaseSplit { fraction }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_run_comes_before_a_yield_and_a_yield_before_a_split() {
        let fraction = Fraction::HALF;
        let mut orders = Orders {
            cancelled: Some(RunStatus::Cancelled),
            standing: StandingOrders { yield_requested: true, split_requested: Some(fraction) },
        };
        assert_eq!(orders.most_urgent(), Some(Order::Cancelled(RunStatus::Cancelled)));
        orders.cancelled = None;
        assert_eq!(orders.most_urgent(), Some(Order::PleaseYield));
        orders.standing.yield_requested = false;
        assert_eq!(orders.most_urgent(), Some(Order::PleaseSplit { fraction }));
        orders.standing.split_requested = None;
        assert_eq!(orders.most_urgent(), None);
    }
}
