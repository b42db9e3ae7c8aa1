//! Many workers on three real members that are killed and frozen all the while, and a history that is checked afterwards.
//!
//! What is checked: every item is processed by the time the run is done (coverage, across splits, releases, crashes of
//! workers and loss of sessions); what a worker does under an older fence is never accepted after something was under a
//! newer one (effects by fence); and the progress of a shard, as a register of accepted checkpoints in real time, never goes
//! back (an operation that began after another had ended sees at least its key). Cutting members off the network needs
//! privileges that a test should not ask for; a frozen member is the nearest thing: its connections stand, it is silent.
//!
//! `TESSERA_CHAOS_SECONDS` sets how long faults go on; the default keeps it short.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::plan_split_residual_at_fraction;
use tessera_contracts::{Cursor, CursorUpdate, LogicalTime, OpId, RunId, ShardId, ShardSpec, TenantId, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement, AsyncShardClaiming};
use tessera_coordination::error::{ClaimError, OperationError, RunTransitionError};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::random::SplitMix64;
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

const TENANT: TenantId = TenantId::from_bytes([9; 32]);
const RUN: RunId = RunId::new(1);
const ROOTS: u32 = 12;
/// Enough work that faults never run out of workers to meet.
const ITEMS_PER_ROOT_AND_SECOND: u32 = 14;
const WORKERS: u64 = 6;

/// A checkpoint or completion that was accepted.
#[derive(Clone, Debug)]
struct Accepted {
    fence: u64,
    began: Instant,
    ended: Instant,
    last_key: Vec<u8>,
}

/// What all workers did.
#[derive(Default)]
struct History {
    items: BTreeSet<u32>,
    accepted: BTreeMap<ShardId, Vec<Accepted>>,
    sessions_lost: u64,
    crashes: u64,
}

struct World {
    config: EtcdConfig,
    history: Mutex<History>,
    finished: AtomicBool,
    next_op: AtomicU64,
    next_worker: AtomicU64,
}

impl World {
    fn op(&self) -> OpId {
        OpId::new(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    fn accept(&self, lease: &Lease, began: Instant, last_key: Option<&[u8]>) {
        let accepted = Accepted {
            fence: lease.fence().get(),
            began,
            ended: Instant::now(),
            last_key: last_key.unwrap_or_default().to_vec(),
        };
        self.history.lock().expect("no panic").accepted.entry(lease.shard()).or_default().push(accepted);
    }
}

fn now() -> LogicalTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    LogicalTime::new(u64::try_from(since.as_millis()).expect("before the year 500 million"))
}

fn number(key: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    let count = key.len().min(4);
    bytes[..count].copy_from_slice(&key[..count]);
    u32::from_be_bytes(bytes)
}

/// Whether the shard is still ours after an operation: done, or over.
enum After {
    Done,
    LeaseLost,
}

/// Tries an operation until it has an answer; `None` after the world has ended.
macro_rules! until_answered {
    ($world:expr, $attempt:expr) => {
        loop {
            match $attempt.await {
                Ok(_) => break Some(After::Done),
                Err(error) if error.is_transient() => {
                    if $world.finished.load(Ordering::Relaxed) {
                        break None;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(_) => break Some(After::LeaseLost),
            }
        }
    };
}

/// One life of a worker: from its start to its crash, or to the end of the run.
async fn live(world: Arc<World>, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let worker = WorkerId::new(world.next_worker.fetch_add(1, Ordering::Relaxed));
    let mut coordinator = AsyncEtcdCoordinator::connect(world.config.clone()).expect("valid");
    let mut scratch = AcquireScratch::new();
    while !world.finished.load(Ordering::Relaxed) {
        let claimed = coordinator.claim_next_available(now(), TENANT, RUN, worker, &mut scratch).await;
        let (lease, spec, cursor) = match claimed {
            Ok(view) => (view.lease, view.snapshot.spec.to_owned(), view.snapshot.cursor.to_owned()),
            Err(ClaimError::RunNotActive { .. }) => return,
            Err(_) => {
                finish(&world, &mut coordinator).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if random.below(12) == 0 {
            // Dies with the shard in hand, and all of its heartbeats with it.
            world.history.lock().expect("no panic").crashes += 1;
            return;
        }
        if work(&world, &mut coordinator, lease, spec, cursor, &mut random).await.is_none() {
            return;
        }
    }
}

async fn finish(world: &World, coordinator: &mut AsyncEtcdCoordinator<EtcdClient>) {
    // One operation id for all who try: it is the same act.
    match coordinator.complete_run(now(), TENANT, RUN, OpId::new(u64::MAX)).await {
        Ok(_) | Err(RunTransitionError::Illegal { .. }) => world.finished.store(true, Ordering::Relaxed),
        Err(_) => {}
    }
}

/// Works on a shard until it is done, given back or lost. `None` after the world has ended.
async fn work(
    world: &World,
    coordinator: &mut AsyncEtcdCoordinator<EtcdClient>,
    mut lease: Lease,
    mut spec: ShardSpec,
    mut cursor: Cursor,
    random: &mut SplitMix64,
) -> Option<()> {
    let mut next = cursor.last_key().map_or_else(|| first_item(&spec), |key| number(key) + 1);
    loop {
        let end = number(spec.end()).saturating_add(u32::from(spec.end().len() > 4));
        let batch: Vec<u32> = (next..end).take(8).collect();
        let Some(&last) = batch.last() else { break };
        tokio::time::sleep(Duration::from_millis(random.below(40))).await;
        if coordinator.session_good_until(lease.owner()).is_none_or(|until| coordinator.store_now() >= until) {
            world.history.lock().expect("no panic").sessions_lost += 1;
            return Some(());
        }
        world.history.lock().expect("no panic").items.extend(batch);
        next = last + 1;
        let key = last.to_be_bytes();
        let update = CursorUpdate::at_key(&key).expect("valid");
        let (op, began) = (world.op(), Instant::now());
        match until_answered!(world, coordinator.checkpoint(now(), TENANT, &lease, update, op))? {
            After::Done => world.accept(&lease, began, Some(&key)),
            After::LeaseLost => return Some(()),
        }
        cursor = update.to_owned();
        match random.below(10) {
            0 => {
                let op = world.op();
                until_answered!(world, coordinator.release(now(), TENANT, &lease, None, ReleaseReason::Released, op))?;
                return Some(());
            }
            1 => {
                let Ok(plan) = plan_split_residual_at_fraction(spec.view(), cursor.last_key(), Fraction::HALF) else {
                    continue;
                };
                let op = world.op();
                match until_answered!(world, coordinator.split_residual(now(), TENANT, &lease, &plan, op))? {
                    After::Done => spec = plan.kept().clone(),
                    After::LeaseLost => return Some(()),
                }
            }
            _ => {
                if let Ok(renewed) = coordinator.renew(now(), TENANT, &lease).await {
                    lease = lease.extended_to(renewed.new_deadline);
                }
            }
        }
    }
    let (op, began) = (world.op(), Instant::now());
    match until_answered!(world, coordinator.complete(now(), TENANT, &lease, cursor.as_update(), op))? {
        After::Done => world.accept(&lease, began, cursor.last_key()),
        After::LeaseLost => {}
    }
    Some(())
}

/// The first item of a range: its start, or the one behind it if the start lies between two items.
fn first_item(spec: &ShardSpec) -> u32 {
    number(spec.start()) + u32::from(spec.start().len() > 4)
}

fn check(history: &History, items: u32) {
    let all: BTreeSet<u32> = (0..items).collect();
    let missing: Vec<&u32> = all.difference(&history.items).collect();
    assert!(missing.is_empty(), "Coverage: {} items were never processed: {missing:?}", missing.len());
    for (shard, accepted) in &history.accepted {
        for earlier in accepted {
            for later in accepted.iter().filter(|later| later.began > earlier.ended) {
                assert!(
                    later.fence >= earlier.fence,
                    "FencedEffects: shard {shard} accepted fence {} after fence {}",
                    later.fence,
                    earlier.fence
                );
                assert!(
                    later.last_key >= earlier.last_key,
                    "CursorMonotonic: shard {shard} went from {:?} back to {:?}",
                    earlier.last_key,
                    later.last_key
                );
            }
        }
    }
}

#[test]
fn no_item_is_lost_and_no_fence_is_passed_while_members_and_workers_die() {
    let seconds: u64 = std::env::var("TESSERA_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let seed: u64 = std::env::var("TESSERA_CHAOS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("replay the workers' choices with TESSERA_CHAOS_SEED={seed}");
    let mut cluster = EtcdCluster::start(3);
    let config = EtcdConfig {
        connect_timeout: Duration::from_millis(500),
        attempt_timeout: Duration::from_secs(1),
        call_timeout: Duration::from_secs(4),
        session_ttl: Duration::from_secs(3),
        lease_duration_default: Duration::from_secs(4),
        skew_tolerance: Duration::ZERO,
        ..cluster.config()
    };
    let world = Arc::new(World {
        config: config.clone(),
        history: Mutex::default(),
        finished: AtomicBool::new(false),
        next_op: AtomicU64::new(1),
        next_worker: AtomicU64::new(1),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("built");
    let items_per_root = ITEMS_PER_ROOT_AND_SECOND * u32::try_from(seconds).expect("a bearable time");
    let bounds: Vec<[u8; 4]> = (0..=ROOTS).map(|root| (root * items_per_root).to_be_bytes()).collect();
    runtime.block_on(async {
        let mut coordinator = AsyncEtcdCoordinator::connect(config).expect("valid");
        let inputs: Vec<InitialShardInput<'_>> = (0..ROOTS as usize)
            .map(|root| InitialShardInput::new(ShardId::new(root as u64 + 1), &bounds[root], &bounds[root + 1]))
            .collect();
        let run = RunConfig { max_shard_retries: 0, ..RunConfig::default() };
        coordinator.create_run_with_shards(now(), TENANT, RUN, run, &inputs, world.op()).await.expect("registered");
    });
    for index in 0..WORKERS {
        let world = Arc::clone(&world);
        runtime.spawn(async move {
            let mut life = seed.wrapping_mul(1_000).wrapping_add(index);
            while !world.finished.load(Ordering::Relaxed) {
                // Each life has a coordinator of its own, which dies with it.
                live(Arc::clone(&world), life).await;
                life = life.wrapping_add(WORKERS);
            }
        });
    }
    let started = Instant::now();
    let mut random = SplitMix64::new(seed);
    while started.elapsed() < Duration::from_secs(seconds) && !world.finished.load(Ordering::Relaxed) {
        // Never more than one of three at a time: two would rightly stop everything.
        let member = usize::try_from(random.below(3)).expect("one of three");
        if random.below(2) == 0 {
            cluster.kill(member);
            std::thread::sleep(Duration::from_millis(800));
            cluster.restart(member);
        } else {
            cluster.pause(member);
            std::thread::sleep(Duration::from_millis(1_200));
            cluster.resume(member);
        }
        std::thread::sleep(Duration::from_millis(700));
    }
    while !world.finished.load(Ordering::Relaxed) {
        assert!(
            started.elapsed() < Duration::from_secs(seconds + 90),
            "the run did not come to its end after the faults stopped: {} items processed",
            world.history.lock().expect("no panic").items.len()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    runtime.shutdown_timeout(Duration::from_secs(10));
    let history = world.history.lock().expect("no panic");
    println!(
        "{} shards worked on, {} accepted checkpoints, {} crashes, {} sessions lost, {:?}",
        history.accepted.len(),
        history.accepted.values().map(Vec::len).sum::<usize>(),
        history.crashes,
        history.sessions_lost,
        started.elapsed()
    );
    check(&history, ROOTS * items_per_root);
}
