//! The same scan, started twice at the same time: both report the same, also if the first is killed at any moment.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const FILES: u64 = 1_500;
const SECRETS: usize = 30;

struct Stage {
    tree: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for i in 0..FILES {
            let dir = tree.path().join(format!("d{:02}", i % 23));
            std::fs::create_dir_all(&dir).unwrap();
            let mut seed = tessera_detect::template::Seed::new(i);
            let token = tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap();
            let secret = if i % 50 == 0 { format!("token: {token}\n") } else { String::new() };
            let text = format!("{}{secret}", "fn main() { println!(\"hello, world\"); }\n".repeat(600));
            std::fs::write(dir.join(format!("f{i:04}.rs")), text).unwrap();
        }
        Self { tree, state }
    }

    fn tessera(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(args).env("TESSERA_STATE_DIR", self.state.path()).env_remove("TESSERA_COORDINATOR");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn scan(&self) -> Child {
        self.tessera(&["scan", "--format", "json", "-j", "2"]).arg(self.tree.path()).spawn().unwrap()
    }

    fn expected(&self) -> Value {
        let mut scan = self.tessera(&["scan", "--format", "json", "--no-resume"]);
        let expected = report(&scan.arg(self.tree.path()).output().unwrap());
        assert_eq!(expected["findings"].as_array().unwrap().len(), SECRETS);
        expected
    }

    /// The lock file of the only run and the process in it, if there is one.
    fn lock(&self) -> Option<(PathBuf, String)> {
        let entries = std::fs::read_dir(self.state.path()).unwrap().flatten().map(|entry| entry.path());
        let lock = entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "lock"))?;
        let holder = std::fs::read_to_string(&lock).unwrap();
        (!holder.is_empty()).then(|| (lock, holder.trim().to_owned()))
    }

    /// A scan that has begun and is held still in the middle, with its lock file.
    fn held_scan(&self) -> (Child, PathBuf) {
        // On a busy machine a scan may end before it is caught: then there is another.
        for _ in 0..100 {
            let mut scan = self.scan();
            let lock = until(|| {
                let (lock, holder) = self.lock()?;
                let is_ended = scan.try_wait().unwrap().is_some();
                (is_ended || holder == scan.id().to_string() && lock.with_extension("").exists()).then_some(lock)
            });
            if scan.try_wait().unwrap().is_none() {
                signal(&scan, "-STOP");
                until(|| is_stopped_or_gone(scan.id()).then_some(()));
                if scan.try_wait().unwrap().is_none() {
                    return (scan, lock);
                }
            }
            report(&scan.wait_with_output().unwrap());
        }
        panic!("every scan ended before it was caught")
    }
}

/// Whether the kernel says that a process is stopped, or has ended and waits for its parent.
fn is_stopped_or_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, Some('R' | 'S' | 'D'))
}

fn until<T>(mut answer: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(started.elapsed() < Duration::from_secs(600), "no answer after ten minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The one report that a scan printed.
fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn essence(report: &Value) -> (BTreeSet<String>, Vec<Value>) {
    let findings = report["findings"].as_array().unwrap();
    let places = findings.iter().flat_map(|finding| {
        let locations = finding["locations"].as_array().unwrap();
        locations.iter().map(move |at| format!("{} {} {}", finding["secret_id"], at["path"], at["start"]))
    });
    let receipt = &report["receipt"];
    let counts = ["enumerated", "scanned", "scanned_bytes", "skipped", "unreadable", "complete"];
    (places.collect(), counts.map(|name| receipt[name].clone()).to_vec())
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_second_scan_waits_for_the_first_and_reports_the_same() {
    let stage = Stage::new();
    let expected = stage.expected();
    let (first, lock) = stage.held_scan();
    let holder = first.id().to_string();
    let place = tempfile::tempdir().unwrap();
    let words = place.path().join("said");
    let mut scan = stage.tessera(&["scan", "--format", "json"]);
    let second = scan.arg(stage.tree.path()).stderr(std::fs::File::create(&words).unwrap()).spawn().unwrap();
    let heard = || std::fs::read_to_string(&words).unwrap();
    // A command that only looks names the process; one that cannot wait names its lock too.
    let runs = stage.tessera(&["runs", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!(listed["runs"][0]["state"], "running", "{listed:#}");
    assert_eq!(listed["runs"][0]["process"], first.id(), "{listed:#}");
    let run = lock.file_stem().unwrap().to_str().unwrap();
    let shown = stage.tessera(&["runs", "show", run]).output().unwrap();
    assert!(said(&shown).contains(&format!("process {holder} ")), "{}", said(&shown));
    for verb in [&["runs", "cancel", run][..], &["runs", "retire", run], &["shards", run]] {
        let refused = stage.tessera(verb).output().unwrap();
        let words = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{verb:?}: {words}");
        assert!(words.contains(&format!("process {holder}")) && words.contains(lock.to_str().unwrap()), "{words}");
    }
    until(|| heard().contains(&format!("process {holder} does this scan already")).then_some(()));
    signal(&first, "-CONT");
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
    let (one, other) = (report(&first), report(&second));
    assert_eq!(essence(&one), essence(&expected));
    assert_eq!((&one["run"], &one["findings"], &one["status"]), (&other["run"], &other["findings"], &other["status"]));
    assert_eq!(essence(&other), essence(&expected));
    assert!(!heard().contains("continued"), "{}", heard());
}

/// How many bytes of findings lie below a folder.
fn findings_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes_of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => findings_bytes(&entry.path()),
        Ok(metadata) if folder.ends_with("findings") => metadata.len(),
        _ => 0,
    };
    entries.map(bytes_of).sum()
}

#[test]
fn a_second_scan_finds_what_came_after_the_first_had_read_it() {
    for _ in 0..100 {
        let stage = Stage::new();
        let mut scan = stage.tessera(&["scan", "--format", "json", "-j", "1"]);
        let mut first = scan.arg(stage.tree.path()).spawn().unwrap();
        // Far more than the header of a findings file: the first files have been read and are not read again.
        until(|| (first.try_wait().unwrap().is_some() || findings_bytes(stage.state.path()) > 2_000).then_some(()));
        if first.try_wait().unwrap().is_none() {
            signal(&first, "-STOP");
            until(|| is_stopped_or_gone(first.id()).then_some(()));
        }
        if first.try_wait().unwrap().is_some() {
            continue; // On a busy machine a scan may end before it is caught: then there is another.
        }
        let late =
            tessera_detect::template::expand("ghp_<<github 30>>", &mut tessera_detect::template::Seed::new(9_999));
        std::fs::write(stage.tree.path().join("d00/f0000.rs"), format!("late: {}\n", late.unwrap())).unwrap();
        let place = tempfile::tempdir().unwrap();
        let words = place.path().join("said");
        let mut scan = stage.tessera(&["scan", "--format", "json"]);
        let second = scan.arg(stage.tree.path()).stderr(std::fs::File::create(&words).unwrap()).spawn().unwrap();
        until(|| std::fs::read_to_string(&words).unwrap().contains("does this scan already").then_some(()));
        signal(&first, "-CONT");
        report(&first.wait_with_output().unwrap());
        let found = report(&second.wait_with_output().unwrap());
        assert_eq!(essence(&found), essence(&stage.expected()), "the second was asked after the change");
        return;
    }
    panic!("every scan ended before it was caught")
}

#[test]
fn a_second_scan_that_is_stopped_while_it_waits_names_the_first() {
    let stage = Stage::new();
    let (first, lock) = stage.held_scan();
    let holder = first.id();
    let place = tempfile::tempdir().unwrap();
    let words = place.path().join("said");
    let mut scan = stage.tessera(&["scan"]);
    let second = scan.arg(stage.tree.path()).stderr(std::fs::File::create(&words).unwrap()).spawn().unwrap();
    let heard = || std::fs::read_to_string(&words).unwrap();
    until(|| heard().contains("does this scan already").then_some(()));
    signal(&second, "-INT");
    assert_eq!(second.wait_with_output().unwrap().status.code(), Some(2), "{}", heard());
    assert!(heard().contains(&format!("process {holder} (lock file {})", lock.display())), "{}", heard());
    signal(&first, "-CONT");
    report(&first.wait_with_output().unwrap());
}

/// Fresh at every run, and printed if the test fails.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_nanos() as u64
}

#[test]
fn with_the_first_killed_at_any_moment_the_others_report_everything() {
    let stage = Stage::new();
    let expected = stage.expected();
    let seed = seed();
    println!("seed {seed}");
    let (mut random, mut kills) = (seed, 0);
    for round in 0..12 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let scans = [stage.scan(), stage.scan(), stage.scan()];
        std::thread::sleep(Duration::from_millis((random >> 33) % 400));
        // Whichever of them holds the lock by now.
        let (_, holder) = until(|| stage.lock());
        for mut scan in scans {
            if scan.id().to_string() == holder && scan.try_wait().unwrap().is_none() {
                scan.kill().unwrap();
                kills += 1;
            }
            let output = scan.wait_with_output().unwrap();
            // Killed, or ended before that.
            if output.status.code().is_some() {
                let found = report(&output);
                assert_eq!(essence(&found), essence(&expected), "round {round}: {}", said(&output));
            }
        }
        // The next round begins with a run of its own.
        let fresh = Path::new(stage.state.path());
        std::fs::remove_dir_all(fresh).unwrap();
        std::fs::create_dir(fresh).unwrap();
    }
    assert!(kills > 0, "no scan was ever killed: all ended too soon");
}
