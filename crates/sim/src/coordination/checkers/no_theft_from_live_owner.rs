//! A lease is not taken from a worker whose own clock calls it live, while clocks differ by no more than is tolerated; and the
//! deadline that a worker was promised is not put back, so that others would take it sooner.
//!
//! A store with sessions may take a lost one for a lost worker. So it is judged only where the store vouched for the holder
//! when it was asked, no time passed in it meanwhile, and the holder did not lose its session by asking itself.

use std::collections::BTreeSet;

use tessera_contracts::ids::ShardId;

use crate::coordination::call::Answer;
use crate::coordination::watch::{Change, Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct NoTheftFromLiveOwner;

impl Checker for NoTheftFromLiveOwner {
    fn name(&self) -> &'static str {
        "NoTheftFromLiveOwner"
    }

    fn after_late(&mut self, changes: &[Change], vouched: Option<&BTreeSet<ShardId>>) -> Result<(), String> {
        check_promises(changes, vouched)
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        check_promises(sight.changes, sight.vouched)?;
        let Answer::Granted { lease, .. } = sight.answer else { return Ok(()) };
        let taken = sight.changes.iter().find(|change| change.after.key.shard == lease.shard());
        let Some(holder) = taken.and_then(|change| change.before.as_ref()?.state.head.lease) else { return Ok(()) };
        let owner = holder.owner.get() as usize - 1;
        let was_gone = sight.vouched_before.is_some_and(|vouched| !vouched.contains(&lease.shard()));
        let lost_it_now = sight.vouched_before.is_some() && sight.worker() == Some(owner);
        if was_gone || lost_it_now || sight.waited {
            return Ok(());
        }
        let clock = sight.now.saturating_add_signed(sight.clock_offsets[owner]);
        if clock < holder.deadline.get() {
            let deadline = holder.deadline;
            return Err(format!(
                "shard {} was taken from worker {owner} at its {clock}, before {deadline}",
                lease.shard()
            ));
        }
        Ok(())
    }
}

/// Under one fence, a deadline moves forward only. A holder that the store lost sight of has lost its renewals, too.
fn check_promises(changes: &[Change], vouched: Option<&BTreeSet<ShardId>>) -> Result<(), String> {
    let in_sight = |change: &&Change| vouched.is_none_or(|vouched| vouched.contains(&change.after.key.shard));
    for change in changes.iter().filter(in_sight) {
        let Some(before) = &change.before else { continue };
        let (was, is) = (&before.state.head, &change.after.state.head);
        if let (Some(promised), Some(found)) = (was.lease, is.lease)
            && was.fence == is.fence
            && found.deadline < promised.deadline
        {
            let (key, fence) = (change.after.key, is.fence);
            return Err(format!(
                "shard {key}, fence {fence}: {} was put back to {}",
                promised.deadline, found.deadline
            ));
        }
    }
    Ok(())
}
