//! A namespace that holds runs of another layout is not taken for an empty one.

use crate::fixtures::{
    INCARNATION, NOW, RUN, TENANT, WORKER, acquire, bounds, coordinator, everything, inputs, plant, register,
};
use tessera_contracts::{OpId, RunId, ShardId};
use tessera_coordination::AcquireScratch;
use tessera_coordination::backend::{RunManagement, ShardClaiming};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::kv::Op;
use tessera_coordination_etcd::sim_kv::SimKv;

/// A store with one key of another layout.
fn holding(tail: &str) -> SimKv {
    let kv = SimKv::new(1);
    plant(&kv, vec![Op::put(format!("{}/{tail}", EtcdConfig::default().namespace), "whatever it is")]);
    kv
}

#[test]
fn runs_of_an_older_or_a_newer_layout_are_named_and_not_overlooked() {
    for layout in ["v1", "v4", "v6", "v9"] {
        let kv = holding(&format!("{layout}/run/another/something"));
        let mut etcd = coordinator(&kv);
        let stored = everything(&kv);
        let refusals = [
            etcd.create_run(NOW, TENANT, RUN, INCARNATION, RunConfig::default()).expect_err("refused").to_string(),
            etcd.get_run(TENANT, RUN).expect_err("refused").to_string(),
            etcd.list_runs_into(TENANT, None, 10, &mut Vec::new()).expect_err("refused").to_string(),
            etcd.get_run_progress(NOW, TENANT, RUN).expect_err("refused").to_string(),
            etcd.claim_next_available(NOW, TENANT, RUN, WORKER, &mut AcquireScratch::new())
                .expect_err("refused")
                .to_string(),
        ];
        for refusal in refusals {
            assert!(refusal.contains(&format!("runs of layout {layout}")), "{refusal}");
            assert!(refusal.contains("another namespace"), "{refusal}");
        }
        assert_eq!(everything(&kv), stored);
    }
}

#[test]
fn what_retired_runs_of_another_layout_leave_behind_is_no_obstacle() {
    for tail in ["v2/count/all/00", "v2/retired/another", "v2/runs", "v22/run/another", "v2x/run/another"] {
        let kv = holding(tail);
        let mut etcd = coordinator(&kv);
        register(&mut etcd, &inputs(&bounds(1)));
        acquire(&mut etcd, ShardId::new(1));
    }
}

#[test]
fn other_layouts_are_looked_for_once() {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    let calls = [1, 2, 3].map(|run| {
        let before = kv.calls();
        etcd.get_run(TENANT, RunId::new(run)).expect_err("there is none");
        kv.calls() - before
    });
    assert_eq!(calls, [2, 1, 1]);
    register(&mut etcd, &inputs(&bounds(1)));
    let mut other = coordinator(&kv);
    let before = kv.calls();
    other.cancel_run(NOW, TENANT, RUN, OpId::new(7)).expect("cancelled");
    assert_eq!(kv.calls() - before, 2, "who finds its run does not look");
}
