//! Figures of a fleet: how long a dead worker's shards stay idle, how long a planned restart takes, and how the life of a
//! shard compares with a work queue in PostgreSQL.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tessera_contracts::{CursorUpdate, LogicalTime, OpId, RunId, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncShardClaiming, HeldShard};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

use super::{Bench, LASTING, RUN, TENANT, WORKER};
use crate::harness::{Figure, Pair};
use crate::postgres::{self, Connection, Postgres};

/// The shortest session there is.
const TTL: Duration = Duration::from_secs(2);
/// Shards that a restarted worker holds.
const HELD: u64 = 64;
/// Workers, and connections, that take work from a queue.
const TASKS: u64 = 32;

pub(super) fn figures() -> Vec<Figure> {
    let mut all = vec![
        Figure::cost(
            "etcd/failover-2s",
            "from a worker's death to another holding its shard, beside waiting for its TTL of 2 s (read the wall)",
            failover,
        ),
        Figure::cost(
            "etcd/drain-64",
            "from a planned stop with 64 shards in hand to another holding all, beside 128 raw compare-and-sets",
            drain,
        ),
    ];
    if postgres::is_there() {
        all.push(Figure::cost(
            "etcd/life-x32-postgresql",
            "32 shards claimed, checkpointed and completed beside 32 rows by SKIP LOCKED, as durable",
            lives,
        ));
    } else {
        eprintln!("note: no PostgreSQL found (package postgresql), so no figure beside it");
    }
    all
}

/// A clock that runs, since a worker that claims in vain is asked to wait before it claims again.
fn now() -> LogicalTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LogicalTime::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Takes a shard of the run, with as many tries as a minute holds at most.
async fn claim(coordinator: &mut AsyncEtcdCoordinator<impl Store>, run: RunId, worker: WorkerId) -> Lease {
    let mut scratch = AcquireScratch::new();
    let mut tries = 0;
    loop {
        match coordinator.claim_next_available(now(), TENANT, run, worker, &mut scratch).await {
            Ok(view) => return view.lease,
            Err(error) => {
                tries += 1;
                assert!(tries < 12_000, "nothing could be claimed: {error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Any store that a coordinator can be over.
trait Store: tessera_coordination_etcd::kv::Kv + Clone + Send + Sync + 'static {}
impl<K: tessera_coordination_etcd::kv::Kv + Clone + Send + Sync + 'static> Store for K {}

fn failover() -> Pair {
    let config = EtcdConfig { session_ttl: TTL, attempt_timeout: TTL / 2, ..EtcdConfig::default() };
    let bench = Bench::start(config);
    bench.register(RUN, 1, LASTING);
    let mut worker = 1;
    let mut survivor = bench.coordinator.clone();
    let runtime = Arc::clone(&bench.runtime);
    let ours = move |times| {
        let _alive = &bench;
        for _ in 0..times {
            worker += 1;
            bench.runtime.block_on(async {
                let mut doomed = AsyncEtcdCoordinator::connect(bench.config.clone()).expect("valid");
                claim(&mut doomed, RUN, WorkerId::new(worker)).await;
                // Its heartbeats die with it, without a word to the store.
                drop(doomed);
                let lease = claim(&mut survivor, RUN, WORKER).await;
                let reason = ReleaseReason::Released;
                let op = OpId::new(worker);
                survivor.release(now(), TENANT, &lease, None, reason, op).await.expect("released");
            });
        }
    };
    let reference = move |times| {
        for _ in 0..times {
            runtime.block_on(async { tokio::time::sleep(TTL).await });
        }
    };
    Pair::new(ours, reference)
}

fn drain() -> Pair {
    let bench = Bench::start(EtcdConfig::default());
    bench.register(RUN, HELD, LASTING);
    let mut raw = bench.compare_and_set(HELD as usize, super::RECORD_BYTES);
    let reference = move |times| raw(2 * times);
    let serial = Arc::new(AtomicU64::new(2));
    let (runtime, config) = (Arc::clone(&bench.runtime), bench.config.clone());
    let (mut holder, mut leases) = (bench.coordinator.clone(), bench.acquire(RUN, 1..=HELD));
    let ours = move |times| {
        let _alive = &bench;
        for _ in 0..times {
            let next = WorkerId::new(serial.fetch_add(HELD, Ordering::Relaxed));
            let (held, old) = (leases.clone(), leases[0].owner());
            let (released, taken) = runtime.block_on(async {
                let mut heir = AsyncEtcdCoordinator::connect(config.clone()).expect("valid");
                let keys: Vec<[u8; 8]> = held.iter().map(|lease| lease.shard().get().to_be_bytes()).collect();
                let held = held.iter().zip(&keys).map(|(lease, key)| HeldShard {
                    lease,
                    cursor: Some(CursorUpdate::at_key(key).expect("valid")),
                    op_id: OpId::new(next.get()),
                });
                let (held, mut answers) = (held.collect::<Vec<_>>(), Vec::new());
                holder.drain(LogicalTime::new(1), TENANT, &held, &mut answers).await;
                let released = answers.iter().filter(|answer| answer.is_ok()).count();
                holder.end_session(old).await.expect("ended");
                let claims: Vec<_> = (0..HELD)
                    .map(|_| {
                        let mut heir = heir.clone();
                        tokio::spawn(async move { claim(&mut heir, RUN, next).await })
                    })
                    .collect();
                leases.clear();
                for claim in claims {
                    leases.push(claim.await.expect("a task of the measurement failed"));
                }
                std::mem::swap(&mut holder, &mut heir);
                (released, leases.len())
            });
            assert_eq!(released, taken);
        }
    };
    Pair::new(ours, reference)
}

fn lives() -> Pair {
    let bench = Bench::start(EtcdConfig {
        shards_per_tenant_max: 10_000_000,
        shards_total_max: 10_000_000,
        ..EtcdConfig::default()
    });
    let current = Arc::new(AtomicU64::new(0));
    let runtime = Arc::clone(&bench.runtime);
    let (coordinator, run) = (bench.coordinator.clone(), Arc::clone(&current));
    let ours = move |times| {
        let run = RunId::new(run.load(Ordering::Relaxed));
        let round = (1..=TASKS).map(|task| {
            let mut coordinator = coordinator.clone();
            async move {
                for time in 0..times {
                    let lease = claim(&mut coordinator, run, WorkerId::new(task)).await;
                    let key = lease.shard().get().to_be_bytes();
                    let cursor = CursorUpdate::at_key(&key).expect("valid");
                    let (now, op) = (LogicalTime::new(2), 10 + time * 2);
                    coordinator.checkpoint(now, TENANT, &lease, cursor, OpId::new(op)).await.expect("recorded");
                    coordinator.complete(now, TENANT, &lease, cursor, OpId::new(op + 1)).await.expect("done");
                }
            }
        });
        Bench::round(&runtime, round);
    };
    let reference = queue(&bench);
    Pair::new(ours, reference).refilled(64, move |times| {
        let next = current.fetch_add(1, Ordering::Relaxed) + 1;
        bench.register(RunId::new(next), times * TASKS, LASTING);
    })
}

/// Rows of a table, each claimed with `SKIP LOCKED`, updated under its fence, and closed under it: three commits, as ours.
fn queue(bench: &Bench) -> impl FnMut(u64) + use<> {
    const ROWS: u32 = if cfg!(test) { 10_000 } else { 200_000 };
    let runtime = Arc::clone(&bench.runtime);
    let server = Postgres::start().unwrap_or_else(|problem| panic!("PostgreSQL did not start: {problem}"));
    let connections: Vec<Arc<Mutex<Option<Connection>>>> = runtime.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..TASKS {
            let connection = server.connect().await.unwrap_or_else(|problem| panic!("PostgreSQL: {problem}"));
            connections.push(Arc::new(Mutex::new(Some(connection))));
        }
        let mut first = server.connect().await.expect("another connection");
        let made = format!(
            "CREATE TABLE shards (id int PRIMARY KEY, status int, owner int, fence int, cursor bytea, record bytea);
             INSERT INTO shards SELECT n, 0, 0, 1, '', decode(repeat('07', 300), 'hex') FROM generate_series(1, {ROWS}) n;
             CREATE INDEX free ON shards (id) WHERE status = 0; ANALYZE shards"
        );
        first.query(&made).await.unwrap_or_else(|problem| panic!("PostgreSQL: {problem}"));
        connections
    });
    move |times| {
        let _alive = &server;
        let round = connections.iter().enumerate().map(|(task, slot)| {
            let slot = Arc::clone(slot);
            async move {
                let mut connection = slot.lock().expect("no panic").take().expect("put back after each round");
                for _ in 0..times {
                    let claim = format!(
                        "UPDATE shards SET owner = {task}, fence = fence + 1, status = 1 WHERE id = \
                         (SELECT id FROM shards WHERE status = 0 ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id"
                    );
                    let id = connection.query(&claim).await.expect("answered").expect("rows enough");
                    for set in ["cursor = 'at'", "status = 2"] {
                        let fenced = format!("UPDATE shards SET {set} WHERE id = {id} AND owner = {task} AND fence = 2 RETURNING id");
                        connection.query(&fenced).await.expect("answered").expect("still ours");
                    }
                }
                *slot.lock().expect("no panic") = Some(connection);
            }
        });
        Bench::round(&runtime, round);
    }
}
