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
            incarnation: record.incarnation,
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

#[cfg(test)]
mod tests {
    use tessera_contracts::ids::{RunId, RunIncarnation, ShardId, TenantId};
    use tessera_contracts::manifest::{InitialShardInput, validate_manifest};

    use super::*;
    use crate::run::config::RunConfig;
    use crate::shard_limits::ShardLimits;

    fn record() -> RunRecord {
        RunRecord::newborn(
            TenantId::from_bytes([1; 32]),
            RunId::new(1),
            RunIncarnation::new(1),
            RunConfig::default(),
            LogicalTime::new(1),
        )
    }

    const INPUTS: [InitialShardInput<'static>; 2] =
        [InitialShardInput::new(ShardId::new(2), b"m", b"z"), InitialShardInput::new(ShardId::new(1), b"a", b"m")];

    fn register(
        record: &mut RunRecord,
        inputs: &[InitialShardInput<'_>],
        id: u64,
        held: u64,
    ) -> Result<bool, RegisterShardsError> {
        let census =
            ShardCensus { limits: ShardLimits { per_tenant_max: 5, total_max: 5 }, of_tenant: held, total: held };
        let manifest = validate_manifest(inputs).unwrap();
        match decide(record, &manifest, OpId::new(id), &census, LogicalTime::new(2))? {
            Verdict::Execute(registration) => {
                record.apply(&registration.change, registration.births.iter().map(|birth| birth.key.shard));
                Ok(true)
            }
            Verdict::Replay(outcome) => {
                assert_eq!(outcome, IdempotentOutcome::Replayed(inputs.len() as u32));
                Ok(false)
            }
        }
    }

    #[test]
    fn a_registered_run_is_active_with_its_roots_and_a_retry_changes_nothing() {
        let mut run = record();
        assert_eq!(register(&mut run, &INPUTS, 7, 0), Ok(true));
        assert_eq!(run.status, RunStatus::Active);
        assert_eq!(run.root_shards, [ShardId::new(1), ShardId::new(2)]);
        let before = run.clone();
        assert_eq!(register(&mut run, &INPUTS, 7, 5), Ok(false), "limits do not bind a retry");
        assert_eq!(register(&mut run, &[INPUTS[1], INPUTS[0]], 7, 0), Ok(false), "order is no difference");
        assert_eq!(run, before);
        assert!(matches!(register(&mut run, &INPUTS[..1], 7, 0), Err(RegisterShardsError::OpIdConflict(_))));
        assert!(matches!(register(&mut run, &INPUTS, 8, 0), Err(RegisterShardsError::NotInitializing { .. })));
        assert!(matches!(register(&mut record(), &INPUTS, 0, 0), Err(RegisterShardsError::OpIdConflict(_))));
    }

    #[test]
    fn the_last_shard_that_fits_is_registered_and_the_next_is_not() {
        assert_eq!(register(&mut record(), &INPUTS, 7, 3), Ok(true));
        assert!(matches!(register(&mut record(), &INPUTS, 7, 4), Err(RegisterShardsError::LimitExceeded(_))));
    }
}
