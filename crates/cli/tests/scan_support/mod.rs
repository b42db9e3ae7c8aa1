//! Scans by the program, and git commands to set the stage and to tell the truth.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tessera_detect::template;

/// A token of GitHub, another one for each seed.
pub(crate) fn token(seed: u64) -> String {
    template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap()
}

/// Writes a file below `root`.
pub(crate) fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The program, with nothing in its environment about repositories or settings.
pub(crate) fn tessera() -> Command {
    without_git(Command::new(env!("CARGO_BIN_EXE_tessera")))
}

fn without_git(mut command: Command) -> Command {
    for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    command
}

/// A git command in `dir`.
pub(crate) fn git_command(dir: &Path, args: &[&str]) -> Command {
    let mut command = without_git(Command::new("git"));
    command.arg("-C").arg(dir).args(args);
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
    }
    command
}

/// The output of a git command, which must succeed.
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let output = git_command(dir, args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An empty repository.
pub(crate) fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q", "-b", "main"]);
    dir
}

/// Commits everything in the working tree; returns the commit's id.
pub(crate) fn commit_all(dir: &Path, subject: &str) -> String {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", subject]);
    git(dir, &["rev-parse", "HEAD"]).trim().to_owned()
}

/// A report in JSON, and the standard error beside it.
pub(crate) struct Scanned {
    pub(crate) report: Value,
    pub(crate) said: String,
    pub(crate) code: i32,
}

impl Scanned {
    /// Reads the output of a scan with `--format json`.
    pub(crate) fn of(output: &Output) -> Self {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {said}", String::from_utf8_lossy(&output.stdout)));
        Self { report, said, code: output.status.code().unwrap() }
    }

    /// Places as the name of the target's folder, path and line, in order.
    pub(crate) fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        for finding in self.report["findings"].as_array().unwrap() {
            for location in finding["locations"].as_array().unwrap() {
                let target = Path::new(location["target"].as_str().unwrap()).file_name().unwrap().to_string_lossy();
                places.push(format!("{target} {}:{}", location["path"].as_str().unwrap(), location["start"]["line"]));
            }
        }
        places.sort();
        places
    }

    /// The paths of places alone.
    pub(crate) fn paths(&self) -> Vec<String> {
        let path = |place: String| place.split_once(' ').unwrap().1.rsplit_once(':').unwrap().0.to_owned();
        self.places().into_iter().map(path).collect()
    }
}

/// Scans with these arguments, in `dir`.
pub(crate) fn scan(dir: &Path, args: &[&str]) -> Scanned {
    let mut command = tessera();
    command.current_dir(dir).args(["scan", "--no-resume", "--format", "json"]).args(args);
    Scanned::of(&command.output().unwrap())
}
