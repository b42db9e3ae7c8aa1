//! Which blobs a repository holds, in the order in which they are cheap to read.
//!
//! A pack stores most blobs as differences to others. Read in the order of these deltas (or, where git lists them, in that of the
//! pack), each is made from what was made just before; in the order of their ids, whole chains are unpacked again and again.
//! So shards are stretches of that order and not ranges of ids.
//!
//! That order is the repository's own business and changes when it is repacked. So it is written down once, when the run is
//! planned, and a key is a place in that list: resuming and splitting stay exact whatever happens to the packs. The
//! list also says how large each blob is, so shards are cut by bytes, and which commit brought it in. It is named by its own
//! hash.
//!
//! Reachable is what a walk from all refs meets. Objects it meets and does not find are in the list too, so that they are
//! counted. If the walk itself breaks (a damaged tree), every blob of the repository is listed instead, together with one
//! entry for the broken walk: more is scanned then, never less, and the run cannot end as clean. Neither can that of a shallow
//! clone: each commit where its history is cut off is an entry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::store::Store;
use super::store::oid::Oid;
use super::{GitError, by_git};

const MAGIC: &[u8; 8] = b"TSRLIST2";
const HEADER_BYTES: u64 = 32;
/// One entry: id padded to 32 bytes, its length, flags, length of the path, number of the commit, where the path is, size.
const ENTRY_BYTES: usize = 56;
/// One commit: id padded to 32 bytes, its length.
const COMMIT_BYTES: usize = 33;
/// The number of no commit.
const NO_COMMIT: u32 = u32::MAX;
/// Longest path kept; what rules and reports need of a longer one is in its beginning.
const PATH_BYTES_MAX: usize = 4_096;

/// What of a repository is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every blob that a ref leads to.
    History,
    /// Blobs that are staged and differ from the last commit.
    Staged,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The object.
    pub oid: Box<[u8]>,
    /// Its size, as far as it is known.
    pub size: u64,
    /// A path it is known under; may be empty.
    pub path: Box<[u8]>,
    /// What is known about it.
    pub presence: Presence,
    /// The commit that brought it in, by its place in the history, parents first; `None` if that is not known.
    pub commit: Option<u32>,
}

/// What is listed.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) entries: Vec<Entry>,
    /// Commits that entries name by number.
    pub(super) commits: Vec<Oid>,
}

/// How a blob came in, as a list knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduced {
    /// The commit.
    pub commit: Box<[u8]>,
    /// Its place in the history, parents first.
    pub order: u64,
    /// The path it put the blob at.
    pub path: Box<[u8]>,
}

/// Whether an object can be read, as far as the list knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It was there.
    Present,
    /// It was referred to and not there.
    Missing,
    /// Not an object: the walk over the history broke.
    WalkBroken,
    /// Not a blob but a commit whose parents were left out when the repository was cloned.
    Cut,
}

/// A list that is written down.
#[derive(Debug)]
pub struct ObjectList {
    file: File,
    count: u64,
    commits_at: u64,
    commits: u64,
}

impl ObjectList {
    /// Lists what `scope` says of a repository into a file in `dir`, and returns its name.
    pub fn build(repository: &Path, scope: Scope, dir: &Path) -> Result<[u8; 16], GitError> {
        let listed = match scope {
            Scope::History => history(repository)?,
            Scope::Staged => Listed { entries: by_git::staged(repository)?, commits: Vec::new() },
        };
        write(&listed, dir).map_err(GitError::io("writing the list of objects"))
    }

    /// Opens the list with this name.
    pub fn open(dir: &Path, name: &[u8; 16]) -> std::io::Result<Self> {
        let damaged = |what| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
        let mut file = File::open(path_of(dir, name))?;
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match std::io::Read::read(&mut file, &mut buffer)? {
                0 => break,
                read => hasher.update(&buffer[..read]),
            }
        }
        if hasher.digest128().to_be_bytes() != *name {
            return Err(damaged("the list of objects is damaged"));
        }
        let mut header = [0; HEADER_BYTES as usize];
        file.read_exact_at(&mut header, 0)?;
        let (magic, rest) = header.split_at(8);
        let number = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight bytes"));
        let (count, commits_at, commits) = (number(0), number(8), number(16));
        let len = file.metadata()?.len();
        let fits = |at: u64, count: u64, bytes: usize| {
            count.checked_mul(bytes as u64).and_then(|bytes| bytes.checked_add(at)).is_some_and(|end| end <= len)
        };
        if magic != MAGIC || !fits(HEADER_BYTES, count, ENTRY_BYTES) || !fits(commits_at, commits, COMMIT_BYTES) {
            return Err(damaged("the list of objects is of another version"));
        }
        Ok(Self { file, count, commits_at, commits })
    }

    /// How blobs came in; those are missing that this list does not know that of.
    pub fn introduced(&self, blobs: &BTreeSet<Box<[u8]>>) -> std::io::Result<BTreeMap<Box<[u8]>, Introduced>> {
        let mut found = BTreeMap::new();
        let mut first = 0;
        while first < self.count {
            let entries = self.read(first, 4_096)?;
            first += entries.len() as u64;
            for entry in entries.into_iter().filter(|entry| blobs.contains(&entry.oid)) {
                let Some(number) = entry.commit.map(u64::from).filter(|&number| number < self.commits) else {
                    continue;
                };
                let mut commit = [0; COMMIT_BYTES];
                self.file.read_exact_at(&mut commit, self.commits_at + number * COMMIT_BYTES as u64)?;
                let len = usize::from(commit[32]).min(32);
                let introduced = Introduced { commit: commit[..len].into(), order: number, path: entry.path };
                found.insert(entry.oid, introduced);
            }
        }
        Ok(found)
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Up to `max` entries from `first` on.
    pub fn read(&self, first: u64, max: usize) -> std::io::Result<Vec<Entry>> {
        let damaged = || std::io::Error::new(std::io::ErrorKind::InvalidData, "an entry of the list makes no sense");
        let count = self.count.saturating_sub(first).min(max as u64);
        if count == 0 {
            // A shard may begin far behind the last entry, where a split of the keyspace put it.
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; count as usize * ENTRY_BYTES];
        self.file.read_exact_at(&mut bytes, HEADER_BYTES + first * ENTRY_BYTES as u64)?;
        // Neighbours often have the same path, stored once and read once.
        let mut last: (u64, Box<[u8]>) = (0, Box::default());
        let entries = bytes.chunks_exact(ENTRY_BYTES).map(|entry| {
            let number = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
            let oid_len = usize::from(entry[32]);
            let presence = match entry[33] {
                0 => Presence::Present,
                1 => Presence::Missing,
                2 => Presence::WalkBroken,
                3 => Presence::Cut,
                _ => return Err(damaged()),
            };
            let path_len = usize::from(u16::from_le_bytes([entry[34], entry[35]]));
            if oid_len > 32 || path_len > PATH_BYTES_MAX {
                return Err(damaged());
            }
            if (number(40), path_len) != (last.0, last.1.len()) {
                let mut path = vec![0; path_len];
                self.file.read_exact_at(&mut path, number(40))?;
                last = (number(40), path.into());
            }
            let path = last.1.clone();
            let commit = u32::from_le_bytes(entry[36..40].try_into().expect("four bytes"));
            let commit = Some(commit).filter(|&commit| commit != NO_COMMIT);
            Ok(Entry { oid: entry[..oid_len].into(), size: number(48), path, presence, commit })
        });
        entries.collect()
    }
}

fn path_of(dir: &Path, name: &[u8; 16]) -> PathBuf {
    dir.join(format!("{:032x}.objects", u128::from_be_bytes(*name)))
}

fn write(listed: &Listed, dir: &Path) -> std::io::Result<[u8; 16]> {
    let arena = HEADER_BYTES + listed.entries.len() as u64 * ENTRY_BYTES as u64;
    let (mut bytes, mut paths) = (Vec::with_capacity(arena as usize), Vec::new());
    bytes.resize(HEADER_BYTES as usize, 0);
    // Neighbours often have the same path, and it is stored once for them.
    let mut last: (&[u8], u64) = (&[], arena);
    for entry in &listed.entries {
        let path = &entry.path[..entry.path.len().min(PATH_BYTES_MAX)];
        if path != last.0 {
            last = (path, arena + paths.len() as u64);
            paths.extend_from_slice(path);
        }
        let at = bytes.len();
        bytes.extend_from_slice(&entry.oid);
        bytes.resize(at + 32, 0);
        bytes.push(entry.oid.len() as u8);
        bytes.push(entry.presence as u8);
        bytes.extend_from_slice(&(path.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&entry.commit.unwrap_or(NO_COMMIT).to_le_bytes());
        bytes.extend_from_slice(&last.1.to_le_bytes());
        bytes.extend_from_slice(&entry.size.to_le_bytes());
    }
    let commits_at = arena + paths.len() as u64;
    let numbers = [listed.entries.len() as u64, commits_at, listed.commits.len() as u64];
    let header = [&MAGIC[..], &numbers.map(u64::to_le_bytes).concat()].concat();
    bytes[..HEADER_BYTES as usize].copy_from_slice(&header);
    bytes.extend_from_slice(&paths);
    for commit in &listed.commits {
        let at = bytes.len();
        bytes.extend_from_slice(commit.as_bytes());
        bytes.resize(at + 32, 0);
        bytes.push(commit.as_bytes().len() as u8);
    }
    let name = xxh3_128(&bytes).to_be_bytes();
    let path = path_of(dir, &name);
    let staging = path.with_extension("new");
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&staging)?;
    let mut out = BufWriter::new(file);
    out.write_all(&bytes)?;
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    std::fs::rename(&staging, &path)?;
    File::open(dir)?.sync_all()?;
    Ok(name)
}

/// Lists a history: by ourselves if we can read the repository, else through git.
fn history(repository: &Path) -> Result<Listed, GitError> {
    match Store::open(repository).and_then(|store| super::store::history::listed(&store)) {
        Ok(listed) => Ok(listed),
        Err(error) => by_git::history(repository)
            .map_err(|by_git| GitError::Neither { reason: error.to_string(), by_git: Box::new(by_git) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(oid: u8, path: &str, presence: Presence) -> Entry {
        let commit = oid.checked_sub(2).map(u32::from);
        Entry { oid: vec![oid; 20].into(), size: u64::from(oid), path: path.as_bytes().into(), presence, commit }
    }

    fn listed(entries: &[Entry]) -> Listed {
        Listed { entries: entries.to_vec(), commits: vec![Oid::new(&[7; 20]).unwrap(), Oid::new(&[8; 20]).unwrap()] }
    }

    #[test]
    fn a_list_comes_back_from_its_file_in_any_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            entry(1, "a/b", Presence::Present),
            entry(2, "a/b", Presence::Missing),
            entry(3, "", Presence::Present),
            entry(4, "", Presence::Cut),
            Entry { oid: Box::default(), ..entry(0, "", Presence::WalkBroken) },
        ];
        let name = write(&listed(&entries), dir.path()).unwrap();
        let list = ObjectList::open(dir.path(), &name).unwrap();
        assert_eq!(list.len(), 5);
        assert_eq!(list.read(0, 100).unwrap(), entries);
        assert_eq!(list.read(1, 2).unwrap(), entries[1..3]);
        assert!(list.read(5, 2).unwrap().is_empty() && list.read(9, 2).unwrap().is_empty());
        assert!(list.read(u64::MAX, 2).unwrap().is_empty());
    }

    #[test]
    fn a_list_tells_which_commit_brought_a_blob_in() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [entry(1, "a", Presence::Present), entry(3, "b/c", Presence::Present)];
        let name = write(&listed(&entries), dir.path()).unwrap();
        let list = ObjectList::open(dir.path(), &name).unwrap();
        let wanted = [vec![1; 20].into(), vec![3; 20].into(), vec![9; 20].into()].into();
        let introduced = Introduced { commit: vec![8; 20].into(), order: 1, path: b"b/c".as_slice().into() };
        assert_eq!(list.introduced(&wanted).unwrap(), [(vec![3; 20].into(), introduced)].into());
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let name = write(&listed(&[entry(1, "a", Presence::Present)]), dir.path()).unwrap();
        let path = path_of(dir.path(), &name);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(ObjectList::open(dir.path(), &name).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}
