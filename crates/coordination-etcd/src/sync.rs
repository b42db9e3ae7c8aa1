//! The coordinator for callers without a runtime: it owns one, and every call waits for its answer.

use core::fmt;
use core::future::Future;

use tessera_coordination::backend::{BlockOn, Blocking};

use crate::client::EtcdClient;
use crate::config::{ConfigError, EtcdConfig};
use crate::coordinator::AsyncEtcdCoordinator;
use crate::sim_kv::{self, SimKv};

/// The coordinator on etcd as a sync backend. Its runtime has one thread of its own, which sends heartbeats also while no
/// call is under way.
pub type EtcdCoordinator = Blocking<AsyncEtcdCoordinator<EtcdClient>, OwnedRuntime>;

/// The same code over the simulated store.
pub type SimEtcdCoordinator = Blocking<AsyncEtcdCoordinator<SimKv>, SimExecutor>;

/// Connects a sync coordinator.
///
/// # Errors
/// If the configuration is not valid, or the operating system grants no thread. A cluster that is away is no error here.
pub fn connect(config: EtcdConfig) -> Result<EtcdCoordinator, ConfigError> {
    let executor = OwnedRuntime::start()?;
    let backend = executor.block_on(async { AsyncEtcdCoordinator::connect(config) })?;
    Ok(Blocking { backend, executor })
}

/// A sync coordinator over the simulated store.
///
/// # Errors
/// If the configuration is not valid.
pub fn simulate(kv: SimKv, config: EtcdConfig) -> Result<SimEtcdCoordinator, ConfigError> {
    Ok(Blocking { backend: AsyncEtcdCoordinator::over(kv, config)?, executor: SimExecutor })
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
#[derive(Clone, Copy, Debug, Default)]
pub struct SimExecutor;

impl BlockOn for SimExecutor {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        sim_kv::block_on(future)
    }
}
