//! Once faults stop, the run settles in a bounded number of steps.

use crate::coordination::watch::{Checker, Ending};

/// See the module.
#[derive(Debug)]
pub(super) struct RunSettles;

impl Checker for RunSettles {
    fn name(&self) -> &'static str {
        "RunSettles"
    }

    fn at_end(&mut self, ending: &Ending) -> Result<(), String> {
        if ending.run.is_terminal() {
            return Ok(());
        }
        Err(format!(
            "the run is still {} after {} of {} calm steps",
            ending.run, ending.calm_steps, ending.calm_steps_max
        ))
    }
}
