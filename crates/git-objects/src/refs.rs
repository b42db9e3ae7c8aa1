//! What the refs of a repository point at.
//!
//! A ref that cannot be read hides a part of the history. A crash leaves empty files, a disk leaves rubbish: nothing of this
//! is passed over, it makes the tips *broken*, and a walk from them knows that there is more.
//!
//! A symbolic ref may name a ref outside of `refs`, such as `ORIG_HEAD`, to which nothing else leads. Git looks for it in the
//! working tree at hand; here it counts in every working tree that has it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::oid::Oid;
use crate::plain_file;

/// Longest file of a single ref: a name of an object, or of another ref.
const REF_BYTES_MAX: u64 = 8 << 10;
/// Longest file of packed refs: some millions of them.
const PACKED_BYTES_MAX: u64 = 512 << 20;

/// Where walks begin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tips {
    /// What refs and heads point at, each once, in the order of their names.
    pub oids: Vec<Oid>,
    /// Refs that lead to them, as `git for-each-ref` counts; a detached head is none.
    pub refs: usize,
    /// Whether there are refs that cannot be read.
    pub is_broken: bool,
}

impl Tips {
    /// Of the refs that all working trees share, and of those that `worktrees` have for themselves.
    pub(crate) fn of(common_dir: &Path, worktrees: &[PathBuf]) -> Self {
        let mut refs = Refs::default();
        match plain_file::read(&common_dir.join("packed-refs"), PACKED_BYTES_MAX) {
            Ok(packed) => refs.packed(&packed.unwrap_or_default()),
            Err(_) => refs.is_broken = true,
        }
        let mut oids = Vec::new();
        refs.root(common_dir);
        oids.extend(refs.take());
        for root in worktrees {
            // Two working trees may have refs of the same name.
            refs.root(root);
            oids.extend(refs.take());
        }
        refs.outside(common_dir, worktrees);
        oids.extend(refs.take());
        let mut seen = HashSet::new();
        oids.retain(|oid| seen.insert(*oid));
        Self { oids, refs: refs.taken, is_broken: refs.is_broken }
    }
}

#[derive(Debug, Default)]
struct Refs {
    found: BTreeMap<Vec<u8>, Oid>,
    /// How many were taken that lie below `refs`.
    taken: usize,
    /// Folders that were listed, by device and number: links may lead back to them.
    listed: HashSet<(u64, u64)>,
    /// What symbolic refs name outside of `refs`.
    outside: BTreeSet<Vec<u8>>,
    is_broken: bool,
}

impl Refs {
    /// What was found since the last call.
    fn take(&mut self) -> impl Iterator<Item = Oid> + use<> {
        let found = std::mem::take(&mut self.found);
        self.taken += found.keys().filter(|name| name.starts_with(b"refs/")).count();
        found.into_values()
    }

    fn packed(&mut self, text: &[u8]) {
        for line in text.split(|&byte| byte == b'\n') {
            // Remarks, and what the tag of the line before leads to.
            if matches!(line.first(), None | Some(b'#' | b'^')) {
                continue;
            }
            let read = memchr::memchr(b' ', line).and_then(|space| Some((Oid::from_hex(&line[..space])?, space)));
            match read {
                Some((oid, space)) => drop(self.found.insert(line[space + 1..].to_vec(), oid)),
                None => self.is_broken = true,
            }
        }
    }

    fn root(&mut self, root: &Path) {
        self.folder(&root.join("refs"), b"refs");
        self.single(&root.join("HEAD"), b"HEAD".to_vec());
    }

    /// Refs that are files of their own; they outdo packed ones of the same name.
    fn folder(&mut self, dir: &Path, name: &[u8]) {
        let mut open = vec![(dir.to_path_buf(), name.to_vec())];
        while let Some((dir, name)) = open.pop() {
            let entries = std::fs::metadata(&dir)
                .map(|folder| self.listed.insert((folder.dev(), folder.ino())))
                .and_then(|is_new| if is_new { std::fs::read_dir(&dir).map(Some) } else { Ok(None) });
            let entries = match entries {
                Ok(entries) => entries.into_iter().flatten(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => {
                    self.is_broken = true;
                    continue;
                }
            };
            for entry in entries {
                let Ok(entry) = entry else {
                    self.is_broken = true;
                    continue;
                };
                let (path, file_name) = (entry.path(), entry.file_name());
                // No names of refs, as in git; the second are being written.
                if file_name.as_bytes().starts_with(b".") || file_name.as_bytes().ends_with(b".lock") {
                    continue;
                }
                let name = [&name, &b"/"[..], file_name.as_bytes()].concat();
                if path.is_dir() {
                    open.push((path, name));
                } else {
                    self.single(&path, name);
                }
            }
        }
    }

    fn single(&mut self, path: &Path, name: Vec<u8>) {
        match plain_file::read(path, REF_BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(text)) if text.starts_with(b"ref:") => {
                self.found.remove(&name);
                self.names(text[b"ref:".len()..].trim_ascii());
            }
            Ok(Some(text)) => match Oid::from_hex(text.split(u8::is_ascii_whitespace).next().unwrap_or_default()) {
                Some(oid) => drop(self.found.insert(name, oid)),
                None => self.is_broken = true,
            },
            Err(_) => self.is_broken = true,
        }
    }

    /// A symbolic ref names another one.
    fn names(&mut self, named: &[u8]) {
        let path = Path::new(OsStr::from_bytes(named));
        if named.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
            self.is_broken = true;
        } else if !named.starts_with(b"refs/") {
            // One below `refs` is in the list itself, or is yet to be born.
            self.outside.insert(named.to_vec());
        }
    }

    /// Refs outside of `refs` that others name, wherever they are.
    fn outside(&mut self, common_dir: &Path, worktrees: &[PathBuf]) {
        let mut met = HashSet::new();
        while let Some(named) = self.outside.pop_first() {
            if !met.insert(named.clone()) {
                continue;
            }
            let of_main = named.strip_prefix(b"main-worktree/").unwrap_or(&named);
            let roots = worktrees.iter().map(|root| (root.as_path(), &named[..]));
            for (number, (root, name)) in std::iter::once((common_dir, of_main)).chain(roots).enumerate() {
                self.single(&root.join(OsStr::from_bytes(name)), [&number.to_be_bytes(), name].concat());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OID: &str = "1111111111111111111111111111111111111111";

    /// A folder with a branch, and what `spoil` makes of it.
    fn tips(spoil: impl FnOnce(&Path)) -> (usize, bool) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("refs/heads")).unwrap();
        std::fs::write(dir.path().join("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(dir.path().join("refs/heads/main"), format!("{OID}\n")).unwrap();
        spoil(dir.path());
        let tips = Tips::of(dir.path(), &[]);
        (tips.oids.len(), tips.is_broken)
    }

    #[test]
    fn a_ref_that_cannot_be_read_is_never_passed_over() {
        assert_eq!(tips(|_| {}), (1, false));
        let write =
            |name: &'static str, text: &'static str| move |dir: &Path| std::fs::write(dir.join(name), text).unwrap();
        assert_eq!(tips(write("refs/heads/empty-after-a-crash", "")), (1, true));
        assert_eq!(tips(write("refs/heads/rubbish", "not a name\n")), (1, true));
        assert_eq!(tips(write("HEAD", "\0\0\0")), (1, true));
        assert_eq!(tips(write("packed-refs", "# pack-refs with: peeled\n123 refs/heads/x\n")), (1, true));
        assert_eq!(tips(write("refs/heads/main.lock", "")), (1, false));
        assert_eq!(tips(write("refs/heads/nowhere", "ref: refs/heads/unborn\n")), (1, false));
        assert_eq!(tips(write("refs/heads/main", "2222222222222222222222222222222222222222 remark")), (1, false));
        let make_pipe = |dir: &Path| {
            rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("refs/heads/pipe"), rustix::fs::Mode::RWXU).unwrap();
        };
        assert_eq!(tips(make_pipe), (1, true));
    }

    #[test]
    fn a_ref_that_is_named_outside_of_refs_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, linked) = (dir.path().join("main"), dir.path().join("main/worktrees/linked"));
        std::fs::create_dir_all(root.join("refs/heads")).unwrap();
        std::fs::create_dir_all(&linked).unwrap();
        let tips = |symbolic: &str| {
            std::fs::write(root.join("refs/heads/symbolic"), format!("ref: {symbolic}\n")).unwrap();
            let tips = Tips::of(&root, std::slice::from_ref(&linked));
            (tips.oids.len(), tips.is_broken)
        };
        assert_eq!(tips("ORIG_HEAD"), (0, false), "yet to be born");
        std::fs::write(root.join("ORIG_HEAD"), format!("{OID}\n")).unwrap();
        assert_eq!(tips("ORIG_HEAD"), (1, false));
        assert_eq!(tips("main-worktree/ORIG_HEAD"), (1, false));
        std::fs::write(linked.join("KEPT_HEAD"), format!("{}\tremark\n", OID.replace('1', "2"))).unwrap();
        assert_eq!((tips("KEPT_HEAD"), tips("worktrees/linked/KEPT_HEAD")), ((1, false), (1, false)));
        std::fs::write(linked.join("ORIG_HEAD"), "ref: KEPT_HEAD\n").unwrap();
        assert_eq!(tips("ORIG_HEAD"), (2, false), "one in each working tree");
        std::fs::write(root.join("ORIG_HEAD"), "ref: ORIG_HEAD\n").unwrap();
        assert_eq!(tips("ORIG_HEAD"), (1, false), "around in a circle");
        for broken in ["", "../outside", "/etc/passwd", "refs/../../x"] {
            assert_eq!(tips(broken), (0, true), "{broken:?}");
        }
    }

    #[test]
    fn folders_that_link_to_themselves_are_listed_once() {
        let with_links = |dir: &Path| {
            for name in ["x", "y", "z"] {
                std::os::unix::fs::symlink("..", dir.join("refs/heads").join(name)).unwrap();
            }
        };
        assert_eq!(tips(with_links), (1, false));
    }

    #[test]
    fn two_working_trees_may_have_refs_of_the_same_name() {
        let dir = tempfile::tempdir().unwrap();
        let worktrees: Vec<PathBuf> = ["a", "b"].iter().map(|name| dir.path().join(name)).collect();
        for (root, digit) in worktrees.iter().zip(["2", "3"]) {
            std::fs::create_dir_all(root.join("refs/bisect")).unwrap();
            std::fs::write(root.join("refs/bisect/bad"), digit.repeat(40)).unwrap();
        }
        assert_eq!(Tips::of(dir.path(), &worktrees).oids.len(), 2);
    }
}
