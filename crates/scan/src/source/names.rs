//! The names in a directory, sorted, a bounded number at a time.
//!
//! An operating system lists a directory in no order, and keys must rise, so names are sorted here. A directory may have
//! more names than memory: then the smallest [`NAMES_MAX`] above a given one are kept, and the directory is listed
//! again for the next ones.

use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names held of one directory. 200,000 files fit twice; a directory with ten million is listed forty times.
pub const NAMES_MAX: usize = 1 << 18;

/// What a name stands for, as the directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Special,
}

/// Some names of a directory in byte order, one after another in one piece of memory.
#[derive(Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    /// Start, length and kind; sorted by name once collected.
    entries: Vec<(u32, u16, NameKind)>,
    next: usize,
    /// Whether the directory has names above these.
    pub has_more: bool,
    /// What ended the listing early, if something did.
    pub error: Option<io::ErrorKind>,
    /// Names of the whole directory that are too long to be held.
    pub too_long: u64,
}

impl Names {
    /// Lists `dir` and keeps at most `max` names above `low`, the smallest ones, none longer than `name_len_max`.
    pub fn read(dir: &Path, low: Bound<&[u8]>, max: usize, name_len_max: usize) -> io::Result<Self> {
        let mut names = Self::default();
        for entry in std::fs::read_dir(dir)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    names.error = Some(error.kind());
                    break;
                }
            };
            let name = entry.file_name();
            let name = name.as_bytes();
            if name.len() > name_len_max {
                names.too_long += 1;
                continue;
            }
            let is_wanted = match low {
                Bound::Included(low) => name >= low,
                Bound::Excluded(low) => name > low,
                Bound::Unbounded => true,
            };
            if !is_wanted {
                continue;
            }
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_dir() => NameKind::Dir,
                Ok(kind) if kind.is_file() => NameKind::File,
                Ok(kind) if kind.is_symlink() => NameKind::Symlink,
                Ok(_) => NameKind::Special,
                // It vanished while its kind was asked for. As a file it is opened, found missing, and counted.
                Err(_) => NameKind::File,
            };
            names.push(name, kind);
            if names.entries.len() >= max.saturating_mul(2) {
                names.keep_smallest(max);
            }
        }
        names.keep_smallest(max);
        names.sort();
        Ok(names)
    }

    /// The name `next` will return.
    pub fn peek(&self) -> Option<(&[u8], NameKind)> {
        self.entries.get(self.next).map(|entry| self.resolve(entry))
    }

    /// Takes the next name.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Names still to come.
    pub fn len(&self) -> usize {
        self.entries.len() - self.next
    }

    /// Whether no name is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the names still to come and says that there are more.
    pub fn forget(&mut self) {
        if !self.is_empty() {
            self.has_more = true;
        }
        self.bytes = Vec::new();
        self.entries = Vec::new();
        self.next = 0;
    }

    /// The names still to come, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], NameKind)> {
        self.entries[self.next..].iter().map(|entry| self.resolve(entry))
    }

    fn resolve(&self, &(start, len, kind): &(u32, u16, NameKind)) -> (&[u8], NameKind) {
        (&self.bytes[start as usize..start as usize + usize::from(len)], kind)
    }

    fn push(&mut self, name: &[u8], kind: NameKind) {
        // Both fit: a name has at most 255 bytes on every file system, and twice `NAMES_MAX` of them are 134 MB.
        let (Ok(start), Ok(len)) = (u32::try_from(self.bytes.len()), u16::try_from(name.len())) else { return };
        self.bytes.extend_from_slice(name);
        self.entries.push((start, len, kind));
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let name = |&(start, len, _): &(u32, u16, NameKind)| &bytes[start as usize..start as usize + usize::from(len)];
        self.entries.sort_unstable_by(|a, b| name(a).cmp(name(b)));
    }

    fn keep_smallest(&mut self, max: usize) {
        if self.entries.len() <= max {
            return;
        }
        self.sort();
        self.entries.truncate(max);
        self.has_more = true;
        let mut kept = Vec::with_capacity(self.bytes.len() / 2);
        for (start, len, _) in &mut self.entries {
            let from = *start as usize;
            *start = kept.len() as u32;
            kept.extend_from_slice(&self.bytes[from..from + usize::from(*len)]);
        }
        self.bytes = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_one_another_in_order_and_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected: Vec<String> = (0..100).map(|i| format!("f{}", i * 37 % 100)).collect();
        for name in &expected {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        expected.sort();
        for max in [1, 7, 50, 99, 100, 101] {
            let mut seen: Vec<Vec<u8>> = Vec::new();
            loop {
                let low = seen.last().map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_slice()));
                let names = Names::read(dir.path(), low, max, 255).unwrap();
                assert!(names.len() <= max);
                let has_more = names.has_more;
                let batch: Vec<Vec<u8>> = names.iter().map(|(name, _)| name.to_vec()).collect();
                seen.extend(batch);
                if !has_more {
                    break;
                }
            }
            assert_eq!(seen, expected.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>(), "max {max}");
        }
    }

    #[test]
    fn forgetting_says_that_there_is_more() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        let mut names = Names::read(dir.path(), Bound::Unbounded, 10, 255).unwrap();
        names.forget();
        assert!(names.has_more && names.peek().is_none());
        names.has_more = false;
        names.forget();
        assert!(!names.has_more, "nothing was left to forget");
    }
}
