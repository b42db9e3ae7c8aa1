//! Readers of repositories, one for each target met.

use std::collections::HashMap;

use crate::source::Source;
use crate::source::git::GitError;
use crate::source::git::objects::ObjectsSource;
use crate::source::git::reader::{BlobRead, BlobReader};
use crate::source::item::{Item, ItemKind};
use tessera_git_objects::OBJECT_BYTES_MAX;

/// Readers of repositories, one for each target met.
#[derive(Debug, Default)]
pub(crate) struct Blobs(HashMap<u32, Box<dyn BlobReader>>);

impl Blobs {
    fn of(&mut self, source: &ObjectsSource) -> &mut dyn BlobReader {
        self.0.entry(source.target().number).or_insert_with(|| source.reader()).as_mut()
    }

    /// Asks for the blobs of a page; what was asked for an earlier one is forgotten.
    pub(crate) fn request(&mut self, source: &Source, items: &[Item]) -> Result<(), GitError> {
        let Source::Objects(source) = source else { return Ok(()) };
        let reader = self.of(source);
        reader.reset();
        reader.request(&mut items.iter().filter_map(|item| match &item.kind {
            ItemKind::Blob { oid, .. } => Some(&**oid),
            _ => None,
        }))
    }

    /// The next blob that was asked for.
    pub(crate) fn next(&mut self, source: &ObjectsSource) -> Result<(BlobRead, &mut dyn BlobReader), GitError> {
        let reader = self.of(source);
        let read = reader.next(OBJECT_BYTES_MAX)?;
        Ok((read, reader))
    }
}
