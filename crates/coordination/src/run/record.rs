//! A run's own record: the authority on whether its shards may be worked on.

use alloc::vec::Vec;
use core::fmt;

use tessera_contracts::PayloadHash;
use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId};
use tessera_stdx::RingBuffer;

use super::config::RunConfig;
use super::status::{RunGate, RunStatus};

/// How many operations a run remembers. Only two can ever take effect, so nothing is forgotten.
pub const RUN_OP_LOG_CAP: usize = 8;

/// Which operation on a run an entry stands for. Stored by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RunOpKind {
    /// `register_shards`
    RegisterShards = 0,
    /// `complete_run`
    Complete = 1,
    /// `fail_run`
    Fail = 2,
    /// `cancel_run`
    Cancel = 3,
}

const _: () = {
    assert!(RunOpKind::RegisterShards as u8 == 0);
    assert!(RunOpKind::Complete as u8 == 1);
    assert!(RunOpKind::Fail as u8 == 2);
    assert!(RunOpKind::Cancel as u8 == 3);
};

impl RunOpKind {
    /// All kinds, by number.
    pub const ALL: [Self; 4] = [Self::RegisterShards, Self::Complete, Self::Fail, Self::Cancel];

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The kind with this stored number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The operation's name, which is also the tag of its fingerprint.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RegisterShards => "register_shards",
            Self::Complete => "complete_run",
            Self::Fail => "fail_run",
            Self::Cancel => "cancel_run",
        }
    }
}

impl fmt::Display for RunOpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One remembered operation on a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunOpLogEntry {
    /// The caller's idempotency key.
    pub op_id: OpId,
    /// Which operation it was.
    pub kind: RunOpKind,
    /// Fingerprint of the parameters.
    pub payload_hash: PayloadHash,
    /// When it first took effect.
    pub executed_at: LogicalTime,
}

/// One run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunRecord {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Which run it is.
    pub run: RunId,
    /// Which creation of it.
    pub incarnation: RunIncarnation,
    /// What its creator chose.
    pub config: RunConfig,
    /// Where it stands.
    pub status: RunStatus,
    /// When it was created.
    pub created_at: LogicalTime,
    /// When it settled, exactly if it did.
    pub completed_at: Option<LogicalTime>,
    /// The shards it was registered with, by key range.
    pub root_shards: Vec<ShardId>,
    /// The last operations, oldest first.
    pub op_log: RingBuffer<RunOpLogEntry, RUN_OP_LOG_CAP>,
}

/// What a decision writes into a run's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunChange {
    /// The next status.
    pub status: RunStatus,
    /// When it settled, if it did.
    pub completed_at: Option<LogicalTime>,
    /// The operation to remember.
    pub logged: RunOpLogEntry,
}

impl RunRecord {
    /// A run without shards.
    pub const fn newborn(
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        now: LogicalTime,
    ) -> Self {
        Self {
            tenant,
            run,
            incarnation,
            config,
            status: RunStatus::Initializing,
            created_at: now,
            completed_at: None,
            root_shards: Vec::new(),
            op_log: RingBuffer::new(),
        }
    }

    /// What of this binds the shards.
    pub fn gate(&self, default_lease_duration: u64) -> RunGate {
        self.config.gate(self.status, default_lease_duration)
    }

    /// What is remembered of `op_id`.
    pub fn find_op(&self, op_id: OpId) -> Option<&RunOpLogEntry> {
        self.op_log.iter().find(|entry| entry.op_id == op_id)
    }

    /// Carries out a decision; `roots` are the shards it registers, if it is a registration.
    ///
    /// # Panics
    ///
    /// If the result violates an invariant. That is a bug in this crate, and nothing has been stored yet.
    pub fn apply(&mut self, change: &RunChange, roots: impl IntoIterator<Item = ShardId>) {
        assert!(!self.status.is_terminal(), "run {}: illegal transition out of {}", self.run, self.status);
        self.status = change.status;
        self.completed_at = change.completed_at;
        self.op_log.push_back_overwrite(change.logged);
        self.root_shards.extend(roots);
        self.assert_invariants();
    }

    /// The first invariant this record violates.
    pub fn check_invariants(&self) -> Result<(), RunInvariantViolation> {
        let Self { status, completed_at, root_shards, op_log, .. } = self;
        if status.is_terminal() != completed_at.is_some() {
            return Err(RunInvariantViolation::CompletedAtIffSettled { status: *status });
        }
        let has_shards = !root_shards.is_empty();
        let may_have = !matches!(status, RunStatus::Initializing);
        let must_have = matches!(status, RunStatus::Active | RunStatus::Done | RunStatus::Failed);
        if has_shards && !may_have || !has_shards && must_have {
            return Err(RunInvariantViolation::ShardsIffRegistered { status: *status, has_shards });
        }
        if let Some(&shard) = root_shards.iter().find(|shard| shard.is_derived()) {
            return Err(RunInvariantViolation::DerivedRoot { shard });
        }
        for (index, entry) in op_log.iter().enumerate() {
            if op_log.iter().take(index).any(|earlier| earlier.op_id == entry.op_id) {
                return Err(RunInvariantViolation::DuplicateOpId { op_id: entry.op_id });
            }
        }
        Ok(())
    }

    /// Stops the process rather than let a broken record be stored.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    pub fn assert_invariants(&self) {
        if let Err(violation) = self.check_invariants() {
            panic!("run {}: invariant violated: {violation}", self.run);
        }
    }
}

/// The rule a run record breaks. That roots are unique is the manifest's to check; comparing them all after every
/// transition would cost more than the transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RunInvariantViolation {
    /// A completion time is there exactly if the run is settled.
    #[error("run is {status} but its completion time says otherwise")]
    CompletedAtIffSettled {
        /// The status.
        status: RunStatus,
    },
    /// A run that was ever active has shards, one that was not has none.
    #[error("run is {status} and {} root shards", if *.has_shards { "has" } else { "has no" })]
    ShardsIffRegistered {
        /// The status.
        status: RunStatus,
        /// Whether it has shards.
        has_shards: bool,
    },
    /// A root has a root's id.
    #[error("root shard {shard} has a derived id")]
    DerivedRoot {
        /// The shard.
        shard: ShardId,
    },
    /// No op id is remembered twice.
    #[error("operation {op_id} is in the run's op-log twice")]
    DuplicateOpId {
        /// The op id.
        op_id: OpId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RunRecord {
        RunRecord::newborn(
            TenantId::from_bytes([1; 32]),
            RunId::new(1),
            RunIncarnation::new(1),
            RunConfig::default(),
            LogicalTime::new(1),
        )
    }

    #[test]
    fn each_broken_rule_is_named() {
        assert_eq!(record().check_invariants(), Ok(()));
        let mut run = record();
        run.completed_at = Some(LogicalTime::new(2));
        assert!(matches!(run.check_invariants(), Err(RunInvariantViolation::CompletedAtIffSettled { .. })));
        run = record();
        run.status = RunStatus::Cancelled;
        assert!(matches!(run.check_invariants(), Err(RunInvariantViolation::CompletedAtIffSettled { .. })));
        run.completed_at = Some(LogicalTime::new(2));
        assert_eq!(run.check_invariants(), Ok(()), "a run may be cancelled before it has shards");
        run = record();
        run.status = RunStatus::Active;
        assert!(matches!(run.check_invariants(), Err(RunInvariantViolation::ShardsIffRegistered { .. })));
        run = record();
        run.root_shards.push(ShardId::new(1));
        assert!(matches!(run.check_invariants(), Err(RunInvariantViolation::ShardsIffRegistered { .. })));
        run.status = RunStatus::Active;
        assert_eq!(run.check_invariants(), Ok(()));
        run.root_shards.push(ShardId::new(ShardId::DERIVED_BIT));
        assert!(matches!(run.check_invariants(), Err(RunInvariantViolation::DerivedRoot { .. })));
        run = record();
        let entry = RunOpLogEntry {
            op_id: OpId::new(1),
            kind: RunOpKind::Cancel,
            payload_hash: PayloadHash::from_stored(1).unwrap(),
            executed_at: LogicalTime::new(1),
        };
        run.op_log.push_back_overwrite(entry);
        assert_eq!(run.check_invariants(), Ok(()));
        run.op_log.push_back_overwrite(entry);
        assert!(matches!(run.check_invariants(), Err(RunInvariantViolation::DuplicateOpId { .. })));
    }

    #[test]
    fn stored_numbers_round_trip_and_others_are_refused() {
        for kind in RunOpKind::ALL {
            assert_eq!(RunOpKind::from_u8(kind.as_u8()), Some(kind));
        }
        assert_eq!(RunOpKind::from_u8(4), None);
    }
}
