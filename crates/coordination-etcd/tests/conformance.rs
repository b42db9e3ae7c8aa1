//! The suite that every backend passes, on the simulated store and on a real server.

use std::sync::Arc;
use std::time::Duration;

use tessera_conformance::{BackendConfig, BackendFactory, Need, Suite, run_all};
use tessera_contracts::WorkerId;
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{EtcdConfig, EtcdCoordinator};

fn config(wanted: &BackendConfig, base: EtcdConfig) -> EtcdConfig {
    EtcdConfig {
        lease_duration_default: Duration::from_millis(wanted.default_lease_duration),
        shards_per_tenant_max: wanted.shard_limits.per_tenant_max,
        shards_total_max: wanted.shard_limits.total_max,
        claim_cooldown: Duration::from_millis(wanted.claim_cooldown_interval),
        skew_tolerance: Duration::from_millis(wanted.clock_skew_allowance),
        ..base
    }
}

/// etcd bounds runs and bytes by its own quota, not by ours.
const fn offers(need: Need) -> bool {
    match need {
        Need::Cooldown | Need::ClockSkew | Need::LostSessions => true,
        Need::ByteLimit | Need::RunLimit => false,
    }
}

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
fn simulated_etcd_passes() {
    let report = run_all(Simulated).unwrap_or_else(|failures| panic!("{failures}"));
    assert!(report.skipped.iter().all(|(_, need)| !offers(*need)), "{:?}", report.skipped);
}

#[test]
fn real_etcd_passes() {
    let suite = Suite { seeds: vec![1, 2], steps: 150 };
    let report = suite.run(&Real(EtcdCluster::shared())).unwrap_or_else(|failures| panic!("{failures}"));
    assert!(report.skipped.iter().all(|(_, need)| !offers(*need)), "{:?}", report.skipped);
}
