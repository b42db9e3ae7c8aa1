//! The `git` program, without the settings of this machine's user.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// A git command in `dir`.
pub(crate) fn command(dir: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("git");
    forget_git(&mut command);
    command.arg("-C").arg(dir);
    // The generators and the oracle read every repository, whichever user owns it.
    command.args([
        "-c",
        "safe.directory=*",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
    ]);
    command.args(["-c", "core.fsync=none", "-c", "advice.addEmbeddedRepo=false", "-c", "protocol.file.allow=always"]);
    command.args(args);
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
        command.env(format!("GIT_{who}_DATE"), "2024-01-01T00:00:00Z");
    }
    // A replaced object and its replacement are both in the repository.
    command.env("GIT_NO_REPLACE_OBJECTS", "1").env("LC_ALL", "C");
    command.stdin(Stdio::null());
    command
}

/// Takes git's variables and the user's settings out of a command's environment.
pub(crate) fn forget_git(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
}

/// The output of a git command.
pub(crate) fn git(dir: &Path, args: &[impl AsRef<OsStr>]) -> Vec<u8> {
    answer(command(dir, args))
}

/// The output of a git command that reads `input`.
pub(crate) fn git_fed(dir: &Path, args: &[impl AsRef<OsStr>], input: &[u8]) -> Vec<u8> {
    let mut command = command(dir, args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A thread of its own: git may answer before it has read everything.
    let feeding = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    feeding.join().unwrap().unwrap();
    output.stdout
}

/// The first line that a git command prints.
pub(crate) fn git_line(dir: &Path, args: &[impl AsRef<OsStr>]) -> String {
    String::from_utf8(git(dir, args)).unwrap().lines().next().unwrap_or_default().to_owned()
}

pub(crate) fn answer(mut command: Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The records of an output that NUL bytes separate.
pub(crate) fn records(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    output.split(|&byte| byte == 0).filter(|record| !record.is_empty())
}

/// An empty repository in `dir`, made by `git init` with these arguments.
pub(crate) fn init(dir: &Path, args: &[&str]) {
    std::fs::create_dir_all(dir).unwrap();
    git(dir, &[&["init", "-q", "--template="], args].concat());
}

/// Adds everything in the work tree and commits it.
pub(crate) fn commit_all(dir: &Path, message: &str) {
    git(dir, &["add", "-A", "-f"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", message]);
}
