//! Nothing takes effect in a settled run but its retirement.

use crate::coordination::call::Request;
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct SettledRunIsQuiet;

impl Checker for SettledRunIsQuiet {
    fn name(&self) -> &'static str {
        "SettledRunIsQuiet"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let retires = matches!(sight.call.request, Request::Retire { .. });
        if sight.was_settled() && sight.is_executed() && !retires {
            return Err(format!("{:?} took effect although the run is settled", sight.call.request));
        }
        Ok(())
    }
}
