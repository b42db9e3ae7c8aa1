//! The files of a directory, in path order.
//!
//! A depth-first walk that sorts each directory meets paths in the order of their keys ([`crate::key`]), so a shard
//! is a stretch of the walk. To start at a cursor the walk opens only the directories on the way to it, and skips in each
//! what sorts before. Nothing finished is listed again.
//!
//! Whatever is met becomes an item: a file to read, or something left out or unreadable with the reason. A directory that
//! is left out counts once and is not entered. One that cannot be listed is an item under its own key, and so belongs
//! to exactly one shard, however many shards begin inside it.
//!
//! Symbolic links are not followed, so the walk cannot loop and cannot leave the target. Memory is bounded: names are
//! held in windows ([`crate::source::names`]), and when directories are nested, those of outer ones are given up and
//! read again later.

use std::ffi::OsStr;
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tessera_contracts::RestoredShardState;
use tessera_contracts::limits::MAX_KEY_SIZE;
use tessera_contracts::source_family::{
    ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily, SourceItem,
};

use crate::filter::{Filter, FilterError};
use crate::item::{Item, ItemKind, SkipReason, UnreadableReason};
use crate::key::{self, SEPARATOR, TARGET_BYTES};
use crate::source::ignored::{Above, Level, Tracked, Verdict};
use crate::source::names::{NAMES_MAX, NameKind, Names};
use crate::target::Target;

/// A directory tree or a single file.
#[derive(Debug)]
pub struct DirectorySource {
    target: Target,
    filter: Filter,
    above: Above,
    tracked: Tracked,
    names_max: usize,
}

impl DirectorySource {
    /// Prepares to read `target`, whose path exists.
    pub fn new(target: Target) -> Result<Self, FilterError> {
        let filter = Filter::new(&target.options)?;
        let (above, tracked) = if target.options.no_ignore {
            (Above::default(), Tracked::default())
        } else {
            (Above::of_target(&target.path), Tracked::of_target(&target.path))
        };
        Ok(Self { target, filter, above, tracked, names_max: NAMES_MAX })
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Where the file with this key lies; `None` if the key is of another target.
    pub fn path_of(&self, key: &[u8]) -> Option<PathBuf> {
        let (number, rest) = key::split(key)?;
        (number == self.target.number).then(|| self.path_below(rest))
    }

    fn path_below(&self, rest: &[u8]) -> PathBuf {
        match rest {
            [] => self.target.path.clone(),
            rest => self.target.path.join(Path::new(OsStr::from_bytes(&key::display_path(rest)))),
        }
    }
}

impl SourceFamily for DirectorySource {
    type Item = Item;
    type Pages<'f> = DirectoryPages<'f>;

    fn name(&self) -> &'static str {
        "directory"
    }

    fn open<'f>(&'f self, state: &RestoredShardState) -> Result<DirectoryPages<'f>, SourceError> {
        let range = state.spec().range();
        let cursor = state.cursor().last_key();
        let mut pages = DirectoryPages {
            source: self,
            start: range.start().to_vec(),
            end: range.end().to_vec(),
            cursor: cursor.map(<[u8]>::to_vec),
            key: self.target.number.to_be_bytes().to_vec(),
            stack: Vec::new(),
            names_held: 0,
            pending: None,
        };
        let root = &self.target.path;
        let metadata = std::fs::symlink_metadata(root).map_err(|error| root_error(root, &error))?;
        if !metadata.is_dir() {
            pages.pending = pages.admitted(pages.key.clone(), metadata.len(), file_kind(&metadata)).ok();
            return Ok(pages);
        }
        let low = cursor.map_or(range.start(), |cursor| cursor.max(range.start()));
        let bound = components_of(low, &pages.key);
        let frame = pages.list(bound, false).map_err(|error| root_error(root, &error))?;
        pages.push(frame);
        Ok(pages)
    }
}

/// The components of a key below the target with this prefix; none if the key lies before all of them.
fn components_of(low: &[u8], prefix: &[u8]) -> Vec<Vec<u8>> {
    match low.strip_prefix(prefix) {
        None | Some([]) => Vec::new(),
        Some(rest) => rest.split(|&byte| byte == SEPARATOR).map(<[u8]>::to_vec).collect(),
    }
}

/// The longest name whose key still fits, in the directory with this key.
fn name_len_max(dir_key: &[u8]) -> usize {
    MAX_KEY_SIZE.saturating_sub(dir_key.len() + 1)
}

fn root_error(path: &Path, error: &io::Error) -> SourceError {
    let class = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => SourceErrorClass::NotFound,
        io::ErrorKind::PermissionDenied => SourceErrorClass::PermissionDenied,
        _ => SourceErrorClass::Transient,
    };
    SourceError::new(class, format!("cannot list {}: {error}", path.display()))
}

fn file_kind(metadata: &std::fs::Metadata) -> ItemKind {
    let kind = metadata.file_type();
    let skipped = |reason| ItemKind::Skipped { reason, count: 1 };
    if kind.is_file() {
        ItemKind::File
    } else if kind.is_symlink() {
        skipped(SkipReason::Symlink)
    } else {
        skipped(SkipReason::Special)
    }
}

/// Why something cannot be read, from what the operating system says.
pub(crate) fn unreadable_reason(kind: io::ErrorKind) -> UnreadableReason {
    match kind {
        io::ErrorKind::PermissionDenied => UnreadableReason::PermissionDenied,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => UnreadableReason::Vanished,
        io::ErrorKind::InvalidFilename => UnreadableReason::PathTooLong,
        _ => UnreadableReason::Io,
    }
}

/// A walk under way.
#[derive(Debug)]
pub struct DirectoryPages<'f> {
    source: &'f DirectorySource,
    start: Vec<u8>,
    end: Vec<u8>,
    cursor: Option<Vec<u8>>,
    /// The key of the innermost directory.
    key: Vec<u8>,
    stack: Vec<Frame>,
    names_held: usize,
    /// An item that did not fit the last page.
    pending: Option<Item>,
}

/// A directory the walk is in.
#[derive(Debug)]
struct Frame {
    /// Length of its key.
    key_len: usize,
    names: Names,
    /// The last name taken, from which to read on.
    last: Vec<u8>,
    /// Where the walk starts, if that is at or below the first name: components from this directory down.
    bound: Vec<Vec<u8>>,
    level: Level,
    /// Entered only because git tracks something in it.
    is_ignored: bool,
    /// What to say about the directory itself.
    slot: Option<(u64, UnreadableReason)>,
}

/// Why an item is not handed out.
enum NotAdmitted {
    /// It lies before the shard or its cursor.
    Before,
    /// It lies after the shard: so does all that follows.
    After,
}

impl ItemPages for DirectoryPages<'_> {
    type Item = Item;

    fn next_page(&mut self, limits: PageLimits) -> Result<Page<Item>, SourceError> {
        let (mut items, mut bytes) = (Vec::new(), 0_u64);
        while items.len() < limits.items_max.max(1) {
            let Some(item) = (match self.pending.take() {
                Some(item) => Some(item),
                None => self.next_item()?,
            }) else {
                return Ok(Page { items, token: None, is_last: true });
            };
            bytes = bytes.saturating_add(item.bytes());
            if bytes > limits.bytes_max && !items.is_empty() {
                self.pending = Some(item);
                break;
            }
            items.push(item);
        }
        Ok(Page { items, token: None, is_last: false })
    }
}

impl DirectoryPages<'_> {
    fn next_item(&mut self) -> Result<Option<Item>, SourceError> {
        loop {
            let Some(frame) = self.stack.last_mut() else { return Ok(None) };
            if let Some((count, reason)) = frame.slot.take() {
                match self.admitted(self.key.clone(), 0, ItemKind::Unreadable { reason, count }) {
                    Ok(item) => return Ok(Some(item)),
                    Err(NotAdmitted::Before) => continue,
                    Err(NotAdmitted::After) => return Ok(self.finish()),
                }
            }
            let Some((name, kind)) = frame.names.peek() else {
                if frame.names.has_more {
                    self.refill()?;
                } else {
                    self.pop();
                }
                continue;
            };
            frame.last.clear();
            frame.last.extend_from_slice(name);
            frame.names.advance();
            let below = match frame.bound.first() {
                Some(first) if *first == frame.last => frame.bound.split_off(1),
                _ => Vec::new(),
            };
            frame.bound.clear();
            self.names_held = self.names_held.saturating_sub(1);

            match self.visit(kind, below) {
                Ok(Some(item)) => return Ok(Some(item)),
                Ok(None) | Err(NotAdmitted::Before) => {}
                Err(NotAdmitted::After) => return Ok(self.finish()),
            }
        }
    }

    /// Looks at the name just taken: hands out an item, or enters a directory.
    fn visit(&mut self, kind: NameKind, below: Vec<Vec<u8>>) -> Result<Option<Item>, NotAdmitted> {
        let frame = self.stack.last().expect("a name was just taken from it");
        let mut key = self.key.clone();
        if key.len() > TARGET_BYTES {
            key.push(SEPARATOR);
        }
        key.extend_from_slice(&frame.last);
        if !self.end.is_empty() && key.as_slice() >= self.end.as_slice() {
            return Err(NotAdmitted::After);
        }
        let path = key::display_path(&key[TARGET_BYTES..]);
        let is_dir = kind == NameKind::Dir;
        let skipped = |reason| ItemKind::Skipped { reason, count: 1 };
        let options = &self.source.target.options;
        if frame.last == b".git" && !options.no_ignore {
            return self.admitted(key, 0, skipped(SkipReason::GitInternal)).map(Some);
        }
        if !self.source.filter.takes(&path, is_dir) {
            return self.admitted(key, 0, skipped(SkipReason::Excluded)).map(Some);
        }
        let is_ignored = !options.no_ignore && (frame.is_ignored || self.is_ignored(&path, is_dir));
        let is_tracked = || {
            if is_dir { self.source.tracked.has_below(&path) } else { self.source.tracked.has_file(&path) }
        };
        if is_ignored && !is_tracked() {
            return self.admitted(key, 0, skipped(SkipReason::Ignored)).map(Some);
        }
        match kind {
            NameKind::Symlink => self.admitted(key, 0, skipped(SkipReason::Symlink)).map(Some),
            NameKind::Special => self.admitted(key, 0, skipped(SkipReason::Special)).map(Some),
            NameKind::Dir => {
                let outer = std::mem::replace(&mut self.key, key);
                match self.list(below, is_ignored) {
                    Ok(frame) => {
                        self.push(frame);
                        Ok(None)
                    }
                    Err(error) => {
                        let key = std::mem::replace(&mut self.key, outer);
                        let reason = unreadable_reason(error.kind());
                        self.admitted(key, 0, ItemKind::Unreadable { reason, count: 1 }).map(Some)
                    }
                }
            }
            NameKind::File => match std::fs::symlink_metadata(self.source.path_below(&key[TARGET_BYTES..])) {
                Ok(metadata) => {
                    let size = metadata.len();
                    if options.size_max.is_some_and(|max| size > max) {
                        return self.admitted(key, 0, skipped(SkipReason::TooLarge)).map(Some);
                    }
                    self.admitted(key, size, file_kind(&metadata)).map(Some)
                }
                Err(error) => {
                    let reason = unreadable_reason(error.kind());
                    self.admitted(key, 0, ItemKind::Unreadable { reason, count: 1 }).map(Some)
                }
            },
        }
    }

    fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        for frame in self.stack.iter().rev() {
            // The way from that directory down: without its own path and the separator after it.
            let from = frame.key_len - TARGET_BYTES;
            let from = if from == 0 { 0 } else { from + 1 };
            match frame.level.verdict(&path[from..], is_dir) {
                Verdict::Silent => {}
                verdict => return verdict == Verdict::Ignore,
            }
        }
        self.source.above.verdict(path, is_dir) == Verdict::Ignore
    }

    fn admitted(&self, key: Vec<u8>, size: u64, kind: ItemKind) -> Result<Item, NotAdmitted> {
        if !self.end.is_empty() && key.as_slice() >= self.end.as_slice() {
            return Err(NotAdmitted::After);
        }
        let is_before = key.as_slice() < self.start.as_slice()
            || self.cursor.as_ref().is_some_and(|cursor| key.as_slice() <= cursor.as_slice());
        if is_before { Err(NotAdmitted::Before) } else { Ok(Item { key, size, kind }) }
    }

    /// Lists the directory with the key `self.key`, from the first component of `bound` on.
    fn list(&self, bound: Vec<Vec<u8>>, is_ignored: bool) -> io::Result<Frame> {
        let dir = self.source.path_below(&self.key[TARGET_BYTES..]);
        let low = bound.first().map_or(Bound::Unbounded, |name| Bound::Included(name.as_slice()));
        let names = Names::read(&dir, low, self.source.names_max, name_len_max(&self.key))?;
        let slot = match (names.error, names.too_long) {
            (Some(kind), too_long) => Some((1 + too_long, unreadable_reason(kind))),
            (None, 0) => None,
            (None, too_long) => Some((too_long, UnreadableReason::PathTooLong)),
        };
        let level = if self.source.target.options.no_ignore { Level::NONE } else { Level::of_directory(&dir) };
        Ok(Frame { key_len: self.key.len(), names, last: Vec::new(), bound, level, is_ignored, slot })
    }

    fn push(&mut self, frame: Frame) {
        self.names_held += frame.names.len();
        self.stack.push(frame);
        // Outermost first: they are needed last.
        for frame in 0..self.stack.len() - 1 {
            if self.names_held <= self.source.names_max {
                break;
            }
            self.names_held -= self.stack[frame].names.len();
            self.stack[frame].names.forget();
        }
    }

    fn pop(&mut self) {
        self.stack.pop();
        if let Some(frame) = self.stack.last() {
            self.key.truncate(frame.key_len);
        }
    }

    fn refill(&mut self) -> Result<(), SourceError> {
        let dir = self.source.path_below(&self.key[TARGET_BYTES..]);
        let frame = self.stack.last_mut().expect("the frame that ran out of names");
        let low = Bound::Excluded(frame.last.as_slice());
        // Opened anew from the cursor, the walk passes over a directory that is gone.
        let failed = |error: io::Error| {
            SourceError::new(SourceErrorClass::Transient, format!("cannot list {} again: {error}", dir.display()))
        };
        let names = Names::read(&dir, low, self.source.names_max, name_len_max(&self.key)).map_err(failed)?;
        if let Some(kind) = names.error {
            return Err(failed(kind.into()));
        }
        frame.names = names;
        self.names_held += frame.names.len();
        Ok(())
    }

    fn finish(&mut self) -> Option<Item> {
        self.stack.clear();
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use tessera_contracts::source_family::CheckedPages;
    use tessera_contracts::{CursorSemantics, CursorUpdate, ShardSpecRef};

    use super::*;
    use crate::target::{ReadOptions, TargetKind};

    fn source(path: &Path, options: ReadOptions) -> DirectorySource {
        let path = path.canonicalize().unwrap();
        DirectorySource::new(Target { number: 1, path, kind: TargetKind::Tree, options }).unwrap()
    }

    fn state(start: &[u8], end: &[u8], cursor: Option<&[u8]>) -> RestoredShardState {
        let spec = ShardSpecRef::new(start, end, b"").unwrap();
        RestoredShardState::new(spec, CursorUpdate::new(cursor, None).unwrap(), CursorSemantics::Completed).unwrap()
    }

    fn whole() -> RestoredShardState {
        let (start, end) = key::target_range(1);
        state(&start, &end, None)
    }

    /// Reads a shard to its end through the checker of the contract.
    fn read(source: &DirectorySource, state: &RestoredShardState, items_max: usize) -> Vec<Item> {
        let mut pages = CheckedPages::new(source.open(state).unwrap(), state.clone());
        let mut items = Vec::new();
        loop {
            let page = pages.next_page(PageLimits { items_max, bytes_max: 40 }).unwrap();
            items.extend(page.items);
            if page.is_last {
                return items;
            }
        }
    }

    fn seen(items: &[Item]) -> BTreeMap<String, ItemKind> {
        let path = |item: &Item| String::from_utf8_lossy(&key::display_path(&item.key[TARGET_BYTES..])).into_owned();
        items.iter().map(|item| (path(item), item.kind.clone())).collect()
    }

    fn skipped(reason: SkipReason) -> ItemKind {
        ItemKind::Skipped { reason, count: 1 }
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn what_is_left_out_is_an_item_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "a/file", "x");
        write(root, "a/large", "0123456789");
        write(root, "node_modules/dep/file", "x");
        write(root, ".git/HEAD", "x");
        write(root, ".gitignore", "ignored\nout/\n");
        write(root, "a/ignored", "x");
        write(root, "out/deep/file", "x");
        symlink(root, root.join("a/loop")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        let options =
            ReadOptions { exclude: vec!["node_modules".into()], size_max: Some(15), ..ReadOptions::default() };
        write(root, "huge", "0123456789abcdef");
        let items = seen(&read(&source(root, options), &whole(), 3));
        let expected = [
            (".git", skipped(SkipReason::GitInternal)),
            (".gitignore", ItemKind::File),
            ("a/file", ItemKind::File),
            ("a/ignored", skipped(SkipReason::Ignored)),
            ("a/large", ItemKind::File),
            ("a/loop", skipped(SkipReason::Symlink)),
            ("huge", skipped(SkipReason::TooLarge)),
            ("node_modules", skipped(SkipReason::Excluded)),
            ("out", skipped(SkipReason::Ignored)),
            ("pipe", skipped(SkipReason::Special)),
        ];
        assert_eq!(items, expected.map(|(path, kind)| (path.to_owned(), kind)).into());
    }

    #[test]
    fn no_ignore_reads_also_what_gitignore_names() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ".gitignore", "*\n");
        write(dir.path(), "x/y", "");
        let options = ReadOptions { no_ignore: true, ..ReadOptions::default() };
        assert_eq!(seen(&read(&source(dir.path(), options), &whole(), 3)).len(), 2);
        let ignoring = seen(&read(&source(dir.path(), ReadOptions::default()), &whole(), 3));
        assert_eq!(ignoring["x"], skipped(SkipReason::Ignored));
    }

    #[test]
    fn a_single_file_is_one_item_and_a_missing_root_an_error() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "f", "abc");
        let one = source(&dir.path().join("f"), ReadOptions::default());
        let items = read(&one, &whole(), 3);
        assert_eq!((items.len(), &items[0].kind, items[0].size), (1, &ItemKind::File, 3));
        assert_eq!(one.path_of(&items[0].key), Some(dir.path().canonicalize().unwrap().join("f")));
        assert!(read(&one, &state(&items[0].key, b"\xff", Some(&items[0].key)), 3).is_empty());
        std::fs::remove_file(dir.path().join("f")).unwrap();
        assert_eq!(one.open(&whole()).unwrap_err().class, SourceErrorClass::NotFound);
    }

    #[test]
    fn names_too_long_for_a_key_are_counted_once_whatever_the_shards() {
        let dir = tempfile::tempdir().unwrap();
        // Built from inside, since no path this long can be named from outside.
        let name = "d".repeat(250);
        let mut at = std::fs::File::open(dir.path()).unwrap();
        for _ in 0..17 {
            rustix::fs::mkdirat(&at, name.as_str(), rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
            at = rustix::fs::openat(&at, name.as_str(), flags, rustix::fs::Mode::empty()).unwrap().into();
        }
        let items = read(&source(dir.path(), ReadOptions::default()), &whole(), 3);
        assert_eq!(items.len(), 1, "{items:?}");
        assert!(matches!(items[0].kind, ItemKind::Unreadable { reason: UnreadableReason::PathTooLong, count: 1 }));
        assert!(items[0].key.len() <= MAX_KEY_SIZE);
    }

    const NAMES: [&[u8]; 6] = [b"a", b"a.b", b"a-b", b"aa", b"b", b"\xff\x01"];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against a plain recursive listing, for every cursor, a cut anywhere, and windows of any size.
        #[test]
        fn every_shard_and_every_cursor_gives_exactly_its_part_of_the_sorted_tree(
            paths in prop::collection::btree_set(prop::collection::vec(0_usize..6, 1..4), 0..14),
            cut in prop::collection::vec(prop::sample::select(vec![0_u8, b'-', b'a', b'b', 0xff]), 0..4),
            names_max in 1_usize..5,
            items_max in 1_usize..4,
        ) {
            let dir = tempfile::tempdir().unwrap();
            for path in &paths {
                let path: PathBuf = path.iter().map(|&name| OsStr::from_bytes(NAMES[name])).collect();
                let path = dir.path().join(path);
                // Some paths run through others that are files; those cannot be made.
                if std::fs::create_dir_all(path.parent().unwrap()).is_ok() {
                    let _ = std::fs::write(&path, b"0123456789");
                }
            }
            let mut model = Vec::new();
            let mut todo = vec![(dir.path().to_path_buf(), 1_u32.to_be_bytes().to_vec())];
            while let Some((dir, key)) = todo.pop() {
                for entry in std::fs::read_dir(dir).unwrap() {
                    let entry = entry.unwrap();
                    let mut key = key.clone();
                    if key.len() > TARGET_BYTES {
                        key.push(SEPARATOR);
                    }
                    key.extend_from_slice(entry.file_name().as_bytes());
                    if entry.file_type().unwrap().is_dir() {
                        todo.push((entry.path(), key));
                    } else {
                        model.push(key);
                    }
                }
            }
            model.sort();

            let mut source = source(dir.path(), ReadOptions::default());
            source.names_max = names_max;
            let keys = |state: &RestoredShardState| -> Vec<Vec<u8>> {
                read(&source, state, items_max).into_iter().map(|item| item.key).collect()
            };
            prop_assert_eq!(&keys(&whole()), &model);
            let (start, end) = key::target_range(1);
            for (done, cursor) in model.iter().enumerate() {
                prop_assert_eq!(&keys(&state(&start, &end, Some(cursor)))[..], &model[done + 1..]);
            }
            let mut at = start.to_vec();
            at.extend_from_slice(&cut);
            if at.as_slice() > start.as_slice() {
                let middle = model.partition_point(|key| *key < at);
                prop_assert_eq!(&keys(&state(&start, &at, None))[..], &model[..middle]);
                prop_assert_eq!(&keys(&state(&at, &end, None))[..], &model[middle..]);
            }
        }
    }
}
