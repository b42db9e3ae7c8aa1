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
    match record.find_op(op_id) {
        None => Ok(false),
        Some(entry) if entry.kind == kind && entry.payload_hash == payload_hash => Ok(true),
        Some(entry) => Err(OpIdConflict::new(op_id, entry.payload_hash, payload_hash)),
    }
}
