//! Fingerprints of operations: what makes a retry recognisable.
//!
//! One function per operation with an op id, because the tag in front is part of the stored meaning: a checkpoint and a
//! completion of the same cursor are different operations. Everything the caller chose is hashed; time and lease are not,
//! since a retry comes later and perhaps under a renewed lease.

use tessera_contracts::canonical::{CanonicalBytes, CanonicalSink};
use tessera_contracts::ids::{OpId, ShardEpoch};
use tessera_contracts::manifest::Manifest;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{CursorUpdate, PayloadHash};

use crate::record::history::ReleaseReason;
use crate::record::op_log::OpKind;
use crate::record::park::Park;
use crate::run::record::RunOpKind;
use crate::validation::Operation;

/// `checkpoint`
pub fn checkpoint(op_id: OpId, cursor: CursorUpdate<'_>) -> Operation {
    Operation { op_id, kind: OpKind::Checkpoint, payload_hash: PayloadHash::of("checkpoint", &cursor) }
}

/// `complete`
pub fn complete(op_id: OpId, cursor: CursorUpdate<'_>) -> Operation {
    Operation { op_id, kind: OpKind::Complete, payload_hash: PayloadHash::of("complete", &cursor) }
}

/// `park_shard`
pub fn park(op_id: OpId, park: &Park<'_>) -> Operation {
    Operation { op_id, kind: OpKind::Park, payload_hash: PayloadHash::of("park", park) }
}

/// `split_replace`
pub fn split_replace(op_id: OpId, plan: &SplitReplacePlan) -> Operation {
    Operation { op_id, kind: OpKind::SplitReplace, payload_hash: PayloadHash::of("split_replace", plan) }
}

/// `split_residual`
pub fn split_residual(op_id: OpId, plan: &SplitResidualPlan) -> Operation {
    Operation { op_id, kind: OpKind::SplitResidual, payload_hash: PayloadHash::of("split_residual", plan) }
}

/// `unpark_shard`
pub fn unpark(op_id: OpId, expected: ShardEpoch) -> Operation {
    Operation { op_id, kind: OpKind::Unpark, payload_hash: PayloadHash::of("unpark", &expected) }
}

/// `release`
pub fn release(op_id: OpId, cursor: Option<CursorUpdate<'_>>, reason: ReleaseReason<'_>) -> Operation {
    let payload_hash = PayloadHash::of("release", &(cursor, reason));
    Operation { op_id, kind: OpKind::Release, payload_hash }
}

/// `register_shards`
pub fn register_shards(manifest: &Manifest<'_>) -> PayloadHash {
    PayloadHash::of("register_shards", manifest)
}

/// `complete_run`, `fail_run` or `cancel_run`
pub fn settle_run(kind: RunOpKind) -> PayloadHash {
    struct Nothing;
    impl CanonicalBytes for Nothing {
        fn write_canonical(&self, _: &mut impl CanonicalSink) {}
    }
    PayloadHash::of(kind.as_str(), &Nothing)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use tessera_contracts::ids::{FenceEpoch, RunIncarnation, ShardId};
    use tessera_contracts::manifest::{InitialShardInput, validate_manifest};
    use tessera_contracts::split::{plan_split_replace, plan_split_residual};
    use tessera_contracts::{LogicalTime, ShardSpecRef};

    use super::*;
    use crate::record::status::ParkReason;
    use crate::record::unreachable::Unreachable;

    #[test]
    fn every_operation_and_every_parameter_has_a_fingerprint_of_its_own() {
        let op = OpId::new(1);
        let (a, b) = (CursorUpdate::at_key(b"a").unwrap(), CursorUpdate::at_key(b"b").unwrap());
        let token = CursorUpdate::new(Some(b"a"), Some(b"t")).unwrap();
        let spec = ShardSpecRef::new(b"a", b"z", b"").unwrap();
        let rich = ShardSpecRef::new(b"a", b"z", b"metadata").unwrap();
        let why = Park::because(ParkReason::Other);
        let manifest = |end| validate_manifest(&[InitialShardInput::new(ShardId::new(1), b"a", end)]).unwrap();
        let mut hashes: Vec<u64> = [
            checkpoint(op, a),
            checkpoint(op, b),
            checkpoint(op, token),
            checkpoint(op, CursorUpdate::initial()),
            complete(op, a),
            complete(op, b),
            complete(op, CursorUpdate::initial()),
            park(op, &why),
            park(op, &Park::because(ParkReason::Poisoned)),
            park(op, &why.with_detail("words")),
            park(op, &why.with_retry_after(LogicalTime::new(1))),
            split_replace(op, &plan_split_replace(spec, &[b"m"]).unwrap()),
            split_replace(op, &plan_split_replace(spec, &[b"m", b"n"]).unwrap()),
            split_replace(op, &plan_split_replace(rich, &[b"m"]).unwrap()),
            split_residual(op, &plan_split_residual(spec, None, b"m").unwrap()),
            split_residual(op, &plan_split_residual(spec, None, b"n").unwrap()),
            split_residual(op, &plan_split_residual(rich, None, b"n").unwrap()),
            unpark(op, ShardEpoch::new(RunIncarnation::new(1), FenceEpoch::new(2))),
            unpark(op, ShardEpoch::new(RunIncarnation::new(1), FenceEpoch::new(3))),
            unpark(op, ShardEpoch::new(RunIncarnation::new(2), FenceEpoch::new(2))),
            release(op, None, ReleaseReason::Released),
            release(op, None, ReleaseReason::Yielded),
            release(op, Some(a), ReleaseReason::Released),
            release(op, None, ReleaseReason::Drained),
            release(op, None, ReleaseReason::Unreachable(Unreachable::NONE)),
            release(op, None, ReleaseReason::Unreachable(Unreachable::because("no route"))),
            release(op, None, ReleaseReason::Unreachable(Unreachable::NONE.with_retry_after(LogicalTime::new(1)))),
        ]
        .iter()
        .map(|operation| operation.payload_hash.get())
        .collect();
        hashes.extend(RunOpKind::ALL.map(|kind| settle_run(kind).get()));
        hashes.extend([&b"y"[..], b"z"].map(|end| register_shards(&manifest(end)).get()));
        let all = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all);
    }

    #[test]
    fn a_fingerprint_is_the_tag_and_the_fields_in_canonical_form_and_nothing_else() {
        let cursor = CursorUpdate::new(Some(b"k"), Some(b"t")).unwrap();
        for op in [1, 2].map(OpId::new) {
            assert_eq!(checkpoint(op, cursor).payload_hash, PayloadHash::of("checkpoint", &cursor));
            assert_eq!(complete(op, cursor).payload_hash, PayloadHash::of("complete", &cursor));
        }
        let plan = plan_split_residual(ShardSpecRef::new(b"a", b"z", b"m").unwrap(), None, b"k").unwrap();
        let fields = (plan.kept(), plan.residual());
        assert_eq!(split_residual(OpId::new(1), &plan).payload_hash, PayloadHash::of("split_residual", &fields));
    }
}
