//! The settings of an in-memory coordinator.

use tessera_contracts::limits::MAX_KEY_SIZE;

use crate::shard_limits::{DEFAULT_MAX_SHARDS_PER_TENANT, DEFAULT_MAX_TOTAL_SHARDS, ShardLimits};

/// How long a lease lasts in a run that does not say, in ticks of [`LogicalTime`](tessera_contracts::LogicalTime)
/// (milliseconds, for callers that use wall time).
pub const DEFAULT_LEASE_DURATION: u64 = 30_000;

/// The most bytes a slab takes unless told otherwise.
pub const DEFAULT_MAX_AUTO_SLAB_CAPACITY: usize = 64 << 20;

/// The most runs held at once unless told otherwise.
pub const DEFAULT_MAX_RUNS: usize = 10_000;

/// Capacities and defaults of an [`InMemoryCoordinator`](super::InMemoryCoordinator).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CoordinatorRuntimeConfig {
    /// How long a lease lasts in runs that set no duration of their own.
    pub default_lease_duration: u64,
    /// Most shards of one tenant.
    pub max_shards_per_tenant: usize,
    /// Most shards of all tenants.
    pub max_total_shards: usize,
    /// Most runs of all tenants.
    pub max_total_runs: usize,
    /// How long a worker waits between successful claims; 0 for not at all.
    pub claim_cooldown_interval: u64,
    /// How long a claimant waits beyond another's deadline, for clocks that differ; 0 if all share one.
    pub clock_skew_allowance: u64,
    /// Seed of the hash maps. The same seed gives the same behaviour in every process; where tenants do not trust each
    /// other, a secret one keeps them from choosing ids that collide.
    pub hash_seed: u64,
    /// Bytes for park details, and for key ranges, metadata and cursors of shards where these are longer together than
    /// [`IN_PLACE_BYTES`](tessera_contracts::pooled::IN_PLACE_BYTES). Capped at 4 GiB.
    pub slab_capacity: usize,
}

impl Default for CoordinatorRuntimeConfig {
    fn default() -> Self {
        Self {
            default_lease_duration: DEFAULT_LEASE_DURATION,
            max_shards_per_tenant: DEFAULT_MAX_SHARDS_PER_TENANT,
            max_total_shards: DEFAULT_MAX_TOTAL_SHARDS,
            max_total_runs: DEFAULT_MAX_RUNS,
            claim_cooldown_interval: 0,
            clock_skew_allowance: 0,
            hash_seed: 0,
            slab_capacity: auto_slab_capacity(DEFAULT_MAX_TOTAL_SHARDS),
        }
    }
}

impl CoordinatorRuntimeConfig {
    /// A configuration for at most `shards` shards in all, with a slab to match.
    pub fn for_shards(shards: usize) -> Self {
        Self {
            max_shards_per_tenant: shards,
            max_total_shards: shards,
            slab_capacity: auto_slab_capacity(shards),
            ..Self::default()
        }
    }

    /// Refuses a configuration under which nothing could be done.
    pub const fn validate(&self) -> Result<(), RuntimeConfigError> {
        if self.default_lease_duration == 0 {
            return Err(RuntimeConfigError::ZeroLeaseDuration);
        }
        if self.max_total_shards >= u32::MAX as usize {
            return Err(RuntimeConfigError::TooManyShards { max_total_shards: self.max_total_shards });
        }
        Ok(())
    }

    pub(super) fn shard_limits(&self) -> ShardLimits {
        ShardLimits { per_tenant_max: self.max_shards_per_tenant as u64, total_max: self.max_total_shards as u64 }
    }
}

/// One longest key for each shard, but no more than [`DEFAULT_MAX_AUTO_SLAB_CAPACITY`].
pub fn auto_slab_capacity(max_total_shards: usize) -> usize {
    max_total_shards.saturating_mul(MAX_KEY_SIZE).min(DEFAULT_MAX_AUTO_SLAB_CAPACITY)
}

/// What is wrong with a [`CoordinatorRuntimeConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    /// A lease that ends when it begins.
    #[error("default_lease_duration is 0, so every lease would end at once; use at least 1")]
    ZeroLeaseDuration,
    /// More shards than can be numbered.
    #[error("max_total_shards is {max_total_shards}; an in-memory coordinator holds fewer than 4294967295")]
    TooManyShards {
        /// The value seen.
        max_total_shards: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_fits_its_shards_up_to_the_cap() {
        assert_eq!(auto_slab_capacity(0), 0);
        assert_eq!(auto_slab_capacity(16_384), DEFAULT_MAX_AUTO_SLAB_CAPACITY);
        assert_eq!(auto_slab_capacity(16_383), DEFAULT_MAX_AUTO_SLAB_CAPACITY - MAX_KEY_SIZE);
        assert_eq!(auto_slab_capacity(usize::MAX), DEFAULT_MAX_AUTO_SLAB_CAPACITY);
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        let config = CoordinatorRuntimeConfig::default();
        assert_eq!(config.validate(), Ok(()));
        let zero = CoordinatorRuntimeConfig { default_lease_duration: 0, ..config };
        assert_eq!(zero.validate(), Err(RuntimeConfigError::ZeroLeaseDuration));
        let most = CoordinatorRuntimeConfig { max_total_shards: u32::MAX as usize - 1, ..config };
        assert_eq!(most.validate(), Ok(()));
        let over = CoordinatorRuntimeConfig { max_total_shards: u32::MAX as usize, ..config };
        assert!(over.validate().is_err());
    }
}
