//! The coordinator for callers without a runtime: it owns one, and every call waits for its answer.

use core::fmt;
use core::future::Future;
use core::ops::{Deref, DerefMut};

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::backend::{BlockOn, Blocking, Wrapper};
use tessera_coordination::error::InfraError;
use tessera_coordination::events::EventSink;

use crate::client::EtcdClient;
use crate::config::{ConfigError, EtcdConfig};
use crate::coordinator::AsyncEtcdCoordinator;
use crate::kv::Kv;
#[cfg(feature = "simulation")]
use crate::sim_kv::{self, SimKv};

/// The coordinator on etcd as a sync backend. Its runtime has one thread of its own, which sends heartbeats also while no
/// call is under way.
pub type EtcdCoordinator = SyncCoordinator<EtcdClient, OwnedRuntime>;

/// The same code over the simulated store.
#[cfg(feature = "simulation")]
pub type SimEtcdCoordinator = SyncCoordinator<SimKv, SimExecutor>;

/// A coordinator on a store, and what runs its futures. It has all of the protocol's traits, and what only this backend
/// offers.
#[derive(Debug)]
pub struct SyncCoordinator<K, X> {
    blocking: Blocking<AsyncEtcdCoordinator<K>, X>,
}

/// Connects a sync coordinator.
///
/// # Errors
/// If the configuration is not valid, or the operating system grants no thread. A cluster that is away is no error here.
pub fn connect(config: EtcdConfig) -> Result<EtcdCoordinator, ConfigError> {
    let executor = OwnedRuntime::start()?;
    let backend = executor.block_on(async { AsyncEtcdCoordinator::connect(config) })?;
    Ok(SyncCoordinator { blocking: Blocking { backend, executor } })
}

/// A sync coordinator over the simulated store.
///
/// # Errors
/// If the configuration is not valid.
#[cfg(feature = "simulation")]
pub fn simulate(kv: SimKv, config: EtcdConfig) -> Result<SimEtcdCoordinator, ConfigError> {
    let backend = AsyncEtcdCoordinator::over(kv, config)?;
    Ok(SyncCoordinator { blocking: Blocking { backend, executor: SimExecutor } })
}

impl<K: Kv + Clone, X: BlockOn> SyncCoordinator<K, X> {
    /// See [`AsyncEtcdCoordinator::list_active_runs_into`].
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn list_active_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunId>,
    ) -> Result<(), InfraError> {
        let Blocking { backend, executor } = &self.blocking;
        executor.block_on(backend.list_active_runs_into(tenant, after, limit, runs))
    }

    /// See [`AsyncEtcdCoordinator::gc_stale_initializing_runs_into`].
    ///
    /// # Errors
    /// If the store fails; what was removed until then stays removed.
    pub fn gc_stale_initializing_runs_into(
        &mut self,
        created_before: LogicalTime,
        limit: usize,
        removed: &mut Vec<(TenantId, RunId)>,
    ) -> Result<(), InfraError> {
        let Blocking { backend, executor } = &self.blocking;
        executor.block_on(backend.gc_stale_initializing_runs_into(created_before, limit, removed))
    }
}

/// Every operation of the protocol passes to the async coordinator.
impl<K, X> Wrapper for SyncCoordinator<K, X> {
    type Inner = Blocking<AsyncEtcdCoordinator<K>, X>;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut Self::Inner, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        operation(&mut self.blocking, events)
    }
}

/// The async coordinator and its executor, for callers that need what is not here.
impl<K, X> Deref for SyncCoordinator<K, X> {
    type Target = Blocking<AsyncEtcdCoordinator<K>, X>;

    fn deref(&self) -> &Self::Target {
        &self.blocking
    }
}

impl<K, X> DerefMut for SyncCoordinator<K, X> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.blocking
    }
}

/// A runtime that belongs to one coordinator.
pub struct OwnedRuntime {
    runtime: Option<tokio::runtime::Runtime>,
}

impl OwnedRuntime {
    fn start() -> Result<Self, ConfigError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tessera-etcd")
            .enable_all()
            .build()
            .map_err(|error| ConfigError { field: "runtime", problem: format!("no thread for it: {error}") })?;
        Ok(Self { runtime: Some(runtime) })
    }
}

impl BlockOn for OwnedRuntime {
    /// Waits for `future`.
    ///
    /// # Panics
    /// If called from within an async runtime: its callers should use [`AsyncEtcdCoordinator`], which does not block them.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.as_ref().expect("the runtime is taken only on drop").block_on(future)
    }
}

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        // Not waiting for tasks lets a coordinator be dropped anywhere, also inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for OwnedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnedRuntime")
    }
}

/// Runs futures of the simulated store, which wait for nothing but their turn.
#[cfg(feature = "simulation")]
#[derive(Clone, Copy, Debug, Default)]
pub struct SimExecutor;

#[cfg(feature = "simulation")]
impl BlockOn for SimExecutor {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        sim_kv::block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_coordinator_owns_a_runtime_of_one_thread() {
        let runtime = OwnedRuntime::start().expect("a thread");
        let workers = runtime.block_on(async { tokio::runtime::Handle::current().metrics().num_workers() });
        assert_eq!(workers, 1);
    }
}
