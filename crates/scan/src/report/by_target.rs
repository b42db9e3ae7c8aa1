//! The account of each target by itself.
//!
//! A run over a thousand repositories has one receipt; this says which of them it is about. Every number here is a part of one in
//! the receipt: items and bytes of all targets add up to those of the run.

use std::collections::BTreeMap;

use tessera_contracts::ShardId;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::progress::ShardCounts;
use tessera_coordination::run::summary::ShardSummary;

use crate::findings::tally::Tally;
use crate::plan::heads::HeadCount;
use crate::plan::key;
use crate::plan::record::{Listed, PlanRecord};
use crate::report::receipt::Receipt;

/// What became of one target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetAccount {
    /// What became of its items.
    pub tally: Tally,
    /// What its refs led to, if it is a history.
    pub heads: Option<HeadCount>,
    /// Its shards by state.
    pub shards: ShardCounts,
    /// Why a shard of it was parked.
    pub parked: Option<(ShardId, ParkReason)>,
    /// Whether some of its planned items are not accounted for.
    pub is_short: bool,
}

/// How it stands with a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was read that should have been.
    Complete,
    /// Nothing of it was read yet.
    Waiting,
    /// Some of it was.
    Open,
    /// The rest is not tried again by itself.
    Parked(ParkReason),
    /// It was swept to its end, and not everything could be read.
    Incomplete,
}

/// Accounts of targets, by number.
pub type ByTarget = BTreeMap<u32, TargetAccount>;

impl TargetAccount {
    /// How it stands with the target.
    pub fn outcome(&self) -> Outcome {
        let is_read = self.tally.unreadable_total() == 0 && self.tally.findings_cut == 0 && !self.is_short;
        match self.parked {
            Some((_, reason)) => Outcome::Parked(reason),
            None if self.shards.active > 0 && self.tally.enumerated() == 0 && self.shards.done == 0 => Outcome::Waiting,
            None if self.shards.active > 0 => Outcome::Open,
            None if is_read => Outcome::Complete,
            None => Outcome::Incomplete,
        }
    }

    /// Counts a shard.
    pub fn add_shard(&mut self, shard: &ShardSummary) {
        *self.shards.of_mut(shard.status) += 1;
        if let Some(park) = shard.park {
            self.parked.get_or_insert((shard.shard, park.reason));
        }
    }
}

impl Outcome {
    /// The outcome in a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Waiting => "waiting",
            Self::Open => "open",
            Self::Parked(_) => "parked",
            Self::Incomplete => "incomplete",
        }
    }
}

/// The account of the target that a shard belongs to.
pub fn of_shard<'a>(by_target: &'a mut ByTarget, shard: &ShardSummary) -> &'a mut TargetAccount {
    let target = shard.start.expose().and_then(|start| key::split(start)).map_or(0, |(target, _)| target);
    by_target.entry(target).or_default()
}

/// Fills in what only the plan knows.
pub(crate) fn add_plan(receipt: &mut Receipt, plan: &PlanRecord) {
    for planned in &plan.targets {
        let account = receipt.by_target.entry(planned.target).or_default();
        if let Listed::Objects { heads: Some(heads), .. } = &planned.listed {
            account.heads = Some(heads.count);
        }
    }
    for target in &receipt.plan.short_targets {
        receipt.by_target.entry(*target).or_default().is_short = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::item::UnreadableReason;

    #[test]
    fn a_target_is_complete_only_if_all_of_it_was_read() {
        let mut account = TargetAccount::default();
        account.shards.active = 1;
        assert_eq!(account.outcome(), Outcome::Waiting);
        account.tally.add_scanned(1);
        assert_eq!(account.outcome(), Outcome::Open);
        account.shards = ShardCounts { done: 1, ..ShardCounts::default() };
        assert_eq!(account.outcome(), Outcome::Complete);
        let breaks: [fn(&mut TargetAccount); 3] = [
            |account| account.tally.add_unreadable(UnreadableReason::Io, 1),
            |account| account.tally.findings_cut = 1,
            |account| account.is_short = true,
        ];
        for spoil in breaks {
            let mut account = account.clone();
            spoil(&mut account);
            assert_eq!(account.outcome(), Outcome::Incomplete);
        }
        account.parked = Some((ShardId::new(1), ParkReason::Poisoned));
        assert_eq!(account.outcome(), Outcome::Parked(ParkReason::Poisoned));
    }
}
