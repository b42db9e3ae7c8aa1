//! The etcd backend beside raw transactions of the same kind on the same server, same concurrency and bytes, in turns.
//!
//! One operation of a figure is one round of all its tasks, since a lone task measures the disk and not the code. CPU is
//! that of this process; the server's shows in the wall time beside it.

mod fleet;
mod floors;
mod shards;
mod splits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::keyspace::Keyspace;
use tessera_coordination_etcd::kv::{Compare, Kv, Moment, Op, RangeRequest, Revision, Txn};
use tessera_coordination_etcd::test_support::{EtcdCluster, etcd_binary};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};
use tokio::runtime::Runtime;

use crate::harness::Figure;

const TENANT: TenantId = TenantId::from_bytes([5; 32]);
const WORKER: WorkerId = WorkerId::new(1);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
/// A record of the size that measurements of raw stores usually take.
const RECORD_BYTES: usize = 300;
/// Longer than any figure takes.
const LASTING: u64 = 3_600_000;

/// Figures that need an etcd server; none where there is none.
pub(crate) fn figures() -> Vec<Figure> {
    if etcd_binary().is_none() {
        eprintln!("note: no etcd server found, so no etcd figures: set TESSERA_ETCD, or run `cargo xtask check` once");
        return Vec::new();
    }
    // A server collects garbage and waits for its disk every few dozen milliseconds: samples that each meet some of that,
    // and many of them, so that a run tells a difference of two hundredths.
    let mut all: Vec<Figure> = shards::figures().into_iter().map(|figure| figure.longer(5).more(4)).collect();
    // Each split writes much: samples of several of the server's commits, which come ten times a second.
    all.extend(splits::figures().into_iter().map(|figure| figure.longer(30)));
    all.extend(fleet::figures());
    all
}

/// Requests of one operation each, for comparison with raw requests of one each.
fn alone() -> EtcdConfig {
    EtcdConfig { batch_ops_max: 1, batches_in_flight_max: 64, ..EtcdConfig::default() }
}

/// A server, a runtime, a coordinator and a raw client on both.
struct Bench {
    runtime: Arc<Runtime>,
    coordinator: AsyncEtcdCoordinator<EtcdClient>,
    raw: EtcdClient,
    config: EtcdConfig,
    /// Dropped last, with the figure.
    cluster: Arc<EtcdCluster>,
}

impl Bench {
    fn start(config: EtcdConfig) -> Self {
        Self::on(EtcdCluster::shared(), config)
    }

    fn on(cluster: Arc<EtcdCluster>, config: EtcdConfig) -> Self {
        let EtcdConfig { endpoints, namespace, .. } = cluster.config();
        let config = EtcdConfig { endpoints, namespace, skew_tolerance: Duration::ZERO, ..config };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = Arc::new(runtime.expect("a runtime can be built"));
        let raw = EtcdClient::new(&config).expect("valid");
        let coordinator = runtime.block_on(async { AsyncEtcdCoordinator::connect(config.clone()) }).expect("valid");
        Self { runtime, coordinator, raw, config, cluster }
    }

    /// A run of so many roots of one eight-byte key each, with leases of so many milliseconds.
    fn register(&self, run: RunId, roots: u64, lease_duration: u64) {
        let bounds: Vec<[u8; 8]> = (1..=roots + 1).map(u64::to_be_bytes).collect();
        let inputs: Vec<InitialShardInput<'_>> = (0..roots as usize)
            .map(|root| InitialShardInput::new(ShardId::new(root as u64 + 1), &bounds[root], &bounds[root + 1]))
            .collect();
        let config = RunConfig { lease_duration: Some(lease_duration), max_shard_retries: 0, ..RunConfig::default() };
        let mut coordinator = self.coordinator.clone();
        let registered = coordinator.create_run_with_shards(
            LogicalTime::new(1),
            TENANT,
            run,
            INCARNATION,
            config,
            &inputs,
            OpId::new(1),
        );
        self.runtime.block_on(registered).expect("registered");
    }

    /// Acquires shards of a run, side by side.
    fn acquire(&self, run: RunId, shards: impl Iterator<Item = u64>) -> Vec<Lease> {
        let tasks: Vec<_> = shards
            .map(|shard| {
                let mut coordinator = self.coordinator.clone();
                self.runtime.spawn(async move {
                    let mut scratch = AcquireScratch::new();
                    let (now, key) = (LogicalTime::new(1), ShardKey::new(run, ShardId::new(shard)));
                    let granted = coordinator.acquire_and_restore_into(now, TENANT, key, WORKER, &mut scratch).await;
                    granted.expect("granted").lease
                })
            })
            .collect();
        tasks.into_iter().map(|task| self.runtime.block_on(task).expect("a task of the measurement failed")).collect()
    }

    /// How many bytes of a shard every operation writes.
    fn hot_bytes(&self, shard: u64) -> usize {
        let path = Keyspace::new(&self.config.namespace).hot(TENANT, ShardKey::new(RUN, ShardId::new(shard)));
        let read = self.raw.range(RangeRequest::one(path), soon(&self.raw));
        self.runtime.block_on(read).expect("answered").into_one().expect("written").value.len()
    }

    /// Runs `tasks` side by side and waits for all.
    fn round<F: Future<Output = ()> + Send + 'static>(runtime: &Runtime, tasks: impl Iterator<Item = F>) {
        let tasks: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
        for task in tasks {
            runtime.block_on(task).expect("a task of the measurement failed");
        }
    }

    /// The reference: so many tasks, each with a key of its own, that compare and set records of so many bytes.
    fn compare_and_set(&self, tasks: usize, bytes: usize) -> impl FnMut(u64) + use<> {
        let (runtime, raw, namespace) = (Arc::clone(&self.runtime), self.raw.clone(), self.config.namespace.clone());
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
                        let value = record(bytes, serial.fetch_add(1, Ordering::Relaxed));
                        let txn = Txn {
                            compares: vec![Compare::unchanged_since(key.clone(), *revision)],
                            success: vec![Op::put(key.clone(), value)],
                            failure: vec![Op::get(key.clone())],
                        };
                        let answer = raw.txn(txn, soon(&raw)).await.expect("answered");
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
fn record(bytes: usize, serial: u64) -> Vec<u8> {
    let mut value = vec![7; bytes];
    value[..8].copy_from_slice(&serial.to_be_bytes());
    value
}

fn soon(raw: &EtcdClient) -> Moment {
    raw.now().after(Duration::from_secs(10))
}
