//! The account of a run: what was met, and what became of each part of it.
//!
//! A run is *complete* if every shard was swept to its end, everything that was planned was met, nothing that should have been
//! read was unreadable, and no findings were lost. Only a complete run without findings is clean.

use tessera_coordination::run::progress::ShardCounts;

use crate::findings::record::Note;
use crate::findings::tally::Tally;
use crate::findings::{Damage, Merged};
use crate::plan::record::{PlanError, PlanRecord};
use crate::plan::target::{Target, TargetKind};
use crate::report::by_target::{self, ByTarget, TargetAccount};
use crate::run::left_out::LeftOut;
use crate::source::item::UnreadableReason;
use crate::sweep::recheck::is_suspect;

/// The account of a run.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// What became of items.
    pub tally: Tally,
    /// Shards by state.
    pub shards: ShardCounts,
    /// Why shards were parked, in words.
    pub parked: Vec<String>,
    /// Some of the things that could not be read.
    pub notes: Vec<Note>,
    /// What is wrong with the findings folder.
    pub damage: Vec<Damage>,
    /// Shards whose findings do not reach as far as the coordinator says.
    pub shards_short: u64,
    /// What was planned, and how much of it was met.
    pub plan: PlanAccount,
    /// The same of each target by itself.
    pub by_target: ByTarget,
}

/// What was planned, and how much of it was met.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanAccount {
    /// Items that were to be read.
    pub planned: u64,
    /// Of these, those whose fate is known: read, skipped, unreadable, or found missing.
    pub met: u64,
    /// Items that were met and not planned.
    pub added: u64,
    /// Items that were read before a command went on with their scan, and not compared since.
    pub uncompared: u64,
    /// Targets of which not every planned item is accounted for, by number.
    pub short_targets: Vec<u32>,
    /// Why the plan cannot be read.
    pub problem: Option<String>,
    /// What was asked for and was not scanned at all.
    pub left_out: Vec<LeftOut>,
}

/// What no scan of these targets searches, so that a clean one says nothing about it.
pub fn not_searched(targets: &[Target]) -> Vec<&'static str> {
    let mut kinds = vec!["names of files"];
    if targets.iter().any(|target| matches!(target.kind, TargetKind::Objects { .. })) {
        kinds.extend(["messages of commits and tags", "objects that no ref leads to"]);
    }
    kinds
}

impl PlanAccount {
    /// Holds what was merged against the plan.
    pub fn new(plan: &Result<PlanRecord, PlanError>, merged: &Merged) -> Self {
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return Self { problem: Some(error.to_string()), ..Self::default() },
        };
        let mut account = Self { planned: plan.planned(), left_out: plan.left_out.clone(), ..Self::default() };
        for target in &plan.targets {
            let met = merged.coverage.get(&target.target).copied().unwrap_or_default();
            account.met = account.met.saturating_add(met.planned);
            account.added = account.added.saturating_add(met.added);
            if !met.covers(&target.planned) {
                account.short_targets.push(target.target);
            }
        }
        let suspects = merged.segments.iter().filter(|segment| is_suspect(segment, plan));
        account.uncompared = suspects.fold(0, |sum, segment| sum.saturating_add(segment.tally.enumerated()));
        account
    }

    /// Whether everything that was planned was met, as it is now.
    pub fn is_covered(&self) -> bool {
        self.short_targets.is_empty() && self.uncompared == 0 && self.problem.is_none() && self.left_out.is_empty()
    }
}

impl Receipt {
    /// The account of what was merged.
    pub fn new(merged: &Merged, shards: ShardCounts, parked: Vec<String>, shards_short: u64) -> Self {
        Self {
            tally: merged.tally.clone(),
            shards,
            parked,
            notes: merged.notes.clone(),
            damage: merged.damage.clone(),
            shards_short,
            plan: PlanAccount::default(),
            by_target: merged.tallies.iter().map(|(&target, tally)| (target, account_of(tally))).collect(),
        }
    }

    /// The same account, held against a plan.
    #[must_use]
    pub fn against(self, plan: &Result<PlanRecord, PlanError>, merged: &Merged) -> Self {
        let mut receipt = Self { plan: PlanAccount::new(plan, merged), ..self };
        if let Ok(plan) = plan {
            by_target::add_plan(&mut receipt, plan);
        }
        receipt
    }

    /// Planned items that were not there when their turn came.
    pub fn planned_not_read(&self) -> u64 {
        self.tally.unreadable.get(&UnreadableReason::PlannedNotRead).copied().unwrap_or(0)
    }

    /// Whether everything was read that should have been.
    pub fn is_complete(&self) -> bool {
        self.shards.active == 0
            && self.shards.parked == 0
            && self.tally.unreadable_total() == 0
            && self.tally.findings_cut == 0
            && self.shards_short == 0
            && self.plan.is_covered()
            && !self.damage.iter().any(Damage::loses_findings)
    }
}

fn account_of(tally: &Tally) -> TargetAccount {
    TargetAccount { tally: tally.clone(), ..TargetAccount::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::coverage::Coverage;
    use crate::plan::record::{Listed, PlanId, TargetPlan};
    use crate::source::item::SkipReason;

    fn receipt() -> Receipt {
        let mut merged = Merged::default();
        merged.tally.add_scanned(1);
        merged.tally.add_skipped(SkipReason::Binary, 5);
        Receipt::new(&merged, ShardCounts { done: 2, split: 1, ..ShardCounts::default() }, Vec::new(), 0)
    }

    /// Targets, and the keys that were passed of each.
    type Passed<'p> = &'p [(u32, &'p [u8])];

    /// The account of a plan of two targets, with three items each, after workers passed these.
    fn account(passed: Passed<'_>) -> PlanAccount {
        let planned = |target: u32| {
            let mut planned = Coverage::default();
            (1..=3).for_each(|key| planned.pass(&[target as u8, key]));
            let listed = Listed::Paths { name: [0; 16] };
            TargetPlan { target, path: "/srv".into(), rules: 0, items: 3, bytes: 0, planned, listed }
        };
        let targets = vec![planned(0), planned(1)];
        let plan = PlanRecord { id: PlanId(1), made_at: 0, program: String::new(), targets, left_out: Vec::new() };
        let mut merged = Merged::default();
        for (target, keys) in passed {
            let met = merged.coverage.entry(*target).or_default();
            keys.iter().for_each(|key| met.pass(&[*target as u8, *key]));
        }
        PlanAccount::new(&Ok(plan), &merged)
    }

    #[test]
    fn a_target_of_which_less_was_met_than_planned_is_short_and_a_sum_over_targets_hides_nothing() {
        assert!(account(&[(0, &[1, 2, 3]), (1, &[3, 2, 1])]).is_covered());
        let cases: [(Passed<'_>, &[u32]); 5] = [
            (&[(0, &[1, 2, 3])], &[1]),
            (&[(0, &[1, 2, 3]), (1, &[1, 2])], &[1]),
            (&[(0, &[1, 2, 3, 4]), (1, &[1, 2])], &[0, 1]),
            (&[(0, &[1, 2, 4]), (1, &[1, 2, 3])], &[0]),
            (&[], &[0, 1]),
        ];
        for (passed, short) in cases {
            let account = account(passed);
            assert_eq!((account.short_targets.as_slice(), account.is_covered()), (short, false), "{passed:?}");
            assert!(!Receipt { plan: account, ..receipt() }.is_complete());
        }
    }

    #[test]
    fn what_was_left_out_on_purpose_does_not_make_a_run_incomplete() {
        assert!(receipt().is_complete());
    }

    #[test]
    fn anything_not_read_does() {
        let breaks: [fn(&mut Receipt); 11] = [
            |receipt| receipt.shards.active = 1,
            |receipt| receipt.shards.parked = 1,
            |receipt| receipt.tally.add_unreadable(UnreadableReason::Io, 1),
            |receipt| receipt.tally.findings_cut = 1,
            |receipt| receipt.shards_short = 1,
            |receipt| receipt.tally.add_unreadable(UnreadableReason::PlannedNotRead, 1),
            |receipt| receipt.plan.short_targets.push(0),
            |receipt| receipt.plan.uncompared = 1,
            |receipt| receipt.plan.problem = Some("damaged".into()),
            |receipt| receipt.plan.left_out.push(LeftOut::found("/gone".as_ref(), "it is not there")),
            |receipt| receipt.damage.push(Damage::Gap { shard: tessera_contracts::ShardId::new(1) }),
        ];
        for (index, spoil) in breaks.into_iter().enumerate() {
            let mut receipt = receipt();
            spoil(&mut receipt);
            assert!(!receipt.is_complete(), "case {index}");
        }
    }
}
