//! Which blobs a repository holds and where they stand, in the order in which they are cheap to read.
//!
//! A pack stores most blobs as differences to others. Read in the order of these deltas (or, where git lists them, in that of the
//! pack), each is made from what was made just before; in the order of their ids, whole chains are unpacked again and again.
//! So shards are stretches of that order and not ranges of ids.
//!
//! That order is the repository's own business and changes when it is repacked. So it is written down once, when the run is
//! planned, and a key is a place in that list: resuming and splitting stay exact whatever happens to the packs. The
//! list also says how large each blob is, so shards are cut by bytes, and at which paths it stands, each with the commit that put it
//! there first. It is named by its own hash.
//!
//! Reachable is what a walk from all refs meets. Objects it meets and does not find are in the list too, so that they are
//! counted. If the walk itself breaks (a damaged tree), every blob of the repository is listed instead, together with one
//! entry for the broken walk: more is scanned then, never less, and the run cannot end as clean. Neither can that of a shallow
//! clone: each commit where its history is cut off is an entry.
//!
//! ```text
//! file    = magic "TSRLIST3", scope u64, numbers u64 of entries, places and commits, then entries, places, commits, paths
//! entry   = id padded to 32 bytes, its length u8, presence u8, stands at more paths u8, zero u8, number of places u32,
//!           first place u64, size u64
//! place   = offset of the path in the file u64, its length u32, commit u32
//! commit  = id padded to 32 bytes, its length u8
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::range::{self, CommitRange};
use super::{GitError, by_git, staged};
use tessera_git_objects::Store;
use tessera_git_objects::layout::LayoutError;
use tessera_git_objects::oid::Oid;
use tessera_git_objects::places::{BOUNDS, PATH_BYTES_MAX};

pub use tessera_git_objects::places::Placed;

const MAGIC: &[u8; 8] = b"TSRLIST3";
const HEADER_BYTES: u64 = 40;
const ENTRY_BYTES: usize = 56;
const PLACE_BYTES: usize = 16;
const COMMIT_BYTES: usize = 33;
/// The number of no commit.
const NO_COMMIT: u32 = u32::MAX;

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
    /// What is known about it.
    pub presence: Presence,
    /// Where it stands, as far as that is known.
    pub places: Vec<Placed>,
    /// Whether it stands at more paths than that.
    pub has_more: bool,
}

impl Entry {
    /// An entry that stands nowhere.
    pub(super) fn new(oid: Box<[u8]>, presence: Presence) -> Self {
        Self { oid, size: 0, presence, places: Vec::new(), has_more: false }
    }

    /// The entry of a submodule at this path.
    pub(super) fn submodule(path: &[u8]) -> Self {
        let places = vec![Placed { path: path.into(), commit: None }];
        Self { places, ..Self::new(Box::default(), Presence::Submodule) }
    }
}

/// What is listed.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) scope: Scope,
    pub(super) entries: Vec<Entry>,
    /// Commits that places name by number.
    pub(super) commits: Vec<Oid>,
}

/// A blob, and a path it stands at.
pub(crate) type BlobPath = (Box<[u8]>, Box<[u8]>);

/// How a blob came to a path, as a list knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduced {
    /// The commit.
    pub commit: Box<[u8]>,
    /// Its place in the history, parents first.
    pub order: u64,
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
    /// A symbolic link that is staged.
    Symlink,
    /// Not an object: a path whose merge is not resolved, so that nothing is staged there.
    Unmerged,
    /// Not an object: a path where another repository lies.
    Submodule,
}

impl Presence {
    const ALL: [Self; 7] =
        [Self::Present, Self::Missing, Self::WalkBroken, Self::Cut, Self::Symlink, Self::Unmerged, Self::Submodule];
}

/// A list that is written down.
#[derive(Debug)]
pub struct ObjectList {
    /// Opened for each reading: a run may have more lists than a process may have open files.
    path: PathBuf,
    scope: Scope,
    count: u64,
    places: u64,
    commits: u64,
}

impl ObjectList {
    /// Lists what `scope` says of a repository into a file in `dir`, and returns its name.
    pub fn build(repository: &Path, scope: Scope, dir: &Path) -> Result<[u8; 16], GitError> {
        let listed = match scope {
            Scope::History => history(repository)?,
            Scope::Staged => staged::listed(repository)?,
        };
        write(&listed, dir).map_err(GitError::io("writing the list of objects"))
    }

    /// Lists a part of a history in the same way.
    pub fn build_range(repository: &Path, range: &CommitRange, dir: &Path) -> Result<[u8; 16], GitError> {
        write(&range::listed(repository, range)?, dir).map_err(GitError::io("writing the list of objects"))
    }

    /// Opens the list with this name.
    pub fn open(dir: &Path, name: &[u8; 16]) -> std::io::Result<Self> {
        let damaged = |what| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
        let path = path_of(dir, name);
        let mut file = File::open(&path)?;
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
        let scope = match number(0) {
            0 => Some(Scope::History),
            1 => Some(Scope::Staged),
            _ => None,
        };
        let (Some(scope), true) = (scope, magic == MAGIC) else {
            return Err(damaged("the list of objects is of another version"));
        };
        let list = Self { path, scope, count: number(8), places: number(16), commits: number(24) };
        let len = file.metadata()?.len();
        match list.paths_at() {
            Some(end) if end <= len => Ok(list),
            _ => Err(damaged("the list of objects makes no sense")),
        }
    }

    /// What of the repository it lists.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    fn places_at(&self) -> Option<u64> {
        self.count.checked_mul(ENTRY_BYTES as u64)?.checked_add(HEADER_BYTES)
    }

    fn commits_at(&self) -> Option<u64> {
        self.places.checked_mul(PLACE_BYTES as u64)?.checked_add(self.places_at()?)
    }

    fn paths_at(&self) -> Option<u64> {
        self.commits.checked_mul(COMMIT_BYTES as u64)?.checked_add(self.commits_at()?)
    }

    /// How blobs came to paths; those are missing that this list does not know that of.
    pub(crate) fn introduced(&self, wanted: &BTreeSet<BlobPath>) -> std::io::Result<BTreeMap<BlobPath, Introduced>> {
        let blobs: BTreeSet<&[u8]> = wanted.iter().map(|(blob, _)| &**blob).collect();
        let (mut found, mut first) = (BTreeMap::new(), 0);
        let file = &self.file()?;
        while first < self.count {
            let entries = self.entries(file, first, 4_096)?;
            first += entries.len() as u64;
            for entry in entries.iter().filter(|entry| blobs.contains(entry.oid())) {
                for place in self.read_places(file, std::slice::from_ref(entry))? {
                    let Some(number) = place.commit.map(u64::from).filter(|&number| number < self.commits) else {
                        continue;
                    };
                    let key = (entry.oid().into(), (&*place.path).into());
                    if wanted.contains(&key) {
                        found.insert(key, Introduced { commit: self.commit(file, number)?, order: number });
                    }
                }
            }
        }
        Ok(found)
    }

    fn commit(&self, file: &File, number: u64) -> std::io::Result<Box<[u8]>> {
        let mut commit = [0; COMMIT_BYTES];
        let at = self.commits_at().expect("checked when it was opened") + number * COMMIT_BYTES as u64;
        file.read_exact_at(&mut commit, at)?;
        Ok(commit[..usize::from(commit[32]).min(32)].into())
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
        if first >= self.count {
            // A shard may begin far behind the last entry, where a split of the keyspace put it.
            return Ok(Vec::new());
        }
        let file = &self.file()?;
        let stored = self.entries(file, first, max)?;
        let mut places = self.read_places(file, &stored)?.into_iter();
        let entries = stored.iter().map(|entry| {
            Ok(Entry {
                oid: entry.oid().into(),
                size: entry.number(48),
                presence: *Presence::ALL.get(usize::from(entry.0[33])).ok_or_else(damaged)?,
                places: places.by_ref().take(entry.places_len()).collect(),
                has_more: entry.0[34] != 0,
            })
        });
        entries.collect()
    }

    fn file(&self) -> std::io::Result<File> {
        File::open(&self.path)
    }

    fn entries(&self, file: &File, first: u64, max: usize) -> std::io::Result<Vec<Stored>> {
        let count = self.count.saturating_sub(first).min(max as u64);
        let mut bytes = vec![0; count as usize * ENTRY_BYTES];
        file.read_exact_at(&mut bytes, HEADER_BYTES + first * ENTRY_BYTES as u64)?;
        let entries = bytes.chunks_exact(ENTRY_BYTES).map(|entry| {
            let entry = Stored(entry.try_into().expect("chunks have this length"));
            let places = entry.places();
            let is_sound = entry.0[32] <= 32 && places.start <= places.end && places.end <= self.places;
            if is_sound { Ok(entry) } else { Err(damaged()) }
        });
        entries.collect()
    }

    /// The places of entries that follow one another: so do their places.
    fn read_places(&self, file: &File, entries: &[Stored]) -> std::io::Result<Vec<Placed>> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(Vec::new()) };
        let range = first.places().start..last.places().end;
        if entries.windows(2).any(|pair| pair[0].places().end != pair[1].places().start) {
            return Err(damaged());
        }
        let mut bytes = vec![0; (range.end - range.start) as usize * PLACE_BYTES];
        let at = self.places_at().expect("checked when it was opened") + range.start * PLACE_BYTES as u64;
        file.read_exact_at(&mut bytes, at)?;
        // Versions of a file have the same path, stored once and read once.
        let mut known: HashMap<u64, Arc<[u8]>, foldhash::fast::RandomState> = HashMap::default();
        let places = bytes.chunks_exact(PLACE_BYTES).map(|place| {
            let number = |at: usize| u32::from_le_bytes(place[at..at + 4].try_into().expect("four bytes"));
            let at = u64::from_le_bytes(place[..8].try_into().expect("eight bytes"));
            let path = match known.get(&at) {
                Some(path) => Arc::clone(path),
                None => {
                    let len = Some(number(8) as usize).filter(|&len| len <= PATH_BYTES_MAX).ok_or_else(damaged)?;
                    let mut path = vec![0; len];
                    file.read_exact_at(&mut path, at)?;
                    let path: Arc<[u8]> = path.into();
                    known.insert(at, Arc::clone(&path));
                    path
                }
            };
            Ok(Placed { path, commit: Some(number(12)).filter(|&commit| commit != NO_COMMIT) })
        });
        places.collect()
    }
}

fn damaged() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, "an entry of the list makes no sense")
}

/// An entry as it is stored.
struct Stored([u8; ENTRY_BYTES]);

impl Stored {
    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn oid(&self) -> &[u8] {
        &self.0[..usize::from(self.0[32]).min(32)]
    }

    fn places_len(&self) -> usize {
        u32::from_le_bytes(self.0[36..40].try_into().expect("four bytes")) as usize
    }

    /// Its places, by number.
    fn places(&self) -> std::ops::Range<u64> {
        let first = self.number(40);
        first..first.saturating_add(self.places_len() as u64)
    }
}

fn path_of(dir: &Path, name: &[u8; 16]) -> PathBuf {
    dir.join(format!("{:032x}.objects", u128::from_be_bytes(*name)))
}

/// Where paths are in the file, each once.
#[derive(Default)]
struct Paths<'l> {
    bytes: Vec<u8>,
    offsets: HashMap<&'l [u8], u64, foldhash::fast::RandomState>,
}

impl<'l> Paths<'l> {
    fn offset_of(&mut self, path: &'l [u8]) -> u64 {
        *self.offsets.entry(path).or_insert_with(|| {
            let at = self.bytes.len() as u64;
            self.bytes.extend_from_slice(path);
            // No other path begins at the same offset: an empty one gets a byte of its own.
            if path.is_empty() {
                self.bytes.push(0);
            }
            at
        })
    }
}

fn encode(listed: &Listed) -> Vec<u8> {
    let counts = [
        listed.entries.len() as u64,
        listed.entries.iter().map(|entry| entry.places.len() as u64).sum(),
        listed.commits.len() as u64,
    ];
    let places_at = HEADER_BYTES + counts[0] * ENTRY_BYTES as u64;
    let paths_at = places_at + counts[1] * PLACE_BYTES as u64 + counts[2] * COMMIT_BYTES as u64;
    let mut bytes = Vec::with_capacity(paths_at as usize);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(listed.scope as u64).to_le_bytes());
    bytes.extend_from_slice(&counts.map(u64::to_le_bytes).concat());
    let mut first = 0_u64;
    for entry in &listed.entries {
        let at = bytes.len();
        bytes.extend_from_slice(&entry.oid);
        bytes.resize(at + 32, 0);
        bytes.extend_from_slice(&[entry.oid.len() as u8, entry.presence as u8, u8::from(entry.has_more), 0]);
        bytes.extend_from_slice(&(entry.places.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&first.to_le_bytes());
        bytes.extend_from_slice(&entry.size.to_le_bytes());
        first += entry.places.len() as u64;
    }
    let mut paths = Paths::default();
    for place in listed.entries.iter().flat_map(|entry| &entry.places) {
        let path = &place.path[..place.path.len().min(PATH_BYTES_MAX)];
        bytes.extend_from_slice(&(paths_at + paths.offset_of(path)).to_le_bytes());
        bytes.extend_from_slice(&(path.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&place.commit.unwrap_or(NO_COMMIT).to_le_bytes());
    }
    for commit in &listed.commits {
        let at = bytes.len();
        bytes.extend_from_slice(commit.as_bytes());
        bytes.resize(at + 32, 0);
        bytes.push(commit.as_bytes().len() as u8);
    }
    bytes.extend_from_slice(&paths.bytes);
    bytes
}

fn write(listed: &Listed, dir: &Path) -> std::io::Result<[u8; 16]> {
    let bytes = encode(listed);
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
    match Store::open(repository).and_then(|store| super::history::listed(&store, BOUNDS)) {
        Ok(listed) => Ok(listed),
        Err(error @ LayoutError::Damaged { .. }) => Err(GitError::Damaged(error.to_string())),
        Err(error) => by_git::history(repository, BOUNDS)
            .map_err(|by_git| GitError::Neither { reason: error.to_string(), by_git: Box::new(by_git) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(oid: u8, places: &[(&str, Option<u32>)], presence: Presence) -> Entry {
        let place = |&(path, commit): &(&str, _)| Placed { path: path.as_bytes().into(), commit };
        Entry {
            oid: vec![oid; 20].into(),
            size: u64::from(oid),
            presence,
            places: places.iter().map(place).collect(),
            has_more: oid.is_multiple_of(2),
        }
    }

    fn listed(entries: &[Entry]) -> Listed {
        let commits = vec![Oid::new(&[7; 20]).unwrap(), Oid::new(&[8; 20]).unwrap()];
        Listed { scope: Scope::History, entries: entries.to_vec(), commits }
    }

    #[test]
    fn a_list_comes_back_from_its_file_in_any_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            entry(1, &[("a/b", Some(0)), ("", None), ("c", Some(1))], Presence::Present),
            entry(2, &[("a/b", None)], Presence::Missing),
            entry(3, &[], Presence::Present),
            entry(4, &[], Presence::Cut),
            entry(5, &[("", None), ("a/b", None)], Presence::Symlink),
            entry(6, &[("c", None)], Presence::Unmerged),
            Entry { oid: Box::default(), ..entry(0, &[], Presence::WalkBroken) },
        ];
        let name = write(&listed(&entries), dir.path()).unwrap();
        let list = ObjectList::open(dir.path(), &name).unwrap();
        assert_eq!((list.len(), list.scope()), (7, Scope::History));
        for first in 0..8 {
            for max in 0..9 {
                let expected = &entries[first.min(7)..(first + max).min(7)];
                assert_eq!(list.read(first as u64, max).unwrap(), expected, "{first} {max}");
            }
        }
        assert!(list.read(u64::MAX, 2).unwrap().is_empty());
        let staged = write(&Listed { scope: Scope::Staged, ..listed(&[]) }, dir.path()).unwrap();
        assert_eq!(ObjectList::open(dir.path(), &staged).unwrap().scope(), Scope::Staged);
    }

    #[test]
    fn a_list_tells_which_commit_put_a_blob_at_each_path() {
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            entry(1, &[("a", None)], Presence::Present),
            entry(3, &[("b/c", Some(1)), ("d", Some(0)), ("e", Some(0))], Presence::Present),
        ];
        let name = write(&listed(&entries), dir.path()).unwrap();
        let list = ObjectList::open(dir.path(), &name).unwrap();
        let key = |oid: u8, path: &str| -> BlobPath { (vec![oid; 20].into(), path.as_bytes().into()) };
        let wanted = [key(1, "a"), key(3, "b/c"), key(3, "d"), key(3, "x"), key(9, "a")].into();
        let by = |commit: u8, order| Introduced { commit: vec![commit; 20].into(), order };
        let expected = [(key(3, "b/c"), by(8, 1)), (key(3, "d"), by(7, 0))].into();
        assert_eq!(list.introduced(&wanted).unwrap(), expected);
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let name = write(&listed(&[entry(1, &[("a", None)], Presence::Present)]), dir.path()).unwrap();
        let path = path_of(dir.path(), &name);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(ObjectList::open(dir.path(), &name).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_list_of_another_version_or_with_numbers_that_do_not_fit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = encode(&listed(&[entry(1, &[("a", None)], Presence::Present)]));
        let stored = |bytes: &[u8]| {
            let name = xxh3_128(bytes).to_be_bytes();
            std::fs::write(path_of(dir.path(), &name), bytes).unwrap();
            ObjectList::open(dir.path(), &name)
        };
        assert!(stored(&bytes).is_ok());
        let spoiled = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            stored(&bytes)
        };
        assert!(spoiled(7, b'2').unwrap_err().to_string().contains("another version"));
        for at in [8, 23, 31, 39] {
            assert!(spoiled(at, 0xff).is_err(), "byte {at}");
        }
        // Within entries: found when they are read.
        for at in [32, 33, 39, 47] {
            assert!(spoiled(40 + at, 0xff).unwrap().read(0, 1).is_err(), "byte {at} of an entry");
        }
    }
}
