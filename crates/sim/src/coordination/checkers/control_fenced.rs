//! A write to a record is accepted only from its holder, under its current fence.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct ControlFenced;

impl Checker for ControlFenced {
    fn name(&self) -> &'static str {
        "ControlFenced"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let (Some(lease), true) = (sight.call.request.lease(), sight.is_executed()) else { return Ok(()) };
        let Some(before) = sight.named_before() else { return Ok(()) };
        let head = &before.state.head;
        if lease.fence() != head.fence {
            return Err(format!("fence {} was let in where {} is current", lease.fence(), head.fence));
        }
        match head.lease {
            Some(holder) if holder.owner == lease.owner() => Ok(()),
            _ => Err(format!("worker {} was let in without holding shard {}", lease.owner(), lease.shard())),
        }
    }
}
