//! Which files a repository tracks, read from its index.
//!
//! Git goes on tracking a file that an ignore rule names, so a scan reads tracked files whatever the rules say. The index is read
//! here and git is not asked: git refuses repositories of another user, follows variables such as `GIT_INDEX_FILE`, and may not
//! be installed. An index that cannot be read is an error, never an empty one.

mod bitmap;
mod index_file;

use std::borrow::Cow;
use std::io;
use std::path::Path;

use crate::source::git::hex_oid;
use index_file::{Entry, IndexFile};
use tessera_git_objects::plain_file;

/// Largest index that is read, and most bytes of paths in it: enough for some four million files.
const INDEX_BYTES_MAX: usize = 512 << 20;

/// Paths from the root of a working tree with `/`, sorted, one after another in one piece of memory.
#[derive(Debug, Default)]
pub struct Tracked {
    bytes: Vec<u8>,
    /// Where each path starts and ends.
    paths: Vec<(u32, u32)>,
    /// Those of submodules, again.
    submodules: Vec<(u32, u32)>,
    /// Whether some paths stand for all files of a directory (a sparse index); those end in a slash.
    has_whole_dirs: bool,
    /// Whether letters are alike in upper and lower case; then paths are kept in lower case.
    ignores_case: bool,
}

/// Why an index cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A file of it cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not what git writes, or what only a later git understands.
    #[error("it is damaged or of an unknown form: {0}")]
    Malformed(&'static str),
}

impl Tracked {
    /// Reads the index in `git_dir`, whose objects have names of `oid_len` bytes. Without an index nothing is tracked.
    pub fn read(git_dir: &Path, oid_len: usize) -> Result<Self, IndexError> {
        let mut tracked = Self::default();
        let Some(bytes) = plain_file::read(&git_dir.join("index"), INDEX_BYTES_MAX as u64)? else { return Ok(tracked) };
        let index = IndexFile::parse(&bytes, oid_len)?;
        let base = index.for_each(|entry| tracked.push(&entry))?;
        if let Some(base) = base {
            let path = git_dir.join(format!("sharedindex.{}", hex_oid(base.oid)));
            let bytes = plain_file::read(&path, INDEX_BYTES_MAX as u64)?
                .ok_or(IndexError::Malformed("the shared index it builds on is missing"))?;
            let shared = IndexFile::parse(&bytes, oid_len)?;
            let mut removed = base.removed.expand(shared.count as usize).into_iter();
            shared.for_each(|entry| if removed.next() == Some(true) { Ok(()) } else { tracked.push(&entry) })?;
        }
        tracked.sort();
        Ok(tracked)
    }

    /// The same paths where letters are alike in upper and lower case (`core.ignoreCase`): git goes on tracking a file of which
    /// only the case of the name changed.
    #[must_use]
    pub fn in_any_case(mut self) -> Self {
        self.bytes.make_ascii_lowercase();
        self.ignores_case = true;
        self.sort();
        self
    }

    /// Whether this file is tracked.
    pub fn has_file(&self, path: &[u8]) -> bool {
        let path = &*self.folded(path);
        self.has(path) || self.is_in_whole_dir(path)
    }

    /// Whether a tracked file lies below this directory.
    pub fn has_below(&self, dir: &[u8]) -> bool {
        let dir = &*self.folded(dir);
        let prefix = [dir, b"/"].concat();
        let at = self.paths.partition_point(|&path| self.resolve(path) < prefix.as_slice());
        self.paths.get(at).is_some_and(|&path| self.resolve(path).starts_with(&prefix)) || self.is_in_whole_dir(dir)
    }

    /// Whether a submodule stands there.
    pub fn has_submodule(&self, path: &[u8]) -> bool {
        !self.submodules.is_empty() && self.is_among(&self.submodules, &self.folded(path))
    }

    fn folded<'p>(&self, path: &'p [u8]) -> Cow<'p, [u8]> {
        if self.ignores_case { path.to_ascii_lowercase().into() } else { path.into() }
    }

    fn has(&self, path: &[u8]) -> bool {
        self.is_among(&self.paths, path)
    }

    fn is_among(&self, sorted: &[(u32, u32)], path: &[u8]) -> bool {
        sorted.binary_search_by(|&known| self.resolve(known).cmp(path)).is_ok()
    }

    fn is_in_whole_dir(&self, path: &[u8]) -> bool {
        let mut slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        self.has_whole_dirs && slashes.any(|(at, _)| self.has(&path[..=at]))
    }

    fn resolve(&self, (start, end): (u32, u32)) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }

    fn push(&mut self, entry: &Entry<'_>) -> Result<(), IndexError> {
        // An entry without a name changes one of the shared index, and that one has the name.
        if entry.path.is_empty() {
            return Ok(());
        }
        let start = self.bytes.len();
        let end = start + entry.path.len();
        // Paths may share what they begin with, so there can be more of them than the file has bytes.
        if end > INDEX_BYTES_MAX {
            return Err(IndexError::Malformed("it has too many paths"));
        }
        self.bytes.extend_from_slice(entry.path);
        self.paths.push((start as u32, end as u32));
        if entry.is_submodule {
            self.submodules.push((start as u32, end as u32));
        }
        self.has_whole_dirs |= entry.is_whole_dir;
        Ok(())
    }

    fn sort(&mut self) {
        let (mut paths, mut submodules) = (std::mem::take(&mut self.paths), std::mem::take(&mut self.submodules));
        for list in [&mut paths, &mut submodules] {
            if !list.is_sorted_by(|&a, &b| self.resolve(a) <= self.resolve(b)) {
                list.sort_unstable_by(|&a, &b| self.resolve(a).cmp(self.resolve(b)));
            }
        }
        (self.paths, self.submodules) = (paths, submodules);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use test_support::Repository;

    fn tracked(repository: &Repository) -> Result<Tracked, IndexError> {
        Tracked::read(&repository.path().join(".git"), 20)
    }

    fn paths(tracked: &Tracked) -> Vec<String> {
        tracked.paths.iter().map(|&path| String::from_utf8_lossy(tracked.resolve(path)).into_owned()).collect()
    }

    #[test]
    fn files_and_the_directories_above_them_are_known() {
        let repository = Repository::new();
        assert!(paths(&tracked(&repository).unwrap()).is_empty(), "a new repository has no index");
        repository.commit("first", &[("a/b/c", "1"), ("a-b", "2"), ("x", "3")]);
        let tracked = tracked(&repository).unwrap();
        assert_eq!(paths(&tracked), ["a-b", "a/b/c", "x"]);
        assert!(tracked.has_file(b"x") && tracked.has_below(b"a") && tracked.has_below(b"a/b"));
        assert!(!tracked.has_file(b"a") && !tracked.has_below(b"x") && !tracked.has_below(b"a/b/c"));
    }

    #[test]
    fn a_sparse_index_tracks_all_of_a_directory_it_names() {
        let repository = Repository::new();
        repository.commit("first", &[("in/a", "1"), ("out/deep/b", "2"), ("out/c", "3"), ("top", "4")]);
        repository.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "in"]);
        let tracked = tracked(&repository).unwrap();
        assert_eq!(paths(&tracked), ["in/a", "out/", "top"]);
        assert!(tracked.has_file(b"out/deep/b") && tracked.has_below(b"out") && tracked.has_below(b"out/deep"));
        assert!(!tracked.has_file(b"other/b") && !tracked.has_below(b"other"));
    }

    #[test]
    fn a_file_in_conflict_is_tracked() {
        let repository = Repository::new();
        repository.commit("base", &[("f", "1")]);
        repository.git(&["checkout", "-q", "-b", "other"]);
        repository.commit("other", &[("f", "2")]);
        repository.git(&["checkout", "-q", "main"]);
        repository.commit("main", &[("f", "3")]);
        repository.try_git(&["merge", "other"]);
        assert!(tracked(&repository).unwrap().has_file(b"f"));
    }

    #[test]
    fn an_index_that_is_cut_damaged_or_of_the_future_is_refused() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1"), ("b", "2")]);
        let path = repository.path().join(".git/index");
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            // Extensions that may be passed over may also be cut off at their start.
            let is_known = tracked(&repository).is_ok_and(|tracked| paths(&tracked) != ["a", "b"]);
            assert!(!is_known, "cut to {len} bytes it has other paths");
        }
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            tracked(&repository).unwrap_err().to_string()
        };
        assert!(refused(b"").contains("damaged"));
        assert!(refused(&[b"DIRC\0\0\0\x05", &whole[8..]].concat()).contains("version"));
        let required = whole.windows(4).position(|bytes| bytes == b"TREE").unwrap();
        let mut changed = whole;
        changed[required..required + 4].copy_from_slice(b"what");
        assert!(refused(&changed).contains("extension"));
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(tracked(&repository).is_err(), "a pipe is not waited for");
    }

    #[test]
    fn letters_are_alike_where_the_repository_says_so() {
        let repository = Repository::new();
        repository.commit("first", &[("Conf/A.env", "1"), ("b", "2")]);
        let exact = tracked(&repository).unwrap();
        assert!(exact.has_file(b"Conf/A.env") && !exact.has_file(b"conf/a.ENV") && !exact.has_below(b"conf"));
        let alike = exact.in_any_case();
        assert!(alike.has_file(b"Conf/A.env") && alike.has_file(b"conf/a.ENV") && alike.has_below(b"CONF"));
        assert!(alike.has_file(b"B") && !alike.has_file(b"c") && !alike.has_below(b"b"));
    }

    /// An index with two entries, of which the second shares its beginning with the first, above a shared index.
    fn index(version: u8) -> Vec<u8> {
        let mut bytes = [b"DIRC\0\0\0", &[version][..], &[0, 0, 0, 2]].concat();
        for (path, shared) in [(&b"dir/a"[..], 0), (b"dir/b", 4)] {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 60]);
            bytes.extend_from_slice(if version == 3 { &[0x40, 5, 0, 0] } else { &[0, 5] });
            if version == 4 {
                bytes.push(if shared == 0 { 0 } else { 1 });
                bytes.extend_from_slice(&path[shared..]);
                bytes.push(0);
            } else {
                bytes.extend_from_slice(path);
                bytes.resize(start + ((bytes.len() - start + 8) & !7), 0);
            }
        }
        let bitmap =
            [&[0, 0, 0, 64, 0, 0, 0, 2][..], &[0, 0, 0, 2, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 1], &[0; 4]].concat();
        bytes.extend_from_slice(b"link");
        bytes.extend_from_slice(&(20 + bitmap.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&[[7; 20].as_slice(), &bitmap, &[0; 20]].concat());
        bytes
    }

    #[test]
    fn entries_of_every_version_and_marks_of_removal_are_read() {
        for version in 2..=4 {
            let (bytes, mut tracked) = (index(version), Tracked::default());
            let file = IndexFile::parse(&bytes, 20).unwrap();
            let base = file.for_each(|entry| tracked.push(&entry)).unwrap().unwrap();
            assert_eq!(paths(&tracked), ["dir/a", "dir/b"], "version {version}");
            assert_eq!((base.oid, base.removed.expand(3)), (&[7; 20][..], vec![true, false, false]));
        }
    }

    #[test]
    fn damaged_flags_never_shift_or_shorten_a_path() {
        for version in 2..=4 {
            // The flags of the first entry, behind the header, its times and its object.
            let flags_at = 12 + 60;
            let flags_len = if version == 3 { 4 } else { 2 };
            for (at, bit) in (flags_at..flags_at + flags_len).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let (mut bytes, mut tracked) = (index(version), Tracked::default());
                bytes[at] ^= 1 << bit;
                let read = IndexFile::parse(&bytes, 20).unwrap().for_each(|entry| tracked.push(&entry));
                let is_right = paths(&tracked) == ["dir/a", "dir/b"];
                assert!(read.is_err() || is_right, "version {version}, bit {bit} of byte {at}: {:?}", paths(&tracked));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_damaged_index_is_read_or_refused(
            version in 2_u8..=4,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            oid_len in prop::sample::select(vec![20_usize, 32]),
        ) {
            let mut bytes = index(version);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let mut tracked = Tracked::default();
            let read = IndexFile::parse(&bytes, oid_len).and_then(|index| {
                let base = index.for_each(|entry| tracked.push(&entry))?;
                Ok(base.map(|base| base.removed.expand(1_000)))
            });
            tracked.sort();
            prop_assert!(read.is_err() || tracked.paths.len() <= bytes.len());
        }
    }

    #[test]
    fn a_missing_shared_index_is_refused() {
        let repository = Repository::new();
        repository.git(&["config", "core.splitIndex", "true"]);
        repository.git(&["config", "splitIndex.maxPercentChange", "100"]);
        repository.commit("first", &[("a", "1"), ("b", "2")]);
        repository.commit("second", &[("c", "3")]);
        repository.git(&["rm", "-q", "--cached", "a"]);
        assert_eq!(paths(&tracked(&repository).unwrap()), ["b", "c"]);
        for entry in std::fs::read_dir(repository.path().join(".git")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("sharedindex.") {
                std::fs::remove_file(path).unwrap();
            }
        }
        assert!(tracked(&repository).unwrap_err().to_string().contains("shared index"));
    }
}
