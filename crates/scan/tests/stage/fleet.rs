//! A fleet in one process: a submitter and workers around a coordinator in memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::{OpId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{
    AcquireScratch, CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement, ShardClaiming, WorkerSession,
};
use tessera_scan::clock::wall_clock;
use tessera_scan::error::ScanError;
use tessera_scan::fleet::follow::READ_AGAIN_MAX;
use tessera_scan::fleet::{Connect, Following, Serving, follow, serve};
use tessera_scan::run::coordinator_name::CoordinatorName;
use tessera_scan::run::locked::Locked;
use tessera_scan::run::request::ScanRequest;
use tessera_scan::run::{Control, Progress, ScanReport};
use tessera_scan::sweep::worker::WorkerProgress;

type Backend = Locked<InMemoryCoordinator>;

/// The fleet's coordinator and its folder for findings.
pub(crate) struct Fleet {
    pub(crate) backend: Backend,
    pub(crate) findings: tempfile::TempDir,
    /// Items that a submitter reads again by itself.
    pub(crate) read_again_max: u64,
}

impl Connect for Fleet {
    type Backend = Backend;

    fn connect(&self) -> Result<Backend, String> {
        Ok(self.backend.clone())
    }
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(1_000)).unwrap();
        Self { backend: Locked::new(memory), findings: tempfile::tempdir().unwrap(), read_again_max: READ_AGAIN_MAX }
    }

    fn following(&self, fresh: bool) -> Following {
        Following {
            coordinator: CoordinatorName::Memory,
            findings: self.findings.path().to_path_buf(),
            fresh,
            lease_duration: 30_000,
            read_again_max: self.read_again_max,
        }
    }

    /// Submits or follows until `stop` is set or the run is over.
    pub(crate) fn follow_until(&self, request: &ScanRequest, stop: &AtomicBool) -> Result<ScanReport, ScanError> {
        let mut control = Control { stop, progress: &mut |_: &Progress| {} };
        follow(request, &self.following(false), &mut self.backend.clone(), &mut control)
    }

    /// Submits anew, ends what goes on, and leaves before a worker has begun.
    pub(crate) fn submit_fresh(&self, request: &ScanRequest) -> ScanReport {
        let stop = AtomicBool::new(true);
        let mut control = Control { stop: &stop, progress: &mut |_: &Progress| {} };
        follow(request, &self.following(true), &mut self.backend.clone(), &mut control).unwrap()
    }

    /// Submits, and leaves before a worker has begun.
    pub(crate) fn submit(&self, request: &ScanRequest) -> ScanReport {
        self.follow_until(request, &AtomicBool::new(true)).unwrap()
    }

    /// Follows the run of a request to its end, or submits it.
    pub(crate) fn follow(&self, request: &ScanRequest) -> ScanReport {
        self.follow_until(request, &AtomicBool::new(false)).unwrap()
    }

    pub(crate) fn serving(&self, tenant: TenantId, threads: usize) -> Serving {
        let findings = self.findings.path().to_path_buf();
        let coordinator = CoordinatorName::Memory;
        Serving { coordinator, tenant, findings, threads, give_up_after: Duration::from_secs(600), until_done: false }
    }

    /// Lets a machine with so many threads work while `meanwhile` runs.
    pub(crate) fn with_worker<T>(&self, request: &ScanRequest, threads: usize, meanwhile: impl FnOnce() -> T) -> T {
        self.serve(&self.serving(request.tenant, threads), &Arc::default(), meanwhile)
    }

    /// Lets a worker of one thread work, whose progress can be seen.
    pub(crate) fn with_watched_worker<T>(
        &self,
        request: &ScanRequest,
        progress: &Arc<WorkerProgress>,
        meanwhile: impl FnOnce() -> T,
    ) -> T {
        self.serve(&self.serving(request.tenant, 1), progress, meanwhile)
    }

    fn serve<T>(&self, serving: &Serving, progress: &Arc<WorkerProgress>, meanwhile: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(serving, self, &stop, progress, &|_| {}));
            let done = meanwhile();
            stop.store(true, Ordering::Relaxed);
            served.join().unwrap().unwrap();
            done
        })
    }

    /// Waits until no shard of the run is open, or `is_there` says that it is enough.
    pub(crate) fn wait_until(&self, what: &str, mut is_there: impl FnMut(&mut Backend) -> bool) {
        let (started, mut backend) = (Instant::now(), self.backend.clone());
        while !is_there(&mut backend) {
            assert!(started.elapsed() < Duration::from_secs(600), "{what} after ten minutes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that ever held a shard of a run.
    pub(crate) fn owners(&self, report: &ScanReport, tenant: TenantId) -> Vec<WorkerId> {
        let (mut shards, mut backend) = (Vec::new(), self.backend.clone());
        let page = ShardPage::first(1_000);
        backend.list_shards_into(wall_clock(), tenant, report.run, &ShardFilter::all(), page, &mut shards).unwrap();
        let record = |shard: ShardId| backend.get_shard(tenant, ShardKey::new(report.run, shard)).unwrap();
        let records: Vec<_> = shards.iter().map(|shard| shard.shard).map(record).collect();
        records.iter().flat_map(|record| record.state.history.iter().map(|owner| owner.worker)).collect()
    }

    /// Another worker asks for a shard and gives it back: the coordinator counts on it for a while.
    pub(crate) fn takes_part(&self, report: &ScanReport, tenant: TenantId) {
        let (mut scratch, mut backend) = (AcquireScratch::new(), self.backend.clone());
        let now = wall_clock();
        let claimed = backend.claim_next_available(now, tenant, report.run, WorkerId::new(77), &mut scratch).unwrap();
        let session = WorkerSession::from_acquire_result(&mut backend, &claimed);
        session.release(now, None, ReleaseReason::Released, OpId::new(77)).unwrap();
    }

    /// How many workers have reported shards of a run as unreachable, each counted once a shard.
    pub(crate) fn reports(&self, report: &ScanReport, tenant: TenantId) -> usize {
        let mut shards = Vec::new();
        let page = ShardPage::first(1_000);
        let mut backend = self.backend.clone();
        backend.list_shards_into(wall_clock(), tenant, report.run, &ShardFilter::all(), page, &mut shards).unwrap();
        let record = |shard: ShardId| backend.get_shard(tenant, ShardKey::new(report.run, shard)).unwrap();
        shards.iter().map(|shard| shard.shard).map(record).map(|record| record.unreachable.len()).sum()
    }

    /// Waits until a run is there to be worked on.
    pub(crate) fn wait_for_run(&self, tenant: TenantId) {
        self.wait_until("no run", |backend| {
            let mut runs = Vec::new();
            backend.list_runs_into(tenant, None, 10, &mut runs).unwrap();
            runs.iter().any(|run| run.status == RunStatus::Active)
        });
    }

    /// How many shards of a run the filter admits.
    pub(crate) fn shards(&self, report: &ScanReport, tenant: TenantId, filter: &ShardFilter) -> usize {
        let mut shards = Vec::new();
        let page = ShardPage::first(1_000);
        self.backend.clone().list_shards_into(wall_clock(), tenant, report.run, filter, page, &mut shards).unwrap();
        shards.len()
    }
}

/// Moves everything in `root` aside, as if what is mounted there were not.
pub(crate) fn unmount(root: &Path) -> tempfile::TempDir {
    unmount_part(root, "")
}

/// Moves everything in a folder below `root` aside.
pub(crate) fn unmount_part(root: &Path, part: &str) -> tempfile::TempDir {
    let aside = tempfile::tempdir_in(root.parent().unwrap()).unwrap();
    for entry in std::fs::read_dir(root.join(part)).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), aside.path().join(entry.file_name())).unwrap();
    }
    aside
}

/// Moves it back.
pub(crate) fn mount(root: &Path, aside: &tempfile::TempDir) {
    for entry in std::fs::read_dir(aside.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), root.join(entry.file_name())).unwrap();
    }
}
