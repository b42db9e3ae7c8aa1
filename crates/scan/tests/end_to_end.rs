//! Whole scans of made-up trees and repositories.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_detect::template;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{Control, ExitStatus, Keeping, ScanReport, scan};
use tessera_scan::source::item::{SkipReason, UnreadableReason};

fn token(seed: u64) -> String {
    template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap()
}

fn request(path: &Path) -> ScanRequest {
    ScanRequest { workers: 2, ..ScanRequest::of_paths(vec![path.to_path_buf()]) }
}

fn run(request: &ScanRequest) -> ScanReport {
    run_keeping(request, &Keeping::Nothing)
}

fn run_keeping(request: &ScanRequest, keeping: &Keeping) -> ScanReport {
    scan(request, keeping, &mut Control { stop: &AtomicBool::new(false), progress: &mut |_| {} }).unwrap()
}

/// What was found, without what differs from run to run.
fn places(report: &ScanReport) -> BTreeSet<(String, String, u64)> {
    let mut places = BTreeSet::new();
    for finding in &report.findings {
        for location in &finding.locations {
            let at = &location.occurrence;
            places.insert((finding.rule.clone(), String::from_utf8_lossy(&at.path).into_owned(), at.start.line));
        }
    }
    places
}

fn git(dir: &Path, args: &[&str]) {
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "Ada")
        .env("GIT_AUTHOR_EMAIL", "ada@example.org")
        .env("GIT_COMMITTER_NAME", "Ada")
        .env("GIT_COMMITTER_EMAIL", "ada@example.org")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_clean_tree_is_clean_and_everything_in_it_is_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.txt", "hello\n");
    write(dir.path(), "b/c.bin", b"\x7fELF\0\0\0\0\x01\0\0\x02");
    std::os::unix::fs::symlink("a.txt", dir.path().join("link")).unwrap();
    let report = run(&request(dir.path()));
    assert_eq!(report.exit_status(), ExitStatus::CleanComplete);
    let tally = &report.receipt.tally;
    assert_eq!((tally.enumerated(), tally.scanned, tally.scanned_bytes), (3, 1, 6));
    assert_eq!(tally.skipped[&SkipReason::Binary], 1);
    assert_eq!(tally.skipped[&SkipReason::Symlink], 1);
}

#[test]
fn one_secret_in_two_files_is_one_finding_with_two_places() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.env", format!("x\nTOKEN={}\n", token(1)));
    write(dir.path(), "b/b.env", format!("TOKEN={}\nOTHER={}\n", token(1), token(2)));
    let report = run(&request(dir.path()));
    assert_eq!(report.exit_status(), ExitStatus::Findings);
    assert_eq!(report.findings.len(), 2);
    assert_eq!(report.findings[0].locations.len(), 2);
    assert_eq!(report.findings[0].redacted, "ghp_****");
    assert!(report.findings[0].exposed.is_none());
    assert_eq!(places(&report).len(), 3);
    let shown = run(&ScanRequest { keep_secrets: true, ..request(dir.path()) });
    assert_eq!(shown.findings[0].exposed.as_ref().unwrap().secret.expose(), token(1).as_bytes());
}

#[test]
fn what_cannot_be_read_is_never_called_clean() {
    let dir = tempfile::tempdir().unwrap();
    let mut at = std::fs::File::open(dir.path()).unwrap();
    let name = "d".repeat(250);
    for _ in 0..17 {
        rustix::fs::mkdirat(&at, name.as_str(), rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&at, name.as_str(), flags, rustix::fs::Mode::empty()).unwrap().into();
    }
    let report = run(&request(dir.path()));
    assert_eq!(report.exit_status(), ExitStatus::Incomplete);
    assert_eq!(report.receipt.tally.unreadable[&UnreadableReason::PathTooLong], 1);
    assert_eq!(report.receipt.notes.len(), 1);
}

#[test]
fn a_missing_path_is_an_error_that_names_it() {
    let request = request(Path::new("/no/such/place"));
    let error =
        scan(&request, &Keeping::Nothing, &mut Control { stop: &AtomicBool::new(false), progress: &mut |_| {} })
            .unwrap_err()
            .to_string();
    assert!(error.contains("/no/such/place"), "{error}");
}

#[test]
fn tracked_files_are_read_although_they_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q"]);
    write(dir.path(), "conf/tracked.env", format!("TOKEN={}\n", token(1)));
    write(dir.path(), "conf/local.env", format!("TOKEN={}\n", token(2)));
    git(dir.path(), &["add", "conf/tracked.env"]);
    write(dir.path(), ".gitignore", "conf/\n");
    let report = run(&request(dir.path()));
    let found: Vec<_> = places(&report).into_iter().map(|(_, path, _)| path).collect();
    assert_eq!(found, ["conf/tracked.env"]);
    assert_eq!(report.receipt.tally.skipped[&SkipReason::Ignored], 1);
}

#[test]
fn a_history_finds_what_was_removed_and_tells_who_brought_it_in() {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q", "-b", "main"]);
    write(dir.path(), "a.txt", "one\n");
    git(dir.path(), &["add", "-A"]);
    git(dir.path(), &["commit", "-q", "-m", "start"]);
    write(dir.path(), "src/config.py", format!("key = 1\nTOKEN = \"{}\"\n", token(5)));
    git(dir.path(), &["add", "-A"]);
    git(dir.path(), &["commit", "-q", "-m", "add config"]);
    write(dir.path(), "src/config.py", "key = 1\n");
    git(dir.path(), &["commit", "-q", "-a", "-m", "oops"]);
    assert_eq!(run(&request(dir.path())).exit_status(), ExitStatus::CleanComplete);

    let report = run(&ScanRequest { scope: ScanScope::History, ..request(dir.path()) });
    assert_eq!(report.findings.len(), 1);
    let first = report.findings[0].first();
    let introduced = first.introduced.as_ref().unwrap();
    assert_eq!((&introduced.subject[..], &introduced.author[..]), ("add config", "Ada"));
    assert_eq!((&first.occurrence.path[..], first.occurrence.start.line), (&b"src/config.py"[..], 2));
    assert_eq!(report.receipt.tally.enumerated(), 3);
    assert!(report.receipt.is_complete());
}

#[test]
fn a_staged_secret_is_found_before_it_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q"]);
    write(dir.path(), "a.env", format!("TOKEN={}\n", token(5)));
    write(dir.path(), "not-staged.env", format!("TOKEN={}\n", token(6)));
    git(dir.path(), &["add", "a.env"]);
    let report = run(&ScanRequest { scope: ScanScope::Staged, ..request(dir.path()) });
    assert_eq!(places(&report).into_iter().map(|(_, path, _)| path).collect::<Vec<_>>(), ["a.env"]);
    assert!(report.findings[0].first().introduced.is_none());
}

#[test]
fn missing_and_corrupt_objects_make_a_history_incomplete_and_the_rest_is_still_scanned() {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q"]);
    for i in 0..5 {
        write(dir.path(), &format!("f{i}"), format!("text {i}\n"));
    }
    write(dir.path(), "secret", format!("TOKEN={}\n", token(7)));
    git(dir.path(), &["add", "-A"]);
    git(dir.path(), &["commit", "-q", "-m", "all"]);
    let object = |path: &str| {
        let output =
            Command::new("git").arg("-C").arg(dir.path()).args(["rev-parse", &format!("HEAD:{path}")]).output();
        let hex = String::from_utf8(output.unwrap().stdout).unwrap();
        dir.path().join(".git/objects").join(&hex[..2]).join(&hex.trim()[2..])
    };
    std::fs::remove_file(object("f1")).unwrap();
    let corrupt = object("f3");
    std::fs::remove_file(&corrupt).unwrap();
    std::fs::write(corrupt, "garbage").unwrap();
    let report = run(&ScanRequest { scope: ScanScope::History, ..request(dir.path()) });
    let tally = &report.receipt.tally;
    // Git calls a loose object whose header makes no sense missing.
    assert_eq!(tally.unreadable_total(), 2, "{tally:?}");
    assert_eq!((report.findings.len(), tally.scanned), (1, 4));
    assert!(!report.receipt.is_complete());
}

#[test]
fn a_broken_tree_object_is_told_and_every_blob_is_scanned_instead() {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q"]);
    write(dir.path(), "sub/secret", format!("TOKEN={}\n", token(8)));
    git(dir.path(), &["add", "-A"]);
    git(dir.path(), &["commit", "-q", "-m", "all"]);
    let output = Command::new("git").arg("-C").arg(dir.path()).args(["rev-parse", "HEAD:sub"]).output().unwrap();
    let hex = String::from_utf8(output.stdout).unwrap();
    let tree = dir.path().join(".git/objects").join(&hex[..2]).join(&hex.trim()[2..]);
    std::fs::remove_file(&tree).unwrap();
    std::fs::write(&tree, "garbage").unwrap();
    let report = run(&ScanRequest { scope: ScanScope::History, ..request(dir.path()) });
    assert_eq!(report.findings.len(), 1);
    assert!(!report.receipt.is_complete());
}

#[test]
fn a_stopped_run_is_incomplete_and_the_same_request_finishes_it() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for i in 0..300 {
        let secret = if i % 10 == 0 { format!("TOKEN={}\n", token(i)) } else { String::new() };
        write(dir.path(), &format!("d{}/f{i:03}", i % 7), format!("{}{secret}", "text\n".repeat(2_000)));
    }
    let expected = run(&request(dir.path()));
    let keeping = Keeping::In { state_dir: state.path().to_path_buf(), fresh: false };
    let kept = request(dir.path());
    let stop = AtomicBool::new(false);
    let mut stop_soon = |progress: &tessera_scan::run::Progress| {
        if progress.items > 20 {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let stopped = scan(&kept, &keeping, &mut Control { stop: &stop, progress: &mut stop_soon }).unwrap();
    let resumed = run_keeping(&kept, &keeping);
    if !stopped.receipt.is_complete() {
        assert!(resumed.is_resumed());
        assert!(stopped.receipt.tally.enumerated() < 300);
    }
    assert_eq!(places(&resumed), places(&expected));
    assert_eq!(resumed.receipt.tally, expected.receipt.tally);
    assert!(resumed.receipt.is_complete());
    // A finished run is begun anew.
    write(dir.path(), "new", format!("TOKEN={}\n", token(9_999)));
    let again = run_keeping(&kept, &keeping);
    assert!(!again.is_resumed());
    assert_eq!(places(&again).len(), places(&expected).len() + 1);
}

#[test]
fn secrets_inside_archives_are_found_when_asked_for_and_members_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "in/a.env", format!("TOKEN={}\n", token(1)));
    write(dir.path(), "in/b.txt", "plain\n");
    write(dir.path(), "in/c.bin", b"\x7fELF\0\0\0\0\x01\0\0\x02");
    let tar = Command::new("tar").args(["-czf", "x.tgz", "in"]).current_dir(dir.path()).status().unwrap();
    assert!(tar.success());
    std::fs::remove_dir_all(dir.path().join("in")).unwrap();
    assert_eq!(run(&request(dir.path())).exit_status(), ExitStatus::CleanComplete, "a binary file is left out");
    let mut inside = request(dir.path());
    inside.options.archives = true;
    let report = run(&inside);
    assert_eq!(places(&report).into_iter().map(|place| place.1).collect::<Vec<_>>(), ["x.tgz!x.tar!in/a.env"]);
    let tally = &report.receipt.tally;
    // The archive and its three members.
    assert_eq!((tally.enumerated(), tally.scanned, tally.skipped[&SkipReason::Binary]), (4, 3, 1));
    // One that was cut is not clean, whatever is in the rest.
    let whole = std::fs::read(dir.path().join("x.tgz")).unwrap();
    std::fs::write(dir.path().join("x.tgz"), &whole[..whole.len() / 3]).unwrap();
    let cut = run(&inside);
    assert!(!cut.receipt.is_complete());
    assert_eq!(cut.receipt.tally.unreadable[&UnreadableReason::ArchiveDamaged], 1, "{:?}", cut.receipt.notes);
}
