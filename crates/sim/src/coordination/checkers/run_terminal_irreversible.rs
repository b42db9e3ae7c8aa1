//! A settled run stays as it is.

use tessera_coordination::run::status::RunStatus;

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RunTerminalIrreversible {
    settled: Option<RunStatus>,
}

impl Checker for RunTerminalIrreversible {
    fn name(&self) -> &'static str {
        "RunTerminalIrreversible"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let status = sight.run.status;
        match self.settled {
            Some(settled) if settled != status => Err(format!("the run was {settled} and is {status}")),
            _ => {
                self.settled = self.settled.or(status.is_terminal().then_some(status));
                Ok(())
            }
        }
    }
}
