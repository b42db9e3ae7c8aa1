//! Readers of repositories, one for each target met.

use std::collections::HashMap;

use crate::item::{Item, ItemKind};
use crate::source::Source;
use crate::source::git::GitError;
use crate::source::git::reader::{BlobRead, BlobReader, CatFile};

/// Largest blob that is read: git and we hold it in memory. Larger ones are counted as left out.
const BLOB_BYTES_MAX: u64 = 64 << 20;

/// Readers of repositories, one for each target met.
#[derive(Debug, Default)]
pub(super) struct Blobs(HashMap<u32, BlobsOf>);

#[derive(Debug)]
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
    pub(super) fn request(&mut self, source: &Source, items: &[Item]) -> Result<(), GitError> {
        let Source::Objects(_) = source else { return Ok(()) };
        let reader = &mut self.of(source).reader;
        reader.reset();
        reader.request(&mut items.iter().filter_map(|item| match &item.kind {
            ItemKind::Blob { oid, .. } => Some(&**oid),
            _ => None,
        }))
    }

    /// The next blob that was asked for.
    pub(super) fn next(&mut self, source: &Source) -> Result<(BlobRead, &[u8]), GitError> {
        let blobs = self.of(source);
        let read = blobs.reader.next(&mut blobs.content, BLOB_BYTES_MAX)?;
        Ok((read, &blobs.content))
    }
}
