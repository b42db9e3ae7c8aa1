//! A settled run stays as it is, until it is retired.

use tessera_contracts::ids::RunIncarnation;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RunTerminalIrreversible {
    settled: Option<(RunIncarnation, RunStatus)>,
}

impl Checker for RunTerminalIrreversible {
    fn name(&self) -> &'static str {
        "RunTerminalIrreversible"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let Some(RunRecord { incarnation, status, .. }) = sight.run else { return Ok(()) };
        match self.settled {
            Some((same, settled)) if same == *incarnation && settled != *status => {
                Err(format!("the run was {settled} and is {status}"))
            }
            _ => {
                self.settled = status.is_terminal().then_some((*incarnation, *status));
                Ok(())
            }
        }
    }
}
