//! Operations on shards beside the raw transactions that they are made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tessera_contracts::{CursorUpdate, LogicalTime, OpId, ShardId, ShardKey};
use tessera_coordination::AcquireScratch;
use tessera_coordination::backend::AsyncCoordinationBackend;
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::kv::{Compare, EtcdLeaseId, Kv, Op, Revision, Txn};
use tessera_coordination_etcd::test_support::{Certificates, ClusterOptions, EtcdCluster};

use super::floors::{Floor, by_hand};
use super::{Bench, LASTING, RECORD_BYTES, RUN, TENANT, WORKER, alone, record, soon};
use crate::harness::{Figure, Pair};

pub(super) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "etcd/checkpoint-alone-x32",
            "32 checkpoints, one request each, beside 32 raw compare-and-sets of as many bytes",
            || checkpoints(Bench::start(alone()), 32, None),
        ),
        Figure::cost(
            "etcd/checkpoint-alone-x32-300B",
            "the same beside raw compare-and-sets of 300 bytes, at any size of ours",
            || checkpoints(Bench::start(alone()), 32, Some(RECORD_BYTES)),
        ),
        Figure::cost(
            "etcd/checkpoint-grouped-x64",
            "64 checkpoints in groups beside 64 raw compare-and-sets of as many bytes",
            || checkpoints(Bench::start(EtcdConfig::default()), 64, None),
        ),
        Figure::cost("etcd/checkpoint-grouped-x64-3members", "the same on three members", || {
            checkpoints(Bench::on(Arc::new(EtcdCluster::start(3)), EtcdConfig::default()), 64, None)
        }),
        Figure::cost(
            "etcd/checkpoint-alone-x32-tls",
            "32 checkpoints over TLS with certificates on both sides beside 32 in the clear",
            encrypted,
        ),
        Figure::cost(
            "etcd/acquire-alone-x32",
            "32 acquires, one request each, beside 32 raw transactions of two compares and two puts",
            || acquires(32),
        ),
        Figure::cost(
            "etcd/checkpoint-alone-x32-own-code",
            "32 checkpoints beside what they ask of the server, asked by hand",
            || beside_floor(Floor::Checkpoint, 32),
        ),
        Figure::cost(
            "etcd/checkpoint-alone-x32-floor",
            "what 32 checkpoints ask of the server, asked by hand, beside 32 raw compare-and-sets",
            || floor_beside_raw(Floor::Checkpoint, 32),
        ),
        Figure::cost(
            "etcd/acquire-alone-x32-own-code",
            "32 acquires beside what they ask of the server, asked by hand",
            || beside_floor(Floor::Acquire, 32),
        ),
        Figure::cost(
            "etcd/acquire-alone-x32-floor",
            "what 32 acquires ask of the server, asked by hand, beside 32 raw transactions of two compares and two puts",
            || floor_beside_raw(Floor::Acquire, 32),
        ),
        Figure::cost("etcd/renew-256", "renewing 256 shards in one call beside 4 raw requests of 64 each", renewals),
    ]
}

fn checkpoints(bench: Bench, tasks: u64, raw_bytes: Option<usize>) -> Pair {
    let ours = checkpointing(&bench, tasks);
    let bytes = raw_bytes.unwrap_or_else(|| bench.hot_bytes(1));
    Pair::new(ours, bench.compare_and_set(tasks as usize, bytes))
}

/// The cost of certificates: the same on a cluster that speaks TLS and on one that does not.
fn encrypted() -> Pair {
    let certificates = Certificates::new();
    let options = ClusterOptions { flags: certificates.server_flags(), tls: true, ..ClusterOptions::default() };
    let cluster = Arc::new(EtcdCluster::start_with(1, &options));
    let ours = checkpointing(&Bench::on(cluster, EtcdConfig { tls: Some(certificates.client()), ..alone() }), 32);
    Pair::new(ours, checkpointing(&Bench::start(alone()), 32))
}

/// So many tasks, each with a shard of its own that it checkpoints.
fn checkpointing(bench: &Bench, tasks: u64) -> impl FnMut(u64) + use<> {
    bench.register(RUN, tasks, LASTING);
    let leases = bench.acquire(RUN, 1..=tasks);
    let serial = Arc::new(AtomicU64::new(1));
    let (runtime, coordinator) = (Arc::clone(&bench.runtime), bench.coordinator.clone());
    let cluster = Arc::clone(&bench.cluster);
    let checkpoint = move |times| {
        let _alive = &cluster;
        let round = leases.iter().map(|lease| {
            let (mut coordinator, lease, serial) = (coordinator.clone(), *lease, Arc::clone(&serial));
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
        Bench::round(&runtime, round);
    };
    // Until the log of operations is full, records grow.
    checkpoint(16);
    checkpoint
}

/// Ours beside their own requests to the server.
fn beside_floor(floor: Floor, tasks: u64) -> Pair {
    let bench = Bench::start(alone());
    match floor {
        Floor::Checkpoint => {
            let ours = checkpointing(&bench, tasks);
            Pair::new(ours, by_hand(&bench, floor, tasks, bench.hot_bytes(1)))
        }
        Floor::Acquire => {
            let ours = acquiring(&bench, tasks);
            Pair::new(ours, by_hand(&bench, floor, tasks, bench.hot_bytes(1)))
        }
    }
}

/// The requests of ours beside the raw transaction, both of as many bytes as ours.
fn floor_beside_raw(floor: Floor, tasks: u64) -> Pair {
    let bench = Bench::start(alone());
    match floor {
        Floor::Checkpoint => {
            drop(checkpointing(&bench, tasks));
            let bytes = bench.hot_bytes(1);
            Pair::new(by_hand(&bench, floor, tasks, bytes), bench.compare_and_set(tasks as usize, bytes))
        }
        Floor::Acquire => {
            drop(acquiring(&bench, tasks));
            let bytes = bench.hot_bytes(1);
            Pair::new(by_hand(&bench, floor, tasks, bytes), raw_acquires(&bench, tasks as usize, bytes))
        }
    }
}

fn acquires(tasks: u64) -> Pair {
    let bench = Bench::start(alone());
    let ours = acquiring(&bench, tasks);
    let reference = raw_acquires(&bench, tasks as usize, bench.hot_bytes(1));
    Pair::new(ours, reference)
}

/// So many tasks, each with a shard of its own that it acquires again and again.
fn acquiring(bench: &Bench, tasks: u64) -> impl FnMut(u64) + use<> {
    // Leases end at once, so that every acquire is of a shard whose holder is late.
    bench.register(RUN, tasks, 1);
    let clock = Arc::new(AtomicU64::new(10));
    let (runtime, coordinator) = (Arc::clone(&bench.runtime), bench.coordinator.clone());
    let ours = move |times| {
        let round = (1..=tasks).map(|shard| {
            let (mut coordinator, clock) = (coordinator.clone(), Arc::clone(&clock));
            async move {
                let mut scratch = AcquireScratch::new();
                for _ in 0..times {
                    let now = LogicalTime::new(clock.fetch_add(10, Ordering::Relaxed));
                    let key = ShardKey::new(RUN, ShardId::new(shard));
                    // A task whose number was drawn before a faster one's comes too early once; time heals it.
                    while coordinator.acquire_and_restore_into(now, TENANT, key, WORKER, &mut scratch).await.is_err() {}
                }
            }
        });
        Bench::round(&runtime, round);
    };
    ours(16);
    ours
}

/// Two compares, a record, and an owner key attached to a lease that all share.
fn raw_acquires(bench: &Bench, tasks: usize, bytes: usize) -> impl FnMut(u64) + use<> {
    let (runtime, raw, namespace) = (Arc::clone(&bench.runtime), bench.raw.clone(), bench.config.namespace.clone());
    let lease = EtcdLeaseId::from_random(raw.random());
    let granted = raw.lease_grant(lease, Duration::from_secs(3_600), soon(&raw));
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
                    let value = record(bytes, serial.fetch_add(1, Ordering::Relaxed));
                    let txn = Txn {
                        compares: vec![
                            Compare::unchanged_since(key.clone(), *revision),
                            Compare::unchanged_since(owner.clone(), *revision),
                        ],
                        success: vec![Op::put(key.clone(), value), Op::put_attached(owner.clone(), vec![1; 26], lease)],
                        failure: vec![Op::get(key.clone()), Op::get(owner.clone())],
                    };
                    let answer = raw.txn(txn, soon(&raw)).await.expect("answered");
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
    bench.register(RUN, SHARDS, LASTING);
    let leases = bench.acquire(RUN, 1..=SHARDS);
    let (raw, runtime) = (bench.raw.clone(), Arc::clone(&bench.runtime));
    let (namespace, cluster) = (bench.config.namespace.clone(), Arc::clone(&bench.cluster));
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
                    raw.txn(txn, soon(&raw)).await.expect("answered");
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
