//! The in-memory coordinator passes its own suite, as a sync backend and behind the async traits.

use tessera_conformance::{AsyncBackendFactory, BackendConfig, BackendFactory, InMemory, Need, Suite, run_all};
use tessera_coordination::InMemoryCoordinator;
use tessera_coordination::backend::{NeverWaits, Ready};

#[test]
fn the_in_memory_coordinator_passes() {
    let report = run_all(InMemory).unwrap();
    assert!(report.skipped.iter().all(|(_, need)| *need == Need::LostSessions), "{:?}", report.skipped);
    assert!(report.passed.len() >= 60, "{} stories", report.passed.len());
}

/// The coordinator as an async backend, to show the way an async one is tested.
struct Async;

impl AsyncBackendFactory for Async {
    type Backend = Ready<InMemoryCoordinator>;

    async fn create(&self, config: &BackendConfig) -> Self::Backend {
        Ready(InMemory.create(config))
    }

    fn offers(&self, need: Need) -> bool {
        InMemory.offers(need)
    }
}

#[test]
fn it_passes_behind_the_async_traits_too() {
    let suite = Suite { seeds: vec![1, 2], steps: 200 };
    suite.run_async(Async, NeverWaits).unwrap();
}
