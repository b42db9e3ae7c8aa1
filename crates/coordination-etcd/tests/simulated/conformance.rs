//! The suite that every backend passes, on the simulated store.

use tessera_conformance::{BackendConfig, BackendFactory, Need, run_all};
use tessera_contracts::WorkerId;
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};

use crate::suite::{config, offers};

struct Simulated;

impl BackendFactory for Simulated {
    type Backend = SimEtcdCoordinator;

    fn create(&self, wanted: &BackendConfig) -> SimEtcdCoordinator {
        sync::simulate(SimKv::new(7), config(wanted, EtcdConfig::default())).expect("valid")
    }

    fn offers(&self, need: Need) -> bool {
        offers(need)
    }

    fn lose_session(&self, backend: &mut SimEtcdCoordinator, worker: WorkerId) {
        backend.executor.block_on(backend.backend.end_session(worker)).expect("ended");
    }
}

#[test]
fn simulated_etcd_passes() {
    let report = run_all(Simulated).unwrap_or_else(|failures| panic!("{failures}"));
    assert!(report.skipped.iter().all(|(_, need)| !offers(*need)), "{:?}", report.skipped);
}
