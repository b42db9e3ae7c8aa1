//! The account of a run: what was met, and what became of each part of it.
//!
//! A run is *complete* if every shard was swept to its end, nothing that should have been read was unreadable, and no
//! findings were lost. Only a complete run without findings is clean.

use tessera_coordination::run::progress::ShardCounts;

use crate::sink::record::Note;
use crate::sink::{Damage, Merged};
use crate::tally::Tally;

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
        }
    }

    /// Whether everything was read that should have been.
    pub fn is_complete(&self) -> bool {
        self.shards.active == 0
            && self.shards.parked == 0
            && self.tally.unreadable_total() == 0
            && self.tally.findings_cut == 0
            && self.shards_short == 0
            && !self.damage.iter().any(Damage::loses_findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{SkipReason, UnreadableReason};

    fn receipt() -> Receipt {
        let mut merged = Merged::default();
        merged.tally.add_scanned(1);
        merged.tally.add_skipped(SkipReason::Binary, 5);
        Receipt::new(&merged, ShardCounts { done: 2, split: 1, ..ShardCounts::default() }, Vec::new(), 0)
    }

    #[test]
    fn what_was_left_out_on_purpose_does_not_make_a_run_incomplete() {
        assert!(receipt().is_complete());
    }

    #[test]
    fn anything_not_read_does() {
        let breaks: [fn(&mut Receipt); 6] = [
            |receipt| receipt.shards.active = 1,
            |receipt| receipt.shards.parked = 1,
            |receipt| receipt.tally.add_unreadable(UnreadableReason::Io, 1),
            |receipt| receipt.tally.findings_cut = 1,
            |receipt| receipt.shards_short = 1,
            |receipt| receipt.damage.push(Damage::Gap { shard: tessera_contracts::ShardId::new(1) }),
        ];
        for (index, spoil) in breaks.into_iter().enumerate() {
            let mut receipt = receipt();
            spoil(&mut receipt);
            assert!(!receipt.is_complete(), "case {index}");
        }
    }
}
