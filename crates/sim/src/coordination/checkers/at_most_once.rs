//! An operation takes effect once, however often it arrives. (A repeated checkpoint converges and may.)

use std::collections::BTreeSet;

use tessera_contracts::ids::OpId;

use crate::coordination::call::Request;
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AtMostOnce {
    executed: BTreeSet<OpId>,
}

impl Checker for AtMostOnce {
    fn name(&self) -> &'static str {
        "AtMostOnce"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let (Some(op), true) = (sight.call.request.op(), sight.is_executed()) else { return Ok(()) };
        if !self.executed.insert(op) && !matches!(sight.call.request, Request::Checkpoint { .. }) {
            return Err(format!("operation {op} took effect twice: {:?}", sight.call.request));
        }
        Ok(())
    }
}
