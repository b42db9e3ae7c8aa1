//! Complete, fail or cancel a run.
//!
//! Settling is binding: from then on no shard of the run is acquired, checkpointed, split, parked, released or unparked,
//! and holders learn of it at their next renewal. *Done* means that every key was swept, so a run with open or parked
//! shards cannot be completed: what was not read is never called done. It can be failed or cancelled.

use tessera_contracts::PayloadHash;
use tessera_contracts::ids::{LogicalTime, OpId};

use super::Verdict;
use crate::error::{IdempotentOutcome, OpIdConflict, RunTransitionError};
use crate::events::EventKind;
use crate::payload;
use crate::run::progress::{RunTerminalEvaluation, ShardCounts, evaluate_run_terminal};
use crate::run::record::{RunChange, RunOpKind, RunOpLogEntry, RunRecord};
use crate::run::status::RunStatus;

/// How a run is to end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Settlement {
    /// `complete_run`: every shard is done or split.
    Complete,
    /// `fail_run`: given up with something left undone.
    Fail,
    /// `cancel_run`: called off.
    Cancel,
}

impl Settlement {
    /// The status it leads to.
    pub const fn status(self) -> RunStatus {
        match self {
            Self::Complete => RunStatus::Done,
            Self::Fail => RunStatus::Failed,
            Self::Cancel => RunStatus::Cancelled,
        }
    }

    /// How the op-log remembers it.
    pub const fn kind(self) -> RunOpKind {
        match self {
            Self::Complete => RunOpKind::Complete,
            Self::Fail => RunOpKind::Fail,
            Self::Cancel => RunOpKind::Cancel,
        }
    }

    /// What to tell observers.
    pub const fn event(self) -> EventKind {
        match self {
            Self::Complete => EventKind::RunCompleted,
            Self::Fail => EventKind::RunFailed,
            Self::Cancel => EventKind::RunCancelled,
        }
    }

    const fn starts_from(self, status: RunStatus) -> bool {
        match self {
            Self::Complete | Self::Fail => matches!(status, RunStatus::Active),
            Self::Cancel => !status.is_terminal(),
        }
    }
}

/// Decides whether the run is settled. `counts` are the run's shards by state, as of the step that stores the result.
pub fn decide(
    record: &RunRecord,
    settlement: Settlement,
    counts: &ShardCounts,
    op_id: OpId,
    now: LogicalTime,
) -> Result<Verdict<RunChange>, RunTransitionError> {
    let kind = settlement.kind();
    let payload_hash = payload::settle_run(kind);
    if check_run_op(record, op_id, kind, payload_hash)? {
        return Ok(Verdict::Replay(IdempotentOutcome::Replayed(())));
    }
    if !settlement.starts_from(record.status) {
        return Err(RunTransitionError::Illegal { run: record.run, from: record.status, to: settlement.status() });
    }
    if settlement == Settlement::Complete && evaluate_run_terminal(counts) != RunTerminalEvaluation::AllDone {
        let ShardCounts { active, parked, .. } = *counts;
        return Err(RunTransitionError::ShardsOpen { run: record.run, active, parked });
    }
    let logged = RunOpLogEntry { op_id, kind, payload_hash, executed_at: now };
    Ok(Verdict::Execute(RunChange { status: settlement.status(), completed_at: Some(now), logged }))
}

/// Whether the run remembers this operation; a conflict if its id belongs to another.
pub(super) fn check_run_op(
    record: &RunRecord,
    op_id: OpId,
    kind: RunOpKind,
    payload_hash: PayloadHash,
) -> Result<bool, OpIdConflict> {
    if op_id.is_unassigned() {
        return Err(OpIdConflict::unassigned(payload_hash));
    }
    match record.find_op(op_id) {
        None => Ok(false),
        Some(entry) if entry.kind == kind && entry.payload_hash == payload_hash => Ok(true),
        Some(entry) => Err(OpIdConflict::new(op_id, entry.payload_hash, payload_hash)),
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ids::{RunId, RunIncarnation, ShardId, TenantId};

    use super::*;
    use crate::run::config::RunConfig;

    fn run(status: RunStatus) -> RunRecord {
        let mut record = RunRecord::newborn(
            TenantId::from_bytes([1; 32]),
            RunId::new(1),
            RunIncarnation::new(1),
            RunConfig::default(),
            LogicalTime::new(1),
        );
        if status != RunStatus::Initializing {
            record.root_shards.push(ShardId::new(1));
        }
        record.status = status;
        record.completed_at = status.is_terminal().then_some(LogicalTime::new(2));
        record
    }

    const DONE: ShardCounts = ShardCounts { active: 0, done: 2, split: 1, parked: 0 };

    fn settle(record: &RunRecord, how: Settlement, counts: &ShardCounts) -> Result<RunStatus, RunTransitionError> {
        match decide(record, how, counts, OpId::new(9), LogicalTime::new(3))? {
            Verdict::Execute(change) => {
                let mut after = record.clone();
                after.apply(&change, []);
                assert_eq!(after.completed_at, Some(LogicalTime::new(3)));
                Ok(after.status)
            }
            Verdict::Replay(_) => panic!("nothing is remembered"),
        }
    }

    #[test]
    fn an_id_belongs_to_one_way_to_end_a_run_even_if_the_fingerprints_were_the_same() {
        let mut record = run(RunStatus::Active);
        let payload_hash = payload::settle_run(RunOpKind::Cancel);
        let (op_id, executed_at) = (OpId::new(9), LogicalTime::new(2));
        record.op_log.push_back_overwrite(RunOpLogEntry { op_id, kind: RunOpKind::Fail, payload_hash, executed_at });
        assert!(matches!(settle(&record, Settlement::Cancel, &DONE), Err(RunTransitionError::OpIdConflict(_))));
    }

    #[test]
    fn each_transition_starts_where_it_may_and_nowhere_else() {
        for from in RunStatus::ALL {
            for how in [Settlement::Complete, Settlement::Fail, Settlement::Cancel] {
                let allowed = match how {
                    Settlement::Complete | Settlement::Fail => from == RunStatus::Active,
                    Settlement::Cancel => matches!(from, RunStatus::Initializing | RunStatus::Active),
                };
                let illegal = RunTransitionError::Illegal { run: RunId::new(1), from, to: how.status() };
                let expected = if allowed { Ok(how.status()) } else { Err(illegal) };
                assert_eq!(settle(&run(from), how, &DONE), expected, "{from} {how:?}");
            }
        }
    }

    #[test]
    fn a_run_is_complete_when_nothing_is_open_or_parked() {
        let open = |active, parked| ShardCounts { active, parked, ..DONE };
        let refused = |active, parked| Err(RunTransitionError::ShardsOpen { run: RunId::new(1), active, parked });
        let active = run(RunStatus::Active);
        assert_eq!(settle(&active, Settlement::Complete, &open(1, 0)), refused(1, 0));
        assert_eq!(settle(&active, Settlement::Complete, &open(0, 1)), refused(0, 1));
        assert_eq!(settle(&active, Settlement::Complete, &open(0, 0)), Ok(RunStatus::Done));
        assert_eq!(settle(&active, Settlement::Fail, &open(1, 1)), Ok(RunStatus::Failed));
        assert_eq!(settle(&active, Settlement::Cancel, &open(1, 1)), Ok(RunStatus::Cancelled));
    }

    #[test]
    fn a_retry_is_answered_and_a_reused_id_is_not() {
        let mut record = run(RunStatus::Active);
        let now = LogicalTime::new(3);
        let Ok(Verdict::Execute(change)) = decide(&record, Settlement::Cancel, &DONE, OpId::new(9), now) else {
            panic!("a fresh cancel is executed")
        };
        record.apply(&change, []);
        let again = decide(&record, Settlement::Cancel, &DONE, OpId::new(9), now);
        assert_eq!(again, Ok(Verdict::Replay(IdempotentOutcome::Replayed(()))));
        let reused = decide(&record, Settlement::Fail, &DONE, OpId::new(9), now);
        assert!(matches!(reused, Err(RunTransitionError::OpIdConflict(_))));
        let unassigned = decide(&run(RunStatus::Active), Settlement::Fail, &DONE, OpId::UNASSIGNED, now);
        assert!(matches!(unassigned, Err(RunTransitionError::OpIdConflict(_))));
    }

    #[test]
    #[should_panic(expected = "illegal transition out of done")]
    fn a_settled_run_cannot_be_changed_even_by_mistake() {
        let change = RunChange {
            status: RunStatus::Active,
            completed_at: None,
            logged: RunOpLogEntry {
                op_id: OpId::new(1),
                kind: RunOpKind::Cancel,
                payload_hash: payload::settle_run(RunOpKind::Cancel),
                executed_at: LogicalTime::new(1),
            },
        };
        run(RunStatus::Done).apply(&change, []);
    }
}
