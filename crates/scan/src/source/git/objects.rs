//! The blobs of a repository, in the order of their list.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tessera_contracts::RestoredShardState;
use tessera_contracts::source_family::{
    ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily, SourceItem,
};

use super::cat_file::CatFile;
use super::hex_oid;
use super::list::{Entry, ObjectList, Placed, Presence};
use super::reader::{BlobReader, StoreReader};
use crate::plan::key;
use crate::plan::target::Target;
use crate::source::filter::{Filter, FilterError};
use crate::source::item::{Item, ItemKind, SkipReason, UnreadableReason};
use tessera_git_objects::Store;

/// Entries read of the list at a time.
const ENTRIES_MAX: usize = 512;

/// Blobs listed when the run was planned. Pages of it share the list, and may outlive this handle.
#[derive(Debug, Clone)]
pub struct ObjectsSource {
    listed: Arc<Listed>,
}

#[derive(Debug)]
struct Listed {
    target: Target,
    list: ObjectList,
    filter: Filter,
    /// Shared by all readers and closed with the last of them: a run may have thousands of repositories.
    store: Mutex<Weak<Store>>,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The list cannot be read.
    #[error("the list of objects of this run cannot be read: {0}; begin anew with --fresh")]
    List(#[from] std::io::Error),
    /// A filter is no glob.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl ObjectsSource {
    /// Opens the list `name` in `dir`.
    pub fn new(target: Target, name: &[u8; 16], dir: &Path) -> Result<Self, ObjectsError> {
        let filter = Filter::new(&target.options)?;
        let list = ObjectList::open(dir, name)?;
        Ok(Self { listed: Arc::new(Listed { target, list, filter, store: Mutex::default() }) })
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.listed.target
    }

    /// Number of entries in the list.
    pub fn len(&self) -> u64 {
        self.listed.list.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.listed.list.is_empty()
    }

    /// How reports name what stands at a key and is not read: by its object, or by its path if it is none.
    pub(crate) fn name_of(&self, key: &[u8]) -> Vec<u8> {
        let rest = key::split(key).map(|(_, rest)| rest).unwrap_or_default();
        match rest.split_first_chunk() {
            Some((ordinal, [])) => {
                let entry = self.listed.list.read(u64::from_be_bytes(*ordinal), 1).unwrap_or_default().pop();
                entry.and_then(|entry| entry.places.first().map(|place| place.path.to_vec())).unwrap_or_default()
            }
            Some((_, oid)) => hex_oid(oid).into_bytes(),
            None => Vec::new(),
        }
    }

    /// A reader of its blobs, for one worker.
    pub fn reader(&self) -> Box<dyn BlobReader> {
        let path = &self.listed.target.path;
        let mut open = self.listed.store.lock().unwrap_or_else(PoisonError::into_inner);
        let store = open.upgrade().or_else(|| Store::open(path).ok().map(Arc::new));
        match store {
            Some(store) => {
                *open = Arc::downgrade(&store);
                Box::new(StoreReader::new(path, store))
            }
            // Only git can read it.
            None => Box::new(CatFile::new(path)),
        }
    }
}

impl Listed {
    /// The paths of a blob that are to be scanned. Where none is known, no filter can speak against it.
    fn paths_in_scope(&self, mut places: Vec<Placed>) -> Box<[Arc<[u8]>]> {
        if places.is_empty() {
            return [Arc::from(&[][..])].into();
        }
        places.retain(|place| place.path.is_empty() || self.filter.takes_file(&place.path));
        places.into_iter().map(|place| place.path).collect()
    }

    fn item(&self, ordinal: u64, entry: Entry) -> Item {
        let key = object_key(self.target.number, ordinal, &entry.oid);
        let skipped = |reason| ItemKind::Skipped { reason, count: 1 };
        let unreadable = |reason| ItemKind::Unreadable { reason, count: 1 };
        let kind = match entry.presence {
            Presence::Missing => unreadable(UnreadableReason::ObjectMissing),
            Presence::WalkBroken => unreadable(UnreadableReason::ObjectCorrupt),
            Presence::Cut => unreadable(UnreadableReason::HistoryCut),
            Presence::Unmerged => unreadable(UnreadableReason::Unmerged),
            Presence::Symlink => skipped(SkipReason::Symlink),
            Presence::Submodule => skipped(SkipReason::Submodule),
            Presence::Present => {
                let paths = self.paths_in_scope(entry.places);
                if paths.is_empty() && !entry.has_more {
                    skipped(SkipReason::Excluded)
                } else if self.target.options.size_max.is_some_and(|max| entry.size > max) {
                    skipped(SkipReason::TooLarge)
                } else {
                    let kind = ItemKind::Blob { oid: entry.oid, paths, has_more: entry.has_more };
                    return Item { key, size: entry.size, kind, stamp: None };
                }
            }
        };
        Item { key, size: 0, kind, stamp: None }
    }
}

/// The key of a listed object: its place in the list, then its id for a reader of the key.
pub fn object_key(target: u32, ordinal: u64, oid: &[u8]) -> Vec<u8> {
    let mut key = target.to_be_bytes().to_vec();
    key.extend_from_slice(&ordinal.to_be_bytes());
    key.extend_from_slice(oid);
    key
}

impl SourceFamily for ObjectsSource {
    type Item = Item;
    type Pages<'f> = ObjectPages;

    fn name(&self) -> &'static str {
        "git"
    }

    fn open(&self, state: &RestoredShardState) -> Result<ObjectPages, SourceError> {
        let low = state.cursor().last_key().unwrap_or(state.spec().start());
        // The first eight bytes of what follows the target, as if filled up with zeros: no listed key below `low` has
        // a higher number.
        let mut ordinal = [0; 8];
        if let Some((_, rest)) = key::split(low) {
            let len = rest.len().min(8);
            ordinal[..len].copy_from_slice(&rest[..len]);
        }
        let next = u64::from_be_bytes(ordinal);
        let source = Arc::clone(&self.listed);
        Ok(ObjectPages { source, state: state.clone(), next, window: Vec::new().into_iter(), pending: None })
    }
}

/// A list being read.
#[derive(Debug)]
pub struct ObjectPages {
    source: Arc<Listed>,
    state: RestoredShardState,
    /// The number after the last entry of the window.
    next: u64,
    window: std::vec::IntoIter<Item>,
    pending: Option<Item>,
}

impl ObjectPages {
    fn next_item(&mut self) -> Result<Option<Item>, SourceError> {
        loop {
            if let Some(item) = self.pending.take().or_else(|| self.window.next()) {
                if !self.state.spec().range().reaches_up_to(&item.key) {
                    return Ok(None);
                }
                if self.state.is_ahead(&item.key) {
                    return Ok(Some(item));
                }
                continue;
            }
            let entries = self.source.list.read(self.next, ENTRIES_MAX).map_err(|error| {
                SourceError::new(SourceErrorClass::Transient, format!("cannot read the list of objects: {error}"))
            })?;
            if entries.is_empty() {
                return Ok(None);
            }
            let first = self.next;
            self.next += entries.len() as u64;
            let items: Vec<Item> =
                entries.into_iter().zip(first..).map(|(entry, ordinal)| self.source.item(ordinal, entry)).collect();
            self.window = items.into_iter();
        }
    }
}

impl ItemPages for ObjectPages {
    type Item = Item;

    fn next_page(&mut self, limits: PageLimits) -> Result<Page<Item>, SourceError> {
        let (mut items, mut bytes) = (Vec::new(), 0_u64);
        while items.len() < limits.items_max.max(1) {
            let Some(item) = self.next_item()? else {
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

/// A reader of a repository's blobs: our own, or git.
#[cfg(test)]
pub(crate) fn reader_of(path: &Path, by_ourselves: bool) -> Box<dyn BlobReader> {
    match by_ourselves {
        true => Box::new(StoreReader::new(path, Arc::new(Store::open(path).unwrap()))),
        false => Box::new(CatFile::new(path)),
    }
}
