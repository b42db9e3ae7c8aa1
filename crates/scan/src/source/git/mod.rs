//! Repositories: which blobs there are, where they stand, what is in them, and who brought them in.

pub mod attribution;
mod by_git;
pub mod cat_file;
mod history;
pub mod list;
pub mod objects;
mod quoted;
pub mod range;
pub mod reader;
mod staged;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tessera_git_objects::layout::{Layout, LayoutError};
pub(crate) use tessera_git_objects::oid::{hex_oid, parse_oid};

use crate::fleet::PASSWORD_VARIABLE;

/// Git cannot do what is asked.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git.
    #[error("cannot run git: {0}; this needs git 2.36 or later in the PATH")]
    Missing(std::io::Error),
    /// Neither we nor git can read it.
    #[error("{reason}; git does not help: {by_git}")]
    Neither {
        /// Why we cannot.
        reason: String,
        /// Why git cannot.
        by_git: Box<GitError>,
    },
    /// There is one, and it cannot be used.
    #[error("{0}")]
    Damaged(String),
    /// Git ended before it was done.
    #[error("git {command} in {} failed ({status}): {message}", path.display())]
    Failed {
        /// The subcommand.
        command: &'static str,
        /// Where.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// The last line it wrote.
        message: String,
    },
    /// Git answered something else than expected.
    #[error("git {command} answered in a way this version does not understand")]
    Unexpected {
        /// The subcommand.
        command: &'static str,
    },
    /// A pipe or file failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the operating system says.
        source: std::io::Error,
    },
}

impl GitError {
    pub(crate) fn io(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// What an environment can say about repositories. Git sets some of it for hooks; it speaks of the repository git was called for,
/// which need not be the one that is scanned. A repository is found by its path alone.
const LOCAL_VARIABLES: [&str; 10] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_SHALLOW_FILE",
    "GIT_NAMESPACE",
];

/// A git command in a repository that neither asks questions, nor fetches, nor reads the user's settings of output.
pub(crate) fn git(repository: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("git");
    for variable in LOCAL_VARIABLES {
        command.env_remove(variable);
    }
    command
        .env_remove(PASSWORD_VARIABLE)
        .arg("-C")
        .arg(repository)
        // Packs are mapped in pieces and deltas are cached within bounds, so that memory does not follow the pack's size.
        .args(["-c", "core.packedGitWindowSize=1m", "-c", "core.packedGitLimit=64m"])
        .args(["-c", "core.deltaBaseCacheLimit=48m", "-c", "core.bigFileThreshold=16m"])
        .args(["-c", "core.fsmonitor=false", "-c", "log.showSignature=false"])
        // Git ends with an error if a user's order of files cannot be read. What else a user likes to see (a folder's own changes alone, no
        // submodules, colours) is set by flags of each command.
        .args(["-c", "diff.orderFile=/dev/null"])
        .args(args)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        // A partial clone lacks objects on purpose: they are counted as missing, not fetched behind the user's back.
        .env("GIT_NO_LAZY_FETCH", "1")
        // What was put in another's place is a ref of its own: both are read, neither hides the other.
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_GRAFT_FILE", "/dev/null")
        .env_remove("GIT_EXTERNAL_DIFF")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// A git command under way.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    /// What it complains about. A file in memory and not a pipe: a full pipe that nobody reads would stop it.
    complaints: Option<File>,
    name: &'static str,
    repository: PathBuf,
}

impl Running {
    /// Starts git.
    pub(crate) fn start(repository: &Path, name: &'static str, args: &[&str], reads: bool) -> Result<Self, GitError> {
        Self::start_with(repository, name, args, |command| {
            if reads {
                command.stdin(Stdio::piped());
            }
        })
    }

    /// Starts git after `change` has changed the command.
    pub(crate) fn start_with(
        repository: &Path,
        name: &'static str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, GitError> {
        let complaints = rustix::fs::memfd_create("git-stderr", rustix::fs::MemfdFlags::CLOEXEC).ok().map(File::from);
        let mut command = git(repository, &[name]);
        command.args(args);
        change(&mut command);
        if let Some(file) = complaints.as_ref().and_then(|file| file.try_clone().ok()) {
            command.stderr(file);
        }
        let child = command.spawn().map_err(GitError::Missing)?;
        Ok(Self { child, complaints, name, repository: repository.to_path_buf() })
    }

    /// Waits for it to end, and to end well.
    pub(crate) fn finish(mut self) -> Result<(), GitError> {
        drop(self.child.stdin.take());
        let status = self.child.wait().map_err(GitError::io("waiting for git"))?;
        if status.success() { Ok(()) } else { Err(self.failed(&status.to_string())) }
    }

    fn failed(&self, status: &str) -> GitError {
        let mut message = Vec::new();
        if let Some(file) = &self.complaints {
            let len = file.metadata().map_or(0, |metadata| metadata.len());
            let kept = len.min(4_096);
            message.resize(kept as usize, 0);
            if file.read_exact_at(&mut message, len - kept).is_err() {
                message.clear();
            }
        }
        let message = String::from_utf8_lossy(&message);
        let last = message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned();
        GitError::Failed { command: self.name, path: self.repository.clone(), status: status.into(), message: last }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not wanted any more; one that has ended cannot be killed, and that is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a git command prints, if it ends well.
pub(crate) fn output_of(repository: &Path, name: &'static str, args: &[&str]) -> Result<Vec<u8>, GitError> {
    let mut running = Running::start(repository, name, args, false)?;
    let mut printed = Vec::new();
    let mut stdout = running.child.stdout.take().expect("it was piped");
    stdout.read_to_end(&mut printed).map_err(GitError::io("reading from git"))?;
    running.finish()?;
    Ok(printed)
}

/// Commits whose parents were left out when the repository was cloned, as git tells.
pub(crate) fn cut_commits(repository: &Path) -> Vec<Box<[u8]>> {
    by_git::cut(repository)
}

/// Whether `path` is a repository or lies in one.
///
/// # Errors
/// There is one, and it is damaged. Git is not asked then: it would take the repository around it.
pub fn is_repository(path: &Path) -> Result<bool, GitError> {
    match Layout::discover(path) {
        Ok(_) => return Ok(true),
        Err(error @ LayoutError::Damaged { .. }) => return Err(GitError::Damaged(error.to_string())),
        Err(_) => {}
    }
    let answer = git(path, &["rev-parse", "--git-dir"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(answer.is_ok_and(|status| status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::git::list::Listed;
    use crate::source::git::range::CommitRange;
    use tessera_git_objects::places::BOUNDS;
    use test_support::Repository;

    /// Settings that change what git prints, or how, in the repository's own configuration.
    const SETTINGS: [(&str, &str); 34] = [
        ("diff.relative", "true"),
        ("diff.orderFile", "no-such-file"),
        ("diff.renames", "copies"),
        ("diff.renameLimit", "1"),
        ("diff.noprefix", "true"),
        ("diff.mnemonicPrefix", "true"),
        ("diff.srcPrefix", "x/"),
        ("diff.external", "false"),
        ("diff.ignoreSubmodules", "all"),
        ("diff.submodule", "log"),
        ("diff.algorithm", "patience"),
        ("diff.colorMoved", "zebra"),
        ("diff.noise.textconv", "false"),
        ("diff.noise.command", "false"),
        ("submodule.there.ignore", "all"),
        ("submodule.recurse", "true"),
        ("color.ui", "always"),
        ("color.diff", "always"),
        ("core.pager", "false"),
        ("pager.log", "true"),
        ("pager.diff", "true"),
        ("core.quotePath", "false"),
        ("core.abbrev", "5"),
        ("log.abbrevCommit", "true"),
        ("log.showSignature", "true"),
        ("log.showRoot", "false"),
        ("log.follow", "true"),
        ("log.decorate", "full"),
        ("log.date", "relative"),
        ("log.diffMerges", "first-parent"),
        ("log.mailmap", "false"),
        ("format.pretty", "oneline"),
        ("format.notes", "true"),
        ("notes.displayRef", "refs/notes/*"),
    ];

    /// Versions below and beside a folder, a renamed file, names beyond ASCII, submodules, a merge that changes what both sides have, notes,
    /// and something staged.
    fn repository() -> Repository {
        let repository = Repository::new();
        let commit = |message: &str, files: &[(&str, &str)]| drop(repository.commit(message, files));
        let submodule = |path: &str, digit: &str| {
            let info = format!("160000,{},{path}", digit.repeat(40));
            repository.git(&["update-index", "--add", "--cacheinfo", &info]);
        };
        let text = "a line\n".repeat(20);
        commit(
            "first",
            &[("a", "1\n"), ("sub/b", "2\n"), ("sub/\u{e4}\t", "3\n"), (".gitattributes", "* diff=noise\n")],
        );
        commit("second", &[("a", "4\n"), ("sub/b", "5\n"), ("old", &text)]);
        repository.git(&["mv", "old", "sub/new"]);
        let module = "[submodule \"there\"]\n\tpath = there\n\turl = ../there\n";
        commit("moved", &[(".gitmodules", module)]);
        submodule("there", "1");
        repository.git(&["commit", "-q", "-m", "a submodule"]);
        repository.git(&["checkout", "-q", "-b", "side"]);
        commit("side", &[("a", "6\n"), ("sub/side", "7\n")]);
        repository.git(&["checkout", "-q", "main"]);
        commit("main", &[("a", "8\n")]);
        repository.try_git(&["merge", "-q", "side"]);
        commit("merge", &[("a", "9\n"), ("sub/merged", "10\n")]);
        repository.git(&["notes", "add", "-m", ":100644 100644 1 2 M\tnoted"]);
        for (path, text) in [("a", "11\n"), ("sub/b", "12\n")] {
            std::fs::write(repository.path().join(path), text).unwrap();
            repository.git(&["add", path]);
        }
        submodule("there", "2");
        repository
    }

    fn told(listed: Listed) -> Vec<String> {
        let mut told = Vec::new();
        for entry in listed.entries {
            let commit = |number: Option<u32>| number.map(|number| hex_oid(listed.commits[number as usize].as_bytes()));
            let place =
                |place: &list::Placed| (String::from_utf8_lossy(&place.path).into_owned(), commit(place.commit));
            let mut places: Vec<_> = entry.places.iter().map(place).collect();
            places.sort();
            told.push(format!("{} {:?} {places:?} {}", hex_oid(&entry.oid), entry.presence, entry.has_more));
        }
        told.sort();
        told
    }

    /// Everything that git commands list, from a folder of the repository.
    fn listings(folder: &Path) -> [Vec<String>; 4] {
        let range = |revision: &str| {
            let range = CommitRange { revisions: vec![revision.into()], ..CommitRange::default() };
            told(range::listed(folder, &range).unwrap())
        };
        [
            range("HEAD"),
            range("HEAD~1..HEAD"),
            told(by_git::history(folder, BOUNDS).unwrap()),
            told(staged::listed(folder).unwrap()),
        ]
    }

    #[test]
    fn no_setting_of_a_user_changes_what_is_listed() {
        let repository = repository();
        let (root, folder) = (repository.path(), repository.path().join("sub"));
        let expected = listings(root);
        for (listing, paths) in expected.iter().zip([
            &["\"a\"", "\"sub/b\"", "\"sub/\u{e4}\\t\"", "\"sub/new\"", "Submodule [(\"there\""][..],
            &["\"a\"", "\"sub/merged\""],
            &["\"a\"", "\"sub/b\"", "\"sub/\u{e4}\\t\"", "\"sub/new\"", "Submodule [(\"there\""],
            &["\"a\"", "\"sub/b\"", "Submodule [(\"there\""],
        ]) {
            let text = listing.join("\n");
            assert!(paths.iter().all(|path| text.contains(path)), "{text}");
        }
        assert_eq!(listings(&folder), expected, "from a folder");
        let mut wrong = Vec::new();
        for (name, value) in SETTINGS {
            repository.git(&["config", name, value]);
            let found = std::panic::catch_unwind(|| listings(&folder));
            wrong.extend(found.map_or(true, |found| found != expected).then_some(name));
            repository.git(&["config", "--unset", name]);
        }
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn a_command_that_fails_says_where_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), "rev-parse", &["--no-such-option", "nothing"], false).unwrap();
        let error = running.finish().unwrap_err().to_string();
        assert!(error.starts_with("git rev-parse in /") && error.contains("fatal:"), "{error}");
    }
}
