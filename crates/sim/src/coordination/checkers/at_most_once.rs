//! An operation takes effect once, however often it arrives. (A repeated checkpoint converges and may.)
//!
//! An operation on a run names the run's id and no incarnation, so it may take effect once in each.

use std::collections::BTreeSet;

use tessera_contracts::ids::{OpId, RunIncarnation};

use crate::coordination::call::Request;
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AtMostOnce {
    executed: BTreeSet<(Option<RunIncarnation>, OpId)>,
}

impl Checker for AtMostOnce {
    fn name(&self) -> &'static str {
        "AtMostOnce"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let (Some(op), true) = (sight.call.request.op(), sight.is_executed()) else { return Ok(()) };
        let of_run = sight.call.request.shard().is_none();
        let incarnation = sight.run_before.map(|run| run.incarnation).filter(|_| of_run);
        if !self.executed.insert((incarnation, op)) && !matches!(sight.call.request, Request::Checkpoint { .. }) {
            return Err(format!("operation {op} took effect twice: {:?}", sight.call.request));
        }
        Ok(())
    }
}
