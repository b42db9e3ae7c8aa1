//! What a run's creator chooses for all of its shards.

use tessera_contracts::CursorSemantics;

use super::status::{RunGate, RunStatus};

/// How the shards of a run are worked on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunConfig {
    /// When a cursor may advance.
    pub cursor_semantics: CursorSemantics,
    /// How long a lease lasts; `None` leaves it to the coordinator's default.
    pub lease_duration: Option<u64>,
    /// Acquisitions in a row without progress after which a shard is parked as too many errors; 0 for never.
    pub max_shard_retries: u32,
}

/// [`RunConfig::max_shard_retries`] unless chosen otherwise.
pub const DEFAULT_MAX_SHARD_RETRIES: u32 = 10;

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            cursor_semantics: CursorSemantics::Completed,
            lease_duration: None,
            max_shard_retries: DEFAULT_MAX_SHARD_RETRIES,
        }
    }
}

impl RunConfig {
    /// Refuses a configuration under which nothing could be done.
    pub const fn validate(&self) -> Result<(), ConfigError> {
        match self.lease_duration {
            Some(0) => Err(ConfigError::ZeroLeaseDuration),
            _ => Ok(()),
        }
    }

    /// What of this binds the shards of a run with this status.
    pub fn gate(&self, status: RunStatus, default_lease_duration: u64) -> RunGate {
        RunGate {
            status,
            lease_duration: self.lease_duration.unwrap_or(default_lease_duration),
            max_shard_retries: self.max_shard_retries,
        }
    }
}

/// What is wrong with a [`RunConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A lease that ends when it begins.
    #[error("lease_duration is 0, so every lease would end at once; leave it out for the coordinator's default")]
    ZeroLeaseDuration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_lease_duration_wins_and_the_default_serves_runs_that_set_none() {
        let config = RunConfig { lease_duration: Some(7), ..RunConfig::default() };
        assert_eq!(config.gate(RunStatus::Active, 100).lease_duration, 7);
        assert_eq!(RunConfig::default().gate(RunStatus::Active, 100).lease_duration, 100);
    }

    #[test]
    fn a_lease_lasts_at_least_one_tick() {
        let config = |duration| RunConfig { lease_duration: Some(duration), ..RunConfig::default() };
        assert_eq!(config(0).validate(), Err(ConfigError::ZeroLeaseDuration));
        assert_eq!(config(1).validate(), Ok(()));
    }
}
