//! The files of a directory, in path order.
//!
//! A depth-first walk that sorts each directory meets paths in the order of their keys ([`crate::plan::key`]), so a shard
//! is a stretch of the walk. To start at a cursor the walk opens only the directories on the way to it, and skips in each
//! what sorts before. Nothing finished is listed again.
//!
//! Whatever is met becomes an item: a file to read, or something left out or unreadable with the reason. A directory that
//! is left out counts once. If an ignore rule names it, it is searched for repositories of their own, since rules end where another
//! repository begins ([`crate::source::repository`]); nothing else in it is looked at, and only the first walk searches
//! (`barren`). A directory that cannot be listed is an item under its own key, and so belongs
//! to exactly one shard, however many shards begin inside it. The folder of a submodule that is not checked out is one too, since
//! nothing of the submodule lies there; files of others in it are read.
//!
//! Symbolic links are not followed, so the walk cannot loop and cannot leave the target. Memory is bounded: names are
//! held in windows ([`crate::source::names`]), and when directories are nested, those of outer ones are given up and
//! read again later.

use std::ffi::OsStr;
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tessera_contracts::RestoredShardState;
use tessera_contracts::limits::MAX_KEY_SIZE;
use tessera_contracts::source_family::{
    ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily, SourceItem,
};

use crate::plan::key::{self, SEPARATOR, TARGET_BYTES};
use crate::plan::target::Target;
use crate::source::barren::Barren;
use crate::source::filter::{Filter, FilterError};

use crate::source::identity::Stamp;
use crate::source::ignored::{Above, Level, Verdict};
use crate::source::item::{Item, ItemKind, SkipReason, UnreadableReason};
use crate::source::names::{NAMES_MAX, NameKind, Names};
use crate::source::repository::{Recent, Repository};
use tessera_git_objects::layout::{has_only_objects, is_git_dir};

/// A directory tree or a single file. Walks over it share it, and may outlive this handle.
#[derive(Debug, Clone)]
pub struct DirectorySource {
    tree: Arc<Tree>,
}

#[derive(Debug)]
struct Tree {
    target: Target,
    filter: Filter,
    above: Above,
    repositories: Recent,
    barren: Barren,
    names_max: usize,
}

impl DirectorySource {
    /// Prepares to read `target`, whose path exists.
    pub fn new(target: Target) -> Result<Self, FilterError> {
        let filter = Filter::new(&target.options)?;
        let repositories = Recent::default();
        let above =
            if target.options.no_ignore { Above::default() } else { Above::of_target(&target.path, &repositories) };
        let barren = Barren::default();
        Ok(Self { tree: Arc::new(Tree { target, filter, above, repositories, barren, names_max: NAMES_MAX }) })
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.tree.target
    }

    /// Where the file with this key lies; `None` if the key is of another target.
    pub fn path_of(&self, key: &[u8]) -> Option<PathBuf> {
        let (number, rest) = key::split(key)?;
        (number == self.tree.target.number).then(|| self.tree.path_below(rest))
    }
}

impl Tree {
    /// The repository whose working tree has this root, if there is one and it is asked for.
    fn repository_at(&self, dir: &Path) -> Option<Arc<Repository>> {
        if self.target.options.no_ignore { None } else { self.repositories.at(dir) }
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
    type Pages<'f> = DirectoryPages;

    fn name(&self) -> &'static str {
        "directory"
    }

    fn open(&self, state: &RestoredShardState) -> Result<DirectoryPages, SourceError> {
        let range = state.spec().range();
        let cursor = state.cursor().last_key();
        let mut pages = DirectoryPages {
            source: Arc::clone(&self.tree),
            start: range.start().to_vec(),
            end: range.end().to_vec(),
            cursor: cursor.map(<[u8]>::to_vec),
            key: self.tree.target.number.to_be_bytes().to_vec(),
            stack: Vec::new(),
            names_held: 0,
            pending: None,
        };
        let (root, asked_at) = (&self.tree.target.path, SystemTime::now());
        let metadata = std::fs::symlink_metadata(root).map_err(|error| root_error(root, &error))?;
        if !metadata.is_dir() {
            pages.pending = pages.file(pages.key.clone(), &metadata, asked_at).ok();
            return Ok(pages);
        }
        let low = cursor.map_or(range.start(), |cursor| cursor.max(range.start()));
        let bound = components_of(low, &pages.key);
        let repository = self.tree.repository_at(root);
        let is_unknown = repository.is_none() && self.tree.above.is_unknown();
        let mut frame = pages.list(bound, Entered::Plainly, repository).map_err(|error| root_error(root, &error))?;
        if is_unknown {
            frame.slot.get_or_insert(ItemKind::Skipped { reason: SkipReason::GitIndexUnknown, count: 1 });
        }
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
pub struct DirectoryPages {
    source: Arc<Tree>,
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
    entered: Entered,
    /// The repository whose working tree begins here.
    repository: Option<Arc<Repository>>,
    /// What to say about the directory itself.
    slot: Option<ItemKind>,
    /// Whether the walk has seen all of it, and met no repository, as far as it has come.
    is_barren: bool,
}

/// Why the walk is in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entered {
    /// To read it.
    Plainly,
    /// It is ignored, and git tracks something in it.
    ForTracked,
    /// It is ignored, and a repository may lie in it.
    ForRepositories,
}

/// Why an item is not handed out.
enum NotAdmitted {
    /// It lies before the shard or its cursor.
    Before,
    /// It lies after the shard: so does all that follows.
    After,
}

impl ItemPages for DirectoryPages {
    type Item = Item;

    fn next_page(&mut self, limits: PageLimits) -> Result<Page<Item>, SourceError> {
        let (mut items, mut bytes) = (Vec::new(), 0_u64);
        let mut steps = STEPS_PER_PAGE_MAX;
        while items.len() < limits.items_max.max(1) {
            let step = match self.pending.take() {
                Some(item) => Step::Item(item),
                None => self.step()?,
            };
            let item = match step {
                Step::Item(item) => item,
                Step::End => return Ok(Page { items, token: None, is_last: true }),
                Step::Nothing if steps == 0 => break,
                Step::Nothing => {
                    steps -= 1;
                    continue;
                }
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

/// Steps without an item after which a page ends: its reader keeps the lease alive between pages.
const STEPS_PER_PAGE_MAX: usize = 20_000;

/// What one step of the walk brings.
enum Step {
    Item(Item),
    Nothing,
    End,
}

impl DirectoryPages {
    fn step(&mut self) -> Result<Step, SourceError> {
        let Some(frame) = self.stack.last_mut() else { return Ok(Step::End) };
        let met = if let Some(kind) = frame.slot.take() {
            self.admitted(self.key.clone(), 0, kind).map(Some)
        } else if let Some((name, kind)) = frame.names.peek() {
            frame.last.clear();
            frame.last.extend_from_slice(name);
            frame.names.advance();
            let below = match frame.bound.first() {
                Some(first) if *first == frame.last => frame.bound.split_off(1),
                _ => Vec::new(),
            };
            frame.bound.clear();
            self.names_held = self.names_held.saturating_sub(1);
            self.visit(kind, below)
        } else {
            if frame.names.has_more {
                self.refill()?;
            } else {
                self.pop();
            }
            Ok(None)
        };
        Ok(match met {
            Ok(Some(item)) => Step::Item(item),
            Ok(None) | Err(NotAdmitted::Before) => Step::Nothing,
            Err(NotAdmitted::After) => {
                self.stack.clear();
                Step::End
            }
        })
    }

    /// Looks at the name just taken: hands out an item, or enters a directory.
    fn visit(&mut self, kind: NameKind, below: Vec<Vec<u8>>) -> Result<Option<Item>, NotAdmitted> {
        let frame = self.stack.last().expect("a name was just taken from it");
        if frame.entered == Entered::ForRepositories && kind != NameKind::Dir {
            return Ok(None);
        }
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
        if frame.last == b".git" && !options.no_ignore && self.is_in_repository() {
            let reason = match &frame.repository {
                _ if frame.entered == Entered::ForRepositories => return Ok(None),
                Some(repository) if !repository.is_known() => SkipReason::GitIndexUnknown,
                _ => SkipReason::GitInternal,
            };
            return self.admitted(key, 0, skipped(reason)).map(Some);
        }
        let is_store = is_dir && frame.last == b"objects" && !options.no_ignore;
        if is_store && frame.entered != Entered::ForRepositories && self.is_store_of_git(&path) {
            return self.admitted(key, 0, skipped(SkipReason::GitInternal)).map(Some);
        }
        if !self.source.filter.takes(&path, is_dir) {
            return match frame.entered {
                Entered::ForRepositories => Ok(None),
                _ => self.admitted(key, 0, skipped(SkipReason::Excluded)).map(Some),
            };
        }
        let is_ignored = !options.no_ignore && (frame.entered != Entered::Plainly || self.is_ignored(&path, is_dir));
        let is_tracked = is_ignored && self.is_tracked(&path, is_dir);
        match kind {
            NameKind::Dir => self.enter(key, below, is_ignored, is_tracked),
            _ if is_ignored && !is_tracked => self.admitted(key, 0, skipped(SkipReason::Ignored)).map(Some),
            // What it was when its directory was listed may be long ago.
            NameKind::File | NameKind::Symlink | NameKind::Special => {
                let asked_at = SystemTime::now();
                match std::fs::symlink_metadata(self.source.path_below(&key[TARGET_BYTES..])) {
                    Ok(metadata) if metadata.is_dir() => self.visit(NameKind::Dir, below),
                    Ok(metadata) if metadata.is_file() && options.size_max.is_some_and(|max| metadata.len() > max) => {
                        self.admitted(key, 0, skipped(SkipReason::TooLarge)).map(Some)
                    }
                    Ok(metadata) => self.file(key, &metadata, asked_at).map(Some),
                    // What would not have been read is not missed.
                    Err(_) if kind == NameKind::Symlink => {
                        self.admitted(key, 0, skipped(SkipReason::Symlink)).map(Some)
                    }
                    Err(_) if kind == NameKind::Special => {
                        self.admitted(key, 0, skipped(SkipReason::Special)).map(Some)
                    }
                    Err(error) => {
                        let reason = unreadable_reason(error.kind());
                        self.admitted(key, 0, ItemKind::Unreadable { reason, count: 1 }).map(Some)
                    }
                }
            }
        }
    }

    fn file(&self, key: Vec<u8>, metadata: &std::fs::Metadata, asked_at: SystemTime) -> Result<Item, NotAdmitted> {
        let kind = file_kind(metadata);
        let stamp = (kind == ItemKind::File).then(|| Stamp::of(metadata, asked_at));
        self.admitted(key, metadata.len(), kind).map(|item| Item { stamp, ..item })
    }

    /// Enters the directory with this key.
    fn enter(
        &mut self,
        key: Vec<u8>,
        below: Vec<Vec<u8>>,
        is_ignored: bool,
        is_tracked: bool,
    ) -> Result<Option<Item>, NotAdmitted> {
        let is_searched = self.stack.last().is_some_and(|frame| frame.entered == Entered::ForRepositories);
        let repository = self.source.repository_at(&self.source.path_below(&key[TARGET_BYTES..]));
        let is_bare_submodule = repository.is_none() && self.is_submodule(&key::display_path(&key[TARGET_BYTES..]));
        let entered = match (is_ignored, is_tracked) {
            // Git ignores neither a repository nor what it tracks as one.
            _ if repository.is_some() || is_bare_submodule => Entered::Plainly,
            (false, _) => Entered::Plainly,
            (true, true) => Entered::ForTracked,
            (true, false) => Entered::ForRepositories,
        };
        let skipped = ItemKind::Skipped { reason: SkipReason::Ignored, count: 1 };
        if entered == Entered::ForRepositories && !is_searched && self.source.barren.contains(&key) {
            return self.admitted(key, 0, skipped).map(Some);
        }
        if is_searched && entered == Entered::Plainly {
            self.stack.last_mut().expect("the directory that is searched").is_barren = false;
        }
        let outer = std::mem::replace(&mut self.key, key);
        match self.list(below, entered, repository) {
            Ok(mut frame) => {
                if entered == Entered::ForRepositories {
                    // The outermost ignored directory counts, once; names in it that cannot be listed are ignored too.
                    frame.slot = (!is_searched).then_some(skipped);
                } else if is_bare_submodule && frame.slot.is_none() {
                    frame.slot = Some(ItemKind::Skipped { reason: SkipReason::Submodule, count: 1 });
                }
                self.push(frame);
                Ok(None)
            }
            Err(error) => {
                let key = std::mem::replace(&mut self.key, outer);
                let unreadable = ItemKind::Unreadable { reason: unreadable_reason(error.kind()), count: 1 };
                if let Some(around) = self.stack.last_mut() {
                    around.is_barren = false;
                }
                match entered {
                    Entered::ForRepositories if is_searched => Ok(None),
                    Entered::ForRepositories => self.admitted(key, 0, skipped).map(Some),
                    Entered::Plainly | Entered::ForTracked => self.admitted(key, 0, unreadable).map(Some),
                }
            }
        }
    }

    /// Whether the innermost directory lies in a repository, whose own folder is called `.git`. Elsewhere that is a name like others.
    fn is_in_repository(&self) -> bool {
        self.stack.iter().any(|frame| frame.repository.is_some()) || self.source.above.is_in_repository()
    }

    /// Whether a directory called `objects` is that of a repository without a working tree, as mirrors are: its objects are compressed, and a
    /// search of them as files would find nothing. A directory that merely looks so has files in it with names of their own, or git tracks it.
    fn is_store_of_git(&self, path: &[u8]) -> bool {
        let dir = self.source.path_below(&self.key[TARGET_BYTES..]);
        let is_store = || Ok::<_, io::Error>(is_git_dir(&dir)? && has_only_objects(&dir.join("objects"))?);
        !self.is_tracked(path, true) && is_store().unwrap_or(false)
    }

    /// What the rules of the repository around `path` say.
    fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        // Where any file may be a tracked one no rule holds, however deep the directory it lies in. Outside of repositories any file may
        // be: a copy without its `.git` does not tell what was tracked.
        let innermost = self.stack.iter().rev().find_map(|frame| frame.repository.as_ref());
        if !innermost.map_or_else(|| self.source.above.is_known(), |repository| repository.is_known()) {
            return false;
        }
        for frame in self.stack.iter().rev() {
            let way = frame.way(path);
            let exclude = frame.repository.as_ref().map(|repository| &repository.exclude);
            for level in [Some(&frame.level), exclude].into_iter().flatten() {
                match level.verdict(way, is_dir) {
                    Verdict::Silent => {}
                    verdict => return verdict == Verdict::Ignore,
                }
            }
            if frame.repository.is_some() {
                return false;
            }
        }
        self.source.above.verdict(path, is_dir) == Verdict::Ignore
    }

    /// Whether any repository around `path` tracks it: the innermost, or an outer one from the time before there was another in it.
    fn is_tracked(&self, path: &[u8], is_dir: bool) -> bool {
        let frames = self.stack.iter().filter_map(|frame| frame.repository.as_ref().zip(Some(frame.way(path))));
        frames.into_iter().any(|(repository, way)| repository.tracks(way, is_dir))
            || self.source.above.tracks(path, is_dir)
    }

    /// Whether the repository around `path` has a submodule there.
    fn is_submodule(&self, path: &[u8]) -> bool {
        let innermost = self.stack.iter().rev().find(|frame| frame.repository.is_some());
        match innermost.and_then(|frame| frame.repository.as_ref().zip(Some(frame.way(path)))) {
            Some((repository, way)) => repository.has_submodule(way),
            None => self.source.above.has_submodule(path),
        }
    }

    fn admitted(&self, key: Vec<u8>, size: u64, kind: ItemKind) -> Result<Item, NotAdmitted> {
        if !self.end.is_empty() && key.as_slice() >= self.end.as_slice() {
            return Err(NotAdmitted::After);
        }
        let is_before = key.as_slice() < self.start.as_slice()
            || self.cursor.as_ref().is_some_and(|cursor| key.as_slice() <= cursor.as_slice());
        if is_before { Err(NotAdmitted::Before) } else { Ok(Item { key, size, kind, stamp: None }) }
    }

    /// Lists the directory with the key `self.key`, from the first component of `bound` on.
    fn list(&self, bound: Vec<Vec<u8>>, entered: Entered, repository: Option<Arc<Repository>>) -> io::Result<Frame> {
        let dir = self.source.path_below(&self.key[TARGET_BYTES..]);
        let low = bound.first().map_or(Bound::Unbounded, |name| Bound::Included(name.as_slice()));
        let names = Names::read(&dir, low, self.source.names_max, name_len_max(&self.key))?;
        let unreadable = |reason, count| ItemKind::Unreadable { reason, count };
        let slot = match (names.error, names.too_long) {
            (Some(kind), too_long) => Some(unreadable(unreadable_reason(kind), 1 + too_long)),
            (None, 0) => None,
            (None, too_long) => Some(unreadable(UnreadableReason::PathTooLong, too_long)),
        };
        let is_in_repository = repository.is_some() || self.is_in_repository();
        let has_rules = entered == Entered::Plainly && is_in_repository && !self.source.target.options.no_ignore;
        let level = if has_rules { Level::of_directory(&dir) } else { Level::NONE };
        let is_barren = bound.is_empty() && names.error.is_none();
        let (key_len, last) = (self.key.len(), Vec::new());
        Ok(Frame { key_len, names, last, bound, level, entered, repository, slot, is_barren })
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
        let left = self.stack.pop();
        let Some(frame) = self.stack.last_mut() else { return };
        if let Some(Frame { entered: Entered::ForRepositories, is_barren, .. }) = left {
            if frame.entered == Entered::ForRepositories {
                frame.is_barren &= is_barren;
            } else if is_barren {
                self.source.barren.add(&self.key);
            }
        }
        self.key.truncate(frame.key_len);
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
}

impl Frame {
    /// The way from this directory down to `path`, which is the way from the target.
    fn way<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match self.key_len - TARGET_BYTES {
            0 => path,
            len => &path[len + 1..],
        }
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
    use crate::plan::target::{ReadOptions, TargetKind};

    fn source(path: &Path, options: ReadOptions) -> DirectorySource {
        let path = path.canonicalize().unwrap();
        DirectorySource::new(Target { number: 1, path, kind: TargetKind::Tree, rules: 0, options }).unwrap()
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

    /// As much of a repository as its rules need.
    fn init(root: &Path) {
        write(root, ".git/HEAD", "ref: refs/heads/main\n");
        write(root, ".git/config", "");
    }

    /// A copy without its `.git`, such as an export or the context of a container, does not tell what was tracked.
    #[test]
    fn rules_hold_in_repositories_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for copy in ["plain", "repository"] {
            write(root, &format!("{copy}/.gitignore"), "*.env\n");
            write(root, &format!("{copy}/deep/x.env"), "x");
        }
        init(&root.join("repository"));
        write(root, ".gitignore", "deep\n");
        let items = seen(&read(&source(root, ReadOptions::default()), &whole(), 3));
        assert_eq!(items["plain/deep/x.env"], ItemKind::File);
        assert_eq!(items["repository/deep/x.env"], skipped(SkipReason::Ignored));
        let below = seen(&read(&source(&root.join("plain/deep"), ReadOptions::default()), &whole(), 3));
        assert_eq!(below["x.env"], ItemKind::File);
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
    fn a_submodule_that_is_not_checked_out_is_counted_and_what_lies_in_its_folder_is_read() {
        let repository = test_support::Repository::new();
        let root = repository.path().canonicalize().unwrap();
        repository.commit("first", &[("a", "1"), (".gitignore", "ignored\n")]);
        for path in ["empty", "deep/filled", "here", "ignored", "removed"] {
            repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{},{path}", "1".repeat(40))]);
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        write(&root, "deep/filled/file", "x");
        init(&root.join("here"));
        std::fs::remove_dir(root.join("removed")).unwrap();
        std::fs::create_dir(root.join("plain")).unwrap();
        let items = read(&source(&root, ReadOptions::default()), &whole(), 3);
        let expected = [
            (".git", skipped(SkipReason::GitInternal)),
            (".gitignore", ItemKind::File),
            ("a", ItemKind::File),
            ("deep/filled", skipped(SkipReason::Submodule)),
            ("deep/filled/file", ItemKind::File),
            ("empty", skipped(SkipReason::Submodule)),
            ("here/.git", skipped(SkipReason::GitInternal)),
            ("ignored", skipped(SkipReason::Submodule)),
        ];
        assert_eq!(seen(&items), expected.map(|(path, kind)| (path.to_owned(), kind)).into());
        // Also from a folder of the repository.
        let below = seen(&read(&source(&root.join("deep"), ReadOptions::default()), &whole(), 3));
        assert_eq!(below["filled"], skipped(SkipReason::Submodule));
    }

    #[test]
    fn what_took_the_place_of_a_name_that_was_listed_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for path in ["a", "b", "e"] {
            write(root, path, "x");
        }
        for path in ["c", "d"] {
            symlink("a", root.join(path)).unwrap();
        }
        let source = source(root, ReadOptions::default());
        let mut pages = source.open(&whole()).unwrap();
        let mut items = pages.next_page(PageLimits { items_max: 1, bytes_max: 40 }).unwrap().items;
        for path in ["b", "c", "d", "e"] {
            std::fs::remove_file(root.join(path)).unwrap();
        }
        write(root, "b/inside", "x");
        write(root, "c", "x");
        items.extend(pages.next_page(PageLimits::default()).unwrap().items);
        let vanished = ItemKind::Unreadable { reason: UnreadableReason::Vanished, count: 1 };
        let expected = [
            ("a", ItemKind::File),
            ("b/inside", ItemKind::File),
            ("c", ItemKind::File),
            ("d", skipped(SkipReason::Symlink)),
            ("e", vanished),
        ];
        assert_eq!(seen(&items), expected.map(|(path, kind)| (path.to_owned(), kind)).into());
    }

    #[test]
    fn a_folder_of_that_name_is_read_where_there_is_no_repository() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "plain/.git/config", "x");
        write(dir.path(), "file/.git", "x");
        write(dir.path(), "real/.git/HEAD", "ref: refs/heads/main\n");
        write(dir.path(), "real/.git/config", "");
        write(dir.path(), "real/plain/.git/config", "");
        let expected = [
            ("file/.git", ItemKind::File),
            ("plain/.git/config", ItemKind::File),
            ("real/.git", skipped(SkipReason::GitInternal)),
            ("real/plain/.git", skipped(SkipReason::GitInternal)),
        ];
        let items = read(&source(dir.path(), ReadOptions::default()), &whole(), 3);
        assert_eq!(seen(&items), expected.map(|(path, kind)| (path.to_owned(), kind)).into());
    }

    #[test]
    fn the_objects_of_a_mirror_are_git_s_own_and_its_settings_are_files() {
        let dir = tempfile::tempdir().unwrap();
        let object = format!("mirror.git/objects/12/{}", "34".repeat(19));
        for path in ["mirror.git/HEAD", "mirror.git/refs/heads/main", &object, "mirror.git/config"] {
            write(dir.path(), path, "x");
        }
        write(dir.path(), "other/objects/12/34", "x");
        let expected = [
            ("mirror.git/HEAD", ItemKind::File),
            ("mirror.git/config", ItemKind::File),
            ("mirror.git/objects", skipped(SkipReason::GitInternal)),
            ("mirror.git/refs/heads/main", ItemKind::File),
            ("other/objects/12/34", ItemKind::File),
        ];
        let (all, root) = (ReadOptions::default(), dir.path());
        assert_eq!(
            seen(&read(&source(root, all), &whole(), 3)),
            expected.map(|(path, kind)| (path.into(), kind)).into()
        );
        let mirror = seen(&read(&source(&root.join("mirror.git"), ReadOptions::default()), &whole(), 3));
        assert_eq!(mirror["objects"], skipped(SkipReason::GitInternal), "also if the mirror is the target");
        let no_ignore = ReadOptions { no_ignore: true, ..ReadOptions::default() };
        assert_eq!(read(&source(root, no_ignore), &whole(), 3).len(), 5);
    }

    #[test]
    fn files_that_lie_between_objects_or_that_git_tracks_there_are_read() {
        let repository = test_support::Repository::new();
        let root = repository.path();
        let object = format!("tracked.git/objects/12/{}", "34".repeat(19));
        for mirror in ["strewn.git", "tracked.git"] {
            write(root, &format!("{mirror}/HEAD"), "x");
            write(root, &format!("{mirror}/refs/heads/main"), "x");
        }
        write(root, "strewn.git/objects/pack/secret.env", "x");
        write(root, &object, "x");
        let items = seen(&read(&source(root, ReadOptions::default()), &whole(), 3));
        assert_eq!(items["strewn.git/objects/pack/secret.env"], ItemKind::File);
        assert_eq!(items["tracked.git/objects"], skipped(SkipReason::GitInternal));
        repository.git(&["add", "tracked.git"]);
        let items = seen(&read(&source(root, ReadOptions::default()), &whole(), 3));
        assert_eq!(items[&object], ItemKind::File);
    }

    #[test]
    fn the_rules_of_a_repository_whose_index_cannot_be_read_are_set_aside_and_those_around_it_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for repository in ["damaged", "whole"] {
            write(root, &format!("{repository}/.git/HEAD"), "ref: refs/heads/main\n");
            write(root, &format!("{repository}/.git/config"), "");
            write(root, &format!("{repository}/.gitignore"), "ignored\n");
            write(root, &format!("{repository}/deep/ignored"), "x");
            write(root, &format!("{repository}/deep/.gitignore"), "*.env\n");
            write(root, &format!("{repository}/deep/er/x.env"), "x");
        }
        write(root, "damaged/.git/index", "what");
        init(root);
        write(root, ".gitignore", "outside\n");
        write(root, "outside", "x");
        let items = seen(&read(&source(root, ReadOptions::default()), &whole(), 3));
        assert_eq!(items["damaged/deep/ignored"], ItemKind::File);
        assert_eq!(items["damaged/.git"], skipped(SkipReason::GitIndexUnknown));
        assert_eq!(items["damaged/deep/er/x.env"], ItemKind::File, "nor do rules below its root hold");
        assert_eq!(items["whole/deep/ignored"], skipped(SkipReason::Ignored));
        assert_eq!(items["whole/deep/er/x.env"], skipped(SkipReason::Ignored));
        let below = seen(&read(&self::source(&root.join("damaged/deep"), ReadOptions::default()), &whole(), 3));
        assert_eq!(below["er/x.env"], ItemKind::File, "nor if the target lies below its root");
        assert_eq!(items["outside"], skipped(SkipReason::Ignored));
    }

    #[test]
    fn no_ignore_reads_also_what_gitignore_names() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path());
        write(dir.path(), ".gitignore", "*\n");
        write(dir.path(), "x/y", "");
        let options = ReadOptions { no_ignore: true, ..ReadOptions::default() };
        assert_eq!(seen(&read(&source(dir.path(), options), &whole(), 3)).len(), 4);
        let ignoring = seen(&read(&source(dir.path(), ReadOptions::default()), &whole(), 3));
        assert_eq!(ignoring["x"], skipped(SkipReason::Ignored));
    }

    /// The walk that plans searches; what it found out holds for the walks that read, and for no other source.
    #[test]
    fn an_ignored_directory_is_searched_for_repositories_once_and_a_repository_in_it_is_read_by_every_walk() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for path in ["empty/a/b/f", "full/a/b/f", "full/z"] {
            write(root, path, "x");
        }
        init(root);
        write(root, ".gitignore", "empty\nfull\n");
        let nested = |path: &str| {
            init(&root.join(path));
            write(root, &format!("{path}/read"), "x");
        };
        nested("full/a/b/repository");
        let source = source(root, ReadOptions::default());
        let first = read(&source, &whole(), 100);
        let keys: Vec<Vec<u8>> = first.iter().map(|item| item.key.clone()).collect();
        let seen_first = seen(&first);
        assert!(seen_first.keys().any(|path| path == "full/a/b/repository/read"), "{seen_first:?}");
        assert_eq!(seen_first["empty"], skipped(SkipReason::Ignored));
        nested("empty/a/b/late");
        // From everywhere, the next walks give the same, also from within both directories.
        for (at, key) in keys.iter().enumerate() {
            let rest = read(&source, &state(&keys[0], b"\xff", Some(key)), 100);
            assert_eq!(
                rest.iter().map(|item| &item.key).collect::<Vec<_>>(),
                keys[at + 1..].iter().collect::<Vec<_>>()
            );
        }
        assert_eq!(seen(&read(&source, &whole(), 100)), seen_first, "what was searched is not searched again");
        let anew = seen(&read(&self::source(root, ReadOptions::default()), &whole(), 100));
        assert!(anew.contains_key("empty/a/b/late/read"), "another scan searches: {anew:?}");
    }

    /// A walk over a part of an ignored directory says nothing about the whole.
    #[test]
    fn a_walk_over_a_part_of_an_ignored_directory_does_not_call_it_searched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "full/z", "x");
        init(root);
        write(root, ".gitignore", "full\n");
        write(root, "full/a/.git/HEAD", "ref: refs/heads/main\n");
        write(root, "full/a/read", "x");
        let source = source(root, ReadOptions::default());
        let behind = key::path_key(1, [b"full".as_slice(), b"b"]);
        read(&source, &state(&behind, b"\xff", None), 100);
        let before = key::path_key(1, [b"full".as_slice(), b"Z"]);
        read(&source, &state(&[0, 0, 0, 0], &before, None), 100);
        assert!(seen(&read(&source, &whole(), 100)).contains_key("full/a/read"));
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
            Arc::get_mut(&mut source.tree).unwrap().names_max = names_max;
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
