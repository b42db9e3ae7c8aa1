//! Children that were born together are one key of the store until each was held: found by claims, counted by hints, in the
//! way of a run's completion, and gone with the last of them.

use std::collections::BTreeSet;
use std::future::Future as _;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::fixtures::{
    KEY, NOW, RUN, TENANT, WORKER, acquire, bounds, coordinator, everything, inputs, plant, register,
};
use tessera_contracts::split::plan_split_replace;
use tessera_contracts::{CursorUpdate, OpId, ShardId, ShardKey, ShardSpec, WorkerId};
use tessera_coordination::backend::{AsyncShardClaiming as _, CoordinationBackend, RunManagement, ShardClaiming};
use tessera_coordination::error::{ClaimError, InfraError, RunTransitionError};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::keyspace::{Keyspace, shard_of};
use tessera_coordination_etcd::kv::Op;
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

fn op(number: u64) -> OpId {
    OpId::new(number)
}

/// A run of so many roots.
fn world(roots: usize) -> (SimKv, SimEtcdCoordinator) {
    let kv = SimKv::new(1);
    let mut etcd = coordinator(&kv);
    register(&mut etcd, &inputs(&bounds(roots)));
    (kv, etcd)
}

/// Acquires a root and splits it.
fn split(etcd: &mut SimEtcdCoordinator, root: u64, children: u8) -> Vec<ShardId> {
    let lease = acquire(etcd, ShardId::new(root));
    split_held(etcd, &lease, children)
}

fn split_held(etcd: &mut SimEtcdCoordinator, lease: &Lease, children: u8) -> Vec<ShardId> {
    let root = lease.shard().get();
    let (start, end) = (root.to_be_bytes(), (root + 1).to_be_bytes());
    let parent = ShardSpec::new(&start, &end, b"").expect("valid");
    let points: Vec<Vec<u8>> = (1..children).map(|point| [&start[..], &[point]].concat()).collect();
    let points: Vec<&[u8]> = points.iter().map(Vec::as_slice).collect();
    let plan = plan_split_replace(parent.view(), &points).expect("valid");
    let born = etcd.split_replace(NOW, TENANT, lease, &plan, op(9)).expect("split").into_inner();
    born.to_vec()
}

fn complete(etcd: &mut SimEtcdCoordinator, shard: ShardId) {
    let lease = acquire(etcd, shard);
    let spec = etcd.get_shard(TENANT, ShardKey::new(RUN, shard)).expect("there").spec;
    let cursor = CursorUpdate::at_key(spec.start()).expect("valid");
    etcd.complete(NOW, TENANT, &lease, cursor, op(20)).expect("done");
}

fn claim(etcd: &mut SimEtcdCoordinator, worker: u64) -> Result<ShardId, ClaimError> {
    let mut scratch = AcquireScratch::new();
    etcd.claim_next_available(NOW, TENANT, RUN, WorkerId::new(worker), &mut scratch).map(|view| view.lease.shard())
}

fn families(kv: &SimKv) -> usize {
    everything(kv).iter().filter(|kv| kv.key.windows(8).any(|part| part == b"/family/")).count()
}

#[test]
fn a_split_by_eight_is_one_call_that_writes_a_key_for_each_child_and_five_more() {
    let (kv, mut etcd) = world(2);
    // The first to add shards makes all stripes of the counters.
    split(&mut etcd, 1, 8);
    let lease = acquire(&mut etcd, ShardId::new(2));
    let (before, calls) = (everything(&kv), kv.calls());
    split_held(&mut etcd, &lease, 8);
    assert_eq!(kv.calls() - calls, 1);
    let after = everything(&kv);
    let written = after.iter().filter(|kv| !before.contains(kv)).count();
    // The parent's two parts, two counters, the family, and the children.
    assert_eq!(written, 2 + 2 + 1 + 8);
}

#[test]
fn children_are_claimed_once_each_by_whoever_comes_and_their_family_goes_with_the_last() {
    let (kv, mut etcd) = world(1);
    let children: BTreeSet<ShardId> = split(&mut etcd, 1, 8).into_iter().collect();
    assert_eq!(families(&kv), 1);
    let mut strangers = [coordinator(&kv), coordinator(&kv), coordinator(&kv)];
    let mut claimed = BTreeSet::new();
    for turn in 0..8 {
        let child = claim(&mut strangers[turn % 3], turn as u64 + 10).expect("one is left");
        assert!(claimed.insert(child), "claimed twice");
    }
    assert_eq!(claimed, children);
    assert!(matches!(claim(&mut coordinator(&kv), 99), Err(ClaimError::NoneAvailable { .. })));
    assert_eq!(families(&kv), 0);
}

#[test]
fn a_family_of_which_nobody_is_left_hides_none_that_has_somebody() {
    let roots = 60;
    let (kv, mut etcd) = world(roots);
    let mut born: Vec<Vec<ShardId>> = (1..=roots as u64).map(|root| split(&mut etcd, root, 2)).collect();
    let last = born.remove(37);
    for child in born.iter().flatten() {
        acquire(&mut etcd, *child);
    }
    let mut stranger = coordinator(&kv);
    let claimed: BTreeSet<ShardId> = (0..2).map(|worker| claim(&mut stranger, worker + 10).expect("left")).collect();
    assert_eq!(claimed, last.into_iter().collect());
    assert!(claim(&mut coordinator(&kv), 99).is_err());
    assert_eq!(families(&kv), 0);
}

#[test]
fn more_families_without_anybody_than_one_request_can_name_are_removed_in_several() {
    let roots = 140;
    let (kv, mut etcd) = world(roots);
    let born: Vec<ShardId> = (1..=roots as u64).flat_map(|root| split(&mut etcd, root, 2)).collect();
    let mut candidates = Vec::new();
    etcd.collect_claim_candidates_into(NOW, TENANT, RUN, WORKER, 1_000, &mut candidates).expect("listed");
    assert_eq!((candidates.len(), families(&kv)), (born.len(), roots));
    for child in &born {
        acquire(&mut etcd, *child);
    }
    etcd.collect_claim_candidates_into(NOW, TENANT, RUN, WORKER, 1_000, &mut candidates).expect("listed");
    assert_eq!((candidates.len(), families(&kv)), (0, 0));
}

#[test]
fn a_run_is_completed_only_when_each_child_is_done_and_then_leaves_nothing() {
    let (kv, mut etcd) = world(1);
    let children = split(&mut etcd, 1, 4);
    for (index, child) in children.iter().enumerate() {
        let refused = coordinator(&kv).complete_run(NOW, TENANT, RUN, op(30)).expect_err("children are open");
        assert!(matches!(refused, RunTransitionError::ShardsOpen { .. }), "{index} done: {refused}");
        complete(&mut etcd, *child);
    }
    coordinator(&kv).complete_run(NOW, TENANT, RUN, op(30)).expect("all are done");
    assert_eq!(families(&kv), 0);
}

#[test]
fn a_run_that_is_given_up_takes_its_families_along_when_it_is_retired() {
    let (kv, mut etcd) = world(1);
    split(&mut etcd, 1, 4);
    etcd.cancel_run(NOW, TENANT, RUN, op(30)).expect("cancelled");
    assert_eq!(etcd.retire_runs(NOW, TENANT, NOW, 10).expect("retired"), 1);
    assert_eq!(families(&kv), 0);
}

#[test]
fn hints_count_children_that_nobody_has_touched() {
    let kv = SimKv::new(1);
    let config = EtcdConfig { hint_age_max: Duration::ZERO, ..EtcdConfig::default() };
    let mut etcd = sync::simulate(kv.clone(), config).expect("valid");
    register(&mut etcd, &inputs(&bounds(1)));
    let children = split(&mut etcd, 1, 8);
    let mut scratch = AcquireScratch::new();
    for (taken, child) in children.iter().enumerate() {
        let key = ShardKey::new(RUN, *child);
        let granted = etcd.acquire_and_restore_into(NOW, TENANT, key, WORKER, &mut scratch).expect("granted");
        assert_eq!(granted.capacity.available_count as usize, 7 - taken);
    }
}

#[test]
fn a_family_that_cannot_be_read_is_refused_as_corruption() {
    let (kv, mut etcd) = world(1);
    acquire(&mut etcd, ShardId::new(1));
    let path = Keyspace::new(&EtcdConfig::default().namespace).family(TENANT, KEY);
    plant(&kv, vec![Op::put(path, "no family")]);
    let refused = claim(&mut coordinator(&kv), 10).expect_err("nothing to be had");
    assert!(matches!(refused, ClaimError::BackendError(InfraError::Corruption { .. })), "{refused:?}");
    assert_eq!(families(&kv), 1, "it stays as it was found");
}

#[test]
fn a_claim_asks_for_no_more_members_than_it_wants_and_takes_large_steps_over_families_without_anybody() {
    let (kv, mut etcd) = world(8);
    (1..=8).for_each(|root| drop(split(&mut etcd, root, 100)));
    let calls = kv.calls();
    claim(&mut coordinator(&kv), 7).expect("one of eight hundred");
    assert!(kv.calls() - calls < 10, "{} calls", kv.calls() - calls);

    let (kv, mut etcd) = world(300);
    for root in 1..=300 {
        for child in split(&mut etcd, root, 2) {
            acquire(&mut etcd, child);
        }
    }
    let calls = kv.calls();
    assert!(matches!(claim(&mut coordinator(&kv), 7), Err(ClaimError::NoneAvailable { .. })));
    assert!(kv.calls() - calls < 50, "{} calls", kv.calls() - calls);
}

#[test]
fn a_claim_looks_behind_families_whose_last_members_its_neighbours_are_taking() {
    let (kv, mut etcd) = world(16);
    let mut born: Vec<Vec<ShardId>> = (1..=16).map(|root| split(&mut etcd, root, 2)).collect();
    let is_family = |key: &[u8]| key.windows(8).any(|part| part == b"/family/");
    let order: Vec<_> = everything(&kv).into_iter().map(|kv| kv.key).filter(|key| is_family(key)).collect();
    born.sort_by_key(|children| order.iter().position(|key| shard_of(key) == Some(children[0])).expect("a family"));
    // Eight families are read at once: of the first, both are being taken; of the others, nobody is left.
    for child in born[1..8].iter().flatten() {
        acquire(&mut etcd, *child);
    }
    let ours = AsyncEtcdCoordinator::over(kv.clone(), EtcdConfig::default()).expect("valid");
    let mut context = Context::from_waker(Waker::noop());
    let mut claims = [11, 12, 13].map(|worker| {
        let mut ours = ours.clone();
        Box::pin(async move {
            let scratch = &mut AcquireScratch::new();
            let claimed = ours.claim_next_available(NOW, TENANT, RUN, WorkerId::new(worker), scratch).await;
            claimed.map(|view| view.lease.shard())
        })
    });
    let [first, second, third] = &mut claims;
    assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
    for child in born[8..15].iter().flatten() {
        acquire(&mut etcd, *child);
    }
    // The third looks while the others have not yet taken what they found; then all go on.
    assert!((0..50).all(|_| third.as_mut().poll(&mut context).is_pending()));
    let mut claimed: [Option<Result<ShardId, ClaimError>>; 3] = Default::default();
    for _ in 0..1_000 {
        for (claim, claimed) in claims.iter_mut().zip(&mut claimed).filter(|(_, claimed)| claimed.is_none()) {
            if let Poll::Ready(answer) = claim.as_mut().poll(&mut context) {
                *claimed = Some(answer);
            }
        }
    }
    let claimed = claimed.map(|claimed| claimed.expect("it ends").expect("three of four are free"));
    let taken: BTreeSet<ShardId> = claimed.into_iter().collect();
    assert!(taken.len() == 3 && taken.iter().all(|shard| born[0].contains(shard) || born[15].contains(shard)));
}
