//! The run's record keeps its invariants.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct RunInvariants;

impl Checker for RunInvariants {
    fn name(&self) -> &'static str {
        "RunInvariants"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let Some(run) = sight.run else { return Ok(()) };
        run.check_invariants().map_err(|violation| violation.to_string())
    }
}
