//! Names for shards that splits make.
//!
//! A name follows from the operation, so that a retried split makes the same children, and two different splits do not.
//! 63 bits are left beside the mark of a derived shard: about three billion of them in one run before two are as likely
//! as not to share a name, far beyond the shard limits. A backend still refuses to write over an existing shard.

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::domain;
use crate::ids::{OpId, RunId, ShardId};

/// How a shard came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DerivedShardKind {
    /// One of those that replaced their parent.
    Child = 0,
    /// The rest that its parent gave away.
    Residual = 1,
}

// Hashed numbers: changing one would rename shards of running systems.
const _: () = assert!(DerivedShardKind::Child as u8 == 0);
const _: () = assert!(DerivedShardKind::Residual as u8 == 1);

/// The id of the shard that operation `op` on `parent` makes; `index` counts all that the parent ever spawned.
pub fn derive_split_shard_id(run: RunId, parent: ShardId, op: OpId, kind: DerivedShardKind, index: u32) -> ShardId {
    let mut hasher = domain::SPLIT_ID_V1.hasher();
    run.write_canonical(&mut hasher);
    parent.write_canonical(&mut hasher);
    op.write_canonical(&mut hasher);
    hasher.u8(kind as u8);
    hasher.u32(index);
    ShardId::new(hasher.finish_u64() | ShardId::DERIVED_BIT)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;
    use crate::limits::MAX_SPAWNED_PER_SHARD;

    fn derive(run: u64, parent: u64, op: u64, kind: DerivedShardKind, index: u32) -> ShardId {
        derive_split_shard_id(RunId::new(run), ShardId::new(parent), OpId::new(op), kind, index)
    }

    #[test]
    fn each_of_the_five_inputs_changes_the_id_and_none_clears_the_mark() {
        let ids = [
            derive(1, 2, 3, DerivedShardKind::Child, 0),
            derive(9, 2, 3, DerivedShardKind::Child, 0),
            derive(1, 9, 3, DerivedShardKind::Child, 0),
            derive(1, 2, 9, DerivedShardKind::Child, 0),
            derive(1, 2, 3, DerivedShardKind::Residual, 0),
            derive(1, 2, 3, DerivedShardKind::Child, 9),
            // Inputs that trade places are other inputs.
            derive(2, 1, 3, DerivedShardKind::Child, 0),
        ];
        assert_eq!(BTreeSet::from(ids).len(), ids.len());
        assert!(ids.iter().all(|id| id.is_derived()));
        assert_eq!(ids[0], derive(1, 2, 3, DerivedShardKind::Child, 0));
    }

    #[test]
    fn all_a_shard_may_spawn_have_names_of_their_own() {
        let ids: BTreeSet<_> =
            (0..MAX_SPAWNED_PER_SHARD as u32).map(|index| derive(1, 2, 3, DerivedShardKind::Child, index)).collect();
        assert_eq!(ids.len(), MAX_SPAWNED_PER_SHARD);
    }
}
