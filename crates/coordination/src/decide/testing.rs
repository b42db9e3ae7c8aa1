//! A shard to decide about, for unit tests.

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::{CursorSemantics, CursorUpdate, PayloadHash, ShardSpecRef};

use super::{Birth, acquire};
use crate::record::lease::Lease;
use crate::record::op_log::OP_LOG_CAP;
use crate::record::shard_record::ShardRecord;
use crate::record::view::{OwnerSignal, ShardView};
use crate::run::status::{RunGate, RunStatus};

pub(crate) const TENANT: TenantId = TenantId::from_bytes([7; 32]);
pub(crate) const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
pub(crate) const INCARNATION: RunIncarnation = RunIncarnation::new(5);
pub(crate) const WORKER: WorkerId = WorkerId::new(10);
pub(crate) const OTHER: WorkerId = WorkerId::new(20);
pub(crate) const LEASE_DURATION: u64 = 100;

pub(crate) fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

pub(crate) fn op(id: u64) -> OpId {
    OpId::new(id)
}

pub(crate) fn fence(epoch: u64) -> FenceEpoch {
    FenceEpoch::new(epoch)
}

pub(crate) fn epoch(fence: u64) -> ShardEpoch {
    ShardEpoch::new(INCARNATION, FenceEpoch::new(fence))
}

pub(crate) fn key(bytes: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::at_key(bytes).unwrap()
}

/// A shard over `[b, m)` with the gate and owner signal it is to be seen with.
#[derive(Clone, Debug)]
pub(crate) struct Shard<const LOG: usize = OP_LOG_CAP> {
    pub(crate) record: ShardRecord<LOG>,
    pub(crate) gate: RunGate,
    pub(crate) owner: OwnerSignal,
}

impl<const LOG: usize> Shard<LOG> {
    pub(crate) fn new() -> Self {
        let birth = Birth {
            key: KEY,
            incarnation: INCARNATION,
            spec: ShardSpecRef::new(b"b", b"m", b"meta").unwrap(),
            cursor: CursorUpdate::initial(),
            cursor_semantics: CursorSemantics::Completed,
            parent: None,
            payload_hash: PayloadHash::from_stored(1).unwrap(),
        };
        Self {
            record: ShardRecord::newborn(TENANT, &birth),
            gate: RunGate { status: RunStatus::Active, lease_duration: LEASE_DURATION, max_shard_retries: 0 },
            owner: OwnerSignal::Alive,
        }
    }

    /// The shard, acquired by [`WORKER`] at time 1000, so leased until 1100.
    pub(crate) fn leased() -> (Self, Lease) {
        let mut shard = Self::new();
        let lease = shard.acquire(WORKER, 1000);
        (shard, lease)
    }

    pub(crate) fn view(&self) -> ShardView<'_, LOG> {
        self.record.view(self.gate, self.owner)
    }

    pub(crate) fn acquire(&mut self, worker: WorkerId, now: u64) -> Lease {
        let acquired = acquire::decide(&self.view(), worker, at(now), 0).unwrap();
        self.record.apply(&acquired.change, &[]);
        acquired.outcome.unwrap()
    }

    pub(crate) fn settle_run(&mut self) {
        self.gate.status = RunStatus::Cancelled;
    }
}

/// Decides a lease-gated operation on `$shard` and, if it is to be executed, carries it out.
macro_rules! run {
    ($shard:expr, $lease:expr, $decide:path $(, $arg:expr)*) => {{
        let decided = $decide(&$shard.view(), $lease.presented_by(TENANT).unwrap() $(, $arg)*);
        decided.map(|verdict| match verdict {
            Verdict::Execute(change) => {
                $shard.record.apply(&change, &[]);
                IdempotentOutcome::Executed(())
            }
            Verdict::Replay(outcome) => outcome,
        })
    }};
}
pub(crate) use run;
