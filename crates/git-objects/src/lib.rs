//! Objects of a repository, read without git.
//!
//! A host may have no git, and where there is one, this is several times as fast for whole histories: blobs come in the
//! order of their deltas, so each is made from the one before it, inflated once, copied through no pipe, and with the knowledge
//! of what it has in common with that one.
//!
//! | file | what |
//! | --- | --- |
//! | `layout`, `refs` | where a repository keeps what, and what its refs point at |
//! | `plain_file` | files that are files |
//! | `index`, `pack`, `delta`, `loose` | how objects are stored |
//! | `kinds` | of which type an object is |
//! | `cache`, `commit` | any object by name, for walks over commits and trees; what a commit says |
//! | `walk`, `places` | which blobs refs lead to, at which paths, and by which commit each came in |
//! | `order` | the order in which blobs are cheap to read |
//! | `history` | both, as a list |
//! | `blobs` | the contents of blobs in that order |
//!
//! Nothing here is written, and nothing a repository's settings say is run. What is damaged is an error for that object
//! alone. As in git, an object's checksum is that of its compression; names are not computed again.

#![forbid(unsafe_code)]

pub mod blobs;
pub mod cache;
pub mod commit;
pub mod delta;
pub mod history;
#[cfg(test)]
mod hostile;
mod index;
mod kinds;
pub mod layout;
mod loose;
pub mod oid;
mod order;
mod pack;
pub mod places;
pub mod plain_file;
pub mod refs;
mod walk;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use layout::{Layout, LayoutError};
use loose::Loose;
use oid::Oid;
use pack::{Entry, Held, Pack, PackReader};

/// Largest object that is held in memory, be it only to make a smaller one from it. Larger blobs that are stored whole are
/// read in pieces.
pub const OBJECT_BYTES_MAX: u64 = 64 << 20;
/// Longest chain of deltas; git makes none beyond 4,095.
const CHAIN_MAX: usize = 10_000;
/// Most bytes that are put together on the way to one object; fifty changes to the largest one fit in. (Tests reach it.)
const WORK_BYTES_MAX: u64 = if cfg!(test) { 64 << 20 } else { 4 << 30 };

const NO_END: ObjectError = ObjectError::Corrupt("a chain of deltas has no end");
const TOO_MUCH: ObjectError = ObjectError::Corrupt("it takes too much to put it together");

/// Types of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A commit.
    Commit,
    /// A folder.
    Tree,
    /// The content of a file.
    Blob,
    /// A tag with a message.
    Tag,
}

/// Why an object cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// There is no such object.
    #[error("the repository does not have it")]
    Missing,
    /// It is damaged.
    #[error("{0}")]
    Corrupt(&'static str),
    /// It is longer than allowed; so many bytes.
    #[error("it is {0} bytes long")]
    TooLarge(u64),
    /// A file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The objects of a repository. Immutable, so that all workers share one.
#[derive(Debug)]
pub struct Store {
    /// Where the repository keeps what.
    pub layout: Layout,
    object_dirs: Vec<PathBuf>,
    packs: Vec<Pack>,
}

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    /// In this pack, from this offset on.
    Pack(usize, u64),
    /// In a file of its own, in this folder of objects.
    Loose(usize),
}

impl Store {
    /// Opens the repository that `path` is or lies in.
    pub fn open(path: &Path) -> Result<Self, LayoutError> {
        let layout = Layout::discover(path)?;
        let object_dirs = layout.object_dirs()?;
        let mut packs = Vec::new();
        for index in indexes(&object_dirs) {
            let pack = Pack::open(&index, layout.oid_len);
            packs.push(pack.map_err(|source| LayoutError::Io { path: index, source })?);
        }
        Ok(Self { layout, object_dirs, packs })
    }

    /// Whether packs have come or gone since this was opened.
    pub fn is_stale(&self) -> bool {
        let known: BTreeSet<PathBuf> = self.packs.iter().map(|pack| pack.path().with_extension("idx")).collect();
        indexes(&self.object_dirs) != known
    }

    /// Whether it has an object.
    pub fn has(&self, oid: &Oid) -> bool {
        self.find(oid).is_some()
    }

    /// Finds an object.
    pub(crate) fn find(&self, oid: &Oid) -> Option<At> {
        let packed = self.packs.iter().enumerate().find_map(|(i, pack)| Some(At::Pack(i, pack.index.find(oid)?)));
        packed.or_else(|| self.object_dirs.iter().position(|dir| loose::is_in(dir, oid)).map(At::Loose))
    }

    /// Names of all objects.
    pub(crate) fn all(&self) -> io::Result<BTreeSet<Oid>> {
        let mut all = BTreeSet::new();
        for pack in &self.packs {
            all.extend((0..pack.index.len()).map(|i| pack.index.oid(i)));
        }
        for dir in &self.object_dirs {
            all.extend(loose::all(dir, self.layout.oid_len)?);
        }
        Ok(all)
    }

    fn entry(&self, reader: &mut PackReader, pack: usize, at: u64) -> Result<Entry, ObjectError> {
        reader.entry(pack, &self.packs[pack], at, self.layout.oid_len)
    }

    /// Where the base of an entry is; `None` if it is whole.
    fn base_of(&self, pack: usize, entry: &Entry) -> Result<Option<u64>, ObjectError> {
        match entry.held {
            Held::Whole(_) => Ok(None),
            Held::DeltaTo(base) => Ok(Some(base)),
            // Packs on disk are complete: a base by name is in the same one.
            Held::DeltaToNamed(oid) => self.packs[pack]
                .index
                .find(&oid)
                .map(Some)
                .ok_or(ObjectError::Corrupt("the base of a delta is not there")),
        }
    }

    fn loose(&self, dir: usize, oid: &Oid) -> Result<Loose, ObjectError> {
        loose::open(&self.object_dirs[dir], oid)?.ok_or(ObjectError::Missing)
    }

    /// The length of the object that an entry holds.
    fn size_of(&self, reader: &mut PackReader, pack: usize, entry: &Entry) -> Result<u64, ObjectError> {
        if let Held::Whole(_) = entry.held {
            return Ok(entry.size);
        }
        // Two numbers of at most ten bytes.
        let mut head = Vec::with_capacity(20);
        reader.inflate_head(pack, &self.packs[pack], entry.data_at, 20, &mut head)?;
        let sizes = delta::sizes(&head).map_err(|delta::Nonsense| ObjectError::Corrupt("a delta makes no sense"))?;
        Ok(sizes.1)
    }

    /// Inflates what an entry holds, object or delta.
    fn inflate(
        &self,
        reader: &mut PackReader,
        pack: usize,
        entry: &Entry,
        out: &mut Vec<u8>,
    ) -> Result<(), ObjectError> {
        if entry.size > OBJECT_BYTES_MAX {
            return Err(ObjectError::TooLarge(entry.size));
        }
        reader.inflate(pack, &self.packs[pack], entry.data_at, entry.size as usize, out)
    }
}

/// Applies a delta, unless what it makes is larger than `bytes_max`.
fn apply(
    base: &[u8],
    delta: &[u8],
    bytes_max: u64,
    out: &mut Vec<u8>,
    copied: &mut Vec<delta::Copied>,
) -> Result<(), ObjectError> {
    const NONSENSE: ObjectError = ObjectError::Corrupt("a delta makes no sense");
    match delta::sizes(delta) {
        Ok((_, size, _)) if size > bytes_max => Err(ObjectError::TooLarge(size)),
        Ok(_) => delta::apply(base, delta, out, copied).map_err(|delta::Nonsense| NONSENSE),
        Err(delta::Nonsense) => Err(NONSENSE),
    }
}

/// Indexes of all packs, in the order of their paths.
fn indexes(object_dirs: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for dir in object_dirs {
        let entries = std::fs::read_dir(dir.join("pack")).into_iter().flatten().flatten();
        // An index without its pack is one that is being removed.
        found.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|is| is == "idx") && path.with_extension("pack").exists()),
        );
    }
    found
}
