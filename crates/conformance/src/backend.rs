//! The interface to a backend under test: how to make one, and which features it lacks.

use tessera_contracts::WorkerId;
use tessera_coordination::backend::{AsyncCoordinationFacade, BlockOn, Blocking};
use tessera_coordination::shard_limits::ShardLimits;
use tessera_coordination::{CoordinationFacade, CoordinatorRuntimeConfig, InMemoryCoordinator};

/// How the suite wants a backend to be. Time is an argument of every operation, so nothing here speaks of clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendConfig {
    /// How long a lease lasts in runs that set no duration of their own.
    pub default_lease_duration: u64,
    /// How many shards there may be.
    pub shard_limits: ShardLimits,
    /// How many runs there may be; see [`Need::RunLimit`].
    pub runs_max: Option<usize>,
    /// How long a worker waits between successful claims; see [`Need::Cooldown`].
    pub claim_cooldown_interval: u64,
    /// How long a claimant waits beyond another's deadline; see [`Need::ClockSkew`].
    pub clock_skew_allowance: u64,
    /// How many bytes of keys, metadata, cursors and details there is room for; see [`Need::ByteLimit`].
    pub bytes_max: Option<usize>,
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self {
            default_lease_duration: 1_000,
            shard_limits: ShardLimits::default(),
            runs_max: None,
            claim_cooldown_interval: 0,
            clock_skew_allowance: 0,
            bytes_max: None,
        }
    }
}

impl From<&BackendConfig> for CoordinatorRuntimeConfig {
    fn from(config: &BackendConfig) -> Self {
        let default = Self::default();
        Self {
            default_lease_duration: config.default_lease_duration,
            max_shards_per_tenant: config.shard_limits.per_tenant_max as usize,
            max_total_shards: config.shard_limits.total_max as usize,
            max_total_runs: config.runs_max.unwrap_or(default.max_total_runs),
            claim_cooldown_interval: config.claim_cooldown_interval,
            clock_skew_allowance: config.clock_skew_allowance,
            slab_capacity: config.bytes_max.unwrap_or(default.slab_capacity),
            ..default
        }
    }
}

/// Something not every backend can do. A story that needs it is skipped, and reported as skipped, where it is missing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Need {
    /// Honours [`BackendConfig::bytes_max`], and refuses records that do not fit.
    ByteLimit,
    /// Honours [`BackendConfig::runs_max`].
    RunLimit,
    /// Honours [`BackendConfig::claim_cooldown_interval`].
    Cooldown,
    /// Honours [`BackendConfig::clock_skew_allowance`].
    ClockSkew,
    /// Has sessions that can be lost before a lease ends; see [`BackendFactory::lose_session`].
    LostSessions,
    /// Knows no sessions, so that leases and requests tell which workers take part in a run.
    NoSessions,
    /// Counts what can be claimed of a run of any size. Other backends may estimate it for runs of more than 32 shards.
    ExactHints,
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ByteLimit,
        Self::RunLimit,
        Self::Cooldown,
        Self::ClockSkew,
        Self::LostSessions,
        Self::NoSessions,
        Self::ExactHints,
    ];

    /// How a story asks for it, after the word `needs`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByteLimit => "byte limit",
            Self::RunLimit => "run limit",
            Self::Cooldown => "cooldown",
            Self::ClockSkew => "clock skew",
            Self::LostSessions => "lost sessions",
            Self::NoSessions => "no sessions",
            Self::ExactHints => "exact hints",
        }
    }
}

/// Makes backends for the suite: a fresh, empty one for each story.
///
/// A closure will do, for a backend with none of the things in [`Need`]. A backend that has some is described by a type.
pub trait BackendFactory {
    /// What it makes.
    type Backend: CoordinationFacade;

    /// A backend that holds nothing yet.
    fn create(&self, config: &BackendConfig) -> Self::Backend;

    /// Whether what it makes can do this.
    fn offers(&self, need: Need) -> bool {
        let _ = need;
        false
    }

    /// Makes the backend believe that `worker` is gone, though its leases have not ended. Called only if
    /// [`Need::LostSessions`] is offered.
    fn lose_session(&self, backend: &mut Self::Backend, worker: WorkerId) {
        let _ = (backend, worker);
    }
}

impl<F, B> BackendFactory for F
where
    F: Fn(&BackendConfig) -> B,
    B: CoordinationFacade,
{
    type Backend = B;

    fn create(&self, config: &BackendConfig) -> B {
        self(config)
    }
}

/// Makes [`InMemoryCoordinator`]s. The differential test compares others with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl BackendFactory for InMemory {
    type Backend = InMemoryCoordinator;

    fn create(&self, config: &BackendConfig) -> InMemoryCoordinator {
        InMemoryCoordinator::new(config.into()).expect("the suite asks for configurations that work")
    }

    fn offers(&self, need: Need) -> bool {
        match need {
            Need::ByteLimit
            | Need::RunLimit
            | Need::Cooldown
            | Need::ClockSkew
            | Need::NoSessions
            | Need::ExactHints => true,
            Need::LostSessions => false,
        }
    }
}

/// Makes async backends for the suite, which runs them on an executor: see [`run_all_async`](crate::run_all_async).
pub trait AsyncBackendFactory {
    /// What it makes.
    type Backend: AsyncCoordinationFacade;

    /// A backend that holds nothing yet.
    fn create(&self, config: &BackendConfig) -> impl Future<Output = Self::Backend>;

    /// Whether what it makes can do this.
    fn offers(&self, need: Need) -> bool {
        let _ = need;
        false
    }

    /// Makes the backend believe that `worker` is gone; see [`BackendFactory::lose_session`].
    fn lose_session(&self, backend: &mut Self::Backend, worker: WorkerId) -> impl Future<Output = ()> {
        let _ = (backend, worker);
        async {}
    }
}

/// An async factory and the executor that runs its backends, as a sync factory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnExecutor<F, X> {
    pub(crate) factory: F,
    pub(crate) executor: X,
}

impl<F: AsyncBackendFactory, X: BlockOn + Clone> BackendFactory for OnExecutor<F, X> {
    type Backend = Blocking<F::Backend, X>;

    fn create(&self, config: &BackendConfig) -> Self::Backend {
        let backend = self.executor.block_on(self.factory.create(config));
        Blocking { backend, executor: self.executor.clone() }
    }

    fn offers(&self, need: Need) -> bool {
        self.factory.offers(need)
    }

    fn lose_session(&self, backend: &mut Self::Backend, worker: WorkerId) {
        self.executor.block_on(self.factory.lose_session(&mut backend.backend, worker));
    }
}
