//! A finished scan is told again while it is true, and not longer.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod stage;

use std::path::Path;

use stage::{Essence, Stage, git, token, write};
use tessera_scan::Scan;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{ExitStatus, Origin, ScanReport};
use tessera_scan::source::git::range::CommitRange;

fn is_known(report: &ScanReport) -> bool {
    report.origin == Origin::Known
}

/// A small tree with a secret, scanned to its end.
fn finished() -> (Stage, ScanReport) {
    let stage = Stage::empty(ScanScope::Files);
    write(stage.root(), "a/clean.txt", "clean\n");
    write(stage.root(), "b/secret.env", format!("TOKEN={}\n", token(1)));
    std::os::unix::fs::symlink("clean.txt", stage.root().join("a/link")).unwrap();
    stage.settle();
    let report = stage.again();
    assert_eq!((report.exit_status(), is_known(&report)), (ExitStatus::Findings, false));
    (stage, report)
}

#[test]
fn the_report_of_a_finished_scan_is_given_again_with_its_end_while_nothing_changes() {
    let (stage, first) = finished();
    let before = tessera_scan::clock::wall_clock().get();
    for _ in 0..2 {
        let again = stage.again();
        assert!(is_known(&again));
        let ended_at = again.ended.unwrap().at.get();
        assert!(ended_at > 1_600_000_000_000 && ended_at <= before, "{ended_at}");
        assert_eq!((Essence::of(&again), again.run), (Essence::of(&first), first.run));
    }
    assert!(!is_known(&stage.anew()), "asked to begin anew, it does");
}

#[test]
fn any_change_of_the_tree_makes_a_new_scan() {
    let changes: [fn(&Path); 7] = [
        |root| write(root, "a/clean.txt", "other\n"),
        |root| write(root, "a/added", "new\n"),
        |root| write(root, "zz/added/behind/all", "new\n"),
        |root| std::fs::remove_file(root.join("a/clean.txt")).unwrap(),
        |root| std::fs::rename(root.join("a"), root.join("c")).unwrap(),
        |root| std::fs::remove_file(root.join("a/link")).unwrap(),
        |root| write(root, ".gitignore", "*.env\n"),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let (stage, _) = finished();
        git(stage.root(), &["init", "-q"]);
        stage.anew();
        assert!(is_known(&stage.again()), "case {index}: unchanged");
        change(stage.root());
        let again = stage.again();
        assert!(!is_known(&again), "case {index}");
        assert_eq!(Essence::of(&again), Essence::of(&stage.fresh()), "case {index}");
    }
}

#[test]
fn a_scan_of_files_as_young_as_itself_is_done_again() {
    let stage = Stage::empty(ScanScope::Files);
    write(stage.root(), "a", "young\n");
    stage.make_young("a");
    stage.again();
    assert!(!is_known(&stage.again()));
}

#[test]
fn a_report_that_was_not_complete_is_not_given_again() {
    let stage = Stage::empty(ScanScope::History);
    git(stage.root(), &["init", "-q", "-b", "main"]);
    write(stage.root(), "a", "text\n");
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "all"]);
    let oid = git(stage.root(), &["rev-parse", "HEAD:a"]);
    let object = stage.root().join(".git/objects").join(&oid[..2]).join(&oid[2..]);
    let whole = std::fs::read(&object).unwrap();
    // Missing when the history is listed, and damaged when it is read.
    for damaged in [None, Some("damaged")] {
        std::fs::remove_file(&object).unwrap();
        damaged.inspect(|content| std::fs::write(&object, content).unwrap());
        assert_eq!(stage.anew().exit_status(), ExitStatus::Incomplete, "{damaged:?}");
        damaged.inspect(|_| std::fs::remove_file(&object).unwrap());
        std::fs::write(&object, &whole).unwrap();
        let again = stage.again();
        assert_eq!((again.exit_status(), is_known(&again)), (ExitStatus::CleanComplete, false), "{damaged:?}");
        assert!(is_known(&stage.again()), "{damaged:?}");
    }
}

#[test]
fn the_report_of_a_history_is_given_again_until_a_head_moves() {
    let stage = Stage::empty(ScanScope::History);
    git(stage.root(), &["init", "-q", "-b", "main"]);
    write(stage.root(), "a.env", format!("TOKEN={}\n", token(1)));
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "all"]);
    let first = stage.again();
    git(stage.root(), &["gc", "-q"]);
    write(stage.root(), "not-committed.env", format!("TOKEN={}\n", token(2)));
    let again = stage.again();
    assert!(is_known(&again), "packs and files of the working tree are not the history");
    assert_eq!(Essence::of(&again), Essence::of(&first));
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "more"]);
    let moved = stage.again();
    assert_eq!((is_known(&moved), moved.findings.len()), (false, 2));
}

/// A library may keep scans of what is staged and of ranges, which have no heads that could move.
#[test]
fn the_report_of_what_is_staged_is_given_again_until_the_index_changes() {
    let stage = Stage::empty(ScanScope::Staged);
    git(stage.root(), &["init", "-q", "-b", "main"]);
    write(stage.root(), "a", "clean\n");
    git(stage.root(), &["add", "-A"]);
    let kept =
        || Scan::of([stage.root()]).workers(1).scope(ScanScope::Staged).kept_in(stage.state.path()).run().unwrap();
    assert_eq!(kept().exit_status(), ExitStatus::CleanComplete);
    write(stage.root(), "not-staged.env", format!("TOKEN={}\n", token(1)));
    assert!(is_known(&kept()), "the index is as it was");
    git(stage.root(), &["add", "-A"]);
    let changed = kept();
    assert_eq!((is_known(&changed), Essence::of(&changed)), (false, Essence::of(&stage.fresh())));
    assert_eq!(Essence::of(&changed).paths(), ["not-staged.env"].into());
    git(stage.root(), &["commit", "-q", "-m", "all"]);
    assert_eq!(kept().exit_status(), ExitStatus::CleanComplete, "nothing is staged any more");
}

#[test]
fn the_report_of_a_range_of_commits_is_given_again_until_the_range_changes() {
    let stage = Stage::empty(ScanScope::History);
    git(stage.root(), &["init", "-q", "-b", "main"]);
    let commit = |path: &str, text: String| {
        write(stage.root(), path, text);
        git(stage.root(), &["add", "-A"]);
        git(stage.root(), &["commit", "-q", "-m", path]);
    };
    commit("first", "clean\n".into());
    git(stage.root(), &["tag", "first"]);
    commit("second", "clean too\n".into());
    let range = CommitRange { revisions: vec!["first..HEAD".into()], ..CommitRange::default() };
    let request = ScanRequest { range: Some(range), ..stage.request() };
    let kept = || stage::run(&request, &stage.keeping(false));
    assert_eq!(kept().exit_status(), ExitStatus::CleanComplete);
    assert!(is_known(&kept()));
    commit("new.env", format!("TOKEN={}\n", token(1)));
    let changed = kept();
    assert_eq!((is_known(&changed), changed.exit_status()), (false, ExitStatus::Findings));
}
