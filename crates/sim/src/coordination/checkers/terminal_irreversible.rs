//! Done and Split are for ever; Parked is left only by unpark, with a new fence.

use tessera_coordination::record::status::ShardStatus;

use crate::coordination::call::Request;
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct TerminalIrreversible;

impl Checker for TerminalIrreversible {
    fn name(&self) -> &'static str {
        "TerminalIrreversible"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let Some(before) = &change.before else { continue };
            let (was, is) = (before.state.head, change.after.state.head);
            if !was.status.is_terminal() || was.status == is.status {
                continue;
            }
            let named = sight.call.request.shard() == Some(change.after.key.shard);
            let unparked = was.status == ShardStatus::Parked
                && is.status == ShardStatus::Active
                && is.fence > was.fence
                && named
                && matches!(sight.call.request, Request::Unpark { .. });
            if !unparked {
                return Err(format!("shard {} went from {} to {}", change.after.key, was.status, is.status));
            }
        }
        Ok(())
    }
}
