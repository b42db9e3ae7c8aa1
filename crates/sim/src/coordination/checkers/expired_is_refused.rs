//! Nothing is accepted under a lease whose deadline has come, by the clock of the worker that shows it.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct ExpiredIsRefused;

impl Checker for ExpiredIsRefused {
    fn name(&self) -> &'static str {
        "ExpiredIsRefused"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let (Some(lease), true) = (sight.call.request.lease(), sight.is_executed()) else { return Ok(()) };
        let holder = sight.named_before().and_then(|before| before.state.head.lease);
        match holder {
            Some(holder) if holder.is_past(sight.call.at) => {
                let (at, deadline) = (sight.call.at, holder.deadline);
                Err(format!("shard {}: accepted at {at} although the lease ended at {deadline}", lease.shard()))
            }
            _ => Ok(()),
        }
    }
}
