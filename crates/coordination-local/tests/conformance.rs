//! The local backend passes the suite that every backend passes, and nothing is left out that one process can have.

use redb::backends::InMemoryBackend;
use tessera_conformance::{BackendConfig, BackendFactory, InMemory, Need, Suite};
use tessera_coordination_local::LocalCoordinator;

/// Makes coordinators whose file is in memory: the bytes are the same.
struct Local;

impl BackendFactory for Local {
    type Backend = LocalCoordinator;

    fn create(&self, config: &BackendConfig) -> LocalCoordinator {
        // A short log, so that records take both ways into the tables.
        LocalCoordinator::open_backend(InMemoryBackend::new(), 16 << 10, config.into()).expect("it is empty")
    }

    fn offers(&self, need: Need) -> bool {
        InMemory.offers(need)
    }
}

#[test]
fn the_local_coordinator_passes() {
    let report = Suite { seeds: vec![1, 2, 3], steps: 200 }.run(&Local).unwrap();
    assert!(report.skipped.iter().all(|(_, need)| *need == Need::LostSessions), "{:?}", report.skipped);
    assert!(report.passed.len() >= 90, "{} stories", report.passed.len());
}
