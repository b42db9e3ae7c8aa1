//! One item: read, searched, counted, and held against the plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_contracts::source_family::{SourceError, SourceErrorClass};

use super::WorkerProgress;
use super::blobs::Blobs;
use super::caution::Caution;
use super::driver::ItemEnd;
use crate::findings::occurrence::Place;
use crate::findings::{Draft, SinkError};
use crate::plan::key;
use crate::plan::target::Target;
use crate::read::{BlobPlaces, Outcome, Reader};
use crate::source::Source;
use crate::source::git::objects::ObjectsSource;
use crate::source::git::reader::BlobRead;
use crate::source::git::{GitError, hex_oid};
use crate::source::item::{Item, ItemKind, SkipReason, UnreadableReason};

pub(crate) fn git_failed(error: &GitError) -> SourceError {
    SourceError::new(SourceErrorClass::Transient, error.to_string())
}

/// What it takes to read items.
pub(crate) struct Items<'s> {
    pub(crate) reader: Reader,
    pub(crate) blobs: Blobs,
    pub(crate) caution: Caution,
    pub(crate) progress: Arc<WorkerProgress>,
    pub(crate) stop: &'s AtomicBool,
    /// Whether others may be able to read what is not here.
    pub(crate) is_one_of_many: bool,
}

impl Items<'_> {
    /// Searches one item. `goes_on` is asked in the middle of large ones; `false` interrupts.
    pub(crate) fn item(
        &mut self,
        source: &Source,
        item: &Item,
        draft: &mut Draft,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<ItemEnd, SinkError> {
        let Some(reading) = self.caution.about_to_read(item, goes_on) else { return Ok(ItemEnd::Interrupted) };
        let end = self.search(source, item, draft, goes_on);
        self.caution.has_read(item, reading);
        end
    }

    fn search(
        &mut self,
        source: &Source,
        item: &Item,
        draft: &mut Draft,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<ItemEnd, SinkError> {
        let target = source.target();
        if let Err(error) = self.reader.choose_rules(target.rules) {
            return Ok(ItemEnd::SourceFailed(SourceError::new(SourceErrorClass::Poisoned, error.to_string())));
        }
        let outcome = match &item.kind {
            ItemKind::Skipped { reason, count } => {
                draft.tally.add_skipped(*reason, *count);
                None
            }
            ItemKind::Unreadable { reason, count } => {
                draft.tally.add_unreadable(*reason, *count);
                draft.note(display_path(source, item), *reason);
                None
            }
            ItemKind::File => Some(self.file(source, item, goes_on)),
            ItemKind::Blob { oid, paths, has_more } => {
                let Source::Objects(objects) = source else { unreachable!("only repositories hold blobs") };
                let places = BlobPlaces { target: target.number, oid, paths, has_more: *has_more };
                match self.blob(objects, &places, goes_on) {
                    Ok(outcome) => Some(outcome),
                    Err(error) => return Ok(ItemEnd::SourceFailed(error)),
                }
            }
        };
        if let Some(outcome) = outcome {
            if outcome == Outcome::Interrupted {
                return Ok(ItemEnd::Interrupted);
            }
            self.count(source, item, outcome, draft)?;
        }
        match draft.met(item) {
            Ok(()) => Ok(ItemEnd::Done),
            Err(error) => Ok(ItemEnd::SourceFailed(error)),
        }
    }

    fn file(&mut self, source: &Source, item: &Item, goes_on: &mut dyn FnMut() -> bool) -> Outcome {
        let Source::Directory(directory) = source else { unreachable!("only directories hold files") };
        let Target { number, options, .. } = source.target();
        let file = directory.path_of(&item.key).expect("a checked item's key is of its shard's target");
        let path = display_path(source, item);
        let place = Place::of_item(*number, &path, None);
        let (reader, stop) = (&mut self.reader, self.stop);
        let mut goes_on = || !stop.load(Ordering::Relaxed) && goes_on();
        let read = catch_unwind(AssertUnwindSafe(|| reader.file(&file, &place, options, &mut goes_on)));
        read.unwrap_or_else(|_| poison(reader))
    }

    fn blob(
        &mut self,
        source: &ObjectsSource,
        places: &BlobPlaces<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, SourceError> {
        let options = &source.target().options;
        let (reader, stop) = (&mut self.reader, self.stop);
        let missing_here = |class, what: &str| {
            let here = source.target().path.display();
            SourceError::new(class, format!("{here} {what} object {} here", hex_oid(places.oid)))
        };
        Ok(match self.blobs.next(source).map_err(|error| git_failed(&error))? {
            (BlobRead::Read, blob) => {
                let read = catch_unwind(AssertUnwindSafe(|| reader.blob(blob, places, options)));
                read.unwrap_or_else(|_| poison(reader))
            }
            (BlobRead::TooLarge(size), _) if options.size_max.is_some_and(|max| size > max) => {
                Outcome::Skipped(SkipReason::TooLarge)
            }
            (BlobRead::TooLarge(_), blob) => {
                let mut goes_on = || !stop.load(Ordering::Relaxed) && goes_on();
                let read = catch_unwind(AssertUnwindSafe(|| reader.large_blob(blob, places, options, &mut goes_on)));
                read.unwrap_or_else(|_| Ok(poison(reader))).map_err(|error| git_failed(&error))?
            }
            // It was there when the history was listed: this is another clone, or one that lost something.
            (BlobRead::Missing, _) if self.is_one_of_many => {
                return Err(missing_here(SourceErrorClass::NotFound, "does not have"));
            }
            (BlobRead::Denied, _) if self.is_one_of_many => {
                return Err(missing_here(SourceErrorClass::PermissionDenied, "does not let us read"));
            }
            (BlobRead::Denied, _) => Outcome::Unreadable(UnreadableReason::PermissionDenied),
            (BlobRead::Missing, _) => Outcome::Unreadable(UnreadableReason::ObjectMissing),
            (BlobRead::Corrupt, _) => Outcome::Unreadable(UnreadableReason::ObjectCorrupt),
        })
    }

    /// Counts what was read, and hands on what was found in it.
    fn count(&mut self, source: &Source, item: &Item, outcome: Outcome, draft: &mut Draft) -> Result<(), SinkError> {
        match outcome {
            Outcome::Scanned { bytes } => {
                draft.tally.add_scanned(bytes);
                self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Outcome::Skipped(reason) => draft.tally.add_skipped(reason, 1),
            Outcome::Unreadable(reason) => {
                draft.tally.add_unreadable(reason, 1);
                draft.note(display_path(source, item), reason);
            }
            Outcome::Interrupted => unreachable!("the caller ends here"),
        }
        self.progress.items.fetch_add(1, Ordering::Relaxed);
        self.progress.findings.fetch_add(self.reader.found.len() as u64, Ordering::Relaxed);
        draft.tally.findings_cut += self.reader.cut;
        draft.tally.merge(&self.reader.members.tally);
        for (path, reason) in self.reader.members.notes.drain(..) {
            draft.note(path, reason);
        }
        for occurrence in self.reader.found.drain(..) {
            draft.found(&occurrence)?;
        }
        Ok(())
    }
}

/// The scanner failed on an item: it is counted, and the detector begins anew.
fn poison(reader: &mut Reader) -> Outcome {
    reader.renew_detector();
    Outcome::Unreadable(UnreadableReason::Poison)
}

/// How reports name an item: its path (the first, if there are several), or its id if it is an object that cannot be read.
fn display_path(source: &Source, item: &Item) -> Vec<u8> {
    match (source, &item.kind) {
        (_, ItemKind::Blob { paths, .. }) => paths.first().map(|path| path.to_vec()).unwrap_or_default(),
        (Source::Objects(objects), _) => objects.name_of(&item.key),
        (Source::Directory(_), _) => key::display_path(key::split(&item.key).map(|(_, rest)| rest).unwrap_or_default()),
    }
}
