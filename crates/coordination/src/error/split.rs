//! Why a split is not accepted.

use tessera_contracts::split::{CoverageError, ResidualError};

/// The plan does not fit the shard as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SplitRefused {
    /// The children of a replacing split do not tile the parent.
    #[error("children do not cover the shard exactly: {0}")]
    Coverage(#[from] CoverageError),
    /// What is kept and what is given away do not make up the parent, or its progress would leave it.
    #[error("residual split does not fit the shard: {0}")]
    Residual(#[from] ResidualError),
    /// The shard has spawned as many as it may in its life.
    #[error(
        "shard has spawned {spawned} children; {added} more would exceed {max} for one shard, split a child instead"
    )]
    SpawnCap {
        /// Spawned so far.
        spawned: usize,
        /// To be added.
        added: usize,
        /// The most a shard may spawn.
        max: usize,
    },
}
