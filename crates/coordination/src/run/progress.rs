//! How far a run has come, and whether it has come to an end.

use tessera_contracts::redact::RedactedKey;

use crate::record::status::ShardStatus;

/// Shards of a run by state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ShardCounts {
    /// Open.
    pub active: u32,
    /// Swept.
    pub done: u32,
    /// Replaced by children.
    pub split: u32,
    /// Halted.
    pub parked: u32,
}

impl ShardCounts {
    /// All of them.
    pub const fn total(&self) -> u32 {
        self.active + self.done + self.split + self.parked
    }

    /// The count of one state, to be changed.
    pub const fn of_mut(&mut self, status: ShardStatus) -> &mut u32 {
        match status {
            ShardStatus::Active => &mut self.active,
            ShardStatus::Done => &mut self.done,
            ShardStatus::Split => &mut self.split,
            ShardStatus::Parked => &mut self.parked,
        }
    }

    /// Moves one shard from a state to another.
    pub const fn shift(&mut self, from: ShardStatus, to: ShardStatus) {
        *self.of_mut(from) -= 1;
        *self.of_mut(to) += 1;
    }
}

/// How far a run has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunProgress {
    /// Shards by state.
    pub counts: ShardCounts,
    /// Open shards with a live lease; never more than are active.
    pub leased: u32,
    /// The smallest `last_key` among open shards that have one: a rough sign of the slowest front.
    ///
    /// It is not a promise. It can move back (a split makes a shard that starts behind, an unpark revives one), and open
    /// shards without any progress are not in it, so it can run ahead of work not yet begun.
    pub watermark: RedactedKey,
}

/// What the states of a run's shards say about the run. Advice: only `complete_run`, `fail_run` and `cancel_run` settle it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RunTerminalEvaluation {
    /// Something is open, or nothing is registered yet.
    StillActive,
    /// All is settled, but something is parked.
    HasFailures,
    /// Everything is done or split.
    AllDone,
}

/// Judges a run by its shards.
pub const fn evaluate_run_terminal(counts: &ShardCounts) -> RunTerminalEvaluation {
    if counts.active > 0 || counts.total() == 0 {
        RunTerminalEvaluation::StillActive
    } else if counts.parked > 0 {
        RunTerminalEvaluation::HasFailures
    } else {
        RunTerminalEvaluation::AllDone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_open_shard_keeps_a_run_going_and_one_parked_shard_keeps_it_from_being_done() {
        let counts = |active, done, split, parked| ShardCounts { active, done, split, parked };
        assert_eq!(evaluate_run_terminal(&counts(0, 0, 0, 0)), RunTerminalEvaluation::StillActive);
        assert_eq!(evaluate_run_terminal(&counts(1, 5, 1, 1)), RunTerminalEvaluation::StillActive);
        assert_eq!(evaluate_run_terminal(&counts(0, 5, 1, 1)), RunTerminalEvaluation::HasFailures);
        assert_eq!(evaluate_run_terminal(&counts(0, 5, 1, 0)), RunTerminalEvaluation::AllDone);
    }

    #[test]
    fn every_shard_is_counted_once_whatever_its_state() {
        assert_eq!(ShardCounts { active: 1, done: 20, split: 300, parked: 4_000 }.total(), 4_321);
    }
}
