//! Many repositories in one scan: lists, folders, and what becomes of entries that cannot be scanned.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use scan_support::{Scanned, commit_all, git, scan, tessera, token, write};
use serde_json::Value;

/// A folder with two repositories, each with a token of its own.
struct Stage {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let stage = Self { _dir: dir, root };
        for (name, seed) in [("one", 1), ("two", 2)] {
            stage.repository(name, seed);
        }
        stage
    }

    fn repository(&self, name: &str, seed: u64) -> PathBuf {
        let path = self.root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        git(&path, &["init", "-q", "-b", "main"]);
        write(&path, "key.env", format!("{}\n", token(seed)));
        commit_all(&path, "a key");
        path
    }

    fn list(&self, text: impl AsRef<[u8]>) -> String {
        write(&self.root, "repos.txt", text);
        self.root.join("repos.txt").to_str().unwrap().to_owned()
    }

    fn scan(&self, args: &[&str]) -> Scanned {
        scan(&self.root, args)
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = tessera();
        command.current_dir(&self.root).args(["scan", "--no-resume"]).args(args);
        command
    }
}

fn left_out(report: &Value) -> Vec<(String, Value)> {
    let entries = report["receipt"]["left_out"].as_array().unwrap();
    entries.iter().map(|entry| (entry["path"].as_str().unwrap().to_owned(), entry["named_at"].clone())).collect()
}

fn with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_entry_that_cannot_be_scanned_is_named_with_its_line_and_the_others_are_scanned() {
    let stage = Stage::new();
    let list = stage.list("# ours\none\n\ngone\ntwo\nrepos.txt\n");
    let scanned = stage.scan(&["--history", "--repos", &list]);
    assert_eq!((scanned.code, scanned.places().len()), (1, 2), "{}", scanned.said);
    let named = left_out(&scanned.report);
    assert_eq!(
        named,
        [("gone".into(), format!("{list}, line 4").into()), ("repos.txt".into(), format!("{list}, line 6").into())]
    );
    assert_eq!(scanned.report["receipt"]["complete"], false, "a list of which something was not read");
    for told in ["line 4: cannot scan gone: it is not there", "line 6: cannot scan repos.txt: it is no directory"] {
        assert!(scanned.said.contains(told), "{told}: {}", scanned.said);
    }
    let human = stage.command(&["--history", "--repos", &list]).output().unwrap();
    let human = String::from_utf8(human.stdout).unwrap();
    assert!(human.contains(&format!("  left out    gone ({list}, line 4): it is not there\n")), "{human}");
    assert!(human.contains("not everything was read"), "{human}");
}

#[test]
fn strict_scans_nothing_if_an_entry_cannot_be_scanned() {
    let stage = Stage::new();
    let list = stage.list("one\ngone\n");
    let said = stage.refused(&["--history", "--strict", "--repos", &list]);
    assert!(said.contains("line 2: cannot scan gone") && said.contains("nothing was scanned"), "{said}");
    let whole = stage.list("one\ntwo\n");
    assert_eq!(stage.scan(&["--history", "--strict", "--repos", &whole]).places().len(), 2);
    assert!(stage.refused(&["--strict", "one"]).contains("--repos"));
}

#[test]
fn a_list_comes_through_a_pipe_and_repetitions_are_scanned_once() {
    let stage = Stage::new();
    let mut lines = "one\n".repeat(10_000);
    lines.push_str("./two/../one\ntwo\n");
    let output = with_input(stage.command(&["--history", "--repos", "-", "--format", "json"]), lines.as_bytes());
    let scanned = Scanned::of(&output);
    assert_eq!(scanned.places(), ["one key.env:1", "two key.env:1"]);
    assert_eq!(scanned.report["receipt"]["complete"], true);
    let said = &scanned.said;
    assert!(
        said.contains("scanned once: one (standard input, line 2) is ") && said.contains("and 9999 more"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "ten thousand lines of a list are not ten thousand lines of output: {said}");
}

#[test]
fn a_list_that_is_none_is_refused_in_words() {
    let stage = Stage::new();
    let empty = stage.list("# nothing\n\n");
    assert!(stage.refused(&["--repos", &empty]).contains("names no repository"));
    let said = stage.refused(&["--repos", "."]);
    assert!(said.contains("is a directory") && said.contains("--repos-under"), "{said}");
    let binary = stage.list(b"one\0two");
    assert!(stage.refused(&["--repos", &binary]).contains("is binary"));
    assert!(stage.refused(&["--repos", "no-such-list"]).contains("cannot read no-such-list"));
    let none = stage.list("gone\nalso-gone\n");
    let said = stage.refused(&["--repos", &none]);
    assert!(
        said.contains("none of 2 entries can be scanned") && said.contains("line 2: cannot scan also-gone"),
        "{said}"
    );
    std::fs::create_dir(stage.root.join("empty")).unwrap();
    assert!(stage.refused(&["--repos-under", "empty"]).contains("no repository lies at or below empty"));
    assert!(stage.refused(&["--repos-under", "nowhere"]).contains("cannot look below nowhere"));
}

#[test]
fn names_that_steer_a_terminal_or_are_no_text_are_shown_harmlessly() {
    let stage = Stage::new();
    let odd = OsStr::from_bytes(b"three\xff\x1b[2J\x1b]0;x\x07");
    let path = stage.root.join(odd);
    std::fs::rename(stage.repository("three", 3), &path).unwrap();
    let list = stage.list([odd.as_bytes(), b"\nfour\xff\x1b[2J\n"].concat());
    let scanned = stage.scan(&["--history", "--repos", &list]);
    assert_eq!((scanned.code, left_out(&scanned.report).len()), (1, 1));
    let output = stage.command(&["--history", "--repos", &list]).output().unwrap();
    for text in [&output.stdout, &output.stderr] {
        assert!(!text.contains(&0x1b) && !text.contains(&7), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn every_repository_below_a_folder_is_scanned_and_the_folder_itself_is_told_how() {
    let stage = Stage::new();
    git(&stage.root, &["clone", "-q", "--bare", "one", "sub/bare.git"]);
    git(&stage.root.join("two"), &["worktree", "add", "-q", "../tree"]);
    let under = stage.scan(&["--history", "--repos-under", "."]);
    assert_eq!(under.places(), ["bare.git key.env:1", "one key.env:1", "two key.env:1"], "{}", under.said);
    assert!(under.said.contains("scanned once: ") && under.said.contains("/tree is "), "{}", under.said);
    let said = stage.refused(&["--history", "."]);
    let command = format!("`tessera scan --history --repos-under {}`", stage.root.display());
    assert!(said.contains(&command), "{said}");
    let nothing = stage.root.join("nothing");
    std::fs::create_dir(&nothing).unwrap();
    let said = stage.refused(&["--history", nothing.to_str().unwrap()]);
    assert!(said.contains("is not a git repository; leave out --history"), "{said}");
}

#[test]
fn a_repository_that_is_broken_is_left_out_by_name_and_one_without_commits_is_clean() {
    let stage = Stage::new();
    std::fs::create_dir_all(stage.root.join("broken/.git/objects")).unwrap();
    git(&stage.root, &["init", "-q", "empty"]);
    let scanned = stage.scan(&["--history", "--repos-under", "."]);
    assert_eq!(scanned.places(), ["one key.env:1", "two key.env:1"]);
    let named: Vec<_> = left_out(&scanned.report).into_iter().map(|(path, _)| path).collect();
    assert_eq!(named, [stage.root.join("broken").to_str().unwrap()]);
    let targets = scanned.report["targets"].as_array().unwrap().iter();
    assert!(targets.clone().any(|target| Path::new(target.as_str().unwrap()).ends_with("empty")), "{targets:?}");
}

#[test]
fn a_repository_with_rules_that_cannot_be_used_is_left_out_and_rules_of_the_others_hold() {
    let stage = Stage::new();
    write(&stage.root, "one/.gitleaks.toml", "this is no TOML [");
    let list = stage.list("one\ntwo\n");
    let scanned = stage.scan(&["--history", "--repos", &list]);
    assert_eq!(scanned.places(), ["two key.env:1"], "{}", scanned.said);
    assert_eq!(left_out(&scanned.report).len(), 1);
    assert!(stage.refused(&["--history", "one", "two"]).contains(".gitleaks.toml"), "arguments stand or fall together");
}

#[test]
fn a_finished_list_is_scanned_anew_once_what_was_left_out_is_there() {
    let stage = Stage::new();
    let list = stage.list("one\nthree\n");
    let state = stage.root.join("state");
    let scan = |args: &[&str]| {
        let mut command = tessera();
        command.current_dir(&stage.root).args(["scan", "--history", "--format", "json", "--state-dir"]);
        Scanned::of(&command.arg(&state).args(args).args(["--repos", &list]).output().unwrap())
    };
    assert_eq!(scan(&[]).places(), ["one key.env:1"]);
    let again = scan(&[]);
    assert_eq!((again.places().len(), left_out(&again.report).len()), (1, 1), "the same entry is still named");
    stage.repository("three", 3);
    let whole = scan(&[]);
    assert_eq!((whole.places().len(), left_out(&whole.report).len()), (2, 0));
}

#[test]
fn a_run_has_more_repositories_than_a_process_has_open_files() {
    let stage = Stage::new();
    for name in 0..80 {
        git(&stage.root, &["clone", "-q", "one", &format!("clone-{name}")]);
    }
    let program = env!("CARGO_BIN_EXE_tessera");
    for scope in ["--history", "--no-ignore"] {
        let script =
            format!("ulimit -n 64; exec '{program}' scan --no-resume -j 2 --format json {scope} --repos-under .");
        let output = Command::new("sh").current_dir(&stage.root).args(["-c", &script]).output().unwrap();
        let scanned = Scanned::of(&output);
        assert_eq!((scanned.code, scanned.places().len()), (1, 82), "{scope}: {}", scanned.said);
        assert_eq!(scanned.report["receipt"]["complete"], true, "{scope}");
    }
}

/// What git says of a repository: refs, and blobs that they lead to.
fn counted_by_git(repository: &Path) -> (u64, u64) {
    let refs = git(repository, &["for-each-ref"]).lines().count();
    let objects = git(repository, &["rev-list", "--objects", "--all", "--no-object-names"]);
    let kinds = scan_support::git_command(repository, &["cat-file", "--batch-check=%(objecttype)"]);
    let kinds = with_input(kinds, objects.as_bytes());
    let kinds = String::from_utf8(kinds.stdout).unwrap();
    (refs as u64, kinds.lines().filter(|kind| *kind == "blob").count() as u64)
}

#[test]
fn each_repository_has_a_row_with_the_numbers_of_git() {
    let stage = Stage::new();
    git(&stage.root, &["clone", "-q", "--bare", "one", "bare.git"]);
    write(&stage.root, "two/src/a.txt", "a\n");
    write(&stage.root, "two/src/b.txt", "b\n");
    commit_all(&stage.root.join("two"), "more");
    git(&stage.root.join("two"), &["tag", "v1", "HEAD~1"]);
    git(&stage.root, &["init", "-q", "-b", "main", "empty"]);
    let state = stage.root.join("state");
    let run = |args: &[&str]| {
        let mut command = tessera();
        command.current_dir(&stage.root).env("TESSERA_STATE_DIR", &state).args(args);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let report: Value =
        serde_json::from_str(&run(&["scan", "--history", "--format", "json", "--repos-under", "."])).unwrap();
    let rows = report["by_target"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["target"].as_str().unwrap()).collect();
    let expected = ["bare.git", "empty", "one", "two"].map(|name| stage.root.join(name));
    assert_eq!(names, expected.clone().map(|path| path.to_str().unwrap().to_owned()));
    for (row, path) in rows.iter().zip(&expected) {
        let (refs, blobs) = counted_by_git(path);
        assert_eq!((row["refs"].as_u64(), row["items"].as_u64()), (Some(refs), Some(blobs)), "{row:#}");
        assert_eq!((&row["outcome"], &row["reason"]), (&"complete".into(), &Value::Null), "{row:#}");
        let secrets = u64::from(!path.ends_with("empty"));
        assert_eq!((row["secrets"].as_u64(), row["places"].as_u64()), (Some(secrets), Some(secrets)), "{row:#}");
    }
    let sum = |name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("items"), sum("scanned_bytes")), {
        let receipt = &report["receipt"];
        (receipt["enumerated"].as_u64().unwrap(), receipt["scanned_bytes"].as_u64().unwrap())
    });
    let id = report["run"].as_str().unwrap();
    let shown: Value =
        serde_json::from_str(&run(&["runs", "show", id, "--by", "repository", "--format", "json"])).unwrap();
    assert_eq!(shown["by_target"], report["by_target"]);
    let table = run(&["runs", "show", id, "--by", "repository"]);
    let ends = |line: &str| expected.iter().any(|path| line.ends_with(path.to_str().unwrap()));
    assert_eq!(table.lines().filter(|line| line.starts_with("complete ") && ends(line)).count(), 4, "{table}");
    let human = run(&["scan", "--history", "--repos-under", "."]);
    assert!(human.contains("and 1 target without a secret, read completely"), "{human}");
}

#[test]
fn a_row_says_why_a_repository_is_incomplete() {
    let stage = Stage::new();
    let blob = git(&stage.root.join("two"), &["rev-parse", "HEAD:key.env"]);
    let (folder, name) = blob.trim().split_at(2);
    std::fs::remove_file(stage.root.join("two/.git/objects").join(folder).join(name)).unwrap();
    let scanned = stage.scan(&["--history", "--repos-under", "."]);
    let outcomes: Vec<_> = scanned.report["by_target"].as_array().unwrap().iter().map(|row| &row["outcome"]).collect();
    assert_eq!(outcomes, ["complete", "incomplete"]);
    let reason = scanned.report["by_target"][1]["reason"].as_str().unwrap();
    assert!(reason.starts_with("1 "), "{reason}");
    let human = stage.command(&["--history", "--repos-under", "."]).output().unwrap();
    let human = String::from_utf8(human.stdout).unwrap();
    assert!(human.contains(&format!("  ({reason})\n")), "{human}");
}

/// Ends a stopped process, however the test ends.
struct Stopped(std::process::Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_running_scan_is_looked_at_from_another_terminal_and_a_killed_one_is_called_interrupted() {
    let stage = Stage::new();
    let tree = stage.root.join("tree");
    for file in 0..400 {
        write(&tree, &format!("f{file:03}"), "nothing to see in this line\n".repeat(20_000));
    }
    write(&tree, "a.env", format!("{}\n", token(7)));
    let state = stage.root.join("state");
    let command = |args: &[&str]| {
        let mut command = tessera();
        command.env("TESSERA_STATE_DIR", &state).args(args).stdin(Stdio::null());
        command
    };
    let asked = |args: &[&str]| {
        let output = command(args).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let mut scan = command(&["scan", "-q", "-j", "1", tree.to_str().unwrap()]);
    let scan = Stopped(scan.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let pid = scan.0.id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    let begun = std::time::Instant::now();
    let run = loop {
        signal("-STOP");
        let runs: Value = serde_json::from_str(&asked(&["runs", "--json"]).0).unwrap();
        // One that is planned and not registered yet would be called "never began".
        let has_begun = |run: &&Value| run["kind"] == "tree" && run["items"].as_u64() > Some(0);
        if let Some(run) = runs["runs"].as_array().unwrap().iter().find(has_begun) {
            assert_eq!(run["state"], "running", "{run:#}");
            break run["run"].as_str().unwrap().to_owned();
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(600), "it did not begin");
        signal("-CONT");
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let (shown, said) = asked(&["runs", "show", &run]);
    assert!(said.contains(&format!("process {pid} works on run {run}")), "{said}");
    assert!(shown.contains("receipt ") && !shown.contains("clean"), "{shown}");
    let (rows, _) = asked(&["runs", "show", &run, "--by", "repository"]);
    assert!(rows.lines().any(|line| line.ends_with(tree.to_str().unwrap())), "{rows}");
    drop(scan);
    let runs: Value = serde_json::from_str(&asked(&["runs", "--json"]).0).unwrap();
    assert_eq!(runs["runs"][0]["state"], "interrupted", "{runs:#}");
    assert!(asked(&["runs"]).0.contains(" interrupted "));
}
