//! The suite that every backend passes, on the simulated store.

use tessera_conformance::{BackendConfig, BackendFactory, Need, run_all};
use tessera_contracts::WorkerId;
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::config::TXN_OPS_MIN;
use tessera_coordination_etcd::sync::SimEtcdCoordinator;

use crate::fixtures::{config_of, coordinator_of, server_of};
use crate::suite::{config, offers};

/// A server that takes so many operations at once, and coordinators that know it.
struct Simulated {
    txn_ops_max: usize,
}

impl BackendFactory for Simulated {
    type Backend = SimEtcdCoordinator;

    fn create(&self, wanted: &BackendConfig) -> SimEtcdCoordinator {
        coordinator_of(&server_of(self.txn_ops_max), config(wanted, config_of(self.txn_ops_max)))
    }

    fn offers(&self, need: Need) -> bool {
        offers(need)
    }

    fn lose_session(&self, backend: &mut SimEtcdCoordinator, worker: WorkerId) {
        backend.executor.block_on(backend.backend.end_session(worker)).expect("ended");
    }
}

fn passes(simulated: Simulated) {
    let report = run_all(simulated).unwrap_or_else(|failures| panic!("{failures}"));
    assert!(report.skipped.iter().all(|(_, need)| !offers(*need)), "{:?}", report.skipped);
}

#[test]
fn simulated_etcd_passes() {
    passes(Simulated { txn_ops_max: 128 });
}

#[test]
fn simulated_etcd_passes_with_the_smallest_transactions() {
    passes(Simulated { txn_ops_max: TXN_OPS_MIN });
}
