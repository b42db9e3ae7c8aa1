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
use crate::record::view::ShardView;
use crate::validation::validate_lease;

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
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    lease: Presented<'_>,
    now: LogicalTime,
) -> Result<Renewal, RenewError> {
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
