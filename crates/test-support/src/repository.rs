//! Git repositories made up for one test.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::Path;
use std::process::Command;

/// A repository that is gone at the end of the test.
#[derive(Debug)]
pub struct Repository(tempfile::TempDir);

impl Repository {
    /// An empty one.
    #[allow(clippy::new_without_default, reason = "it makes a folder and runs git")]
    pub fn new() -> Self {
        Self::with_args(&[])
    }

    /// Made by `git init` with these arguments.
    pub fn with_args(args: &[&str]) -> Self {
        let repository = Self(tempfile::tempdir().unwrap());
        repository.git(&[&["init", "-q", "-b", "main"], args].concat());
        repository
    }

    /// Its working tree.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs git in it, and returns its answer.
    pub fn git(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// For commands that end badly on purpose, such as a merge with a conflict.
    pub fn try_git(&self, args: &[&str]) {
        self.command(args).output().unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.path()).args(args);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
            command.env(format!("GIT_{who}_DATE"), "2024-01-01T00:00:00Z");
        }
        command
    }

    /// Stores a tree of these lines, as `git ls-tree` would print them.
    pub fn made_tree(&self, lines: &str) -> String {
        let mut command = self.command(&["mktree"]);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
    }

    /// Stores a blob; it is part of no commit.
    pub fn blob(&self, content: &[u8]) -> Box<[u8]> {
        let path = self.path().join(".git/blob-to-hash");
        std::fs::write(&path, content).unwrap();
        let oid = self.git(&["hash-object", "-w", "--no-filters", path.to_str().unwrap()]);
        (0..oid.len() / 2).map(|at| u8::from_str_radix(&oid[2 * at..2 * at + 2], 16).expect("git prints hex")).collect()
    }

    /// Writes files and commits everything; returns the commit's id.
    pub fn commit(&self, message: &str, files: &[(&str, &str)]) -> String {
        for (path, text) in files {
            let path = self.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn loose(&self, oid: &[u8]) -> std::path::PathBuf {
        let hex: String = oid.iter().map(|byte| format!("{byte:02x}")).collect();
        self.path().join(format!(".git/objects/{}/{}", &hex[..2], &hex[2..]))
    }

    /// Spoils a loose object near its end, so that its header can still be read.
    pub fn corrupt(&self, oid: &[u8]) {
        let path = self.loose(oid);
        let mut bytes = std::fs::read(&path).unwrap();
        let len = bytes.len();
        bytes[len - len / 4..].fill(0xff);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}
