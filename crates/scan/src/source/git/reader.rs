//! The contents of blobs, by whichever reader.

use super::GitError;
use crate::read::edited::Quiet;
use tessera_git_objects::blobs;
use tessera_git_objects::delta::Copied;

pub use tessera_git_objects::blobs::BlobRead;

const READING: &str = "reading an object";

/// Reads blobs in the order in which they were asked for.
pub trait BlobReader: std::fmt::Debug + Send {
    /// Asks for blobs, to be read in this order.
    fn request(&mut self, oids: &mut dyn Iterator<Item = &[u8]>) -> Result<(), GitError>;

    /// Reads the next one, as long as it is at most `bytes_max` bytes long.
    fn next(&mut self, bytes_max: u64) -> Result<BlobRead, GitError>;

    /// Reads a blob that is too large to be held, and offers it to `sink` in pieces of some hundred kilobytes until it wants
    /// no more. Not every one can be read so: then it is too large.
    fn pieces(&mut self, oid: &[u8], sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<BlobRead, GitError>;

    /// The content of the last one, if it was read.
    fn content(&self) -> &[u8];

    /// What the last one has in common with one that was searched.
    fn kin(&self) -> Option<Kin<'_>>;

    /// Remembers what searches of the last one say, for those that have something in common with it.
    fn remember(&mut self, quiet: Vec<Quiet>);

    /// Forgets what was asked for and not read.
    fn reset(&mut self);
}

/// What a blob has in common with another one.
#[derive(Debug, Clone, Copy)]
pub struct Kin<'r> {
    /// What is known of the other, at each class of paths at which it is quiet.
    pub base: &'r [Quiet],
    /// Stretches that come from it, in order.
    pub copied: &'r [Copied],
}

/// Our own reader, which remembers what searches say.
pub(super) type StoreReader = blobs::StoreReader<Vec<Quiet>>;

impl BlobReader for StoreReader {
    fn request(&mut self, oids: &mut dyn Iterator<Item = &[u8]>) -> Result<(), GitError> {
        self.request(oids);
        Ok(())
    }

    fn next(&mut self, bytes_max: u64) -> Result<BlobRead, GitError> {
        self.next(bytes_max).map_err(GitError::io(READING))
    }

    fn pieces(&mut self, oid: &[u8], sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<BlobRead, GitError> {
        self.pieces(oid, sink).map_err(GitError::io(READING))
    }

    fn content(&self) -> &[u8] {
        self.content()
    }

    fn kin(&self) -> Option<Kin<'_>> {
        self.kin().map(|(base, copied)| Kin { base, copied })
    }

    fn remember(&mut self, quiet: Vec<Quiet>) {
        self.note(quiet);
    }

    fn reset(&mut self) {
        self.reset();
    }
}
