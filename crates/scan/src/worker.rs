//! A worker: claims shards of a run and sweeps them, one after the other, until nothing is left.
//!
//! For each shard: read a page, search its items, and at a *safe point* make findings durable and then move the cursor,
//! in this order and never the other. Only there are orders answered (yield, split, stop), because only there everything up
//! to the cursor is done. In between the lease is renewed, also in the middle of a large file.
//!
//! Whatever ends a shard early, nothing of it counts beyond the last safe point: the next owner goes on from there.
//!
//! Workers are threads, not lanes: a lane is an event loop that must never wait, and a worker's whole job is to wait for
//! disks. They share nothing but their coordinator.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tessera_contracts::source_family::{
    CheckedPages, ItemPages, PageLimits, SourceError, SourceErrorClass, SourceFamily,
};
use tessera_contracts::split::plan_split_residual;
use tessera_contracts::{
    CursorUpdate, FenceEpoch, LogicalTime, OpId, RestoredShardState, RunId, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_coordination::error::{ClaimError, OperationError};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::orders::Order;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::session::SessionFailure;
use tessera_coordination::{AcquireScratch, CoordinationFacade, WorkerSession};

use crate::item::{Item, ItemKind, SkipReason, UnreadableReason};
use crate::key;
use crate::occurrence::Place;
use crate::read::{Outcome, Reader};
use crate::sink::record::{NOTES_MAX, Note, Segment};
use crate::sink::{FindingsSink, SinkError};
use crate::source::Source;
use crate::source::git::reader::{BlobRead, BlobReader, CatFile};
use crate::source::git::{GitError, hex_oid};
use crate::tally::Tally;
use crate::target::Target;

/// What a worker is told.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Whose run it is.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
    /// Who it is.
    pub worker: WorkerId,
    /// Longest time between safe points, in milliseconds.
    pub safe_point_interval: u64,
    /// Time between renewals, in milliseconds; well below a third of a lease.
    pub renew_interval: u64,
    /// Most items and bytes of a page.
    pub page: PageLimits,
    /// Errors of a source, one after the other, after which its shard is parked.
    pub source_errors_max: u32,
    /// Whether an idle worker asks others to split what they hold.
    pub asks_for_splits: bool,
}

impl WorkerConfig {
    /// Defaults for this worker of this run.
    pub fn new(tenant: TenantId, run: RunId, worker: WorkerId) -> Self {
        Self {
            tenant,
            run,
            worker,
            safe_point_interval: 200,
            renew_interval: 200,
            page: PageLimits::default(),
            source_errors_max: 3,
            asks_for_splits: true,
        }
    }
}

/// What a worker has done so far. It alone writes; others may look.
#[derive(Debug, Default)]
pub struct WorkerProgress {
    /// Items met.
    pub items: AtomicU64,
    /// Bytes searched.
    pub bytes: AtomicU64,
    /// Findings, also those that are redone later.
    pub findings: AtomicU64,
    /// Shards finished.
    pub shards: AtomicU64,
}

/// Time, as the coordinator counts it: milliseconds.
pub trait Clock {
    /// Now.
    fn now(&self) -> LogicalTime;
}

impl<F: Fn() -> LogicalTime> Clock for F {
    fn now(&self) -> LogicalTime {
        self()
    }
}

/// Milliseconds since 1970 by the machine's clock.
pub fn wall_clock() -> LogicalTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    LogicalTime::new(since.as_millis() as u64)
}

/// Why a worker stopped.
#[derive(Debug)]
pub enum WorkerEnd {
    /// Nothing is left to do.
    Finished,
    /// It was asked to stop; what it held was handed back.
    Stopped,
    /// The run was settled by someone else.
    RunSettled,
}

/// A worker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Findings cannot be made durable.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The coordinator fails.
    #[error("the coordinator cannot be used: {0}")]
    Coordinator(String),
}

/// How a shard ended for this worker.
#[derive(Debug, PartialEq, Eq)]
enum ShardEnd {
    Done,
    HandedBack,
    Parked,
    Lost,
    RunSettled,
}

/// What became of an item.
#[derive(Debug, PartialEq, Eq)]
enum ItemEnd {
    Done,
    Interrupted,
    LeaseLost,
    SourceFailed(SourceError),
}

/// One worker with everything it owns.
pub struct Worker<'w, B, C> {
    backend: B,
    clock: C,
    config: WorkerConfig,
    reader: Reader,
    sink: Box<dyn FindingsSink + Send>,
    stop: &'w AtomicBool,
    progress: Arc<WorkerProgress>,
    sources: Vec<Arc<Source>>,
    /// Where lists of objects lie.
    dir: PathBuf,
    blobs: Blobs,
    op_ids: OpIds,
    /// Splits asked for: not again while that owner holds that shard at that fence.
    asked: HashMap<ShardId, FenceEpoch>,
}

/// Largest blob that is read: git and we hold it in memory. Larger ones are counted as left out.
const BLOB_BYTES_MAX: u64 = 64 << 20;

/// How often a call that fails for now is tried again, and how long in between.
const ATTEMPTS_MAX: u32 = 6;
const IDLE_WAIT_MIN: Duration = Duration::from_millis(5);
const IDLE_WAIT_MAX: Duration = Duration::from_millis(200);

impl<'w, B: CoordinationFacade, C: Clock> Worker<'w, B, C> {
    /// A worker that searches with `reader`, writes to `sink` and ends soon after `stop` is set. `sources` are those
    /// prepared already; others are made from the metadata of shards, with their lists in `dir`. `seed` makes its operation ids unique.
    #[expect(clippy::too_many_arguments, reason = "each is another thing a worker owns")]
    pub fn new(
        backend: B,
        clock: C,
        config: WorkerConfig,
        reader: Reader,
        sink: Box<dyn FindingsSink + Send>,
        sources: Vec<Arc<Source>>,
        dir: PathBuf,
        stop: &'w AtomicBool,
        progress: Arc<WorkerProgress>,
        seed: u64,
    ) -> Self {
        let asked = HashMap::new();
        let blobs = Blobs::default();
        Self { backend, clock, config, reader, sink, stop, progress, sources, dir, blobs, op_ids: OpIds(seed), asked }
    }

    /// Works until nothing is left, or until told to stop.
    pub fn run(&mut self) -> Result<WorkerEnd, WorkerError> {
        let mut scratch = AcquireScratch::new();
        let mut wait = IDLE_WAIT_MIN;
        let mut failures = 0;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(WorkerEnd::Stopped);
            }
            let WorkerConfig { tenant, run, worker, .. } = self.config;
            match self.backend.claim_next_available(self.clock.now(), tenant, run, worker, &mut scratch) {
                Ok(acquired) => {
                    (wait, failures) = (IDLE_WAIT_MIN, 0);
                    // The session borrows the backend; the rest of the worker is lent beside it.
                    let session = WorkerSession::from_acquire_result(&mut self.backend, &acquired);
                    let mut sweep = Sweep {
                        clock: &self.clock,
                        config: &self.config,
                        reader: &mut self.reader,
                        sink: &mut *self.sink,
                        stop: self.stop,
                        progress: &self.progress,
                        sources: &mut self.sources,
                        dir: &self.dir,
                        blobs: &mut self.blobs,
                        op_ids: &mut self.op_ids,
                    };
                    match sweep.shard(session)? {
                        ShardEnd::Done => {
                            self.progress.shards.fetch_add(1, Ordering::Relaxed);
                        }
                        ShardEnd::RunSettled => return Ok(WorkerEnd::RunSettled),
                        ShardEnd::HandedBack | ShardEnd::Parked | ShardEnd::Lost => {}
                    }
                }
                Err(ClaimError::NoneAvailable { .. } | ClaimError::Throttled { .. }) => {
                    if self.is_finished()? {
                        return Ok(WorkerEnd::Finished);
                    }
                    if self.config.asks_for_splits {
                        self.ask_for_split();
                    }
                    std::thread::sleep(wait);
                    wait = (wait * 2).min(IDLE_WAIT_MAX);
                }
                Err(ClaimError::RunNotActive { .. }) => return Ok(WorkerEnd::RunSettled),
                Err(ClaimError::BackendError(error)) if error.is_transient() && failures < ATTEMPTS_MAX => {
                    failures += 1;
                    std::thread::sleep(backoff(failures));
                }
                Err(error) => return Err(WorkerError::Coordinator(error.to_string())),
            }
        }
    }

    fn is_finished(&mut self) -> Result<bool, WorkerError> {
        let progress = self.backend.get_run_progress(self.clock.now(), self.config.tenant, self.config.run);
        match progress {
            Ok(progress) => Ok(progress.counts.active == 0),
            Err(error) => Err(WorkerError::Coordinator(error.to_string())),
        }
    }

    /// Asks one owner to share. It is a wish: whoever is asked may have nothing left to share.
    fn ask_for_split(&mut self) {
        let now = self.clock.now();
        let WorkerConfig { tenant, run, worker, .. } = self.config;
        let mut shards = Vec::new();
        let listed =
            self.backend.list_shards_into(now, tenant, run, &ShardFilter::active(), ShardPage::first(100), &mut shards);
        if listed.is_err() {
            return;
        }
        for shard in shards {
            let is_held_by_another = shard.lease.is_some_and(|lease| lease.owner != worker && lease.deadline > now);
            if !is_held_by_another || self.asked.get(&shard.shard) == Some(&shard.fence) {
                continue;
            }
            self.asked.insert(shard.shard, shard.fence);
            let key = ShardKey::new(run, shard.shard);
            let half = tessera_contracts::keyspace::Fraction::HALF;
            if self.backend.request_split(now, tenant, key, shard.fence, half).is_ok() {
                return;
            }
        }
    }
}

fn backoff(failures: u32) -> Duration {
    Duration::from_millis(20) * (1 << failures.min(6))
}

impl<B, C> std::fmt::Debug for Worker<'_, B, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Idempotency keys: a sequence that starts somewhere nobody else does.
#[derive(Debug)]
struct OpIds(u64);

impl OpIds {
    fn next(&mut self) -> OpId {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The finaliser of SplitMix64: consecutive states give unrelated ids, and no two states the same one.
        let mut id = self.0;
        id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        match id ^ (id >> 31) {
            0 => self.next(),
            id => OpId::new(id),
        }
    }
}

/// Everything a worker lends to the shard it sweeps, beside the backend.
struct Sweep<'s, C> {
    clock: &'s C,
    config: &'s WorkerConfig,
    reader: &'s mut Reader,
    sink: &'s mut (dyn FindingsSink + Send),
    stop: &'s AtomicBool,
    progress: &'s WorkerProgress,
    sources: &'s mut Vec<Arc<Source>>,
    dir: &'s Path,
    blobs: &'s mut Blobs,
    op_ids: &'s mut OpIds,
}

/// Readers of repositories, one for each target met.
#[derive(Default)]
struct Blobs(HashMap<u32, BlobsOf>);

struct BlobsOf {
    reader: CatFile,
    content: Vec<u8>,
}

impl Blobs {
    fn of(&mut self, source: &Source) -> &mut BlobsOf {
        let target = source.target();
        let new = || BlobsOf { reader: CatFile::new(&target.path), content: Vec::new() };
        self.0.entry(target.number).or_insert_with(new)
    }

    /// Asks for the blobs of a page; what was asked for an earlier one is forgotten.
    fn request(&mut self, source: &Source, items: &[Item]) -> Result<(), GitError> {
        let Source::Objects(_) = source else { return Ok(()) };
        let reader = &mut self.of(source).reader;
        reader.reset();
        reader.request(&mut items.iter().filter_map(|item| match &item.kind {
            ItemKind::Blob { oid, .. } => Some(&**oid),
            _ => None,
        }))
    }
}

fn git_failed(error: &GitError) -> SourceError {
    SourceError::new(SourceErrorClass::Transient, error.to_string())
}

/// A segment under way, and where the shard stands.
struct Position {
    shard: ShardId,
    fence: FenceEpoch,
    /// The cursor at the last safe point.
    committed: Option<Vec<u8>>,
    /// The last item done.
    reached: Option<Vec<u8>>,
    tally: Tally,
    notes: Vec<Note>,
    safe_point_at: u64,
    renewed_at: u64,
    /// A split was asked for and cannot be made.
    cannot_split: bool,
}

/// A session, or why there is none any more.
type Held<'b, B> = Result<WorkerSession<'b, B>, ShardEnd>;

impl<C: Clock> Sweep<'_, C> {
    fn shard<B: CoordinationFacade>(&mut self, session: WorkerSession<'_, B>) -> Result<ShardEnd, WorkerError> {
        let now = self.clock.now().get();
        let Ok(mut state) = session.state().restored() else {
            return self.park(session, ParkReason::Poisoned, "the stored cursor lies outside of the shard");
        };
        let lease = *session.lease();
        let cursor = state.cursor().last_key().map(<[u8]>::to_vec);
        self.sink.begin(lease.shard(), lease.fence(), cursor.as_deref())?;
        let mut at = Position {
            shard: lease.shard(),
            fence: lease.fence(),
            committed: cursor.clone(),
            reached: cursor,
            tally: Tally::default(),
            notes: Vec::new(),
            safe_point_at: now,
            renewed_at: now,
            cannot_split: false,
        };
        let source = match self.source_of(&state) {
            Ok(source) => source,
            Err(error) => return self.park(session, park_reason(error.class), &error.detail),
        };
        if let Source::Objects(_) = *source {
            self.reader.remember_clean_text(self.op_ids.next().get());
        }
        let mut session = session;
        let mut errors = 0;
        // Reads from the last safe point; comes back here after an error of the source.
        loop {
            let pages = source.open(&state);
            let swept = match pages {
                Ok(pages) => {
                    self.pages(session, &source, CheckedPages::new(pages, state.clone()), &mut at, &mut state)?
                }
                Err(error) => Err((session, error)),
            };
            match swept {
                Ok(end) => return Ok(end),
                Err((kept, error)) => {
                    session = kept;
                    errors += 1;
                    self.drop_segment(&mut at);
                    if !error.class.is_retryable() || errors >= self.config.source_errors_max {
                        return self.park(session, park_reason(error.class), &error.detail);
                    }
                    std::thread::sleep(backoff(errors));
                }
            }
        }
    }

    /// Reads pages to the end of the shard. An error of the source gives the session back.
    fn pages<'b, B: CoordinationFacade, P: ItemPages<Item = Item>>(
        &mut self,
        mut session: WorkerSession<'b, B>,
        source: &Source,
        mut pages: CheckedPages<P>,
        at: &mut Position,
        state: &mut RestoredShardState,
    ) -> Result<Result<ShardEnd, (WorkerSession<'b, B>, SourceError)>, WorkerError> {
        loop {
            let page = match pages.next_page(self.config.page) {
                Ok(page) => page,
                Err(error) => return Ok(Err((session, error))),
            };
            let mut is_last = page.is_last;
            if let Err(error) = self.blobs.request(source, &page.items) {
                return Ok(Err((session, git_failed(&error))));
            }
            for item in page.items {
                // A split at a safe point within this page gave the rest of it away.
                if !state.spec().range().reaches_up_to(&item.key) {
                    is_last = true;
                    break;
                }
                match self.item(&mut session, source, &item, at)? {
                    ItemEnd::Done => at.reached = Some(item.key),
                    // What came before it is done; the item itself is not, and safe points hand the shard back.
                    ItemEnd::Interrupted => {}
                    ItemEnd::SourceFailed(error) => return Ok(Err((session, error))),
                    ItemEnd::LeaseLost => {
                        self.drop_segment(at);
                        return Ok(Ok(ShardEnd::Lost));
                    }
                }
                let now = self.clock.now().get();
                let stops = self.stop.load(Ordering::Relaxed);
                let is_due = now.saturating_sub(at.safe_point_at) >= self.config.safe_point_interval;
                let is_asked = !at.cannot_split && session.orders().most_urgent().is_some();
                if stops || is_due || is_asked {
                    session = match self.safe_point(session, source, &mut pages, at, state)? {
                        Ok(session) => session,
                        Err(end) => return Ok(Ok(end)),
                    };
                }
            }
            if is_last {
                return self.complete(session, at).map(Ok);
            }
            if !self.keep_alive(&mut session, at) {
                self.drop_segment(at);
                return Ok(Ok(ShardEnd::Lost));
            }
        }
    }

    /// Searches one item.
    fn item<B: CoordinationFacade>(
        &mut self,
        session: &mut WorkerSession<'_, B>,
        source: &Source,
        item: &Item,
        at: &mut Position,
    ) -> Result<ItemEnd, WorkerError> {
        let target = source.target();
        let path = display_path(source, item);
        let outcome = match &item.kind {
            ItemKind::Skipped { reason, count } => {
                at.tally.add_skipped(*reason, *count);
                return Ok(ItemEnd::Done);
            }
            ItemKind::Unreadable { reason, count } => {
                at.tally.add_unreadable(*reason, *count);
                at.note(target.number, path, *reason);
                return Ok(ItemEnd::Done);
            }
            ItemKind::File => {
                let Source::Directory(directory) = source else { unreachable!("only directories hold files") };
                let file = directory.path_of(&item.key).expect("a checked item's key is of its shard's target");
                let place = Place { target: target.number, path: &path, blob: None };
                let (reader, clock, config, stop) = (&mut *self.reader, self.clock, self.config, self.stop);
                let mut goes_on =
                    || !stop.load(Ordering::Relaxed) && renew_if_due(clock, config, session, &mut at.renewed_at);
                let read = catch_unwind(AssertUnwindSafe(|| {
                    reader.file(&file, &item.key, &place, &target.options, &mut goes_on)
                }));
                read.unwrap_or_else(|_| {
                    self.reader.renew_detector();
                    Outcome::Unreadable(UnreadableReason::Poison)
                })
            }
            ItemKind::Blob { oid, .. } => {
                let place = Place { target: target.number, path: &path, blob: Some(oid) };
                let blobs = self.blobs.of(source);
                match blobs.reader.next(&mut blobs.content, BLOB_BYTES_MAX) {
                    Ok(BlobRead::Read) => {
                        let (reader, content) = (&mut *self.reader, &blobs.content);
                        // Named by its content: the same blob in another run or at another place in the list is the same.
                        let read =
                            catch_unwind(AssertUnwindSafe(|| reader.blob(content, oid, &place, &target.options)));
                        read.unwrap_or_else(|_| {
                            self.reader.renew_detector();
                            Outcome::Unreadable(UnreadableReason::Poison)
                        })
                    }
                    Ok(BlobRead::TooLarge(_)) => Outcome::Skipped(SkipReason::TooLarge),
                    Ok(BlobRead::Missing) => Outcome::Unreadable(UnreadableReason::ObjectMissing),
                    Ok(BlobRead::Corrupt) => Outcome::Unreadable(UnreadableReason::ObjectCorrupt),
                    Err(error) => return Ok(ItemEnd::SourceFailed(git_failed(&error))),
                }
            }
        };
        match outcome {
            Outcome::Scanned { bytes } => {
                at.tally.add_scanned(bytes);
                self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Outcome::Skipped(reason) => at.tally.add_skipped(reason, 1),
            Outcome::Unreadable(reason) => {
                at.tally.add_unreadable(reason, 1);
                at.note(target.number, path, reason);
            }
            Outcome::Interrupted if self.stop.load(Ordering::Relaxed) => return Ok(ItemEnd::Interrupted),
            Outcome::Interrupted => return Ok(ItemEnd::LeaseLost),
        }
        self.progress.items.fetch_add(1, Ordering::Relaxed);
        self.progress.findings.fetch_add(self.reader.found.len() as u64, Ordering::Relaxed);
        at.tally.findings_cut += self.reader.cut;
        for occurrence in self.reader.found.drain(..) {
            self.sink.add(&occurrence)?;
        }
        Ok(ItemEnd::Done)
    }

    /// Makes durable what was found, moves the cursor, and answers what is asked.
    fn safe_point<'b, B: CoordinationFacade, P: ItemPages<Item = Item>>(
        &mut self,
        session: WorkerSession<'b, B>,
        source: &Source,
        pages: &mut CheckedPages<P>,
        at: &mut Position,
        state: &mut RestoredShardState,
    ) -> Result<Held<'b, B>, WorkerError> {
        let mut session = match self.checkpoint(session, at)? {
            Ok(session) => session,
            Err(end) => return Ok(Err(end)),
        };
        if self.stop.load(Ordering::Relaxed) {
            return self.hand_back(session, ReleaseReason::Drained).map(Err);
        }
        match session.orders().most_urgent() {
            None => {}
            Some(Order::Cancelled(_)) => return Ok(Err(ShardEnd::RunSettled)),
            Some(Order::PleaseYield) => return self.hand_back(session, ReleaseReason::Yielded).map(Err),
            Some(Order::PleaseSplit { fraction }) if !at.cannot_split => {
                let spec = session.spec().to_owned();
                let cursor = CursorUpdate::new(at.committed.as_deref(), None).expect("it was a cursor before");
                let Ok(here) = RestoredShardState::new(spec.view(), cursor, state.semantics()) else {
                    unreachable!("a checkpoint at this cursor was accepted for this shard")
                };
                let plan = source.split_key(&here, fraction).ok().flatten();
                let plan = plan.and_then(|key| plan_split_residual(spec.view(), at.committed.as_deref(), &key).ok());
                let split = plan.map(|plan| session.split_residual(self.clock.now(), &plan, self.op_ids.next()));
                match split {
                    Some(Ok(_)) => {
                        let mut narrowed = here;
                        if narrowed.narrow(session.spec()).is_ok() {
                            *state = narrowed.clone();
                            pages.narrow(narrowed);
                        }
                    }
                    Some(Err(error)) if error.ends_session() => return Ok(Err(ShardEnd::Lost)),
                    // Nothing to share, or not now: go on, and do not look ahead again for this one.
                    Some(Err(_)) | None => at.cannot_split = true,
                }
            }
            Some(Order::PleaseSplit { .. }) => {}
        }
        Ok(Ok(session))
    }

    fn checkpoint<'b, B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'b, B>,
        at: &mut Position,
    ) -> Result<Held<'b, B>, WorkerError> {
        at.safe_point_at = self.clock.now().get();
        if at.reached == at.committed {
            return Ok(Ok(session));
        }
        self.commit_segment(at)?;
        let cursor = CursorUpdate::new(at.reached.as_deref(), None).expect("a checked item's key is a cursor");
        let op_id = self.op_ids.next();
        for attempt in 1.. {
            match session.checkpoint(self.clock.now(), cursor, op_id) {
                Ok(_) => break,
                Err(error) if error.ends_session() => return Ok(Err(ShardEnd::Lost)),
                Err(error) if error.is_transient() && attempt < ATTEMPTS_MAX => std::thread::sleep(backoff(attempt)),
                Err(error) => return Err(WorkerError::Coordinator(error.to_string())),
            }
        }
        at.committed.clone_from(&at.reached);
        Ok(Ok(session))
    }

    fn complete<B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'_, B>,
        at: &mut Position,
    ) -> Result<ShardEnd, WorkerError> {
        self.commit_segment(at)?;
        let cursor = CursorUpdate::new(at.reached.as_deref(), None).expect("a checked item's key is a cursor");
        let op_id = self.op_ids.next();
        for attempt in 1.. {
            match session.complete(self.clock.now(), cursor, op_id) {
                Ok(_) => break,
                Err(SessionFailure::Kept { session: kept, error })
                    if error.is_transient() && attempt < ATTEMPTS_MAX =>
                {
                    session = *kept;
                    std::thread::sleep(backoff(attempt));
                }
                Err(SessionFailure::Lost { .. }) => return Ok(ShardEnd::Lost),
                Err(SessionFailure::Kept { error, .. }) => return Err(WorkerError::Coordinator(error.to_string())),
            }
        }
        Ok(ShardEnd::Done)
    }

    fn hand_back<B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'_, B>,
        reason: ReleaseReason,
    ) -> Result<ShardEnd, WorkerError> {
        let op_id = self.op_ids.next();
        for attempt in 1.. {
            match session.release(self.clock.now(), None, reason, op_id) {
                Ok(_) => break,
                Err(SessionFailure::Kept { session: kept, error })
                    if error.is_transient() && attempt < ATTEMPTS_MAX =>
                {
                    session = *kept;
                    std::thread::sleep(backoff(attempt));
                }
                // Not given back in time: the lease ends by itself.
                Err(_) => return Ok(ShardEnd::Lost),
            }
        }
        Ok(ShardEnd::HandedBack)
    }

    fn park<B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'_, B>,
        reason: ParkReason,
        detail: &str,
    ) -> Result<ShardEnd, WorkerError> {
        let op_id = self.op_ids.next();
        for attempt in 1.. {
            match session.park(self.clock.now(), Park::because(reason).with_detail(detail), op_id) {
                Ok(_) => break,
                Err(SessionFailure::Kept { session: kept, error })
                    if error.is_transient() && attempt < ATTEMPTS_MAX =>
                {
                    session = *kept;
                    std::thread::sleep(backoff(attempt));
                }
                Err(SessionFailure::Lost { .. }) => return Ok(ShardEnd::Lost),
                Err(SessionFailure::Kept { error, .. }) => return Err(WorkerError::Coordinator(error.to_string())),
            }
        }
        Ok(ShardEnd::Parked)
    }

    /// Findings and counts since the last safe point become durable.
    fn commit_segment(&mut self, at: &mut Position) -> Result<(), WorkerError> {
        let segment = Segment {
            shard: at.shard,
            fence: at.fence,
            from: at.committed.clone(),
            to: at.reached.clone(),
            tally: std::mem::take(&mut at.tally),
            notes: std::mem::take(&mut at.notes),
        };
        Ok(self.sink.commit(&segment)?)
    }

    /// Nothing since the last safe point counts.
    fn drop_segment(&mut self, at: &mut Position) {
        self.sink.abandon();
        at.reached.clone_from(&at.committed);
        at.tally = Tally::default();
        at.notes.clear();
    }

    fn keep_alive<B: CoordinationFacade>(&self, session: &mut WorkerSession<'_, B>, at: &mut Position) -> bool {
        renew_if_due(self.clock, self.config, session, &mut at.renewed_at)
    }

    fn source_of(&mut self, state: &RestoredShardState) -> Result<Arc<Source>, SourceError> {
        let target = Target::decode(state.spec().metadata())
            .map_err(|error| SourceError::new(SourceErrorClass::Poisoned, error.to_string()))?;
        if let Some(known) = self.sources.iter().find(|source| *source.target() == target) {
            return Ok(Arc::clone(known));
        }
        let source = Arc::new(Source::of_target(target, self.dir)?);
        self.sources.push(Arc::clone(&source));
        Ok(source)
    }
}

/// Renews the lease when it is time; `false` if it is gone.
fn renew_if_due<B: CoordinationFacade>(
    clock: &impl Clock,
    config: &WorkerConfig,
    session: &mut WorkerSession<'_, B>,
    renewed_at: &mut u64,
) -> bool {
    let now = clock.now();
    if now.get().saturating_sub(*renewed_at) < config.renew_interval {
        return true;
    }
    *renewed_at = now.get();
    match session.renew(now) {
        Ok(_) => true,
        Err(error) => error.is_transient(),
    }
}

impl Position {
    fn note(&mut self, target: u32, path: Vec<u8>, reason: UnreadableReason) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { target, path, reason });
        }
    }
}

/// How reports name an item: its path, or its id if it is an object that cannot be read.
fn display_path(source: &Source, item: &Item) -> Vec<u8> {
    let rest = key::split(&item.key).map(|(_, rest)| rest).unwrap_or_default();
    match (source, &item.kind) {
        (_, ItemKind::Blob { path, .. }) => path.to_vec(),
        (Source::Objects(_), _) => hex_oid(rest.get(8..).unwrap_or_default()).into_bytes(),
        (Source::Directory(_), _) => key::display_path(rest),
    }
}

fn park_reason(class: SourceErrorClass) -> ParkReason {
    match class {
        SourceErrorClass::PermissionDenied => ParkReason::PermissionDenied,
        SourceErrorClass::NotFound => ParkReason::NotFound,
        SourceErrorClass::Transient => ParkReason::TooManyErrors,
        SourceErrorClass::Poisoned => ParkReason::Poisoned,
    }
}
