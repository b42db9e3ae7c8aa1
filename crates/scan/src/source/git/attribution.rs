//! Who brought a blob in: the first commit that has it, its author, its date, and the path.
//!
//! The list of a history knows the commit of each blob; its author is read for blobs with findings only. Where git made the
//! list, git is asked: for all blobs in one pass over the history, oldest commit first, which ends as soon as the last one is known.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::path::Path;

use super::list::ObjectList;
use super::store::Kind;
use super::store::Store;
use super::store::cache::ObjectCache;
use super::store::commit::Said;
use super::store::oid::Oid;
use super::{GitError, Running, hex_oid, parse_oid};
use crate::occurrence::Occurrence;
use crate::target::{Target, TargetKind};

/// How a blob came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribution {
    /// The commit, in hex.
    pub commit: String,
    /// Its author's name.
    pub author: String,
    /// Its author's address.
    pub email: String,
    /// When it was written, in ISO 8601.
    pub date: String,
    /// The first line of its message.
    pub subject: String,
    /// The path it put the blob at.
    pub path: Vec<u8>,
    /// Its place in the history: parents before children.
    pub order: u64,
}

/// How blobs came in.
#[derive(Debug, Default)]
pub struct Introductions(BTreeMap<Box<[u8]>, Attribution>);

impl Introductions {
    /// How the blobs of these occurrences came in; lists of objects lie in `dir`.
    pub fn of_occurrences<'o>(
        targets: &[Target],
        dir: &Path,
        occurrences: impl Iterator<Item = &'o Occurrence>,
    ) -> Result<Self, GitError> {
        let mut wanted: BTreeMap<u32, BTreeSet<Box<[u8]>>> = BTreeMap::new();
        for occurrence in occurrences {
            if let Some(blob) = &occurrence.blob {
                wanted.entry(occurrence.target).or_default().insert(blob.clone());
            }
        }
        let mut introductions = Self::default();
        for target in targets {
            let (TargetKind::Objects { list }, Some(mut blobs)) = (&target.kind, wanted.remove(&target.number)) else {
                continue;
            };
            let known = listed(&target.path, dir, list, &blobs);
            blobs.retain(|blob| !known.contains_key(blob));
            introductions.0.extend(known);
            if !blobs.is_empty() {
                match introduced(&target.path, blobs) {
                    Ok(found) => introductions.0.extend(found),
                    // Without git it stays open who brought in what is only staged, or is in no commit that can be read.
                    Err(GitError::Missing(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(introductions)
    }

    /// How this blob came in; `None` if no commit has it, as when it is only staged.
    pub fn of(&self, blob: &[u8]) -> Option<&Attribution> {
        self.0.get(blob)
    }
}

/// How blobs came in as the list knows it, with what the commits say.
fn listed(
    repository: &Path,
    dir: &Path,
    list: &[u8; 16],
    blobs: &BTreeSet<Box<[u8]>>,
) -> BTreeMap<Box<[u8]>, Attribution> {
    let introduced = ObjectList::open(dir, list).and_then(|list| list.introduced(blobs));
    let (Ok(introduced), Ok(store)) = (introduced, Store::open(repository)) else { return BTreeMap::new() };
    let mut objects = ObjectCache::new(&store);
    let mut found = BTreeMap::new();
    for (blob, came) in introduced {
        let Some(oid) = Oid::new(&came.commit) else { continue };
        if let Ok((Kind::Commit, content)) = objects.read(&oid) {
            let Said { author, email, date, subject } = Said::by(&content);
            let (commit, path) = (hex_oid(&came.commit), came.path.into());
            found.insert(blob, Attribution { commit, author, email, date, subject, path, order: came.order });
        }
    }
    found
}

const SEPARATOR: u8 = 0x1f;

/// How blobs came in, as git tells.
pub(super) fn introduced(
    repository: &Path,
    mut blobs: BTreeSet<Box<[u8]>>,
) -> Result<BTreeMap<Box<[u8]>, Attribution>, GitError> {
    let mut found = BTreeMap::new();
    let args = [
        "--all",
        "--reverse",
        "--date-order",
        "--raw",
        "-m",
        "--root",
        "--no-renames",
        "--no-abbrev",
        "--no-color",
        "--encoding=UTF-8",
        "--format=%x1f%H%x1f%an%x1f%ae%x1f%aI%x1f%s",
    ];
    let mut running = Running::start(repository, "log", &args, false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    let mut commit: Option<Attribution> = None;
    let mut order = 0;
    let read = for_each_line_while(BufReader::with_capacity(1 << 16, stdout), |line| {
        match line.first() {
            Some(&SEPARATOR) => {
                let mut fields = line[1..].split(|&byte| byte == SEPARATOR);
                let mut text = || String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
                order += 1;
                commit = Some(Attribution {
                    commit: text(),
                    author: text(),
                    email: text(),
                    date: text(),
                    subject: text(),
                    path: Vec::new(),
                    order,
                });
            }
            Some(b':') => {
                // :100644 100644 <old> <new> M<TAB>path
                let tab = memchr::memchr(b'\t', line).unwrap_or(line.len());
                let new = line[..tab].split(|&byte| byte == b' ').nth(3).and_then(parse_oid);
                if let (Some(new), Some(commit)) = (new, &commit)
                    && blobs.remove(&new)
                {
                    let path = unquoted(line.get(tab + 1..).unwrap_or_default());
                    found.insert(new, Attribution { path, ..commit.clone() });
                }
            }
            _ => {}
        }
        !blobs.is_empty()
    });
    let is_whole = read.map_err(GitError::io("reading from git log"))?;
    // A walk that breaks leaves blobs without a commit; what is known is still worth showing.
    if is_whole {
        let _ = running.finish();
    }
    Ok(found)
}

/// Whether the input was read to its end.
fn for_each_line_while(input: impl std::io::BufRead, mut visit: impl FnMut(&[u8]) -> bool) -> std::io::Result<bool> {
    let mut goes_on = true;
    let mut input = input;
    let mut line = Vec::new();
    while goes_on && input.read_until(b'\n', &mut line)? > 0 {
        goes_on = visit(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(goes_on)
}

/// A path as git prints it, without the quotes and escapes it has if it contains unusual bytes.
fn unquoted(path: &[u8]) -> Vec<u8> {
    let Some(inner) = path.strip_prefix(b"\"").and_then(|path| path.strip_suffix(b"\"")) else { return path.to_vec() };
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        match bytes.next() {
            Some(digit @ b'0'..=b'3') => {
                let mut octal = || bytes.next().map_or(0, |digit| digit.wrapping_sub(b'0') & 7);
                let (middle, low) = (octal(), octal());
                plain.push((digit - b'0') << 6 | middle << 3 | low);
            }
            Some(b'n') => plain.push(b'\n'),
            Some(b't') => plain.push(b'\t'),
            Some(b'r') => plain.push(b'\r'),
            Some(b'a') => plain.push(7),
            Some(b'b') => plain.push(8),
            Some(b'f') => plain.push(12),
            Some(b'v') => plain.push(11),
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Repository;

    #[test]
    fn a_blob_is_attributed_to_the_first_commit_that_has_it() {
        let repository = Repository::new();
        repository.commit("first", &[("a.txt", "plain\n")]);
        let second = repository.commit("second", &[("dir/\u{e4}\t.txt", "secret\n")]);
        repository.commit("third", &[("copy.txt", "secret\n")]);
        let blob = repository.blob(b"secret\n");
        let absent = repository.blob(b"never committed");
        let found = introduced(repository.path(), [blob.clone(), absent.clone()].into()).unwrap();
        let attribution = &found[&blob];
        assert_eq!((&attribution.commit, &attribution.subject[..]), (&second, "second"));
        assert_eq!(attribution.path, "dir/\u{e4}\t.txt".as_bytes());
        assert_eq!((&attribution.author[..], &attribution.email[..]), ("Ada", "ada@example.org"));
        assert!(attribution.date.starts_with("2024-01-01T"), "{}", attribution.date);
        assert!(!found.contains_key(&absent));
    }

    #[test]
    fn a_blob_made_by_a_merge_is_attributed_to_it() {
        let repository = Repository::new();
        repository.commit("base", &[("a", "1\n")]);
        repository.git(&["checkout", "-q", "-b", "side"]);
        repository.commit("side", &[("a", "2\n")]);
        repository.git(&["checkout", "-q", "main"]);
        repository.commit("main", &[("a", "3\n")]);
        repository.try_git(&["merge", "-q", "side"]);
        let merge = repository.commit("merge", &[("a", "evil\n")]);
        let blob = repository.blob(b"evil\n");
        assert_eq!(introduced(repository.path(), [blob.clone()].into()).unwrap()[&blob].commit, merge);
    }

    #[test]
    fn quoted_paths_are_read() {
        assert_eq!(unquoted(br#"plain"#), b"plain");
        assert_eq!(unquoted(br#""a\303\244\t\"\\""#), b"a\xc3\xa4\t\"\\");
        assert_eq!(unquoted(br#""\"#), b"\"\\");
    }
}
