//! Splits with 100,000 shards in place, beside the transaction that a split was counted at (13 compares and 20 writes), and
//! beside the floor: the very transactions of splits, made before and sent by the bare client.
//!
//! Splits side by side share requests, as all operations do; raw transactions cannot. So there is also the figure of splits
//! that are sent one by one, and it is those that are set beside the floor: the difference between the floor and the
//! counted transaction is the protocol's writes; the difference between them and the floor is this backend's own code.
//!
//! Shards have to be acquired before they can be split, and a server feels such a burst of writes for another tenth of a
//! second: until it has put them away, it copies them for every transaction. So each sample, of either side, begins behind
//! a burst of as many acquires; what comes of those before the reference is not used.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tessera_contracts::split::plan_split_replace;
use tessera_contracts::{LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, WorkerId};
use tessera_coordination::backend::AsyncCoordinationBackend;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::keyspace::Keyspace;
use tessera_coordination_etcd::kv::{Compare, CompareTarget, Keys, Kv, KvError, KvErrorKind, Op, Revision, Txn};
use tessera_coordination_etcd::test_support::{Gate, Gated};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

use super::{Bench, LASTING, RUN, TENANT, alone, soon};
use crate::harness::{Figure, Pair};

/// Shards that are there while others are split. Fewer where a test only looks whether the figure runs.
const CROWD: u64 = if cfg!(test) { 1_500 } else { 100_000 };
/// Roots of each run.
const ROOTS: u64 = if cfg!(test) { 500 } else { 10_000 };
/// Splits side by side.
const TASKS: u64 = 8;
/// Children of each.
const CHILDREN: u8 = 8;
/// The most rounds of splits between two refills.
const ROUNDS_MAX: u64 = if cfg!(test) { 16 } else { 128 };
/// Rounds of the floor that are made ahead, which is also the most of a sample: making them takes long.
const ROUNDS_AHEAD: u64 = if cfg!(test) { 16 } else { 32 };
/// The worker in whose name the transactions of the floor are made, and the run it takes shards of.
const MAKER: WorkerId = WorkerId::new(2);
const MADE_OF: RunId = RunId::new(2);

pub(super) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "etcd/split-8-x8",
            "8 splits by 8 with 100,000 shards in place beside 8 raw transactions of 13 compares and 20 puts, as large",
            || {
                let crowd = crowded(EtcdConfig::default());
                let (splits, refill) = splitting(&crowd);
                Pair::new(splits, counted(&crowd.bench)).refilled(ROUNDS_MAX, refill).refilled_alike(burst(&crowd))
            },
        )
        // Two hundredths are to be told.
        .more(2),
        Figure::cost("etcd/split-8-x8-alone", "the same with a request for each split", || {
            let crowd = crowded(alone());
            let (splits, refill) = splitting(&crowd);
            Pair::new(splits, counted(&crowd.bench)).refilled(ROUNDS_MAX, refill).refilled_alike(burst(&crowd))
        })
        .more(2),
        Figure::cost(
            "etcd/split-8-x8-own-code",
            "8 splits by 8, a request for each, beside the very same transactions, made before and sent by the bare client",
            || {
                let crowd = crowded(alone());
                let (splits, refill) = splitting(&crowd);
                let (floor, make) = floor(&crowd.bench);
                Pair::new(splits, floor).refilled(ROUNDS_AHEAD, refill).refilled_alike(both(make, burst(&crowd)))
            },
        ),
        Figure::cost(
            "etcd/split-8-x8-floor",
            "the very transactions of 8 splits, made before and sent by the bare client, beside 8 of 13 compares and 20 puts",
            || {
                let crowd = crowded(alone());
                let (floor, make) = floor(&crowd.bench);
                Pair::new(floor, counted(&crowd.bench))
                    .refilled(ROUNDS_AHEAD, both(make, burst(&crowd)))
                    .refilled_alike(burst(&crowd))
            },
        ),
    ]
}

/// Many shards, untouched from `next` on, in the runs but [`MADE_OF`].
struct Crowd {
    bench: Arc<Bench>,
    next: AtomicU64,
    /// How many runs there are.
    runs: AtomicU64,
}

impl Crowd {
    /// Acquires so many, all of one run; when all are used up, of a new one.
    fn acquire(&self, wanted: u64) -> Vec<Lease> {
        let next = self.next.load(Ordering::Relaxed);
        let first = if next % ROOTS + wanted > ROOTS { next.next_multiple_of(ROOTS) } else { next };
        self.next.store(first + wanted, Ordering::Relaxed);
        let run = RunId::new(if first < ROOTS { RUN.get() } else { MADE_OF.get() + first / ROOTS });
        if run.get() > self.runs.load(Ordering::Relaxed) {
            self.bench.register(run, ROOTS, LASTING);
            self.runs.store(run.get(), Ordering::Relaxed);
        }
        self.bench.acquire(run, first % ROOTS + 1..=first % ROOTS + wanted)
    }
}

/// Acquires of which nothing comes.
fn burst(crowd: &Arc<Crowd>) -> impl FnMut(u64) + use<> {
    let crowd = Arc::clone(crowd);
    move |times| drop(crowd.acquire(times * TASKS))
}

fn both(mut first: impl FnMut(u64), mut then: impl FnMut(u64)) -> impl FnMut(u64) {
    move |times| {
        first(times);
        then(times);
    }
}

fn crowded(config: EtcdConfig) -> Arc<Crowd> {
    let room = 100 * CROWD;
    // No task beats for the session of the maker of transactions, so it outlasts the figure.
    let lasting = Duration::from_millis(LASTING);
    let bench = Bench::start(EtcdConfig {
        shards_per_tenant_max: room,
        shards_total_max: room,
        session_ttl: lasting,
        session_ttl_min: lasting,
        ..config
    });
    let runs = CROWD / ROOTS;
    (1..=runs).for_each(|run| bench.register(RunId::new(run), ROOTS, LASTING));
    Arc::new(Crowd { bench: Arc::new(bench), next: AtomicU64::new(0), runs: AtomicU64::new(runs) })
}

async fn split<K: Kv + Clone>(coordinator: &mut AsyncEtcdCoordinator<K>, lease: &Lease) -> bool {
    let root = lease.shard().get();
    let (start, end) = (root.to_be_bytes(), (root + 1).to_be_bytes());
    let spec = ShardSpec::new(&start, &end, b"").expect("valid");
    let points: Vec<Vec<u8>> = (1..CHILDREN).map(|point| [&start[..], &[point]].concat()).collect();
    let points: Vec<&[u8]> = points.iter().map(Vec::as_slice).collect();
    let plan = plan_split_replace(spec.view(), &points).expect("valid");
    coordinator.split_replace(LogicalTime::new(2), TENANT, lease, &plan, OpId::new(10)).await.is_ok()
}

/// Ours, and what acquires shards for so many rounds of it.
fn splitting(crowd: &Arc<Crowd>) -> (impl FnMut(u64) + use<>, impl FnMut(u64) + use<>) {
    let held: Arc<Mutex<Vec<Lease>>> = Arc::default();
    let (splits, leases) = (Arc::clone(&crowd.bench), Arc::clone(&held));
    let ours = move |times| {
        let round = (0..TASKS).map(|_| {
            let (mut coordinator, leases) = (splits.coordinator.clone(), Arc::clone(&leases));
            async move {
                for _ in 0..times {
                    let lease = leases.lock().expect("no panic").pop().expect("enough were acquired");
                    assert!(split(&mut coordinator, &lease).await);
                }
            }
        });
        Bench::round(&splits.runtime, round);
    };
    let crowd = Arc::clone(crowd);
    let refill = move |times| *held.lock().expect("no panic") = crowd.acquire(times * TASKS);
    (ours, refill)
}

/// The transaction that a split by eight was counted at: of 13 compares five are of keys that are there, as a parent's are,
/// and of 20 puts four are over such; the others make eight children in two keys each. Keys are as long as ours, and values
/// have as many bytes in all.
fn counted(bench: &Arc<Bench>) -> impl FnMut(u64) + use<> {
    let made = Maker::new(bench, ROOTS - 1).make();
    let value_bytes = |op: &Op| if let Op::Put { value, .. } = op { value.len() } else { 0 };
    let bytes = made.success.iter().map(value_bytes).sum::<usize>() / 20;
    let path = Keyspace::new(&bench.config.namespace).cold(TENANT, ShardKey::new(RUN, ShardId::new(1)));
    let prefix = format!("{}/raw/", bench.config.namespace);
    let digits = path.as_bytes().len() - prefix.len() - 17;
    let (bench, serial) = (Arc::clone(bench), Arc::new(AtomicU64::new(TASKS)));
    // When each task's parent was made, and when it was last written.
    let parents: Vec<Arc<tokio::sync::Mutex<(Revision, Revision)>>> = (0..TASKS).map(|_| Arc::default()).collect();
    move |times| {
        let round = parents.iter().zip(0u64..).map(|(parent, task)| {
            let (raw, serial, prefix, parent) =
                (bench.raw.clone(), Arc::clone(&serial), prefix.clone(), Arc::clone(parent));
            async move {
                let (made, written) = &mut *parent.lock().await;
                let key = |number: u64, part: usize| Bytes::from(format!("{prefix}{number:016x}/{part:0digits$}"));
                if *made == Revision(0) {
                    let puts = (0..5).map(|part| Op::put(key(task, part), vec![3; bytes])).collect();
                    *made = raw.txn(Txn::of(puts), soon(&raw)).await.expect("answered").revision;
                    *written = *made;
                }
                for _ in 0..times {
                    let number = serial.fetch_add(1, Ordering::Relaxed);
                    let mut txn = Txn::default();
                    for part in 0..5 {
                        // The fifth is compared only, as a run is: it stays as it was made.
                        let revision = if part == 4 { *made } else { *written };
                        txn.compares.push(Compare::unchanged_since(key(task, part), revision));
                    }
                    txn.compares.extend((0..8).map(|child| Compare::absent(key(number, child))));
                    txn.success.extend((0..4).map(|part| Op::put(key(task, part), vec![3; bytes])));
                    txn.success.extend((0..16).map(|part| Op::put(key(number, part), vec![3; bytes])));
                    txn.failure.push(Op::get(key(task, 0)));
                    let answer = raw.txn(txn, soon(&raw)).await.expect("answered");
                    assert!(answer.succeeded);
                    *written = answer.revision;
                }
            }
        });
        Bench::round(&bench.runtime, round);
    }
}

/// The floor, and what makes its transactions ahead.
fn floor(bench: &Arc<Bench>) -> (impl FnMut(u64) + use<>, impl FnMut(u64) + use<>) {
    let made: Arc<Mutex<VecDeque<Txn>>> = Arc::default();
    let stripes: Vec<Arc<tokio::sync::Mutex<Stripe>>> = (0..TASKS).map(|_| Arc::default()).collect();
    let (sender, ready) = (Arc::clone(bench), Arc::clone(&made));
    let send = move |times| {
        let round = stripes.iter().enumerate().map(|(task, stripe)| {
            let (raw, ready, stripe) = (sender.raw.clone(), Arc::clone(&ready), Arc::clone(stripe));
            async move {
                let mut stripe = stripe.lock().await;
                for _ in 0..times {
                    let mut txn = ready.lock().expect("no panic").pop_front().expect("enough were made");
                    stripe.enter(task, &mut txn);
                    let answer = raw.txn(txn, soon(&raw)).await.expect("answered");
                    assert!(answer.succeeded, "another task wrote the floor's keys");
                    stripe.revision = answer.revision;
                }
            }
        });
        Bench::round(&sender.runtime, round);
    };
    let mut maker = Maker::new(bench, 0);
    let make = move |_times| {
        while made.lock().expect("no panic").len() < (ROUNDS_AHEAD * TASKS) as usize {
            let txn = maker.make();
            made.lock().expect("no panic").push_back(txn);
        }
    };
    (send, make)
}

/// A task's own place in the counters of the floor: each transaction that goes out has to find it as the last one left it.
#[derive(Default)]
struct Stripe {
    revision: Revision,
}

impl Stripe {
    /// Turns the counter keys of a split into those of this task. They lie beside the real ones and are as long, so that
    /// neither side makes the other lose a race. Guards are compared as splits compare them, and exist.
    fn enter(&self, task: usize, txn: &mut Txn) {
        for compare in &mut txn.compares {
            if let (Keys::One(key), CompareTarget::ModRevision(revision)) = (&mut compare.keys, &mut compare.target)
                && let Some(own) = own_counter(key, task)
            {
                (*key, *revision) = (own, self.revision);
            }
        }
        for op in &mut txn.success {
            if let Op::Put { key, .. } = op
                && let Some(own) = own_counter(key, task)
            {
                *key = own;
            }
        }
    }
}

/// The path of a counter's stripe, with `cOunt` in place of `count` and the task in place of the stripe.
fn own_counter(path: &[u8], task: usize) -> Option<Bytes> {
    let at = path.windows(7).position(|part| part == b"/count/")?;
    let mut own = path.to_vec();
    own[at + 2] = b'O';
    *own.last_mut()? = b'0' + u8::try_from(task).ok()?;
    Some(own.into())
}

/// Makes the transactions of splits and keeps them instead of sending them.
struct Maker {
    bench: Arc<Bench>,
    coordinator: AsyncEtcdCoordinator<Gated<Withholding>>,
    kept: Arc<Mutex<Option<Txn>>>,
    used: u64,
}

impl Maker {
    /// Takes shards from the one behind `used` on.
    fn new(bench: &Arc<Bench>, used: u64) -> Self {
        let kept: Arc<Mutex<Option<Txn>>> = Arc::default();
        let kv = Gated { client: bench.raw.clone(), gate: Withholding { kept: Arc::clone(&kept) } };
        let coordinator = AsyncEtcdCoordinator::over(kv, bench.config.clone()).expect("valid");
        Self { bench: Arc::clone(bench), coordinator, kept, used }
    }

    fn make(&mut self) -> Txn {
        self.used += 1;
        let shard = ShardKey::new(MADE_OF, ShardId::new(self.used));
        self.bench.runtime.block_on(async {
            let mut scratch = AcquireScratch::new();
            let now = LogicalTime::new(1);
            let granted = self.coordinator.acquire_and_restore_into(now, TENANT, shard, MAKER, &mut scratch).await;
            assert!(!split(&mut self.coordinator, &granted.expect("granted").lease).await, "it was withheld");
        });
        self.kept.lock().expect("no panic").take().expect("a split writes one transaction")
    }
}

/// Keeps splits, and lets everything else pass.
#[derive(Clone)]
struct Withholding {
    kept: Arc<Mutex<Option<Txn>>>,
}

impl Gate for Withholding {
    async fn pass(&self, request: &Txn) -> Result<(), KvError> {
        let writes = request.success.iter().filter(|op| !matches!(op, Op::Range(_))).count();
        if writes <= usize::from(CHILDREN) {
            return Ok(());
        }
        *self.kept.lock().expect("no panic") = Some(request.clone());
        Err(KvError::not_applied(KvErrorKind::Other, "withheld"))
    }
}
