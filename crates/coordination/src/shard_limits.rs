//! How many shards may exist, for a tenant and in all.
//!
//! Checked before growth by every decision that makes shards, so that a tenant that splits without end (CWE-400) meets a
//! refusal and not the end of memory. Backends bring the counts; they keep them current in the same step that adds shards.

/// Shards one tenant may hold unless configured otherwise.
pub const DEFAULT_MAX_SHARDS_PER_TENANT: usize = 100_000;

/// Shards one coordinator may hold unless configured otherwise.
pub const DEFAULT_MAX_TOTAL_SHARDS: usize = 1_000_000;

/// The ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardLimits {
    /// Most shards of one tenant.
    pub per_tenant_max: u64,
    /// Most shards of all tenants together.
    pub total_max: u64,
}

impl Default for ShardLimits {
    fn default() -> Self {
        Self { per_tenant_max: DEFAULT_MAX_SHARDS_PER_TENANT as u64, total_max: DEFAULT_MAX_TOTAL_SHARDS as u64 }
    }
}

/// The ceilings and how much of them is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardCensus {
    /// The ceilings.
    pub limits: ShardLimits,
    /// Shards the tenant holds now.
    pub of_tenant: u64,
    /// Shards all tenants hold now.
    pub total: u64,
}

/// Whether `added` more shards fit.
pub fn check_shard_limits(census: &ShardCensus, added: u64) -> Result<(), ShardLimitViolation> {
    let ShardCensus { limits, of_tenant, total } = *census;
    if of_tenant.saturating_add(added) > limits.per_tenant_max {
        return Err(ShardLimitViolation {
            scope: LimitScope::Tenant,
            held: of_tenant,
            added,
            max: limits.per_tenant_max,
        });
    }
    if total.saturating_add(added) > limits.total_max {
        return Err(ShardLimitViolation { scope: LimitScope::Coordinator, held: total, added, max: limits.total_max });
    }
    Ok(())
}

/// Which ceiling was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// The tenant's own.
    Tenant,
    /// That of the whole coordinator.
    Coordinator,
}

impl core::fmt::Display for LimitScope {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Tenant => "this tenant",
            Self::Coordinator => "all tenants together",
        })
    }
}

/// The counts at the moment a ceiling was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{added} more shards on top of {held} would exceed the limit of {max} for {scope}; retire settled runs or raise the limit"
)]
pub struct ShardLimitViolation {
    /// Which ceiling.
    pub scope: LimitScope,
    /// Shards held already.
    pub held: u64,
    /// Shards that were to be added.
    pub added: u64,
    /// The ceiling.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_shard_that_fits_is_accepted_and_the_next_is_not() {
        let limits = ShardLimits { per_tenant_max: 10, total_max: 12 };
        let census = |of_tenant, total| ShardCensus { limits, of_tenant, total };
        assert_eq!(check_shard_limits(&census(8, 8), 2), Ok(()));
        let over = check_shard_limits(&census(8, 8), 3).unwrap_err();
        assert_eq!((over.scope, over.held, over.added, over.max), (LimitScope::Tenant, 8, 3, 10));
        assert_eq!(check_shard_limits(&census(1, 10), 2), Ok(()));
        let over = check_shard_limits(&census(1, 10), 3).unwrap_err();
        assert_eq!((over.scope, over.held, over.added, over.max), (LimitScope::Coordinator, 10, 3, 12));
        assert!(check_shard_limits(&census(u64::MAX, 0), u64::MAX).is_err());
    }
}
