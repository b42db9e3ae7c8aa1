//! Repositories: which blobs there are, what is in them, and who brought them in.

pub mod attribution;
pub mod list;
pub mod objects;
pub mod reader;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Git cannot do what is asked.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git.
    #[error("cannot run git: {0}; scanning a history needs git 2.36 or later in the PATH")]
    Missing(std::io::Error),
    /// Git ended before it was done.
    #[error("git {command} in {} failed ({status}): {message}", path.display())]
    Failed {
        /// The subcommand.
        command: &'static str,
        /// Where.
        path: std::path::PathBuf,
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

/// A git command in a repository that neither asks questions, nor fetches, nor reads the user's settings of output.
pub(crate) fn git(repository: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(repository)
        // Packs are mapped in pieces and deltas are cached within bounds, so that memory does not follow the pack's size.
        .args(["-c", "core.packedGitWindowSize=1m", "-c", "core.packedGitLimit=64m"])
        .args(["-c", "core.deltaBaseCacheLimit=48m", "-c", "core.bigFileThreshold=16m"])
        .args(["-c", "core.fsmonitor=false", "-c", "log.showSignature=false"])
        .args(args)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        // A partial clone lacks objects on purpose: they are counted as missing, not fetched behind the user's back.
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for `child` to end well.
pub(crate) fn ended_well(mut child: Child, command: &'static str, path: &Path) -> Result<(), GitError> {
    use std::io::Read;
    drop(child.stdin.take());
    let mut message = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // Read before waiting: a child that fills its pipe would never end. Bounded: it is shown in one line.
        let _ = stderr.take(1 << 16).read_to_end(&mut message);
    }
    let status = child.wait().map_err(GitError::io("waiting for git"))?;
    if status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&message);
    let message = message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned();
    Err(GitError::Failed { command, path: path.to_path_buf(), status: status.to_string(), message })
}

/// Whether `path` is a repository git accepts, bare or not.
pub fn is_repository(path: &Path) -> bool {
    let answer = git(path, &["rev-parse", "--git-dir"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}

/// Reads hex digits of an object id: 20 or 32 bytes.
pub(crate) fn parse_oid(hex: &[u8]) -> Option<Box<[u8]>> {
    if hex.len() != 40 && hex.len() != 64 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    hex.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Hex digits of an object id.
pub fn hex_oid(oid: &[u8]) -> String {
    use std::fmt::Write;
    oid.iter().fold(String::with_capacity(oid.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_ids_have_forty_or_sixty_four_digits() {
        assert_eq!(parse_oid(&[b'a'; 40]), Some(vec![0xaa; 20].into()));
        assert_eq!(parse_oid(&[b'0'; 64]).map(|oid| hex_oid(&oid)), Some("0".repeat(64)));
        assert_eq!((parse_oid(&[b'a'; 39]), parse_oid(&[b'g'; 40])), (None, None));
    }

    #[test]
    fn a_command_that_fails_says_where_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let child = git(dir.path(), &["rev-parse", "--git-dir"]).env("GIT_CEILING_DIRECTORIES", dir.path()).spawn();
        let error = ended_well(child.unwrap(), "rev-parse", dir.path()).unwrap_err();
        assert!(error.to_string().contains("not a git repository"), "{error}");
    }
}
