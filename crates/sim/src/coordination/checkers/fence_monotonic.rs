//! Fence epochs never go down.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct FenceMonotonic;

impl Checker for FenceMonotonic {
    fn name(&self) -> &'static str {
        "FenceMonotonic"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let (before, after) =
                (change.before.as_ref().map(|before| before.state.head.fence), change.after.state.head.fence);
            if before.is_some_and(|before| before > after) {
                return Err(format!("shard {}: the fence went back to {after}", change.after.key));
            }
        }
        Ok(())
    }
}
