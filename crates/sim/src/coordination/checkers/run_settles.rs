//! Once faults stop, the run settles in a bounded number of steps.

use tessera_coordination::run::status::RunStatus;

use crate::coordination::watch::{Checker, Ending};

/// See the module.
#[derive(Debug)]
pub(super) struct RunSettles;

impl Checker for RunSettles {
    fn name(&self) -> &'static str {
        "RunSettles"
    }

    fn at_end(&mut self, ending: &Ending) -> Result<(), String> {
        let Ending { run, calm_steps, calm_steps_max } = ending;
        if run.is_some_and(RunStatus::is_terminal) {
            return Ok(());
        }
        Err(format!("the run is still {run:?} after {calm_steps} of {calm_steps_max} calm steps"))
    }
}
