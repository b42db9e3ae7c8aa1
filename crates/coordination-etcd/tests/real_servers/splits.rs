//! Splits on a real server: broken off at any write, and with a child's name taken by another shard.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crate::roots::{self, taken_name};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{DerivedShardKind, SplitReplacePlan, derive_split_shard_id, plan_split_replace};
use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, ShardSpec, TenantId, WorkerId,
};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement, AsyncShardClaiming};
use tessera_coordination::error::{InfraError, SplitError};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::kv::{KeyValue, Keys, Kv, KvError, KvErrorKind, RangeRequest, Txn};
use tessera_coordination_etcd::test_support::{EtcdCluster, Gate, Gated};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};
use tokio::sync::Notify;

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const KEY: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const NOW: LogicalTime = LogicalTime::new(1_000_000);
const SPLIT: OpId = OpId::new(9);
const CHILDREN: usize = 200;

/// Lets so many writes pass; from then on every write is refused, or never sent and never answered, as those of a process
/// that died.
#[derive(Clone)]
struct Breaking {
    writes_left: Arc<AtomicI64>,
    dies: Arc<AtomicBool>,
    died: Arc<Notify>,
}

impl Gate for Breaking {
    async fn pass(&self, request: &Txn) -> Result<(), KvError> {
        if request.is_read_only() || self.writes_left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        if self.dies.load(Ordering::Relaxed) {
            self.died.notify_one();
            core::future::pending::<()>().await;
        }
        Err(KvError::not_applied(KvErrorKind::Overloaded, "the test refuses it"))
    }
}

/// A namespace with one leased shard.
struct Stage {
    config: EtcdConfig,
    kv: Gated<Breaking>,
    holder: AsyncEtcdCoordinator<Gated<Breaking>>,
    lease: Lease,
    _cluster: Arc<EtcdCluster>,
}

impl Stage {
    async fn set() -> Self {
        let cluster = EtcdCluster::shared();
        // Nobody beats for these sessions, so they outlast the test, on a busy machine too.
        let patient = Duration::from_secs(300);
        let config = EtcdConfig {
            session_ttl: patient,
            session_ttl_min: patient,
            attempt_timeout: patient / 10,
            call_timeout: patient / 2,
            attempts_max: 2,
            ..cluster.config()
        };
        let writes_left = Arc::new(AtomicI64::new(i64::MAX));
        let client = EtcdClient::new(&config).expect("valid");
        let gate = Breaking { writes_left, dies: Arc::default(), died: Arc::default() };
        let kv = Gated { client, gate };
        let mut holder = AsyncEtcdCoordinator::over(kv.clone(), config.clone()).expect("valid");
        let shards = [InitialShardInput::new(KEY.shard, b"a", b"m")];
        let registered = holder.create_run_with_shards(
            NOW,
            TENANT,
            KEY.run,
            INCARNATION,
            RunConfig::default(),
            &shards,
            OpId::new(1),
        );
        registered.await.expect("registered");
        let mut scratch = AcquireScratch::new();
        let granted = holder.acquire_and_restore_into(NOW, TENANT, KEY, WorkerId::new(1), &mut scratch).await;
        let lease = granted.expect("granted").lease;
        Self { config, kv, holder, lease, _cluster: cluster }
    }

    fn refuse_after(&self, writes: i64) {
        self.kv.gate.writes_left.store(writes, Ordering::Relaxed);
    }

    /// Begins the split, and dies with it when it wants to write again after so many writes.
    async fn die_in_split_after(&mut self, plan: &SplitReplacePlan, writes: i64) {
        self.kv.gate.dies.store(true, Ordering::Relaxed);
        self.refuse_after(writes);
        let mut doomed = AsyncEtcdCoordinator::over(self.kv.clone(), self.config.clone()).expect("valid");
        core::mem::swap(&mut doomed, &mut self.holder);
        tokio::select! {
            split = doomed.split_replace(NOW, TENANT, &self.lease, plan, SPLIT) => panic!("it outlived {writes} writes: {split:?}"),
            () = self.kv.gate.died.notified() => {}
        }
    }

    /// Keys with this in their path.
    async fn count(&self, part: &[u8]) -> usize {
        self.everything().await.iter().filter(|kv| kv.key.windows(part.len()).any(|at| at == part)).count()
    }

    /// A coordinator that has seen nothing of this.
    fn stranger(&self) -> AsyncEtcdCoordinator<EtcdClient> {
        AsyncEtcdCoordinator::over(self.kv.client.clone(), self.config.clone()).expect("valid")
    }

    async fn shards(&self) -> usize {
        let mut shards = Vec::new();
        let (all, page) = (ShardFilter::all(), ShardPage::first(1_000));
        self.stranger().list_shards_into(NOW, TENANT, KEY.run, &all, page, &mut shards).await.expect("listed");
        shards.len()
    }

    async fn everything(&self) -> Vec<KeyValue> {
        let all = RangeRequest::of(Keys::with_prefix(self.config.namespace.clone()));
        let soon = self.kv.now().after(Duration::from_secs(600));
        self.kv.client.range(all, soon).await.expect("readable").kvs
    }
}

fn parent() -> ShardSpec {
    ShardSpec::new(b"a", b"m", b"").expect("valid")
}

/// More children than one transaction can carry.
fn plan() -> SplitReplacePlan {
    let points: Vec<[u8; 2]> = (0..CHILDREN as u8 - 1).map(|point| [b'b', point]).collect();
    let points: Vec<&[u8]> = points.iter().map(<[u8; 2]>::as_slice).collect();
    plan_split_replace(parent().view(), &points).expect("valid")
}

#[tokio::test]
async fn a_large_split_that_breaks_off_is_not_seen_leaves_nothing_and_can_be_made_again() {
    let plan = plan();
    // The marker, the children in five parts, and the change of the parent, which nothing comes after.
    for broken_at in [0, 1, 3, 5, 6] {
        let mut stage = Stage::set().await;
        stage.refuse_after(broken_at);
        let split = stage.holder.split_replace(NOW, TENANT, &stage.lease, &plan, SPLIT).await;
        stage.refuse_after(i64::MAX);
        assert!(split.is_err(), "broken at write {broken_at}: {split:?}");
        assert_eq!(stage.shards().await, 1, "shards that are seen after breaking at write {broken_at}");
        // The holder goes on, what was staged goes, and the split can be made again.
        let cursor = CursorUpdate::at_key(b"a").expect("valid");
        stage.holder.checkpoint(NOW, TENANT, &stage.lease, cursor, OpId::new(10)).await.expect("recorded");
        let mut scratch = AcquireScratch::new();
        let mut other = stage.stranger();
        let claimed = other.claim_next_available(NOW, TENANT, KEY.run, WorkerId::new(2), &mut scratch).await;
        assert!(claimed.is_err(), "broken at write {broken_at}");
        assert_eq!(stage.count(b"/cold/").await, 1, "orphans after breaking at write {broken_at}");
        let born = stage.holder.split_replace(NOW, TENANT, &stage.lease, &plan, SPLIT).await.expect("split");
        assert_eq!(born.into_inner().len(), CHILDREN);
        assert_eq!(stage.shards().await, 1 + CHILDREN);
    }
}

#[tokio::test]
async fn a_large_split_whose_author_died_after_publishing_it_is_finished_by_whoever_looks_for_work_next() {
    let plan = plan();
    let derived = |index| derive_split_shard_id(KEY.run, KEY.shard, SPLIT, DerivedShardKind::Child, index);
    let children: BTreeSet<ShardId> = (0..CHILDREN as u32).map(derived).collect();
    // The seventh write changes the parent; seven more enter the children as free, and the last removes the marker.
    for (written, free) in [(7, 0), (8, 32), (11, 128), (14, CHILDREN)] {
        let mut stage = Stage::set().await;
        stage.die_in_split_after(&plan, written).await;
        assert_eq!(stage.shards().await, 1 + CHILDREN, "shards that are seen after {written} writes");
        let left_behind = (stage.count(b"/free/").await, stage.count(b"/hatching/").await);
        assert_eq!(left_behind, (free, 1), "free shards and markers after {written} writes");
        let mut other = stage.stranger();
        let mut scratch = AcquireScratch::new();
        let mut claimed = BTreeSet::new();
        while let Ok(view) = other.claim_next_available(NOW, TENANT, KEY.run, WorkerId::new(2), &mut scratch).await {
            assert!(claimed.insert(view.lease.shard()), "claimed twice after {written} writes");
        }
        assert_eq!(claimed, children, "after {written} writes");
        assert_eq!(stage.count(b"/hatching/").await, 0, "markers after all were claimed, {written} writes");
    }
}

#[tokio::test]
async fn a_child_whose_name_is_taken_is_not_written_over() {
    let small = plan_split_replace(parent().view(), &[b"f"]).expect("valid");
    for (plan, index) in [(small, 1), (plan(), CHILDREN as u32 - 1)] {
        let mut stage = Stage::set().await;
        let (_, puts) = taken_name(&stage.config.namespace, TENANT, KEY, SPLIT, DerivedShardKind::Child, index);
        let soon = stage.kv.now().after(Duration::from_secs(600));
        stage.kv.txn(Txn::of(puts), soon).await.expect("planted");
        let stored = stage.everything().await;
        let refused = stage.holder.split_replace(NOW, TENANT, &stage.lease, &plan, SPLIT).await;
        let refused = refused.expect_err("it wrote over another shard");
        assert!(matches!(refused, SplitError::BackendError(InfraError::Corruption { .. })), "{refused:?}");
        assert_eq!(stage.everything().await, stored, "to the revision");
        stage.holder.split_replace(NOW, TENANT, &stage.lease, &plan, OpId::new(10)).await.expect("another name");
    }
}

/// Splits roots side by side, each into so many, where there may be so many shards in all. Tells how many splits were done,
/// and how many shards there are.
async fn split_together(children: &[u16], limit: u64) -> (usize, u64) {
    let cluster = EtcdCluster::shared();
    let patient = Duration::from_secs(300);
    let config = EtcdConfig {
        shards_total_max: limit,
        shards_per_tenant_max: limit,
        session_ttl: patient,
        session_ttl_min: patient,
        call_timeout: patient / 2,
        ..cluster.config()
    };
    let mut coordinator = AsyncEtcdCoordinator::connect(config).expect("valid");
    let bounds = roots::bounds(children.len());
    let roots = roots::inputs(&bounds);
    let registered = coordinator.create_run_with_shards(
        NOW,
        TENANT,
        KEY.run,
        INCARNATION,
        RunConfig::default(),
        &roots,
        OpId::new(1),
    );
    registered.await.expect("registered");
    let mut splits = Vec::new();
    for (root, children) in roots.iter().zip(children) {
        let key = ShardKey::new(KEY.run, root.shard);
        let mut scratch = AcquireScratch::new();
        let granted = coordinator.acquire_and_restore_into(NOW, TENANT, key, WorkerId::new(1), &mut scratch).await;
        splits.push((granted.expect("granted").lease, roots::plan(root.shard, *children)));
    }
    let tasks: Vec<_> = splits
        .into_iter()
        .map(|(lease, plan)| {
            let mut coordinator = coordinator.clone();
            tokio::spawn(async move {
                match coordinator.split_replace(NOW, TENANT, &lease, &plan, SPLIT).await {
                    Ok(_) => true,
                    Err(SplitError::LimitExceeded(_)) => false,
                    Err(error) => panic!("{error}"),
                }
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += usize::from(task.await.expect("no panic"));
    }
    let progress = coordinator.get_run_progress(NOW, TENANT, KEY.run).await.expect("there");
    (done, progress.counts.total().into())
}

#[tokio::test(flavor = "current_thread")]
async fn splits_of_all_widths_share_requests_and_are_done() {
    for children in [&[100, 8, 8, 8, 8, 8, 8, 8, 117, 117, 9, 2][..], &[119; 8], &[150, 8, 150, 8, 2, 2]] {
        let all = children.len() as u64 + children.iter().map(|width| u64::from(*width)).sum::<u64>();
        assert_eq!(split_together(children, 1_000_000).await, (children.len(), all), "{children:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn splits_that_share_a_request_never_pass_the_limit_together() {
    for (children, room) in [(2, 2), (8, 20), (200, 250)] {
        let limit = 8 + room;
        let (done, shards) = split_together(&[children; 8], limit).await;
        assert!(done >= 1 && shards == 8 + done as u64 * u64::from(children), "by {children}: {done}, {shards} shards");
        assert!(shards <= limit, "by {children}: {shards} of {limit}");
    }
}
