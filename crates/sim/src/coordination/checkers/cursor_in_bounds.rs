//! A cursor lies in its shard's range.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct CursorInBounds;

impl Checker for CursorInBounds {
    fn name(&self) -> &'static str {
        "CursorInBounds"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let record = &change.after;
            if record.cursor.last_key().is_some_and(|key| !record.spec.range().contains(key)) {
                return Err(format!("shard {}: the last key lies outside the range", record.key));
            }
        }
        Ok(())
    }
}
