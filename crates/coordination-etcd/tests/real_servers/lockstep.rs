//! The etcd backend over a real server answers as the in-memory coordinator does.

use proptest::prelude::*;
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{EtcdConfig, sync};

use crate::script::{cases, check, command, config};

#[test]
fn random_operations_get_the_same_answers_from_real_etcd_and_from_memory() {
    let cluster = EtcdCluster::shared();
    proptest!(cases(12), |(script in prop::collection::vec(command(), 1..80))| {
        let EtcdConfig { endpoints, namespace, .. } = cluster.config();
        // The scripts' time is not the clock's: a session must outlast a machine that is busy with other things.
        let patient = std::time::Duration::from_secs(300);
        let patient = EtcdConfig { session_ttl: patient, session_ttl_min: patient, ..config() };
        let (attempt_timeout, call_timeout) = (patient.session_ttl / 10, patient.session_ttl / 2);
        let config = EtcdConfig { endpoints, namespace, attempt_timeout, call_timeout, ..patient };
        let connect = || sync::connect(config.clone()).expect("valid");
        check(&script, connect(), connect())?;
    });
}
