//! The etcd backend beside raw transactions of the same kind on the same server, same concurrency, in turns.
//!
//! One operation of a figure is one round of all its tasks, since a lone task measures the disk and not the code. CPU is
//! that of this process; the server's shows in the wall time beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::plan_split_replace;
use tessera_contracts::{CursorUpdate, LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, TenantId, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::kv::{Compare, EtcdLeaseId, Kv, Op, Revision, Txn};
use tessera_coordination_etcd::test_support::{EtcdCluster, etcd_binary};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};
use tokio::runtime::Runtime;

use crate::harness::{Figure, Pair};

const TENANT: TenantId = TenantId::from_bytes([5; 32]);
const WORKER: WorkerId = WorkerId::new(1);
/// A record of the size that measurements of raw stores usually take.
const RECORD_BYTES: usize = 300;

/// Figures that need an etcd server; none where there is none.
pub(crate) fn figures() -> Vec<Figure> {
    if etcd_binary().is_none() {
        eprintln!("note: no etcd server found, so no etcd figures: set TESSERA_ETCD, or run `cargo xtask check` once");
        return Vec::new();
    }
    vec![
        Figure::cost(
            "etcd/checkpoint-alone-x32",
            "32 checkpoints, one request each, beside 32 raw compare-and-sets",
            || checkpoints(32, EtcdConfig { batch_ops_max: 1, batches_in_flight_max: 64, ..EtcdConfig::default() }),
        ),
        Figure::cost("etcd/checkpoint-grouped-x64", "64 checkpoints in groups beside 64 raw compare-and-sets", || {
            checkpoints(64, EtcdConfig::default())
        }),
        Figure::cost("etcd/acquire-alone-x32", "32 acquires, one request each, beside 32 raw 2+2 transactions", || {
            acquires(32, EtcdConfig { batch_ops_max: 1, batches_in_flight_max: 64, ..EtcdConfig::default() })
        }),
        Figure::cost("etcd/renew-256", "renewing 256 shards in one call beside 4 raw requests of 64 each", renewals),
        Figure::cost(
            "etcd/acquire+split-8-x8",
            "8 acquires and splits by 8, at 20,000 shards, beside the raw pairs",
            splits,
        ),
    ]
}

/// A server, a runtime, a coordinator and a raw client on both.
struct Bench {
    runtime: Arc<Runtime>,
    coordinator: AsyncEtcdCoordinator<EtcdClient>,
    raw: EtcdClient,
    namespace: String,
    /// Dropped last, with the figure.
    cluster: Arc<EtcdCluster>,
}

impl Bench {
    fn start(config: EtcdConfig) -> Self {
        let cluster = EtcdCluster::shared();
        let EtcdConfig { endpoints, namespace, .. } = cluster.config();
        let config = EtcdConfig { endpoints, namespace: namespace.clone(), skew_tolerance: Duration::ZERO, ..config };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = Arc::new(runtime.expect("a runtime can be built"));
        let raw = EtcdClient::new(&config).expect("valid");
        let coordinator = runtime.block_on(async { AsyncEtcdCoordinator::connect(config) }).expect("valid");
        Self { runtime, coordinator, raw, namespace, cluster }
    }

    /// A run of so many roots of one eight-byte key each, with leases of so many milliseconds.
    fn register(&self, run: RunId, roots: u64, lease_duration: u64) {
        let bounds: Vec<[u8; 8]> = (1..=roots + 1).map(u64::to_be_bytes).collect();
        let inputs: Vec<InitialShardInput<'_>> = (0..roots as usize)
            .map(|root| InitialShardInput::new(ShardId::new(root as u64 + 1), &bounds[root], &bounds[root + 1]))
            .collect();
        let config = RunConfig { lease_duration: Some(lease_duration), max_shard_retries: 0, ..RunConfig::default() };
        let mut coordinator = self.coordinator.clone();
        let registered =
            coordinator.create_run_with_shards(LogicalTime::new(1), TENANT, run, config, &inputs, OpId::new(1));
        self.runtime.block_on(registered).expect("registered");
    }

    fn acquire(&self, run: RunId, shard: u64, now: u64) -> Lease {
        let mut coordinator = self.coordinator.clone();
        let mut scratch = AcquireScratch::new();
        let key = ShardKey::new(run, ShardId::new(shard));
        let acquired = coordinator.acquire_and_restore_into(LogicalTime::new(now), TENANT, key, WORKER, &mut scratch);
        self.runtime.block_on(acquired).expect("granted").lease
    }

    /// Runs `tasks` side by side and waits for all.
    fn round<F: Future<Output = ()> + Send + 'static>(runtime: &Runtime, tasks: impl Iterator<Item = F>) {
        let tasks: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
        for task in tasks {
            runtime.block_on(task).expect("a task of the measurement failed");
        }
    }

    /// The reference: so many tasks, each with keys of its own, that compare and set records.
    fn compare_and_set(&self, tasks: usize) -> impl FnMut(u64) + use<> {
        let (runtime, raw, namespace) = (Arc::clone(&self.runtime), self.raw.clone(), self.namespace.clone());
        let serial = Arc::new(AtomicU64::new(1));
        let revisions: Vec<Arc<tokio::sync::Mutex<Revision>>> = (0..tasks).map(|_| Arc::default()).collect();
        let cluster = Arc::clone(&self.cluster);
        move |times| {
            let _alive = &cluster;
            let round = revisions.iter().enumerate().map(|(task, revision)| {
                let (raw, revision, serial) = (raw.clone(), Arc::clone(revision), Arc::clone(&serial));
                let key = format!("{namespace}/raw/{task:048}");
                async move {
                    let mut revision = revision.lock().await;
                    for _ in 0..times {
                        let value = record(serial.fetch_add(1, Ordering::Relaxed));
                        let txn = Txn {
                            compares: vec![Compare::unchanged_since(key.clone(), *revision)],
                            success: vec![Op::put(key.clone(), value)],
                            failure: vec![Op::get(key.clone())],
                        };
                        let answer = raw.txn(txn, raw.now().after(Duration::from_secs(10))).await.expect("answered");
                        assert!(answer.succeeded);
                        *revision = answer.revision;
                    }
                }
            });
            Self::round(&runtime, round);
        }
    }
}

/// A value that differs each time: some stores skip a write that changes nothing.
fn record(serial: u64) -> Vec<u8> {
    let mut bytes = vec![7; RECORD_BYTES];
    bytes[..8].copy_from_slice(&serial.to_be_bytes());
    bytes
}

fn checkpoints(tasks: usize, config: EtcdConfig) -> Pair {
    let bench = Bench::start(config);
    let run = RunId::new(1);
    bench.register(run, tasks as u64, 3_600_000);
    let leases: Vec<Lease> = (1..=tasks as u64).map(|shard| bench.acquire(run, shard, 1)).collect();
    let serial = Arc::new(AtomicU64::new(1));
    let reference = bench.compare_and_set(tasks);
    let ours = move |times| {
        let round = leases.iter().map(|lease| {
            let (mut coordinator, lease, serial) = (bench.coordinator.clone(), *lease, Arc::clone(&serial));
            async move {
                for _ in 0..times {
                    let op = serial.fetch_add(1, Ordering::Relaxed);
                    // The root's own key, and behind it a position that grows.
                    let key = [lease.shard().get().to_be_bytes(), op.to_be_bytes()].concat();
                    let cursor = CursorUpdate::at_key(&key).expect("valid");
                    let now = LogicalTime::new(2);
                    coordinator.checkpoint(now, TENANT, &lease, cursor, OpId::new(op)).await.expect("recorded");
                }
            }
        });
        Bench::round(&bench.runtime, round);
    };
    Pair::new(ours, reference)
}

fn acquires(tasks: usize, config: EtcdConfig) -> Pair {
    let bench = Bench::start(config);
    let run = RunId::new(1);
    // Leases end at once, so that every acquire is of a shard whose holder is late.
    bench.register(run, tasks as u64, 1);
    let clock = Arc::new(AtomicU64::new(10));
    let reference = raw_acquires(&bench, tasks);
    let ours = move |times| {
        let round = (1..=tasks as u64).map(|shard| {
            let (mut coordinator, clock) = (bench.coordinator.clone(), Arc::clone(&clock));
            async move {
                let mut scratch = AcquireScratch::new();
                for _ in 0..times {
                    let now = LogicalTime::new(clock.fetch_add(10, Ordering::Relaxed));
                    let key = ShardKey::new(run, ShardId::new(shard));
                    // A task whose number was drawn before a faster one's comes too early once; time heals it.
                    while coordinator.acquire_and_restore_into(now, TENANT, key, WORKER, &mut scratch).await.is_err() {}
                }
            }
        });
        Bench::round(&bench.runtime, round);
    };
    Pair::new(ours, reference)
}

/// Two compares, a record, and an owner key attached to a lease that all share.
fn raw_acquires(bench: &Bench, tasks: usize) -> impl FnMut(u64) + use<> {
    let (runtime, raw, namespace) = (Arc::clone(&bench.runtime), bench.raw.clone(), bench.namespace.clone());
    let lease = EtcdLeaseId::from_random(raw.random());
    let granted = raw.lease_grant(lease, Duration::from_secs(3_600), raw.now().after(Duration::from_secs(10)));
    runtime.block_on(granted).expect("granted");
    let serial = Arc::new(AtomicU64::new(1));
    let revisions: Vec<Arc<tokio::sync::Mutex<Revision>>> = (0..tasks).map(|_| Arc::default()).collect();
    let cluster = Arc::clone(&bench.cluster);
    move |times| {
        let _alive = &cluster;
        let round = revisions.iter().enumerate().map(|(task, revision)| {
            let (raw, revision, serial) = (raw.clone(), Arc::clone(revision), Arc::clone(&serial));
            let (key, owner) = (format!("{namespace}/raw/{task:048}"), format!("{namespace}/own/{task:048}"));
            async move {
                let mut revision = revision.lock().await;
                for _ in 0..times {
                    let value = record(serial.fetch_add(1, Ordering::Relaxed));
                    let txn = Txn {
                        compares: vec![
                            Compare::unchanged_since(key.clone(), *revision),
                            Compare::unchanged_since(owner.clone(), *revision),
                        ],
                        success: vec![Op::put(key.clone(), value), Op::put_attached(owner.clone(), vec![1; 26], lease)],
                        failure: vec![Op::get(key.clone()), Op::get(owner.clone())],
                    };
                    let answer = raw.txn(txn, raw.now().after(Duration::from_secs(10))).await.expect("answered");
                    assert!(answer.succeeded);
                    *revision = answer.revision;
                }
            }
        });
        Bench::round(&runtime, round);
    }
}

fn renewals() -> Pair {
    const SHARDS: u64 = 256;
    let bench = Bench::start(EtcdConfig::default());
    let run = RunId::new(1);
    bench.register(run, SHARDS, 3_600_000);
    let leases: Vec<Lease> = (1..=SHARDS).map(|shard| bench.acquire(run, shard, 1)).collect();
    let (raw, runtime) = (bench.raw.clone(), Arc::clone(&bench.runtime));
    let (namespace, cluster) = (bench.namespace.clone(), Arc::clone(&bench.cluster));
    let reference = move |times: u64| {
        let _alive = &cluster;
        for time in 0..times {
            let requests = (0..4).map(|request| {
                let renewals = (0..64).map(|shard| {
                    let key = format!("{namespace}/raw/{request}/{shard:040}");
                    let txn = Txn {
                        compares: vec![Compare::unchanged_since("absent", Revision(0))],
                        success: vec![Op::put(key.clone(), time.to_be_bytes().to_vec())],
                        failure: vec![Op::get(key)],
                    };
                    Op::Txn(txn)
                });
                let (txn, raw) = (Txn::of(renewals.collect()), raw.clone());
                async move {
                    raw.txn(txn, raw.now().after(Duration::from_secs(10))).await.expect("answered");
                }
            });
            Bench::round(&runtime, requests);
        }
    };
    let mut clock = 2;
    let mut answers = Vec::new();
    let mut coordinator = bench.coordinator.clone();
    let ours = move |times| {
        for _ in 0..times {
            clock += 1;
            let renewed = coordinator.renew_many(LogicalTime::new(clock), TENANT, &leases, &mut answers);
            bench.runtime.block_on(renewed);
            assert!(answers.iter().all(Result::is_ok));
        }
    };
    Pair::new(ours, reference)
}

fn splits() -> Pair {
    const TASKS: u64 = 8;
    const ROOTS: u64 = 10_000;
    let bench = Bench::start(EtcdConfig::default());
    for run in 1..=2 {
        bench.register(RunId::new(run), ROOTS, 3_600_000);
    }
    let (raw, runtime) = (bench.raw.clone(), Arc::clone(&bench.runtime));
    let (namespace, cluster) = (bench.namespace.clone(), Arc::clone(&bench.cluster));
    let serial = Arc::new(AtomicU64::new(0));
    let mut acquire = raw_acquires(&bench, TASKS as usize);
    let reference = move |times| {
        let _alive = &cluster;
        acquire(times);
        let round = (0..TASKS).map(|_| {
            let (raw, serial, namespace) = (raw.clone(), Arc::clone(&serial), namespace.clone());
            async move {
                for _ in 0..times {
                    let number = serial.fetch_add(1, Ordering::Relaxed);
                    let key = |part: usize| format!("{namespace}/split/{number:016x}/{part:030}");
                    let txn = Txn {
                        compares: (0..13).map(|part| Compare::absent(key(part))).collect(),
                        success: (0..20).map(|part| Op::put(key(part), vec![3; 120])).collect(),
                        failure: vec![Op::get(key(0))],
                    };
                    let answer = raw.txn(txn, raw.now().after(Duration::from_secs(10))).await.expect("answered");
                    assert!(answer.succeeded);
                }
            }
        });
        Bench::round(&runtime, round);
    };
    let next = Arc::new(AtomicU64::new(0));
    let ours = move |times| {
        let round = (0..TASKS).map(|_| {
            let (mut coordinator, next) = (bench.coordinator.clone(), Arc::clone(&next));
            async move {
                let mut scratch = AcquireScratch::new();
                for _ in 0..times {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    assert!(number < 2 * ROOTS, "more roots are needed for so many samples");
                    let (run, root) = (RunId::new(number / ROOTS + 1), number % ROOTS + 1);
                    let key = ShardKey::new(run, ShardId::new(root));
                    let now = LogicalTime::new(2);
                    let acquired = coordinator.acquire_and_restore_into(now, TENANT, key, WORKER, &mut scratch).await;
                    let lease = acquired.expect("granted").lease;
                    let (start, end) = (root.to_be_bytes(), (root + 1).to_be_bytes());
                    let spec = ShardSpec::new(&start, &end, b"").expect("valid");
                    let points: Vec<Vec<u8>> = (1..8u8).map(|point| [&start[..], &[point]].concat()).collect();
                    let points: Vec<&[u8]> = points.iter().map(Vec::as_slice).collect();
                    let plan = plan_split_replace(spec.view(), &points).expect("valid");
                    coordinator.split_replace(now, TENANT, &lease, &plan, OpId::new(number + 10)).await.expect("split");
                }
            }
        });
        Bench::round(&bench.runtime, round);
    };
    Pair::new(ours, reference)
}
