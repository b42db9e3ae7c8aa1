//! Many claims of one process at once.

use std::collections::BTreeSet;
use std::future::Future;
use std::task::{Context, Poll, Waker};

use crate::fixtures::{INCARNATION, NOW, RUN, TENANT, bounds, inputs};
use tessera_contracts::{OpId, ShardId, WorkerId};
use tessera_coordination::AcquireScratch;
use tessera_coordination::backend::{AsyncRunManagement, AsyncShardClaiming};
use tessera_coordination::error::ClaimError;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination_etcd::sim_kv::{SimKv, block_on};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

fn world(roots: u64) -> (SimKv, AsyncEtcdCoordinator<SimKv>) {
    let kv = SimKv::new(1);
    let mut coordinator = AsyncEtcdCoordinator::over(kv.clone(), EtcdConfig::default()).expect("valid");
    let bounds = bounds(roots as usize);
    let roots = inputs(&bounds);
    let registered =
        coordinator.create_run_with_shards(NOW, TENANT, RUN, INCARNATION, RunConfig::default(), &roots, OpId::new(1));
    block_on(registered).expect("registered");
    (kv, coordinator)
}

/// Polls all in turn until each has ended.
fn side_by_side<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100_000 {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(ended) = future.as_mut().poll(&mut context)
            {
                *output = Some(ended);
            }
        }
        if outputs.iter().all(Option::is_some) {
            return outputs.into_iter().flatten().collect();
        }
    }
    panic!("some claims never ended");
}

async fn claim(mut coordinator: AsyncEtcdCoordinator<SimKv>) -> Result<ShardId, ClaimError> {
    let mut scratch = AcquireScratch::new();
    let claimed = coordinator.claim_next_available(NOW, TENANT, RUN, WorkerId::new(1), &mut scratch).await;
    claimed.map(|view| view.lease.shard())
}

#[test]
fn claims_of_one_process_share_a_look_and_do_not_race_each_other() {
    let (kv, coordinator) = world(1_000);
    block_on(claim(coordinator.clone())).expect("granted");
    let before = kv.calls();
    let claimed = side_by_side((0..40).map(|_| claim(coordinator.clone())));
    let claimed: BTreeSet<ShardId> = claimed.into_iter().map(|shard| shard.expect("granted")).collect();
    assert_eq!(claimed.len(), 40, "each its own");
    let calls = kv.calls() - before;
    assert!(calls <= 20, "{calls} calls for 40 claims");
}

#[test]
fn the_last_shards_go_to_as_many_claims_and_the_others_hear_that_there_are_none() {
    let (_, coordinator) = world(10);
    let claimed = side_by_side((0..30).map(|_| claim(coordinator.clone())));
    let granted: BTreeSet<ShardId> = claimed.iter().filter_map(|shard| shard.as_ref().ok().copied()).collect();
    assert_eq!(granted.len(), 10);
    let refused = claimed.iter().filter(|shard| matches!(shard, Err(ClaimError::NoneAvailable { .. }))).count();
    assert_eq!(refused, 20);
}

#[test]
fn a_claim_that_is_given_up_in_the_middle_keeps_no_shard_from_the_next() {
    for polls in 0..12 {
        let (_, coordinator) = world(1);
        let mut given_up = Box::pin(claim(coordinator.clone()));
        let mut context = Context::from_waker(Waker::noop());
        let ended = (0..polls).any(|_| given_up.as_mut().poll(&mut context).is_ready());
        drop(given_up);
        let next = block_on(claim(coordinator));
        // Once the store has granted it to the worker, it is the worker's, whether or not it heard so.
        let held = matches!(next, Err(ClaimError::NoneAvailable { .. }));
        assert!(next == Ok(ShardId::new(1)) || held, "after {polls} polls: {next:?}");
        assert!(!ended || held);
    }
}

#[test]
fn a_clock_that_is_ahead_does_not_call_a_held_shard_free() {
    let (kv, coordinator) = world(2);
    let held = block_on(claim(coordinator.clone())).expect("granted");
    // Another process asks, an hour ahead.
    let mut asker = AsyncEtcdCoordinator::over(kv, EtcdConfig::default()).expect("valid");
    let ahead = NOW.saturating_add(3_600_000);
    let explained = block_on(asker.explain_claim(ahead, TENANT, RUN, WorkerId::new(2))).expect("explained");
    assert_eq!((explained.available, explained.overdue), (2, 1), "one is free, and {held} is held");
    assert!(explained.to_string().starts_with("1 shard can be claimed now; the leases of 1 shard"), "{explained}");
    // Without its session it is free, whatever the clock says.
    block_on(coordinator.end_session(WorkerId::new(1))).expect("ended");
    let explained = block_on(asker.explain_claim(NOW, TENANT, RUN, WorkerId::new(2))).expect("explained");
    assert_eq!((explained.available, explained.overdue), (2, 0));
}
