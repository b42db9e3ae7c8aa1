//! What is staged for the next commit: paths whose staged blob differs from the last commit.
//!
//! **Which index.** A repository is always found by the target's path; what the environment says about repositories (`GIT_DIR`,
//! `GIT_WORK_TREE`, …) is not listened to, since it speaks of whichever repository git was called for. One exception: a hook must see
//! the index that is being committed, which for `git commit -a` and `git commit PATH` is a temporary one that
//! `GIT_INDEX_FILE` names. So that variable counts if the repository that git finds where this program was started is the
//! target's own, and the file it names does not lie in another repository. For every other target the target's own index is read.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::list::{Entry, Listed, Placed, Presence, Scope};
use super::{GitError, Running, parse_oid};
use crate::fleet::PASSWORD_VARIABLE;

const INDEX: &str = "GIT_INDEX_FILE";

/// Blobs that are staged and differ from the last commit, each with all paths that it is staged at.
pub(super) fn listed(repository: &Path) -> Result<Listed, GitError> {
    let index = std::env::var_os(INDEX).and_then(|_| index_of_caller(repository));
    listed_in(repository, index.as_deref())
}

/// As [`listed`], with this index or the repository's own.
fn listed_in(repository: &Path, index: Option<&Path>) -> Result<Listed, GitError> {
    let args = [
        "--cached",
        "--raw",
        "-z",
        "--no-abbrev",
        "--no-renames",
        "--no-relative",
        "--ignore-submodules=none",
        "--no-color",
        "--no-ext-diff",
        "--diff-filter=AMTU",
    ];
    let mut running = Running::start_with(repository, "diff", &args, |command| {
        if let Some(index) = index {
            command.env(INDEX, index);
        }
    })?;
    let mut stdout = BufReader::new(running.child.stdout.take().expect("it was piped"));
    let unexpected = || GitError::Unexpected { command: "diff" };
    let mut field = || -> Result<Option<Vec<u8>>, GitError> {
        let mut field = Vec::new();
        stdout.read_until(0, &mut field).map_err(GitError::io("reading from git diff"))?;
        Ok((field.pop() == Some(0)).then_some(field))
    };
    let mut entries = Entries::default();
    while let Some(header) = field()? {
        let path = field()?.ok_or_else(unexpected)?;
        // `:100644 100644 <old> <new> M`
        let words: Vec<&[u8]> = header.split(|&byte| byte == b' ').collect();
        let [_, mode, _, oid, status] = words[..] else { return Err(unexpected()) };
        let oid = parse_oid(oid).ok_or_else(unexpected)?;
        match (status, mode) {
            (b"U", _) => entries.add_one(Box::default(), Presence::Unmerged, path),
            (_, b"120000") => entries.add_one(oid, Presence::Symlink, path),
            (_, b"160000") => entries.all.push(Entry::submodule(&path)),
            _ => entries.add_blob(oid, path),
        }
    }
    running.finish()?;
    Ok(Listed { scope: Scope::Staged, entries: entries.all, commits: Vec::new() })
}

#[derive(Default)]
struct Entries {
    all: Vec<Entry>,
    blobs: HashMap<Box<[u8]>, usize>,
}

impl Entries {
    /// The same content at another path is another place of the same blob.
    fn add_blob(&mut self, oid: Box<[u8]>, path: Vec<u8>) {
        let place = Placed { path: path.into(), commit: None };
        match self.blobs.get(&oid) {
            Some(&at) => self.all[at].places.push(place),
            None => {
                self.blobs.insert(oid.clone(), self.all.len());
                self.all.push(Entry { places: vec![place], ..Entry::new(oid, Presence::Present) });
            }
        }
    }

    fn add_one(&mut self, oid: Box<[u8]>, presence: Presence, path: Vec<u8>) {
        let places = vec![Placed { path: path.into(), commit: None }];
        self.all.push(Entry { places, ..Entry::new(oid, presence) });
    }
}

/// The index that the caller's environment names, if it is one of this repository.
fn index_of_caller(repository: &Path) -> Option<PathBuf> {
    let git_dir = absolute(&answer(super::git(repository, &["rev-parse", "--absolute-git-dir"]))?)?;
    let theirs = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(args).env_remove(PASSWORD_VARIABLE).stdin(Stdio::null()).stderr(Stdio::null());
        answer(command)
    };
    if absolute(&theirs(&["rev-parse", "--absolute-git-dir"])?)? != git_dir {
        return None;
    }
    // Git knows what a relative name is relative to.
    let index = absolute(&theirs(&["rev-parse", "--git-path", "index"])?)?;
    let folder = index.parent()?;
    (folder == git_dir || !is_git_dir(folder)).then_some(index)
}

/// A path without links, if it is there.
fn absolute(path: &OsStr) -> Option<PathBuf> {
    Path::new(path).canonicalize().ok()
}

/// Whether a folder is that of a repository or of a linked working tree.
fn is_git_dir(folder: &Path) -> bool {
    folder.join("HEAD").exists() && (folder.join("objects").exists() || folder.join("commondir").exists())
}

/// The line that a git command prints, if it succeeds.
fn answer(mut command: Command) -> Option<OsString> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(OsStr::from_bytes(output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout)).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Repository;

    fn told(listed: &Listed) -> Vec<(Presence, Vec<String>)> {
        let path = |place: &Placed| String::from_utf8_lossy(&place.path).into_owned();
        let paths = |entry: &Entry| entry.places.iter().map(path).collect::<Vec<_>>();
        let mut told: Vec<_> = listed.entries.iter().map(|entry| (entry.presence, paths(entry))).collect();
        told.sort_by(|a, b| a.1.cmp(&b.1));
        told
    }

    fn present(paths: &[&str]) -> (Presence, Vec<String>) {
        (Presence::Present, paths.iter().map(|&path| path.to_owned()).collect())
    }

    #[test]
    fn one_blob_at_two_paths_is_one_entry_with_two_places_and_a_rename_stands_at_its_new_path() {
        let repository = Repository::new();
        repository.commit("first", &[("old", "moves\n"), ("kept", "stays\n")]);
        repository.git(&["mv", "old", "new"]);
        std::fs::write(repository.path().join("one"), "same\n").unwrap();
        std::fs::write(repository.path().join("two"), "same\n").unwrap();
        repository.git(&["add", "-A"]);
        let listed = listed_in(repository.path(), None).unwrap();
        assert_eq!(told(&listed), [present(&["new"]), present(&["one", "two"])]);
        assert_eq!(listed.scope, Scope::Staged);
    }

    #[test]
    fn links_and_unmerged_paths_and_submodules_are_entries_of_their_own() {
        let repository = Repository::new();
        repository.commit("base", &[("a", "1\n")]);
        repository.git(&["checkout", "-q", "-b", "side"]);
        repository.commit("side", &[("a", "2\n")]);
        repository.git(&["checkout", "-q", "main"]);
        repository.commit("main", &[("a", "3\n")]);
        repository.try_git(&["merge", "-q", "side"]);
        std::os::unix::fs::symlink("a", repository.path().join("link")).unwrap();
        repository.git(&["add", "link"]);
        repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{},sub", "1".repeat(40))]);
        let listed = listed_in(repository.path(), None).unwrap();
        let one = |presence, path: &str| (presence, vec![path.to_owned()]);
        let expected = [one(Presence::Unmerged, "a"), one(Presence::Symlink, "link"), one(Presence::Submodule, "sub")];
        assert_eq!(told(&listed), expected);
    }

    #[test]
    fn another_index_is_read_if_it_is_named() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1\n")]);
        let other = repository.path().join(".git/other-index");
        std::fs::copy(repository.path().join(".git/index"), &other).unwrap();
        std::fs::write(repository.path().join("a"), "2\n").unwrap();
        repository.git(&["add", "a"]);
        assert_eq!(told(&listed_in(repository.path(), None).unwrap()), [present(&["a"])]);
        assert!(listed_in(repository.path(), Some(&other)).unwrap().entries.is_empty());
    }
}
