//! A scan from request to report.
//!
//! The same request finds its own interrupted run: the run's id is a hash of what is scanned, how, and with which rules. A run
//! that was finished is not continued but begun anew, since the files may have changed. Everything of a run lies in one
//! folder outside of what is scanned: the coordinator's file, the findings, the lists of objects.
//!
//! [`execute`] works with any coordinator; [`scan`] chooses one: in memory if nothing is to be kept, else a file in the
//! run's folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::canonical::CanonicalSink;
use tessera_contracts::source_family::SourceError;
use tessera_contracts::{LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId, domain};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::progress::{RunTerminalEvaluation, ShardCounts, evaluate_run_terminal};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{SHARD_PAGE_LIMIT_MAX, ShardFilter, ShardPage};
use tessera_coordination::{CoordinationFacade, CoordinatorRuntimeConfig, InMemoryCoordinator};
use tessera_detect::{Detector, IdKey, RuleError, RuleSet};

use crate::finding::{Finding, group};
use crate::locked::Locked;
use crate::plan::Plan;
use crate::read::Reader;
use crate::receipt::Receipt;
use crate::sink::{FileSink, Merged, SinkError, merge};
use crate::source::Source;
use crate::source::git::GitError;
use crate::source::git::attribution::Introductions;
use crate::source::git::list::{ObjectList, Scope};
use crate::target::{ReadOptions, Target, TargetError, TargetKind};
use crate::wire::Writer;
use crate::worker::{Worker, WorkerConfig, WorkerError, WorkerProgress, wall_clock};

/// What to scan, and how.
#[derive(Debug, Clone)]
pub struct ScanRequest {
    /// Directories, files or repositories; the current directory if there is none.
    pub paths: Vec<PathBuf>,
    /// What of them.
    pub scope: ScanScope,
    /// What is left out.
    pub options: ReadOptions,
    /// What to look for.
    pub rules: RuleSet,
    /// How hard to look.
    pub detect: tessera_detect::Options,
    /// Threads; 0 for one a core.
    pub workers: usize,
    /// Keep secrets, so that reports can show them.
    pub keep_secrets: bool,
    /// The key under which secrets and findings are named.
    pub id_key: [u8; 32],
    /// Where runs are kept.
    pub keeping: Keeping,
}

/// What of a path is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanScope {
    /// Files as they lie there.
    Files,
    /// Every blob that a ref of the repository leads to.
    History,
    /// What is staged for the next commit.
    Staged,
}

/// What is kept of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeping {
    /// Nothing: it cannot be resumed.
    Nothing,
    /// Everything, in a folder of its own below this one.
    In {
        /// The folder of all runs.
        state_dir: PathBuf,
        /// Begin anew even if there is an interrupted run.
        fresh: bool,
    },
}

/// A scan that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A path cannot be scanned.
    #[error("cannot scan {}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A history was asked of something that has none.
    #[error("{} is not a git repository; leave out --history or --staged to scan its files", .0.display())]
    NotARepository(PathBuf),
    /// Too much to describe.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A source cannot be read at all.
    #[error("{0}")]
    Source(SourceError),
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The rules contradict one another.
    #[error("the rules cannot be used: {0}")]
    Rules(RuleError),
    /// The folder of the run cannot be used.
    #[error("cannot use the folder {}: {source}; choose another with --state-dir, or --no-resume to keep nothing", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Findings cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The coordinator refused or failed.
    #[error("the coordinator cannot be used: {0}")]
    Coordinator(String),
}

impl From<WorkerError> for ScanError {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Sink(error) => Self::Sink(error),
            WorkerError::Coordinator(error) => Self::Coordinator(error),
        }
    }
}

/// How far a scan has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Items met, in this process.
    pub items: u64,
    /// Bytes searched, in this process.
    pub bytes: u64,
    /// Occurrences found, in this process.
    pub findings: u64,
    /// Items of the whole run, if they are known.
    pub items_total: Option<u64>,
    /// Bytes of the whole run, if they are known.
    pub bytes_total: Option<u64>,
    /// Whether the run goes on from an earlier one.
    pub is_resumed: bool,
    /// Since this process began.
    pub elapsed: Duration,
}

/// What a scan found.
#[derive(Debug)]
pub struct ScanReport {
    /// The run.
    pub run: RunId,
    /// Whether it went on from an interrupted one.
    pub is_resumed: bool,
    /// What was scanned, by number.
    pub targets: Vec<Target>,
    /// Secrets and where they are.
    pub findings: Vec<Finding>,
    /// What became of everything else.
    pub receipt: Receipt,
    /// How long this process took.
    pub elapsed: Duration,
}

/// How a scan ended, as an exit code tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Everything was read and nothing found.
    CleanComplete = 0,
    /// Something was found.
    Findings = 1,
    /// The scan could not be done.
    Error = 2,
    /// Nothing was found, but not everything was read.
    Incomplete = 3,
}

impl ScanReport {
    /// How the scan ended.
    pub fn exit_status(&self) -> ExitStatus {
        if !self.findings.is_empty() {
            ExitStatus::Findings
        } else if self.receipt.is_complete() {
            ExitStatus::CleanComplete
        } else {
            ExitStatus::Incomplete
        }
    }
}

/// Looks from outside at a scan that goes on.
pub struct Control<'c> {
    /// Set to make workers hand back what they hold and end.
    pub stop: &'c AtomicBool,
    /// Told now and then.
    pub progress: &'c mut dyn FnMut(&Progress),
}

impl std::fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// Scans what `request` says.
pub fn scan(request: &ScanRequest, control: &mut Control<'_>) -> Result<ScanReport, ScanError> {
    let paths = canonical_paths(&request.paths)?;
    let run = run_id(request, &paths);
    match &request.keeping {
        Keeping::Nothing => {
            let folder = RunFolder::temporary(run)?;
            let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(SHARDS_MAX));
            let backend = Locked::new(memory.map_err(|error| ScanError::Coordinator(error.to_string()))?);
            execute(request, &paths, run, backend, &folder, wall_clock, control)
        }
        Keeping::In { state_dir, fresh } => crate::local::scan_kept(request, &paths, run, state_dir, *fresh, control),
    }
}

/// The folder of one run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    is_temporary: bool,
}

impl RunFolder {
    /// A folder that is gone when the run ends.
    fn temporary(run: RunId) -> Result<Self, ScanError> {
        let name = format!("tessera-{:016x}-{:016x}", run.get(), random_u64());
        Self::create(std::env::temp_dir().join(name), true)
    }

    /// The folder of a run below `state_dir`.
    pub fn kept(state_dir: &Path, run: RunId) -> Result<Self, ScanError> {
        Self::create(state_dir.join(format!("{:016x}", run.get())), false)
    }

    fn create(path: PathBuf, is_temporary: bool) -> Result<Self, ScanError> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        created.map_err(|source| ScanError::Folder { path: path.clone(), source })?;
        Ok(Self { path, is_temporary })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where findings go.
    pub fn findings(&self) -> PathBuf {
        self.path.join("findings")
    }

    /// Forgets everything in it, at one stroke: it is moved aside first, so that a crash in the middle leaves no run with
    /// half of its findings.
    pub fn clear(&self) -> Result<(), ScanError> {
        let failed = |source| ScanError::Folder { path: self.path.clone(), source };
        let unless_missing = |done: io::Result<()>| match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        let aside = self.path.with_extension("gone");
        unless_missing(fs::remove_dir_all(&aside))?;
        unless_missing(fs::rename(&self.path, &aside))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(failed)?;
        unless_missing(fs::remove_dir_all(&aside))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The tenant of scans on one machine.
pub fn local_tenant() -> TenantId {
    TenantId::from_name("local")
}

/// Most shards of one run on one machine, with all that splits add.
pub(crate) const SHARDS_MAX: usize = 65_536;

/// A lease lasts this long, in milliseconds: a stuck worker's shard is free after it.
const LEASE_DURATION: u64 = 30_000;

/// Runs or resumes `run` on any backend.
pub fn execute<B: CoordinationFacade + Clone + Send>(
    request: &ScanRequest,
    paths: &[PathBuf],
    run: RunId,
    mut backend: B,
    folder: &RunFolder,
    clock: impl Fn() -> LogicalTime + Clone + Send,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let started = Instant::now();
    let tenant = local_tenant();
    let refused = |error: &dyn std::fmt::Display| ScanError::Coordinator(error.to_string());
    let mut seed = random_u64();
    let mut op_id = || {
        seed = seed.wrapping_add(1).max(1);
        OpId::new(seed)
    };
    let workers = match request.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };

    let is_resumed = matches!(backend.get_run(tenant, run), Ok(record) if record.status == RunStatus::Active);
    let (sources, plan) = if is_resumed {
        (stored_sources(&mut backend, tenant, run, folder)?, None)
    } else {
        let sources = new_sources(request, paths, folder)?;
        let plan = Plan::new(&sources, workers).map_err(ScanError::Source)?;
        let config = RunConfig { lease_duration: Some(LEASE_DURATION), ..RunConfig::default() };
        backend
            .create_run_with_shards(clock(), tenant, run, config, &plan.manifest(), op_id())
            .map_err(|error| refused(&error))?;
        (sources, Some(plan))
    };
    if is_resumed {
        unpark_all(&mut backend, clock(), tenant, run, &mut op_id)?;
    }
    let sources: Vec<Arc<Source>> = sources.into_iter().map(Arc::new).collect();

    let rules = Detector::with_options(&request.rules, request.detect.clone()).map_err(ScanError::Rules)?;
    let progress: Vec<Arc<WorkerProgress>> = (0..workers).map(|_| Arc::default()).collect();
    let shown = |elapsed| {
        let sum = |field: fn(&WorkerProgress) -> &std::sync::atomic::AtomicU64| {
            progress.iter().map(|worker| field(worker).load(Ordering::Relaxed)).sum()
        };
        Progress {
            items: sum(|worker| &worker.items),
            bytes: sum(|worker| &worker.bytes),
            findings: sum(|worker| &worker.findings),
            items_total: plan.as_ref().filter(|plan| plan.is_whole).map(|plan| plan.items),
            bytes_total: plan.as_ref().filter(|plan| plan.is_whole).map(|plan| plan.bytes),
            is_resumed,
            elapsed,
        }
    };
    let stop_all = AtomicBool::new(false);
    let stop_all = &stop_all;
    let failure = std::thread::scope(|scope| -> Result<(), ScanError> {
        let mut threads = Vec::new();
        // One worker that cannot go on stops all: the same disk or coordinator would stop them one by one.
        let fails = Arc::new(AtomicBool::new(false));
        for progress in &progress {
            let worker = WorkerId::new(random_u64());
            let sink = FileSink::create(&folder.findings(), worker, random_u64())?;
            let reader = Reader::new(rules.fork(), IdKey::new(request.id_key), request.keep_secrets);
            let config = WorkerConfig::new(tenant, run, worker);
            let mut worker = Worker::new(
                backend.clone(),
                clock.clone(),
                config,
                reader,
                Box::new(sink),
                sources.clone(),
                folder.path().to_path_buf(),
                stop_all,
                Arc::clone(progress),
                random_u64(),
            );
            let fails = Arc::clone(&fails);
            threads.push(scope.spawn(move || {
                let end = worker.run();
                if end.is_err() {
                    fails.store(true, Ordering::Relaxed);
                }
                end
            }));
        }
        let mut pause = Duration::from_millis(1);
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
            if control.stop.load(Ordering::Relaxed) || fails.load(Ordering::Relaxed) {
                stop_all.store(true, Ordering::Relaxed);
            }
            (control.progress)(&shown(started.elapsed()));
        }
        for thread in threads {
            match thread.join() {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(ScanError::Coordinator("a worker panicked".into())),
            }
        }
        Ok(())
    });
    (control.progress)(&shown(started.elapsed()));
    failure?;
    let targets: Vec<Target> = sources.iter().map(|source| source.target().clone()).collect();
    let (findings, receipt) = conclude(&mut backend, tenant, run, folder, &targets)?;
    if evaluate_run_terminal(&receipt.shards) == RunTerminalEvaluation::AllDone {
        backend.complete_run(clock(), tenant, run, op_id()).map_err(|error| refused(&error))?;
    }
    Ok(ScanReport { run, is_resumed, targets, findings, receipt, elapsed: started.elapsed() })
}

/// What a run has found so far, and its account.
pub fn conclude<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
    targets: &[Target],
) -> Result<(Vec<Finding>, Receipt), ScanError> {
    let merged = merge(&folder.findings()).map_err(|source| ScanError::Folder { path: folder.findings(), source })?;
    let receipt = account(backend, tenant, run, &merged)?;
    let introductions = Introductions::of_occurrences(targets, merged.occurrences.values())?;
    Ok((group(merged.occurrences.into_values(), &introductions), receipt))
}

/// Compares what was made durable with what the coordinator knows.
fn account<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    merged: &Merged,
) -> Result<Receipt, ScanError> {
    let (mut counts, mut parked, mut short) = (ShardCounts::default(), Vec::new(), 0);
    let mut reached = merged.reached.clone();
    for_each_shard(backend, tenant, run, &ShardFilter::all(), |backend, shard| {
        *counts.of_mut(shard.status) += 1;
        // Findings may be ahead of the cursor (a worker died in between), never behind.
        let known = reached.remove(&shard.shard).flatten();
        if known.as_deref() < shard.last_key.expose() {
            short += 1;
        }
        if let Some(park) = shard.park {
            let record = backend.get_shard(tenant, ShardKey::new(run, shard.shard));
            let detail = record.ok().and_then(|record| record.park_detail);
            parked.push(format!("shard {}: {} ({})", shard.shard, park.reason, detail.unwrap_or_default()));
        }
        Ok(())
    })?;
    Ok(Receipt::new(merged, counts, parked, short))
}

/// Calls `visit` for every shard of a run, page by page.
pub fn for_each_shard<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    filter: &ShardFilter,
    mut visit: impl FnMut(&mut B, &tessera_coordination::run::summary::ShardSummary) -> Result<(), ScanError>,
) -> Result<(), ScanError> {
    let mut shards = Vec::new();
    let mut page = Some(ShardPage::first(SHARD_PAGE_LIMIT_MAX));
    while let Some(at) = page {
        page = backend
            .list_shards_into(wall_clock(), tenant, run, filter, at, &mut shards)
            .map_err(|error| ScanError::Coordinator(error.to_string()))?;
        for shard in &shards {
            visit(backend, shard)?;
        }
    }
    Ok(())
}

/// Whoever runs the same command again has perhaps mended what was wrong: parked shards get another try.
fn unpark_all<B: CoordinationFacade>(
    backend: &mut B,
    now: LogicalTime,
    tenant: TenantId,
    run: RunId,
    op_id: &mut impl FnMut() -> OpId,
) -> Result<(), ScanError> {
    for_each_shard(backend, tenant, run, &ShardFilter::parked(), |backend, shard| {
        let key = ShardKey::new(run, shard.shard);
        match backend.unpark_shard(now, tenant, key, shard.fence, op_id()) {
            Ok(_) => Ok(()),
            Err(error) => Err(ScanError::Coordinator(error.to_string())),
        }
    })
}

fn new_sources(request: &ScanRequest, paths: &[PathBuf], folder: &RunFolder) -> Result<Vec<Source>, ScanError> {
    let mut sources = Vec::new();
    for (path, number) in paths.iter().zip(0..) {
        let kind = match request.scope {
            ScanScope::Files => TargetKind::Tree,
            ScanScope::History | ScanScope::Staged => {
                let scope = if request.scope == ScanScope::History { Scope::History } else { Scope::Staged };
                if !crate::source::git::is_repository(path) {
                    return Err(ScanError::NotARepository(path.clone()));
                }
                TargetKind::Objects { list: ObjectList::build(path, scope, folder.path())? }
            }
        };
        let target = Target { number, path: path.clone(), kind, options: request.options.clone() };
        // Refused now if it does not fit a shard.
        target.encode()?;
        sources.push(Source::of_target(target, folder.path()).map_err(ScanError::Source)?);
    }
    Ok(sources)
}

/// The sources of a run as they were planned: a repository may have moved on since.
fn stored_sources<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
) -> Result<Vec<Source>, ScanError> {
    let targets = stored_targets(backend, tenant, run)?;
    targets.into_iter().map(|target| Source::of_target(target, folder.path()).map_err(ScanError::Source)).collect()
}

/// What a run scans, as its shards tell.
pub fn stored_targets<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
) -> Result<Vec<Target>, ScanError> {
    let mut targets: BTreeMap<u32, Target> = BTreeMap::new();
    let mut roots: Vec<ShardId> = Vec::new();
    for_each_shard(backend, tenant, run, &ShardFilter::all().roots(), |_, shard| {
        roots.push(shard.shard);
        Ok(())
    })?;
    for shard in roots {
        let record = backend
            .get_shard(tenant, ShardKey::new(run, shard))
            .map_err(|error| ScanError::Coordinator(error.to_string()))?;
        let target = Target::decode(record.spec.metadata())?;
        targets.insert(target.number, target);
    }
    Ok(targets.into_values().collect())
}

fn canonical_paths(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ScanError> {
    let here = [PathBuf::from(".")];
    let paths = if paths.is_empty() { &here[..] } else { paths };
    let mut canonical = Vec::new();
    for path in paths {
        let found = path.canonicalize().map_err(|source| ScanError::Path { path: path.clone(), source })?;
        if !canonical.contains(&found) {
            canonical.push(found);
        }
    }
    Ok(canonical)
}

/// The same for the same request in the same place; two requests that may find different things differ.
fn run_id(request: &ScanRequest, paths: &[PathBuf]) -> RunId {
    let mut options = Writer::default();
    request.options.write(&mut options);
    let mut hasher = domain::RUN_NAME_V1.hasher();
    hasher.bytes(b"scan 1");
    hasher.u64(paths.len() as u64);
    for path in paths {
        hasher.bytes(path.as_os_str().as_bytes());
    }
    hasher.u8(request.scope as u8);
    hasher.bytes(&options.0);
    hasher.fixed(&request.rules.fingerprint());
    hasher.bytes(request.detect.confidence_min.as_str().as_bytes());
    hasher.u64(request.detect.decode_depth as u64);
    hasher.u8(u8::from(request.detect.honour_remarks));
    hasher.u8(u8::from(request.keep_secrets));
    hasher.fixed(&request.id_key);
    RunId::new(hasher.finish_u64().max(1))
}

/// A number nobody else has.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(8) => u64::from_le_bytes(bytes).max(1),
        // Only before the kernel is seeded, at boot. Unique is enough, and no two moments are the same.
        _ => wall_clock().get() << 20 | u64::from(std::process::id()),
    }
}

/// Now, for callers outside of this crate.
pub fn now() -> LogicalTime {
    wall_clock()
}
