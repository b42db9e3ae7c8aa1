//! The blobs of a repository, in the order of their list.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tessera_contracts::RestoredShardState;
use tessera_contracts::source_family::{
    ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily, SourceItem,
};

use super::cat_file::CatFile;
use super::list::{Entry, ObjectList, Presence};
use super::reader::BlobReader;
use super::store::Store;
use super::store::blobs::StoreReader;
use crate::filter::{Filter, FilterError};
use crate::item::{Item, ItemKind, SkipReason, UnreadableReason};
use crate::key;
use crate::target::Target;

/// Entries read of the list at a time.
const ENTRIES_MAX: usize = 512;

/// Blobs listed when the run was planned.
#[derive(Debug)]
pub struct ObjectsSource {
    target: Target,
    list: ObjectList,
    filter: Filter,
    /// Opened when it is first needed; `None` if only git can read this repository.
    store: OnceLock<Option<Arc<Store>>>,
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
        Ok(Self { list: ObjectList::open(dir, name)?, filter, target, store: OnceLock::new() })
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Number of entries in the list.
    pub fn len(&self) -> u64 {
        self.list.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A reader of its blobs, for one worker.
    pub fn reader(&self) -> Box<dyn BlobReader> {
        let path = &self.target.path;
        match self.store.get_or_init(|| Store::open(path).ok().map(Arc::new)) {
            Some(store) => Box::new(StoreReader::new(path, Arc::clone(store))),
            None => Box::new(CatFile::new(path)),
        }
    }

    fn item(&self, ordinal: u64, entry: Entry) -> Item {
        let key = object_key(self.target.number, ordinal, &entry.oid);
        let skipped = |reason| ItemKind::Skipped { reason, count: 1 };
        let unreadable = |reason| ItemKind::Unreadable { reason, count: 1 };
        let kind = match entry.presence {
            Presence::Missing => unreadable(UnreadableReason::ObjectMissing),
            Presence::WalkBroken => unreadable(UnreadableReason::ObjectCorrupt),
            Presence::Cut => unreadable(UnreadableReason::HistoryCut),
            Presence::Present if !self.filter.takes(&entry.path, false) => skipped(SkipReason::Excluded),
            Presence::Present if self.target.options.size_max.is_some_and(|max| entry.size > max) => {
                skipped(SkipReason::TooLarge)
            }
            Presence::Present => {
                return Item { key, size: entry.size, kind: ItemKind::Blob { oid: entry.oid, path: entry.path } };
            }
        };
        Item { key, size: 0, kind }
    }
}

/// The key of a listed object: its place in the list, then its id for whoever reads the key.
pub fn object_key(target: u32, ordinal: u64, oid: &[u8]) -> Vec<u8> {
    let mut key = target.to_be_bytes().to_vec();
    key.extend_from_slice(&ordinal.to_be_bytes());
    key.extend_from_slice(oid);
    key
}

impl SourceFamily for ObjectsSource {
    type Item = Item;
    type Pages<'f> = ObjectPages<'f>;

    fn name(&self) -> &'static str {
        "git"
    }

    fn open<'f>(&'f self, state: &RestoredShardState) -> Result<ObjectPages<'f>, SourceError> {
        let low = state.cursor().last_key().unwrap_or(state.spec().start());
        // The first eight bytes of what follows the target, as if filled up with zeros: no listed key below `low` has
        // a higher number.
        let mut ordinal = [0; 8];
        if let Some((_, rest)) = key::split(low) {
            let len = rest.len().min(8);
            ordinal[..len].copy_from_slice(&rest[..len]);
        }
        let next = u64::from_be_bytes(ordinal);
        Ok(ObjectPages { source: self, state: state.clone(), next, window: Vec::new().into_iter(), pending: None })
    }
}

/// A list being read.
#[derive(Debug)]
pub struct ObjectPages<'f> {
    source: &'f ObjectsSource,
    state: RestoredShardState,
    /// The number after the last entry of the window.
    next: u64,
    window: std::vec::IntoIter<Item>,
    pending: Option<Item>,
}

impl ObjectPages<'_> {
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

impl ItemPages for ObjectPages<'_> {
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
