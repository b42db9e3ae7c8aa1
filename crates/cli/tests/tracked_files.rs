//! Files that git tracks although an ignore rule names them: `tessera scan` reads them, wherever the repository lies and whether
//! or not git can be asked.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than any scan of these trees takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

struct Place {
    dir: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes a file with a secret.
    fn secret(&self, path: &str) {
        let number = path.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut seed = tessera_detect::template::Seed::new(number);
        let token = tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap();
        self.write(path, format!("token: {token}\n"));
    }

    fn git(&self, dir: &str, args: &[&str]) {
        let output = git_command(&self.path(dir)).args(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A repository that tracks `tracked.env` although it ignores `*.env`, and has an untracked `other.env`.
    fn repository(&self, dir: &str) {
        std::fs::create_dir_all(self.path(dir)).unwrap();
        self.git(dir, &["init", "-q", "-b", "main"]);
        self.write(&format!("{dir}/.gitignore"), "*.env\nout/\n");
        for file in ["tracked.env", "other.env", "out/tracked", "out/other"] {
            self.secret(&format!("{dir}/{file}"));
        }
        self.git(dir, &["add", "-f", ".gitignore", "tracked.env", "out/tracked"]);
        self.git(dir, &["commit", "-q", "-m", "first"]);
    }

    fn scan(&self, target: &str) -> Scanned {
        self.scan_with(target, |_| {})
    }

    fn scan_with(&self, target: &str, change: impl FnOnce(&mut Command)) -> Scanned {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.arg("scan").arg(self.path(target)).args(["--format", "json"]);
        command.env("TESSERA_STATE_DIR", self.state.path()).stdin(Stdio::null());
        change(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("the scan hangs");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {said}"));
        Scanned { report, code: output.status.code().unwrap() }
    }
}

struct Scanned {
    report: Value,
    code: i32,
}

impl Scanned {
    /// Paths with findings.
    fn paths(&self) -> BTreeSet<String> {
        let findings = self.report["findings"].as_array().unwrap();
        let places = findings.iter().flat_map(|finding| finding["locations"].as_array().unwrap());
        places.map(|place| place["path"].as_str().unwrap().to_owned()).collect()
    }

    fn assert_found(&self, expected: &[&str]) {
        assert_eq!(
            self.paths(),
            expected.iter().map(|&path| path.to_owned()).collect(),
            "{:#}",
            self.report["receipt"]
        );
    }

    fn assert_says_that_the_index_is_unreadable(&self) {
        let skipped = self.report["receipt"]["skipped"].as_object().unwrap();
        assert!(skipped.keys().any(|reason| reason.contains("git index unreadable")), "{skipped:?}");
    }
}

fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
    }
    command
}

#[test]
fn the_parent_of_several_repositories() {
    let place = Place::new();
    place.repository("one");
    place.repository("deep/er/two");
    place.scan(".").assert_found(&[
        "deep/er/two/out/tracked",
        "deep/er/two/tracked.env",
        "one/out/tracked",
        "one/tracked.env",
    ]);
}

#[test]
fn a_folder_of_a_repository() {
    let place = Place::new();
    place.repository("one");
    place.write("one/sub/x", "");
    place.secret("one/sub/tracked.env");
    place.secret("one/sub/other.env");
    place.git("one", &["add", "-f", "sub/tracked.env"]);
    place.scan("one/sub").assert_found(&["tracked.env"]);
}

#[test]
fn a_repository_inside_another_that_ignores_its_files_or_all_of_it() {
    let place = Place::new();
    place.repository("outer");
    place.repository("outer/plain/nested");
    place.write("outer/plain/nested/.gitignore", "");
    place.repository("outer/out/nested");
    place.scan("outer").assert_found(&[
        "out/nested/out/tracked",
        "out/nested/tracked.env",
        "out/tracked",
        "plain/nested/other.env",
        "plain/nested/out/other",
        "plain/nested/out/tracked",
        "plain/nested/tracked.env",
        "tracked.env",
    ]);
}

#[test]
fn a_linked_working_tree_and_a_submodule() {
    let place = Place::new();
    place.repository("library");
    place.repository("main");
    place.git("main", &["worktree", "add", "-q", "../linked"]);
    place.secret("linked/other.env");
    place.git("main", &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../library", "sub"]);
    place.secret("main/sub/other.env");
    place.scan("linked").assert_found(&["out/tracked", "tracked.env"]);
    place.scan("main").assert_found(&["out/tracked", "sub/out/tracked", "sub/tracked.env", "tracked.env"]);
}

#[test]
fn a_bare_repository_is_a_folder_of_files() {
    let place = Place::new();
    place.repository("one");
    place.git(".", &["clone", "-q", "--bare", "one", "bare.git"]);
    place.secret("bare.git/hooks/notify.env");
    place.write("bare.git/.gitignore", "nothing\n");
    let scanned = place.scan("bare.git");
    scanned.assert_found(&["hooks/notify.env"]);
    assert_eq!(scanned.report["receipt"]["complete"], true);
}

#[test]
fn a_repository_of_another_user() {
    let place = Place::new();
    place.repository("one");
    // Git's own switch to take every repository for another user's.
    let other_user = ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
    let asked = git_command(&place.path("one")).arg("ls-files").env(other_user.0, other_user.1).output().unwrap();
    assert!(!asked.status.success(), "git should refuse this repository");
    for target in ["one", "."] {
        let scanned = place.scan_with(target, |command| {
            command.env(other_user.0, other_user.1);
        });
        let below = if target == "." { "one/" } else { "" };
        scanned.assert_found(&[&format!("{below}out/tracked"), &format!("{below}tracked.env")]);
    }
}

#[test]
fn variables_that_point_git_elsewhere() {
    let place = Place::new();
    place.repository("one");
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    place.git("elsewhere", &["init", "-q"]);
    let all = [("GIT_DIR", ".git"), ("GIT_WORK_TREE", "."), ("GIT_INDEX_FILE", ".git/no-index")];
    for chosen in [&all[..1], &all[..2], &all[2..], &all[..]] {
        let scanned = place.scan_with("one", |command| {
            for (variable, value) in chosen {
                command.env(variable, place.path("elsewhere").join(value));
            }
        });
        scanned.assert_found(&["out/tracked", "tracked.env"]);
    }
}

#[test]
fn no_git_on_the_machine() {
    let place = Place::new();
    place.repository("one");
    let scanned = place.scan_with("one", |command| {
        command.env("PATH", "/nonexistent");
    });
    scanned.assert_found(&["out/tracked", "tracked.env"]);
}

#[test]
fn an_index_that_cannot_be_read_means_that_ignored_files_are_read_and_the_receipt_says_so() {
    let all = ["other.env", "out/other", "out/tracked", "tracked.env"];
    let damaged = Place::new();
    damaged.repository("one");
    damaged.write("one/.git/index", "what");
    let scanned = damaged.scan("one");
    scanned.assert_found(&all);
    scanned.assert_says_that_the_index_is_unreadable();
    let scanned = damaged.scan("one/out");
    scanned.assert_found(&["other", "tracked"]);
    scanned.assert_says_that_the_index_is_unreadable();

    let elsewhere = Place::new();
    elsewhere.repository("one");
    std::fs::rename(elsewhere.path("one/.git"), elsewhere.path("gone")).unwrap();
    elsewhere.write("one/.git", "gitdir: /no/such/folder/.git\n");
    let scanned = elsewhere.scan("one");
    scanned.assert_found(&all);
    scanned.assert_says_that_the_index_is_unreadable();
    assert_eq!(scanned.code, 1);
}

#[test]
fn an_ignore_file_that_is_a_link_is_not_obeyed() {
    let place = Place::new();
    place.repository("one");
    place.write("rules", "*.txt\n");
    place.secret("one/sub/a.txt");
    std::os::unix::fs::symlink("../../rules", place.path("one/sub/.gitignore")).unwrap();
    place.scan("one/sub").assert_found(&["a.txt"]);
    place.scan("one").assert_found(&["out/tracked", "sub/a.txt", "tracked.env"]);
}

#[test]
fn an_ignore_file_that_never_ends_or_never_begins_holds_nothing_up() {
    let place = Place::new();
    for (name, is_pipe) in [("pipe", true), ("device", false)] {
        std::fs::create_dir_all(place.path(name)).unwrap();
        place.git(name, &["init", "-q"]);
        place.secret(&format!("{name}/a"));
        let path = place.path(name).join(".gitignore");
        if is_pipe {
            let made = Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
        } else {
            std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        }
        place.scan(name).assert_found(&["a"]);
    }
    std::fs::create_dir_all(place.path("large")).unwrap();
    place.git("large", &["init", "-q"]);
    place.secret("large/a");
    let file = std::fs::File::create(place.path("large").join(".gitignore")).unwrap();
    file.set_len(1 << 34).unwrap();
    place.scan("large").assert_found(&["a"]);
}
