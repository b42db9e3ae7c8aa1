//! Progress of a run while etcd is compacted: the pages that were read are thrown away, and the listing begins anew.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tessera_contracts::{OpId, ShardId};
use tessera_coordination::Lease;
use tessera_coordination::backend::{AsyncRunManagement as _, CoordinationBackend, RunManagement};
use tessera_coordination::error::GetRunError;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination_etcd::kv::Op;
use tessera_coordination_etcd::sim_kv::{SimKv, Snapshot};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

use crate::fixtures::{NOW, RUN, TENANT, acquire, bounds, coordinator, inputs, plant, register};
use crate::roots::plan;

/// More shards than several pages hold.
const ROOTS: usize = 200;
/// Polls in which a listing that is let alone ends.
const POLLS_MAX: usize = 1_000;

fn held() -> (Snapshot, Lease) {
    let kv = SimKv::new(1);
    let mut backend = coordinator(&kv);
    register(&mut backend, &inputs(&bounds(ROOTS)));
    let lease = acquire(&mut backend, ShardId::new(1));
    (kv.snapshot(), lease)
}

/// Asks for the progress of the run; what `between` does happens before each of its polls, which are numbered from zero.
fn progress(kv: &SimKv, mut between: impl FnMut(usize)) -> (Result<RunProgress, GetRunError>, usize) {
    let mut backend = AsyncEtcdCoordinator::over(kv.clone(), EtcdConfig::default()).expect("valid");
    let mut asked = pin!(backend.get_run_progress(NOW, TENANT, RUN));
    let mut context = Context::from_waker(Waker::noop());
    for polled in 0..POLLS_MAX {
        between(polled);
        if let Poll::Ready(answer) = asked.as_mut().poll(&mut context) {
            return (answer, polled);
        }
    }
    panic!("the listing does not end");
}

/// The first shard is split by three in one transaction.
fn split(kv: &SimKv, lease: &Lease) {
    coordinator(kv).split_replace(NOW, TENANT, lease, &plan(lease.shard(), 3), OpId::new(9)).expect("split");
}

#[test]
fn progress_is_true_of_one_moment_wherever_the_store_is_compacted_meanwhile() {
    let (begun, lease) = held();
    let kv = SimKv::from_snapshot(&begun, 1);
    let (before, polls) = progress(&kv, |_| {});
    let (before, alone) = (before.expect("read"), kv.calls());
    split(&kv, &lease);
    let after = coordinator(&kv).get_run_progress(NOW, TENANT, RUN).expect("read");
    assert_ne!(before, after);
    let mut restarted = 0;
    for compacted_at in 0..=polls {
        let kv = SimKv::from_snapshot(&begun, 1);
        let mut calls_of_others = 0;
        let (seen, _) = progress(&kv, |polled| {
            if polled == compacted_at {
                let before = kv.calls();
                split(&kv, &lease);
                kv.compact();
                calls_of_others = kv.calls() - before;
            }
        });
        let seen = seen.unwrap_or_else(|error| panic!("compacted before poll {compacted_at}: {error}"));
        assert!(seen == before || seen == after, "compacted before poll {compacted_at}: {seen:?}");
        restarted += usize::from(kv.calls() - calls_of_others > alone);
    }
    assert!(restarted > 3, "{restarted} of {polls}");
}

#[test]
fn a_store_that_is_compacted_between_any_two_pages_is_told_to_the_caller() {
    let (begun, _) = held();
    let kv = SimKv::from_snapshot(&begun, 1);
    let (seen, _) = progress(&kv, |polled| {
        plant(&kv, vec![Op::put("another's", format!("{polled}"))]);
        kv.compact();
    });
    let error = seen.expect_err("no revision lasts for two pages");
    assert!(matches!(&error, GetRunError::BackendError(error) if error.is_transient()), "{error:?}");
    assert!(error.to_string().contains("compact it less often"), "{error}");
}
