//! Which blobs a repository holds, in the order in which they are cheap to read.
//!
//! A pack stores most blobs as differences to others that lie near them. Read in the order of the pack, each is
//! unpacked from what was unpacked just before; in the order of their ids, whole chains are unpacked again and again. Reading every
//! eighth blob of a large pack costs 1.6 times as much per byte as reading all in a row, so shards are stretches of
//! the pack and not ranges of ids.
//!
//! That order is the repository's own business and changes when it is repacked. So it is written down once, when the run is
//! planned, and a key is a place in that list: resuming and splitting stay exact whatever happens to the packs. The
//! list also says how large each blob is, so shards are cut by bytes. It is named by its own hash.
//!
//! Reachable is what a walk from all refs meets. Objects it meets and does not find are in the list too, so that they are
//! counted. If the walk itself breaks (a damaged tree), every blob of the repository is listed instead, together with one
//! entry for the broken walk: more is scanned then, never less, and the run cannot end as clean.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::{GitError, Running, parse_oid};

const MAGIC: &[u8; 8] = b"TSRLIST1";
const HEADER_BYTES: u64 = 32;
/// One entry: id padded to 32 bytes, its length, flags, length of the path, where the path is, size.
const ENTRY_BYTES: usize = 56;
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
}

/// A list that is written down.
#[derive(Debug)]
pub struct ObjectList {
    file: File,
    count: u64,
}

impl ObjectList {
    /// Lists what `scope` says of a repository into a file in `dir`, and returns its name.
    pub fn build(repository: &Path, scope: Scope, dir: &Path) -> Result<[u8; 16], GitError> {
        let entries = match scope {
            Scope::History => history(repository)?,
            Scope::Staged => staged(repository)?,
        };
        write(&entries, dir).map_err(GitError::io("writing the list of objects"))
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
        let count = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes"));
        let fits = count.checked_mul(ENTRY_BYTES as u64).is_some_and(|bytes| {
            file.metadata().is_ok_and(|metadata| metadata.len() >= HEADER_BYTES.saturating_add(bytes))
        });
        if magic != MAGIC || !fits {
            return Err(damaged("the list of objects is of another version"));
        }
        Ok(Self { file, count })
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
        let entries = bytes.chunks_exact(ENTRY_BYTES).map(|entry| {
            let number = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
            let oid_len = usize::from(entry[32]);
            let presence = match entry[33] {
                0 => Presence::Present,
                1 => Presence::Missing,
                2 => Presence::WalkBroken,
                _ => return Err(damaged()),
            };
            let path_len = usize::from(u16::from_le_bytes([entry[34], entry[35]]));
            if oid_len > 32 || path_len > PATH_BYTES_MAX {
                return Err(damaged());
            }
            let mut path = vec![0; path_len];
            self.file.read_exact_at(&mut path, number(40))?;
            Ok(Entry { oid: entry[..oid_len].into(), size: number(48), path: path.into(), presence })
        });
        entries.collect()
    }
}

fn path_of(dir: &Path, name: &[u8; 16]) -> PathBuf {
    dir.join(format!("{:032x}.objects", u128::from_be_bytes(*name)))
}

fn write(entries: &[Entry], dir: &Path) -> std::io::Result<[u8; 16]> {
    let arena = HEADER_BYTES + entries.len() as u64 * ENTRY_BYTES as u64;
    let (mut bytes, mut paths) = (Vec::with_capacity(arena as usize), Vec::new());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    bytes.resize(HEADER_BYTES as usize, 0);
    // Neighbours often have the same path, and it is stored once for them.
    let mut last: (&[u8], u64) = (&[], arena);
    for entry in entries {
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
        bytes.resize(at + 40, 0);
        bytes.extend_from_slice(&last.1.to_le_bytes());
        bytes.extend_from_slice(&entry.size.to_le_bytes());
    }
    bytes.extend_from_slice(&paths);
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

/// Blobs the walk met, with a path each; and what it could not find.
#[derive(Debug, Default)]
struct Reachable {
    blobs: HashMap<Box<[u8]>, Box<[u8]>>,
    missing: Vec<Box<[u8]>>,
}

fn history(repository: &Path) -> Result<Vec<Entry>, GitError> {
    let walked = walk(repository);
    let (mut reachable, broken) = match walked {
        Ok(reachable) => (Some(reachable), false),
        // Without git nothing works; with git, a history that cannot be walked is still a heap of blobs.
        Err(error @ GitError::Missing(_)) => return Err(error),
        Err(_) => (None, true),
    };
    let mut entries = Vec::new();
    let args =
        ["--batch-all-objects", "--unordered", "--buffer", "--batch-check=%(objectname) %(objecttype) %(objectsize)"];
    let mut running = Running::start(repository, "cat-file", &args, false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| {
        let mut words = line.split(|&byte| byte == b' ');
        let (Some(oid), Some(b"blob"), Some(size)) = (words.next().and_then(parse_oid), words.next(), words.next())
        else {
            return;
        };
        let size = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok()).unwrap_or(0);
        let path = match &mut reachable {
            Some(reachable) => match reachable.blobs.remove(&oid) {
                Some(path) => path,
                None => return,
            },
            None => Box::default(),
        };
        entries.push(Entry { oid, size, path, presence: Presence::Present });
    })
    .map_err(GitError::io("reading from git cat-file"))?;
    let listed = running.finish();
    match reachable {
        // What the walk met and the listing did not, be it that the listing broke: reading will tell.
        Some(reachable) => {
            let mut rest: Vec<_> = reachable.blobs.into_iter().collect();
            rest.sort_unstable();
            let rest = rest.into_iter().map(|(oid, path)| Entry { oid, size: 0, path, presence: Presence::Present });
            entries.extend(rest);
            entries.extend(reachable.missing.into_iter().map(|oid| Entry {
                oid,
                size: 0,
                path: Box::default(),
                presence: Presence::Missing,
            }));
        }
        // Neither walk nor listing: there is nothing to go by.
        None => listed?,
    }
    if broken {
        let path = Box::default();
        entries.push(Entry { oid: Box::default(), size: 0, path, presence: Presence::WalkBroken });
    }
    Ok(entries)
}

fn walk(repository: &Path) -> Result<Reachable, GitError> {
    let args = ["--objects", "--all", "--missing=print", "--filter=object:type=blob", "--filter-provided-objects"];
    let mut running = Running::start(repository, "rev-list", &args, false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    let mut reachable = Reachable::default();
    for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| {
        if let Some(missing) = line.strip_prefix(b"?") {
            reachable.missing.extend(parse_oid(missing));
            return;
        }
        let (oid, path) = match memchr::memchr(b' ', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        if let Some(oid) = parse_oid(oid) {
            reachable.blobs.insert(oid, path.into());
        }
    })
    .map_err(GitError::io("reading from git rev-list"))?;
    running.finish()?;
    for oid in &reachable.missing {
        reachable.blobs.remove(oid);
    }
    Ok(reachable)
}

fn staged(repository: &Path) -> Result<Vec<Entry>, GitError> {
    let args = ["--cached", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--diff-filter=AMT"];
    let mut running = Running::start(repository, "diff", &args, false)?;
    let mut stdout = BufReader::new(running.child.stdout.take().expect("it was piped"));
    let unexpected = || GitError::Unexpected { command: "diff" };
    let mut field = || -> Result<Option<Vec<u8>>, GitError> {
        let mut field = Vec::new();
        stdout.read_until(0, &mut field).map_err(GitError::io("reading from git diff"))?;
        Ok((field.pop() == Some(0)).then_some(field))
    };
    let mut entries = Vec::new();
    while let Some(header) = field()? {
        let path = field()?.ok_or_else(unexpected)?;
        let words: Vec<&[u8]> = header.split(|&byte| byte == b' ').collect();
        let [_, mode, _, oid, _] = words[..] else { return Err(unexpected()) };
        // Links and submodules have no text of their own.
        if mode.starts_with(b"100") {
            let oid = parse_oid(oid).ok_or_else(unexpected)?;
            entries.push(Entry { oid, size: 0, path: path.into(), presence: Presence::Present });
        }
    }
    running.finish()?;
    Ok(entries)
}

/// Lines of what a child writes, without their ends.
fn for_each_line(mut input: impl BufRead, mut visit: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        visit(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(oid: u8, path: &str, presence: Presence) -> Entry {
        Entry { oid: vec![oid; 20].into(), size: u64::from(oid), path: path.as_bytes().into(), presence }
    }

    #[test]
    fn a_list_comes_back_from_its_file_in_any_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            entry(1, "a/b", Presence::Present),
            entry(2, "a/b", Presence::Missing),
            entry(3, "", Presence::Present),
            Entry { oid: Box::default(), size: 0, path: Box::default(), presence: Presence::WalkBroken },
        ];
        let name = write(&entries, dir.path()).unwrap();
        let list = ObjectList::open(dir.path(), &name).unwrap();
        assert_eq!(list.len(), 4);
        assert_eq!(list.read(0, 100).unwrap(), entries);
        assert_eq!(list.read(1, 2).unwrap(), entries[1..3]);
        assert!(list.read(4, 2).unwrap().is_empty() && list.read(9, 2).unwrap().is_empty());
        assert!(list.read(u64::MAX, 2).unwrap().is_empty());
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let name = write(&[entry(1, "a", Presence::Present)], dir.path()).unwrap();
        let path = path_of(dir.path(), &name);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(ObjectList::open(dir.path(), &name).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}
