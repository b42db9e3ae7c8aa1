//! One shard, from its cursor to its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_contracts::source_family::{CheckedPages, ItemPages, SourceError, SourceErrorClass, SourceFamily};
use tessera_contracts::{FenceEpoch, RestoredShardState, ShardId};
use tessera_coordination::error::OperationError;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::{CoordinationFacade, WorkerSession};

use super::blobs::Blobs;
use super::{WorkerConfig, WorkerError, WorkerProgress, backoff};
use crate::clock::Clock;
use crate::item::{Item, ItemKind, SkipReason, UnreadableReason};
use crate::key;
use crate::occurrence::Place;
use crate::op_ids::OpIds;
use crate::read::{Outcome, Reader};
use crate::sink::FindingsSink;
use crate::sink::record::{NOTES_MAX, Note};
use crate::source::Source;
use crate::source::git::reader::BlobRead;
use crate::source::git::{GitError, hex_oid};
use crate::tally::Tally;
use crate::target::Target;

/// How a shard ended for this worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShardEnd {
    Done,
    HandedBack,
    Parked,
    /// Cut into several, for anyone to claim.
    Replaced,
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

/// Everything a worker lends to the shard it sweeps, beside the backend.
pub(super) struct Sweep<'s, C> {
    pub(super) clock: &'s C,
    pub(super) config: &'s WorkerConfig,
    pub(super) reader: &'s mut Reader,
    pub(super) sink: &'s mut (dyn FindingsSink + Send),
    pub(super) stop: &'s AtomicBool,
    pub(super) progress: &'s WorkerProgress,
    pub(super) sources: &'s mut Vec<Arc<Source>>,
    pub(super) dir: &'s Path,
    pub(super) blobs: &'s mut Blobs,
    pub(super) op_ids: &'s mut OpIds,
}

fn git_failed(error: &GitError) -> SourceError {
    SourceError::new(SourceErrorClass::Transient, error.to_string())
}

/// A segment under way, and where the shard stands.
pub(super) struct Position {
    pub(super) shard: ShardId,
    pub(super) fence: FenceEpoch,
    /// The cursor at the last safe point.
    pub(super) committed: Option<Vec<u8>>,
    /// The last item done.
    pub(super) reached: Option<Vec<u8>>,
    pub(super) tally: Tally,
    pub(super) notes: Vec<Note>,
    pub(super) safe_point_at: u64,
    pub(super) renewed_at: u64,
    /// A split was asked for and cannot be made.
    pub(super) cannot_split: bool,
}

/// A session, or why there is none any more.
pub(super) type Held<'b, B> = Result<WorkerSession<'b, B>, ShardEnd>;

impl<C: Clock> Sweep<'_, C> {
    pub(super) fn shard<B: CoordinationFacade>(
        &mut self,
        session: WorkerSession<'_, B>,
    ) -> Result<ShardEnd, WorkerError> {
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
            self.reader.remember_clean_text(self.op_ids.next_id().get());
        }
        let mut session = match self.replace_if_large(session, &source, &state)? {
            Ok(session) => session,
            Err(end) => return Ok(end),
        };
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
                let Source::Objects(objects) = source else { unreachable!("only repositories hold blobs") };
                let next = self.blobs.next(objects);
                let (reader, clock, config, stop) = (&mut *self.reader, self.clock, self.config, self.stop);
                let poison = |reader: &mut Reader| {
                    reader.renew_detector();
                    Outcome::Unreadable(UnreadableReason::Poison)
                };
                match next {
                    Ok((BlobRead::Read, blob)) => {
                        // Named by its content: the same blob in another run or at another place in the list is the same.
                        let read = catch_unwind(AssertUnwindSafe(|| reader.blob(blob, oid, &place, &target.options)));
                        read.unwrap_or_else(|_| poison(reader))
                    }
                    Ok((BlobRead::TooLarge(size), _)) if target.options.size_max.is_some_and(|max| size > max) => {
                        Outcome::Skipped(SkipReason::TooLarge)
                    }
                    Ok((BlobRead::TooLarge(_), blob)) => {
                        let mut goes_on = || {
                            !stop.load(Ordering::Relaxed) && renew_if_due(clock, config, session, &mut at.renewed_at)
                        };
                        let read = catch_unwind(AssertUnwindSafe(|| {
                            reader.large_blob(blob, oid, &place, &target.options, &mut goes_on)
                        }));
                        match read.unwrap_or_else(|_| Ok(poison(reader))) {
                            Ok(outcome) => outcome,
                            Err(error) => return Ok(ItemEnd::SourceFailed(git_failed(&error))),
                        }
                    }
                    Ok((BlobRead::Denied, _)) => Outcome::Unreadable(UnreadableReason::PermissionDenied),
                    Ok((BlobRead::Missing, _)) => Outcome::Unreadable(UnreadableReason::ObjectMissing),
                    Ok((BlobRead::Corrupt, _)) => Outcome::Unreadable(UnreadableReason::ObjectCorrupt),
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
        at.tally.merge(&self.reader.members.tally);
        for (path, reason) in self.reader.members.notes.drain(..) {
            at.note(target.number, path, reason);
        }
        for occurrence in self.reader.found.drain(..) {
            self.sink.add(&occurrence)?;
        }
        Ok(ItemEnd::Done)
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
