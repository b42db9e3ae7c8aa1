//! A new owner has a new fence epoch.

use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct OwnerChangeBumpsFence;

impl Checker for OwnerChangeBumpsFence {
    fn name(&self) -> &'static str {
        "OwnerChangeBumpsFence"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let Some(before) = &change.before else { continue };
            let owner = |record: &tessera_coordination::record::shard_record::ShardRecord| {
                record.state.head.lease.map(|holder| holder.owner)
            };
            let (old, new) = (owner(before), owner(&change.after));
            if new.is_some() && new != old && change.after.state.head.fence <= before.state.head.fence {
                return Err(format!("shard {}: a new owner under an old fence", change.after.key));
            }
        }
        Ok(())
    }
}
