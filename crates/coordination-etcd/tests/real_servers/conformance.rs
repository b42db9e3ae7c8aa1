//! The suite that every backend passes, on a real server.

use std::sync::Arc;
use std::time::Duration;

use tessera_conformance::{BackendConfig, BackendFactory, Need, Suite};
use tessera_contracts::WorkerId;
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{EtcdConfig, EtcdCoordinator, sync};

use crate::suite::{config, offers};

struct Real(Arc<EtcdCluster>);

impl BackendFactory for Real {
    type Backend = EtcdCoordinator;

    fn create(&self, wanted: &BackendConfig) -> EtcdCoordinator {
        // The stories' time is not the clock's: a session must outlast a machine that is busy with other things.
        let patient = Duration::from_secs(300);
        let base = EtcdConfig {
            session_ttl: patient,
            session_ttl_min: patient,
            attempt_timeout: patient / 10,
            call_timeout: patient / 2,
            ..self.0.config()
        };
        sync::connect(config(wanted, base)).expect("valid")
    }

    fn offers(&self, need: Need) -> bool {
        offers(need)
    }

    fn lose_session(&self, backend: &mut EtcdCoordinator, worker: WorkerId) {
        backend.executor.block_on(backend.backend.end_session(worker)).expect("ended");
    }
}

#[test]
fn real_etcd_passes() {
    let suite = Suite { seeds: vec![1, 2], steps: 150 };
    let report = suite.run(&Real(EtcdCluster::shared())).unwrap_or_else(|failures| panic!("{failures}"));
    assert!(report.skipped.iter().all(|(_, need)| !offers(*need)), "{:?}", report.skipped);
}
