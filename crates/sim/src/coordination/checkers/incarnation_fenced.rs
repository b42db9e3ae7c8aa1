//! A lease, an order or an unpark of a former incarnation of the run takes no effect and is not answered as a success, and the
//! result store takes no result of a former incarnation.
//!
//! Fences start anew in each incarnation, so a worker of the retired run may hold the same shard under the same fence in the
//! next one: nothing but the incarnation tells the two leases apart.

use std::collections::BTreeMap;

use tessera_contracts::ids::{RunIncarnation, ShardId};
use tessera_coordination::record::shard_record::ShardRecord;

use crate::coordination::call::Answer;
use crate::coordination::sink::ResultWrite;
use crate::coordination::watch::{Change, Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct IncarnationFenced {
    /// The run that is there; results are judged by it.
    current: Option<RunIncarnation>,
}

impl Checker for IncarnationFenced {
    fn name(&self) -> &'static str {
        "IncarnationFenced"
    }

    fn after_late(
        &mut self,
        changes: &[Change],
        _: Option<&std::collections::BTreeSet<ShardId>>,
    ) -> Result<(), String> {
        self.current = changes.first().map(|change| change.after.incarnation);
        Ok(())
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        self.current = sight.run.map(|run| run.incarnation);
        let Some(presented) = sight.other_incarnation() else { return check_records(sight) };
        let (request, presented) = (&sight.call.request, presented.get());
        if matches!(sight.answer, Answer::Accepted { .. } | Answer::Granted { .. } | Answer::Renewed(_)) {
            return Err(format!("{request}: incarnation {presented} is gone, and the answer was {}", sight.answer));
        }
        // A store that lost sight of a holder has lost its renewals, too; and a slow call may have met another's
        // write.
        let in_sight = |change: &&Change| sight.vouched.is_none_or(|vouched| vouched.contains(&change.after.key.shard));
        let is_changed = |change: &&Change| change.before.as_ref().is_some_and(|before| *before != change.after);
        match sight.changes.iter().filter(in_sight).find(is_changed).filter(|_| !sight.waited) {
            Some(change) => {
                Err(format!("{request}: incarnation {presented} is gone, and shard {} changed", change.after.key))
            }
            None => check_records(sight),
        }
    }

    fn after_result(&mut self, result: &ResultWrite, _: &BTreeMap<ShardId, ShardRecord>) -> Result<(), String> {
        let ResultWrite { worker, shard, incarnation, key, .. } = *result;
        if self.current.is_none_or(|current| current == incarnation) {
            return Ok(());
        }
        Err(format!("key {key} of shard {shard} was recorded by worker {worker} for incarnation {}", incarnation.get()))
    }
}

/// A run and its shards are of one incarnation.
fn check_records(sight: &Sight<'_>) -> Result<(), String> {
    let Some(run) = sight.run else { return Ok(()) };
    match sight.changes.iter().find(|change| change.after.incarnation != run.incarnation) {
        Some(change) => {
            let (found, of_run) = (change.after.incarnation.get(), run.incarnation.get());
            Err(format!("shard {} is of incarnation {found} in a run of incarnation {of_run}", change.after.key))
        }
        None => Ok(()),
    }
}
