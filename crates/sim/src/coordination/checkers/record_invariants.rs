//! Every record keeps the ten invariants.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct RecordInvariants;

impl Checker for RecordInvariants {
    fn name(&self) -> &'static str {
        "RecordInvariants"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let record = &change.after;
            record.check_invariants().map_err(|violation| format!("shard {}: {violation}", record.key))?;
        }
        Ok(())
    }
}
