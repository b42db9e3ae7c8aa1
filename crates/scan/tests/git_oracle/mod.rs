//! What a repository holds, as git commands tell it: the ground truth that scans are compared with. Nothing here calls our code.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A blob by its id in hex, and a path it stands at.
pub(crate) type Pair = (String, String);

/// A git command in `dir`, without the user's settings and without what a hook that runs this test put into the environment.
pub(crate) fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(args);
    for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
    }
    command
}

/// What a git command prints, which must succeed.
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let output = command(dir, args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Feeds `input` to a git command, which must succeed.
pub(crate) fn git_with_input(dir: &Path, args: &[&str], input: &[u8]) -> String {
    let mut child = command(dir, args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "git {args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a file below `root`.
pub(crate) fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Commits everything in the working tree; returns the commit's id.
pub(crate) fn commit_all(dir: &Path, subject: &str) -> String {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", subject]);
    git(dir, &["rev-parse", "HEAD"]).trim().to_owned()
}

/// Every blob of a tree with its path. Submodules are no blobs.
pub(crate) fn pairs_of_tree(dir: &Path, tree: &str) -> BTreeSet<Pair> {
    let listed = git(dir, &["ls-tree", "-r", "-z", "--full-tree", tree]);
    let entries = listed.split('\0').filter(|entry| !entry.is_empty());
    entries
        .filter_map(|entry| {
            let (head, path) = entry.split_once('\t').unwrap();
            let mut words = head.split(' ').skip(1);
            (words.next() == Some("blob")).then(|| (words.next().unwrap().to_owned(), path.to_owned()))
        })
        .collect()
}

/// The blobs and paths of each commit that a ref leads to.
pub(crate) fn pairs_by_commit(dir: &Path) -> BTreeMap<String, BTreeSet<Pair>> {
    let commits = git(dir, &["rev-list", "--all"]);
    commits.lines().map(|commit| (commit.to_owned(), pairs_of_tree(dir, commit))).collect()
}

/// All blobs and paths of a history.
pub(crate) fn pairs(dir: &Path) -> BTreeSet<Pair> {
    pairs_by_commit(dir).into_values().flatten().collect()
}

/// The lines of a blob, from 1 on, that contain `needle`.
pub(crate) fn lines_with(dir: &Path, blob: &str, needle: &str) -> Vec<u64> {
    let output = command(dir, &["cat-file", "blob", blob]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().zip(1..).filter(|(line, _)| line.contains(needle)).map(|(_, number)| number).collect()
}
