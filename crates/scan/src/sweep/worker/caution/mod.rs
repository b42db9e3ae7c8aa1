//! Files on which a process dies: which one it was, and how the rest of its shard is read all the same.
//!
//! A process that is killed, aborts or runs out of memory while it reads a file takes its report with it, and so does the next one.
//! The coordinator sees owners that come and go without progress, and parks the whole shard in the end. To lose the file alone,
//! its owners leave *notes* in the run's folder ([`notes`]): before an item is read, its key is written down; afterwards it is
//! taken back. A note that is found later names an item that was being read when its reader died.
//!
//! 1. A shard that was acquired before without progress, or that has a noted key ahead of its cursor, is swept *with care*: each item is
//!    noted, and read while no other thread of the process reads anything ([`alone`]). So a process that dies leaves one note
//!    of this kind, and it names the item that was read at that moment.
//! 2. An item with [`STRIKES_MAX`] such notes is *condemned*. Owners do not read it any more: it counts as unreadable, the report
//!    names it, and the run is not complete.
//! 3. The first item read with care, and a condemned one, are followed by a safe point. Each is progress, so that the coordinator's
//!    retry limit holds for each item and not for all of them together: one death without care and `STRIKES_MAX` with
//!    it stay well below `RunConfig::max_shard_retries`.
//!
//! A command that goes on with an interrupted run may read segments again without a coordinator to count its deaths. It always takes
//! notes, together with its other threads at first; notes of that kind condemn nothing, but the next command takes care.
//!
//! `kill -9` at any point: before the note, nothing is known and nothing was opened; between the note and its withdrawal, one
//! strike too many for an innocent file, which must happen `STRIKES_MAX` times in a row to the same file before it is given
//! up, and then it is reported as not read, never as clean; after the withdrawal, the item is read again, as ever. A worker that was
//! merely slow and lost its lease takes its note back when it wakes. Notes survive the process and not the machine: a file that
//! takes the machine down is not isolated, and its shard is parked. Workers on several machines share the folder and
//! thus the notes; keys do not depend on how shards were split.

pub(crate) mod alone;
mod notes;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use tessera_contracts::RestoredShardState;

use crate::source::item::{Item, ItemKind, UnreadableReason};
use alone::{Alone, Together};
use notes::OwnNote;

/// Deaths while reading an item alone after which it is not read any more.
pub(crate) const STRIKES_MAX: u32 = 3;

/// How items are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Without notes.
    Plain,
    /// With notes, and beside other threads.
    Noted,
    /// With notes, and alone.
    WithCare,
}

/// What a reader of items knows of those that killed others, and what it leaves to those who come after it.
#[derive(Debug)]
pub(crate) struct Caution {
    dir: PathBuf,
    mode: Mode,
    /// Keys that dead readers noted, with the number of those that read them alone.
    noted: BTreeMap<Vec<u8>, u32>,
    own: Option<OwnNote>,
    /// Whether a safe point is due whatever the time is.
    wants_safe_point: bool,
    has_read: bool,
}

/// Held while an item is read.
#[derive(Debug)]
pub(crate) struct Reading {
    _alone: Option<Alone>,
}

impl Caution {
    /// For items of the run whose folder is `run_dir`.
    pub(crate) fn new(run_dir: &Path) -> Self {
        let dir = notes::dir_in(run_dir);
        Self { dir, mode: Mode::Plain, noted: BTreeMap::new(), own: None, wants_safe_point: false, has_read: false }
    }

    /// A shard is about to be swept.
    pub(crate) fn begin_shard(&mut self, state: &RestoredShardState, has_stalled: bool) {
        self.noted = notes::left_behind(&self.dir);
        let low = match state.cursor().last_key() {
            Some(cursor) => Bound::Excluded(cursor),
            None => Bound::Included(state.spec().start()),
        };
        let range = state.spec().range();
        let is_noted = || self.noted.range::<[u8], _>((low, Bound::Unbounded)).any(|(key, _)| range.reaches_up_to(key));
        self.mode = if has_stalled || is_noted() { Mode::WithCare } else { Mode::Plain };
        (self.wants_safe_point, self.has_read) = (false, false);
    }

    /// For segments that are read again.
    pub(crate) fn of_reading_again(run_dir: &Path) -> Self {
        let mut caution = Self::new(run_dir);
        caution.noted = notes::left_behind(&caution.dir);
        let is_dangerous = caution.noted.values().any(|&strikes| strikes < STRIKES_MAX);
        caution.mode = if is_dangerous { Mode::WithCare } else { Mode::Noted };
        caution
    }

    /// The same for another thread, which leaves its own notes.
    pub(crate) fn fork(&self) -> Self {
        Self { dir: self.dir.clone(), mode: self.mode, noted: self.noted.clone(), own: None, ..*self }
    }

    /// Marks the condemned among `items` as unreadable.
    pub(crate) fn condemn(&mut self, items: &mut [Item]) {
        if self.noted.is_empty() {
            return;
        }
        for item in items.iter_mut().filter(|item| is_read(item)) {
            if self.noted.get(&item.key).is_some_and(|&strikes| strikes >= STRIKES_MAX) {
                item.kind = ItemKind::Unreadable { reason: UnreadableReason::Poison, count: 1 };
            }
        }
    }

    /// Waits until no item is read alone; held while items are read without care. `None` if `goes_on` says so.
    pub(crate) fn together(&self, goes_on: &mut dyn FnMut() -> bool) -> Option<Option<Together>> {
        match self.mode {
            Mode::Plain | Mode::Noted => alone::together(goes_on).map(Some),
            Mode::WithCare => Some(None),
        }
    }

    /// An item is about to be read. `None` if `goes_on` says so.
    pub(crate) fn about_to_read(&mut self, item: &Item, goes_on: &mut dyn FnMut() -> bool) -> Option<Reading> {
        if self.mode == Mode::Plain || !is_read(item) {
            return Some(Reading { _alone: None });
        }
        let is_alone = self.mode == Mode::WithCare;
        let alone = if is_alone { Some(alone::alone(goes_on)?) } else { None };
        if self.own.is_none() {
            self.own = OwnNote::create(&self.dir).ok();
        }
        if let Some(own) = &mut self.own {
            own.write(&item.key, is_alone);
        }
        Some(Reading { _alone: alone })
    }

    /// The item is done, one way or another.
    pub(crate) fn has_read(&mut self, item: &Item, reading: Reading) {
        if let Some(own) = &mut self.own {
            own.take_back();
        }
        drop(reading);
        let is_condemned = matches!(item.kind, ItemKind::Unreadable { reason: UnreadableReason::Poison, .. });
        let is_first = self.mode == Mode::WithCare && !self.has_read;
        self.wants_safe_point |= is_condemned || is_first;
        self.has_read = true;
    }

    /// Whether a safe point is due; asked once.
    pub(crate) fn wants_safe_point(&mut self) -> bool {
        std::mem::take(&mut self.wants_safe_point)
    }
}

/// Whether an item has content to be read.
fn is_read(item: &Item) -> bool {
    matches!(item.kind, ItemKind::File | ItemKind::Blob { .. })
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{CursorSemantics, CursorUpdate, ShardSpecRef};

    use super::*;

    fn state(start: &[u8], end: &[u8], cursor: Option<&[u8]>) -> RestoredShardState {
        let spec = ShardSpecRef::new(start, end, b"").unwrap();
        RestoredShardState::new(spec, CursorUpdate::new(cursor, None).unwrap(), CursorSemantics::Completed).unwrap()
    }

    fn file(key: &[u8]) -> Item {
        Item { key: key.to_vec(), size: 1, kind: ItemKind::File, stamp: None }
    }

    /// A reader that dies while it reads `key`.
    fn die_on(dir: &Path, key: &[u8], with_care: bool) {
        let mut caution = Caution::new(dir);
        caution.mode = if with_care { Mode::WithCare } else { Mode::Noted };
        let reading = caution.about_to_read(&file(key), &mut || true).unwrap();
        drop(reading);
        // A dead process does not clean up.
        std::mem::forget(caution);
    }

    fn is_condemned(caution: &mut Caution, key: &[u8]) -> bool {
        let mut items = [file(key)];
        caution.condemn(&mut items);
        items[0].kind != ItemKind::File
    }

    #[test]
    fn an_item_is_condemned_by_so_many_deaths_alone_and_by_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let whole = state(b"a", b"z", None);
        for deaths in 0..=STRIKES_MAX {
            let mut caution = Caution::new(dir.path());
            caution.begin_shard(&whole, false);
            assert_eq!(is_condemned(&mut caution, b"k"), deaths == STRIKES_MAX, "{deaths} deaths");
            assert_eq!(caution.mode == Mode::WithCare, deaths > 0, "{deaths} deaths");
            die_on(dir.path(), b"k", true);
            for _ in 0..3 {
                die_on(dir.path(), b"together", false);
            }
            caution.begin_shard(&whole, false);
            assert!(!is_condemned(&mut caution, b"together") && !is_condemned(&mut caution, b"other"));
        }
    }

    #[test]
    fn care_is_taken_ahead_of_the_cursor_and_inside_the_shard_alone() {
        let dir = tempfile::tempdir().unwrap();
        die_on(dir.path(), b"k", true);
        let mut caution = Caution::new(dir.path());
        let mut mode = |state: &RestoredShardState, has_stalled| {
            caution.begin_shard(state, has_stalled);
            caution.mode
        };
        assert_eq!(mode(&state(b"a", b"z", None), false), Mode::WithCare);
        assert_eq!(mode(&state(b"k", b"z", None), false), Mode::WithCare);
        assert_eq!(mode(&state(b"a", b"z", Some(b"k")), false), Mode::Plain);
        assert_eq!(mode(&state(b"a", b"k", None), false), Mode::Plain);
        assert_eq!(mode(&state(b"l", b"z", None), false), Mode::Plain);
        assert_eq!(mode(&state(b"l", b"z", None), true), Mode::WithCare);
    }

    #[test]
    fn an_item_that_was_read_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut caution = Caution::new(dir.path());
        caution.begin_shard(&state(b"a", b"z", None), true);
        for key in [b"k", b"l"] {
            let reading = caution.about_to_read(&file(key), &mut || true).unwrap();
            assert_eq!(notes::left_behind(&caution.dir).len(), 1);
            caution.has_read(&file(key), reading);
            assert!(notes::left_behind(&caution.dir).is_empty());
            assert_eq!(caution.wants_safe_point(), key == b"k", "the first item is made durable at once");
        }
        let folder = caution.dir.clone();
        drop(caution);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn reading_again_takes_care_only_after_a_death() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Caution::of_reading_again(dir.path()).mode, Mode::Noted);
        die_on(dir.path(), b"k", false);
        let mut caution = Caution::of_reading_again(dir.path()).fork();
        assert_eq!(caution.mode, Mode::WithCare);
        for _ in 0..STRIKES_MAX {
            assert!(!is_condemned(&mut caution, b"k"));
            die_on(dir.path(), b"k", true);
        }
        caution = Caution::of_reading_again(dir.path()).fork();
        assert!(is_condemned(&mut caution, b"k"));
        assert_eq!(caution.mode, Mode::Noted, "what is not read any more is no danger");
    }
}
