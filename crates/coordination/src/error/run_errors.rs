//! Errors of run management and claiming.

use tessera_contracts::ids::{LogicalTime, RunId};
use tessera_contracts::manifest::ManifestError;
use tessera_stdx::SlabFull;

use super::blocks::{AccessRefused, OpIdConflict};
use super::infra::InfraError;
use crate::run::config::ConfigError;
use crate::run::status::RunStatus;
use crate::shard_limits::ShardLimitViolation;

/// The tenant has no such run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("run {run} does not exist for this tenant")]
pub struct RunNotFound {
    /// The run asked for.
    pub run: RunId,
}

/// `create_run` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateRunError {
    /// The id is taken.
    #[error("run {run} exists already")]
    AlreadyExists {
        /// The run.
        run: RunId,
    },
    /// Zero stands for "no run".
    #[error("run id 0 means unassigned; choose another")]
    UnassignedRun,
    /// Zero stands for "no tenant".
    #[error("tenant id 0 means unassigned; choose another")]
    UnassignedTenant,
    /// Zero stands for "no incarnation".
    #[error("run incarnation 0 means unassigned; draw one at random")]
    UnassignedIncarnation,
    /// The configuration makes no sense.
    #[error("run configuration: {0}")]
    InvalidConfig(#[from] ConfigError),
    /// There is no room for another run.
    #[error("{held} runs are held, the most there may be; retire settled runs")]
    TooManyRuns {
        /// Runs held.
        held: usize,
    },
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

/// `register_shards` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterShardsError {
    /// The tenant has no such run.
    #[error(transparent)]
    RunNotFound(#[from] RunNotFound),
    /// The run has its shards already, or is settled.
    #[error("run {run} is {status}; shards are registered once, while it is initializing")]
    NotInitializing {
        /// The run.
        run: RunId,
        /// Its status.
        status: RunStatus,
    },
    /// The op id was reused.
    #[error(transparent)]
    OpIdConflict(#[from] OpIdConflict),
    /// The list of shards is wrong.
    #[error("shard manifest: {0}")]
    Manifest(#[from] ManifestError),
    /// The tenant or the coordinator holds as many shards as it may.
    #[error(transparent)]
    LimitExceeded(#[from] ShardLimitViolation),
    /// The run could not be created in the first place.
    #[error(transparent)]
    Create(#[from] CreateRunError),
    /// The run exists with another configuration.
    #[error("run {run} exists with another configuration")]
    ConfigMismatch {
        /// The run.
        run: RunId,
    },
    /// The backend has no room for the shards.
    #[error("no room to store the shards: {0}")]
    ResourceExhausted(#[from] SlabFull),
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

/// `complete_run`, `fail_run` or `cancel_run` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunTransitionError {
    /// The tenant has no such run.
    #[error(transparent)]
    RunNotFound(#[from] RunNotFound),
    /// The op id was reused.
    #[error(transparent)]
    OpIdConflict(#[from] OpIdConflict),
    /// The run is not in a state this transition starts from.
    #[error("run {run} is {from} and cannot become {to}")]
    Illegal {
        /// The run.
        run: RunId,
        /// Its status.
        from: RunStatus,
        /// What it was to become.
        to: RunStatus,
    },
    /// A run is done only when every shard is done or split.
    #[error("run {run} has {active} open and {parked} parked shards; finish or unpark them, or fail or cancel the run")]
    ShardsOpen {
        /// The run.
        run: RunId,
        /// Shards still active.
        active: u32,
        /// Shards parked.
        parked: u32,
    },
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

/// A read of a run or its shards failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GetRunError {
    /// The tenant has no such run.
    #[error(transparent)]
    RunNotFound(#[from] RunNotFound),
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

/// A read of one shard failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GetShardError {
    /// The shard is out of reach.
    #[error(transparent)]
    Access(#[from] AccessRefused),
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

/// `claim_next_available` found nothing to give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The tenant has no such run.
    #[error(transparent)]
    RunNotFound(#[from] RunNotFound),
    /// The run does not accept work.
    #[error("run {run} is {status}; nothing can be claimed from it")]
    RunNotActive {
        /// The run.
        run: RunId,
        /// Its status.
        status: RunStatus,
    },
    /// Zero stands for "no worker".
    #[error("worker id 0 means unassigned; give the worker an id")]
    UnassignedWorker,
    /// Every open shard is held.
    #[error("no shard can be claimed now; {}", Wait(*.earliest_deadline))]
    NoneAvailable {
        /// When it may make sense to ask again: the soonest deadline of a live lease, or at once if the claim gave up
        /// after meeting too many shards that turned out to be used up or taken.
        earliest_deadline: Option<LogicalTime>,
    },
    /// This worker claimed a moment ago.
    #[error("this worker claimed a moment ago; try again at {retry_after}")]
    Throttled {
        /// When it may claim again.
        retry_after: LogicalTime,
    },
    /// The store failed.
    #[error("{0}")]
    BackendError(#[from] InfraError),
}

struct Wait(Option<LogicalTime>);

impl core::fmt::Display for Wait {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Some(deadline) => write!(f, "ask again at {deadline}"),
            None => f.write_str("none is leased either"),
        }
    }
}

impl ClaimError {
    /// Whether asking again later may help.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::NoneAvailable { .. } | Self::Throttled { .. } => true,
            Self::BackendError(error) => error.is_transient(),
            Self::RunNotFound(_) | Self::RunNotActive { .. } | Self::UnassignedWorker => false,
        }
    }
}
