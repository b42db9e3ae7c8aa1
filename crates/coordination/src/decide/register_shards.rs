//! Register shards: a run gets its roots, all at once, and becomes active.

use alloc::vec::Vec;

use tessera_contracts::ids::{LogicalTime, OpId, ShardKey};
use tessera_contracts::manifest::Manifest;

use super::settle_run::check_run_op;
use super::{Birth, Verdict};
use crate::error::{IdempotentOutcome, RegisterShardsError};
use crate::payload;
use crate::run::record::{RunChange, RunOpKind, RunOpLogEntry, RunRecord};
use crate::run::status::RunStatus;
use crate::shard_limits::{ShardCensus, check_shard_limits};

/// A registration to carry out: readers see the run and all of its shards, or neither.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration<'r> {
    /// What becomes of the run.
    pub change: RunChange,
    /// The shards, by key range.
    pub births: Vec<Birth<'r>>,
}

/// Decides whether the shards are registered; the answer is how many.
pub fn decide<'r>(
    record: &RunRecord,
    manifest: &Manifest<'r>,
    op_id: OpId,
    census: &ShardCensus,
    now: LogicalTime,
) -> Result<Verdict<Registration<'r>, u32>, RegisterShardsError> {
    let payload_hash = payload::register_shards(manifest);
    let kind = RunOpKind::RegisterShards;
    let count = manifest.shards().len() as u32;
    if check_run_op(record, op_id, kind, payload_hash)? {
        return Ok(Verdict::Replay(IdempotentOutcome::Replayed(count)));
    }
    if record.status != RunStatus::Initializing {
        return Err(RegisterShardsError::NotInitializing { run: record.run, status: record.status });
    }
    check_shard_limits(census, u64::from(count))?;
    let births = manifest
        .shards()
        .iter()
        .map(|root| Birth {
            key: ShardKey::new(record.run, root.shard),
            spec: root.spec,
            cursor: root.cursor,
            cursor_semantics: record.config.cursor_semantics,
            parent: None,
            payload_hash,
        })
        .collect();
    let logged = RunOpLogEntry { op_id, kind, payload_hash, executed_at: now };
    let change = RunChange { status: RunStatus::Active, completed_at: None, logged };
    Ok(Verdict::Execute(Registration { change, births }))
}
