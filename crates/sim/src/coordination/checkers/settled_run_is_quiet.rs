//! Nothing takes effect in a settled run.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct SettledRunIsQuiet;

impl Checker for SettledRunIsQuiet {
    fn name(&self) -> &'static str {
        "SettledRunIsQuiet"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        if sight.run_before.is_terminal() && sight.is_executed() {
            return Err(format!("{:?} took effect although the run is {}", sight.call.request, sight.run_before));
        }
        Ok(())
    }
}
