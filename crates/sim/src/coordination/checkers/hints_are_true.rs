//! A capacity hint says how many shards can be claimed and when the next lease ends.
//!
//! A store may lose sight of a holder, whose shard can then be claimed; and may fail to give a hint, which then says nothing.

use tessera_coordination::record::snapshot::CapacityHint;
use tessera_coordination::record::status::ShardStatus;

use crate::coordination::call::Answer;
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HintsAreTrue {
    latest: u64,
}

impl Checker for HintsAreTrue {
    fn name(&self) -> &'static str {
        "HintsAreTrue"
    }

    fn after_restart(&mut self) {
        self.latest = 0;
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let hint = match sight.answer {
            Answer::Granted { hint, .. } => hint,
            Answer::Renewed(renewed) => &renewed.capacity,
            _ => return Ok(()),
        };
        let at = sight.call.at.get();
        // Coordinators never unsee a time. A caller whose clock is behind gets the hint of the latest clock seen.
        self.latest = self.latest.max(at);
        if at < self.latest || sight.run.is_none_or(|run| run.status.is_terminal()) {
            return Ok(());
        }
        let horizon = at.saturating_sub(sight.config.skew_allowance);
        if sight.vouched.is_some() && *hint == CapacityHint::default() {
            return Ok(());
        }
        let open = sight.records.values().filter(|record| record.state.head.status == ShardStatus::Active);
        let leases: Vec<Option<u64>> = open
            .map(|record| {
                let in_sight = sight.vouched.is_none_or(|vouched| vouched.contains(&record.key.shard));
                record.state.head.lease.filter(|_| in_sight).map(|holder| holder.deadline.get())
            })
            .collect();
        let claimable = leases.iter().filter(|lease| lease.is_none_or(|deadline| deadline <= horizon)).count();
        if hint.available_count as usize != claimable {
            return Err(format!("{} shards are said to be claimable, and {claimable} are", hint.available_count));
        }
        let soonest = leases.iter().flatten().copied().filter(|deadline| *deadline > horizon).min();
        let told = hint.earliest_deadline.map(|deadline| deadline.get());
        if told != soonest {
            return Err(format!("the next lease is said to end at {told:?}, and it does at {soonest:?}"));
        }
        Ok(())
    }
}
