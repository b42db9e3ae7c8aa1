//! Many workers on three real members that are killed, frozen and cut off all the while, and a history that is checked.
//!
//! What is checked: every item is processed by the time the run is done (Coverage, across splits, releases, crashes of
//! workers and loss of sessions); and every shard and the run, as registers, are linearizable: what all callers were
//! answered, with a reader among them, has an order that a plain register explains. That holds effects to their fence (what is
//! accepted under an older fence after a newer one was granted has no order), progress to its direction, and reads to what
//! was acknowledged before them. `history/mod.rs` says how; `linearizability.rs` shows that broken histories are refused.
//!
//! Members are cut off by network namespaces, which takes root; who has not gets frozen members instead, and a notice.
//! `TESSERA_CHAOS_SECONDS` sets how long faults go on; the default keeps it short.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::plan_split_residual_at_fraction;
use tessera_contracts::{
    Cursor, CursorUpdate, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, ShardSpec, TenantId, WorkerId,
};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement, AsyncShardClaiming};
use tessera_coordination::error::{ClaimError, OperationError, RunTransitionError};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::random::SplitMix64;
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

use crate::history::{self, Record, Run, RunCall, Shard, ShardCall};

const TENANT: TenantId = TenantId::from_bytes([9; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const ROOTS: u32 = 12;
/// Enough work that faults never run out of workers to meet.
const ITEMS_PER_ROOT_AND_SECOND: u32 = 60;
const WORKERS: u64 = 6;
/// Without faults, for so long at most nothing gets done in a run that will come to its end.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// What all workers did.
#[derive(Default)]
struct History {
    items: BTreeSet<u32>,
    shards: BTreeMap<ShardId, Vec<Record<ShardCall>>>,
    run: Vec<Record<RunCall>>,
    sessions_lost: u64,
    crashes: u64,
}

struct World {
    origin: Instant,
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

    /// The clock of the history.
    fn clock(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).expect("a bearable time")
    }

    /// A call that was answered.
    fn record(&self, shard: ShardId, began: u64, call: ShardCall) {
        let record = Record { began, ended: self.clock(), call, certain: true };
        self.history.lock().expect("no panic").shards.entry(shard).or_default().push(record);
    }

    /// A call that may have happened, or happen yet.
    fn record_in_doubt(&self, shard: ShardId, began: u64, call: ShardCall) {
        let record = Record { began, ended: u64::MAX, call, certain: false };
        self.history.lock().expect("no panic").shards.entry(shard).or_default().push(record);
    }

    fn record_run(&self, began: u64, call: RunCall, certain: bool) {
        let ended = if certain { self.clock() } else { u64::MAX };
        self.history.lock().expect("no panic").run.push(Record { began, ended, call, certain });
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

/// Tries an operation until it has an answer, and enters it into the history; `None` after the world has ended.
macro_rules! until_answered {
    ($world:expr, $lease:expr, $call:expr, $attempt:expr) => {{
        let (began, shard) = ($world.clock(), $lease.shard());
        let mut in_doubt = false;
        loop {
            match $attempt.await {
                Ok(_) => {
                    $world.record(shard, began, $call);
                    break Some(After::Done);
                }
                Err(error) if error.is_transient() => {
                    in_doubt = true;
                    if $world.finished.load(Ordering::Relaxed) {
                        $world.record_in_doubt(shard, began, $call);
                        break None;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(_) => {
                    // An earlier try may have been the one that counted, and been forgotten since.
                    if in_doubt {
                        $world.record_in_doubt(shard, began, $call);
                    }
                    break Some(After::LeaseLost);
                }
            }
        }
    }};
}

/// One life of a worker: from its start to its crash, or to the end of the run.
async fn live(world: Arc<World>, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let worker = WorkerId::new(world.next_worker.fetch_add(1, Ordering::Relaxed));
    let mut coordinator = AsyncEtcdCoordinator::connect(world.config.clone()).expect("valid");
    let mut scratch = AcquireScratch::new();
    while !world.finished.load(Ordering::Relaxed) {
        let began = world.clock();
        let claimed = coordinator.claim_next_available(now(), TENANT, RUN, worker, &mut scratch).await;
        let (lease, spec, cursor) = match claimed {
            Ok(view) => (view.lease, view.snapshot.spec.to_owned(), view.snapshot.cursor.to_owned()),
            Err(ClaimError::RunNotActive { .. }) => {
                world.record_run(began, RunCall::Read(Run::Completed), true);
                return;
            }
            Err(_) => {
                finish(&world, &mut coordinator).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (last_key, end) = (cursor.last_key().unwrap_or_default().to_vec(), spec.end().to_vec());
        world.record(lease.shard(), began, ShardCall::Acquire { fence: lease.fence().get(), last_key, end });
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
    let began = world.clock();
    // One operation id for all who try: it is the same act.
    match coordinator.complete_run(now(), TENANT, RUN, OpId::new(u64::MAX)).await {
        Ok(_) => {
            world.record_run(began, RunCall::Complete, true);
            world.finished.store(true, Ordering::Relaxed);
        }
        Err(RunTransitionError::ShardsOpen { .. }) => world.record_run(began, RunCall::Refused, true),
        Err(RunTransitionError::BackendError(_)) => world.record_run(began, RunCall::Complete, false),
        Err(error) => panic!("{error}"),
    }
}

/// Looks at the run and at shards that are known of, all the while.
async fn look_around(world: Arc<World>, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let mut coordinator = AsyncEtcdCoordinator::connect(world.config.clone()).expect("valid");
    while !world.finished.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(random.below(10))).await;
        let began = world.clock();
        if random.below(8) == 0 {
            if let Ok(run) = coordinator.get_run(TENANT, RUN).await {
                let seen = if run.status == RunStatus::Active { Run::Active } else { Run::Completed };
                world.record_run(began, RunCall::Read(seen), true);
            }
            continue;
        }
        let known: Vec<ShardId> = world.history.lock().expect("no panic").shards.keys().copied().collect();
        let Some(shard) = known.get(usize::try_from(random.next()).unwrap_or(0) % known.len().max(1)) else { continue };
        if let Ok(record) = coordinator.get_shard(TENANT, ShardKey::new(RUN, *shard)).await {
            let seen = Shard {
                fence: record.state.head.fence.get(),
                last_key: record.cursor.last_key().unwrap_or_default().to_vec(),
                end: record.spec.end().to_vec(),
                done: record.state.head.status == ShardStatus::Done,
            };
            world.record(*shard, began, ShardCall::Read(seen));
        }
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
    let fence = lease.fence().get();
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
        let op = world.op();
        let call = ShardCall::Checkpoint { fence, last_key: key.to_vec() };
        match until_answered!(world, lease, call.clone(), coordinator.checkpoint(now(), TENANT, &lease, update, op))? {
            After::Done => {}
            After::LeaseLost => return Some(()),
        }
        cursor = update.to_owned();
        match random.below(10) {
            0 => {
                let (op, call, reason) = (world.op(), ShardCall::Release { fence }, ReleaseReason::Released);
                until_answered!(
                    world,
                    lease,
                    call.clone(),
                    coordinator.release(now(), TENANT, &lease, None, reason, op)
                )?;
                return Some(());
            }
            1 => {
                let Ok(plan) = plan_split_residual_at_fraction(spec.view(), cursor.last_key(), Fraction::HALF) else {
                    continue;
                };
                let (op, call) = (world.op(), ShardCall::Narrow { fence, end: plan.kept().end().to_vec() });
                let split = until_answered!(
                    world,
                    lease,
                    call.clone(),
                    coordinator.split_residual(now(), TENANT, &lease, &plan, op)
                );
                match split? {
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
    let op = world.op();
    let call = ShardCall::Complete { fence, last_key: cursor.last_key().unwrap_or_default().to_vec() };
    until_answered!(world, lease, call.clone(), coordinator.complete(now(), TENANT, &lease, cursor.as_update(), op))?;
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
    for (shard, calls) in &history.shards {
        history::check(&newborn(calls), calls).unwrap_or_else(|problem| panic!("shard {shard}: {problem}"));
    }
    history::check(&Run::Active, &history.run).unwrap_or_else(|problem| panic!("the run: {problem}"));
}

/// A shard as it was born: at the key and with the end that it was first seen with.
fn newborn(calls: &[Record<ShardCall>]) -> Shard {
    let first = calls.iter().filter(|record| record.certain).min_by_key(|record| record.ended);
    let (last_key, end) = match first.map(|record| &record.call) {
        Some(ShardCall::Acquire { last_key, end, .. }) => (last_key.clone(), end.clone()),
        other => panic!("the first thing ever done with a shard is to acquire it, not {other:?}"),
    };
    Shard { fence: 1, last_key, end, done: false }
}

#[test]
fn no_item_is_lost_and_every_answer_has_its_order_while_members_and_workers_die() {
    let seconds: u64 = std::env::var("TESSERA_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let seed: u64 = std::env::var("TESSERA_CHAOS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("replay the workers' choices with TESSERA_CHAOS_SEED={seed}");
    let (mut cluster, apart) = match EtcdCluster::start_apart(3) {
        Ok(cluster) => (cluster, true),
        Err(problem) => {
            println!(
                "notice: members are frozen instead of cut off, since this machine allows no namespaces: {problem}"
            );
            (EtcdCluster::start(3), false)
        }
    };
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
        origin: Instant::now(),
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
        coordinator
            .create_run_with_shards(now(), TENANT, RUN, INCARNATION, run, &inputs, world.op())
            .await
            .expect("registered");
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
    runtime.spawn(look_around(Arc::clone(&world), seed));
    let (mut faults, started) = ([0; 3], Instant::now());
    let mut random = SplitMix64::new(seed);
    while started.elapsed() < Duration::from_secs(seconds) && !world.finished.load(Ordering::Relaxed) {
        // Never more than one of three at a time: two would rightly stop everything.
        let member = usize::try_from(random.below(3)).expect("one of three");
        let fault = usize::try_from(random.below(3)).expect("one of three");
        faults[fault] += 1;
        match fault {
            0 => {
                cluster.kill(member);
                std::thread::sleep(Duration::from_millis(800));
                cluster.restart(member);
            }
            1 if apart => {
                cluster.cut_off(member);
                std::thread::sleep(Duration::from_millis(1_500));
                cluster.reconnect(member);
            }
            _ => {
                cluster.pause(member);
                std::thread::sleep(Duration::from_millis(1_200));
                cluster.resume(member);
            }
        }
        std::thread::sleep(Duration::from_millis(700));
    }
    // A busy machine takes long, so only a run in which no item gets done has stopped for good.
    let items_done = || world.history.lock().expect("no panic").items.len();
    let (mut done, mut since) = (items_done(), Instant::now());
    while !world.finished.load(Ordering::Relaxed) {
        let now = items_done();
        if now != done {
            (done, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < STUCK_AFTER, "{done} items were done, and none for {STUCK_AFTER:?} since");
        std::thread::sleep(Duration::from_millis(100));
    }
    runtime.shutdown_timeout(Duration::from_secs(10));
    let history = world.history.lock().expect("no panic");
    println!(
        "{} shards, {} calls on them, {} on the run; members killed, cut off, frozen: {faults:?}; {} crashes, {} sessions lost; {:?}",
        history.shards.len(),
        history.shards.values().map(Vec::len).sum::<usize>(),
        history.run.len(),
        history.crashes,
        history.sessions_lost,
        started.elapsed()
    );
    check(&history, ROOTS * items_per_root);
}
