//! Fingerprints of operations: what makes a retry recognisable.
//!
//! One function per operation with an op id, because the tag in front is part of the stored meaning: a checkpoint and a
//! completion of the same cursor are different operations. Everything the caller chose is hashed; time and lease are not,
//! since a retry comes later and perhaps under a renewed lease.

use tessera_contracts::canonical::{CanonicalBytes, CanonicalSink};
use tessera_contracts::ids::{FenceEpoch, OpId};
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
pub fn unpark(op_id: OpId, expected_fence: FenceEpoch) -> Operation {
    Operation { op_id, kind: OpKind::Unpark, payload_hash: PayloadHash::of("unpark", &expected_fence) }
}

/// `release`
pub fn release(op_id: OpId, cursor: Option<CursorUpdate<'_>>, reason: ReleaseReason) -> Operation {
    let payload_hash = PayloadHash::of("release", &(cursor, reason as u8));
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
