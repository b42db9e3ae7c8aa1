//! A cursor never goes back.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct CursorMonotonic;

impl Checker for CursorMonotonic {
    fn name(&self) -> &'static str {
        "CursorMonotonic"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let before = change.before.as_ref().and_then(|before| before.cursor.last_key());
            if before > change.after.cursor.last_key() {
                return Err(format!("shard {}: progress went back", change.after.key));
            }
        }
        Ok(())
    }
}
