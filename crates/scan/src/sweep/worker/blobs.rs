//! Readers of repositories, for the targets met last.

use crate::source::Source;
use crate::source::git::GitError;
use crate::source::git::objects::ObjectsSource;
use crate::source::git::reader::{BlobRead, BlobReader};
use crate::source::item::{Item, ItemKind};
use tessera_git_objects::OBJECT_BYTES_MAX;

/// Most readers kept: each has a repository's packs open, or a git of its own.
const READERS_MAX: usize = 16;

/// Readers of repositories, by target; the one used last comes last.
#[derive(Debug, Default)]
pub(crate) struct Blobs(Vec<(u32, Box<dyn BlobReader>)>);

impl Blobs {
    fn of(&mut self, source: &ObjectsSource) -> &mut dyn BlobReader {
        let number = source.target().number;
        let used = match self.0.iter().position(|(known, _)| *known == number) {
            Some(at) => self.0.remove(at),
            None => {
                if self.0.len() == READERS_MAX {
                    self.0.remove(0);
                }
                (number, source.reader())
            }
        };
        self.0.push(used);
        let (_, reader) = self.0.last_mut().expect("it was just added");
        reader.as_mut()
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
