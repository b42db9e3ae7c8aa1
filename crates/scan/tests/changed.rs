//! The input changes between an interruption and the same command: the report is that of a fresh scan.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod stage;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stage::fleet::{mount, unmount};
use stage::{Essence, LARGE, Stage, git, large_text, token, write};
use tessera_scan::Scan;
use tessera_scan::read::rules::Rules;
use tessera_scan::run::request::ScanScope;
use tessera_scan::run::{ExitStatus, Keeping, Origin, ReadBefore};

const FILES: usize = 40;

/// Interrupts a scan behind all small files, changes the tree, and gives the same command again.
fn resumed_after(prepare: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> (Stage, Essence) {
    let stage = Stage::tree(FILES);
    prepare(stage.root());
    stage.interrupt_after(FILES as u64);
    change(stage.root());
    let resumed = Essence::of(&stage.again());
    assert_eq!(resumed, Essence::of(&stage.fresh()), "as a fresh scan");
    (stage, resumed)
}

fn paths(paths: &[&'static str]) -> BTreeSet<&'static str> {
    paths.iter().copied().collect()
}

#[test]
fn a_token_appended_to_a_file_that_was_read_is_found() {
    let (_stage, resumed) =
        resumed_after(|_| {}, |root| write(root, "a/f000.txt", format!("file 0\nTOKEN={}\n", token(1))));
    assert_eq!((resumed.paths(), resumed.exit), (paths(&["a/f000.txt"]), ExitStatus::Findings));
}

#[test]
fn a_replacement_of_the_same_size_and_time_is_found() {
    let secret = format!("TOKEN={}\n", token(2));
    let filler = format!("{}\n", "x".repeat(secret.len() - 1));
    let (_stage, resumed) = resumed_after(
        |root| write(root, "a/same.txt", &filler),
        |root| {
            let path = root.join("a/same.txt");
            let before = std::fs::metadata(&path).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            std::io::Write::write_all(&mut &file, secret.as_bytes()).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
            let after = std::fs::metadata(&path).unwrap();
            assert_eq!((before.len(), before.mtime_nsec()), (after.len(), after.mtime_nsec()));
        },
    );
    assert_eq!(resumed.paths(), paths(&["a/same.txt"]));
}

#[test]
fn files_added_behind_the_cursor_are_read() {
    let (_stage, resumed) = resumed_after(
        |_| {},
        |root| {
            write(root, "a/f000.txt.new", format!("TOKEN={}\n", token(3)));
            write(root, "0-first/of/all", format!("TOKEN={}\n", token(4)));
        },
    );
    assert_eq!(resumed.paths(), paths(&["a/f000.txt.new", "0-first/of/all"]));
}

#[test]
fn secrets_in_removed_files_are_not_reported() {
    let (_stage, resumed) = resumed_after(
        |root| {
            write(root, "a/gone.env", format!("TOKEN={}\n", token(5)));
            write(root, "b/stays.env", format!("TOKEN={}\n", token(6)));
        },
        |root| std::fs::remove_file(root.join("a/gone.env")).unwrap(),
    );
    assert_eq!(resumed.paths(), paths(&["b/stays.env"]));
    assert!(resumed.is_complete);
}

#[test]
fn a_renamed_file_is_reported_where_it_is_now() {
    let (_stage, resumed) = resumed_after(
        |root| write(root, "a/old.env", format!("TOKEN={}\n", token(7))),
        |root| std::fs::rename(root.join("a/old.env"), root.join("b/new.env")).unwrap(),
    );
    assert_eq!(resumed.paths(), paths(&["b/new.env"]));
}

#[test]
fn a_file_that_became_a_directory_and_one_that_became_a_link_are_read_as_they_are() {
    let (_stage, resumed) = resumed_after(
        |root| {
            write(root, "a/file", format!("TOKEN={}\n", token(8)));
            write(root, "a/link", format!("TOKEN={}\n", token(9)));
        },
        |root| {
            std::fs::remove_file(root.join("a/file")).unwrap();
            write(root, "a/file/inside", format!("TOKEN={}\n", token(10)));
            std::fs::remove_file(root.join("a/link")).unwrap();
            std::os::unix::fs::symlink("file", root.join("a/link")).unwrap();
        },
    );
    assert_eq!(resumed.paths(), paths(&["a/file/inside"]));
}

#[test]
fn a_replaced_tree_is_reported_as_it_is_now() {
    let (_stage, resumed) = resumed_after(
        |root| write(root, "a/old.env", format!("TOKEN={}\n", token(11))),
        |root| {
            std::fs::remove_dir_all(root.join("a")).unwrap();
            std::fs::remove_dir_all(root.join("b")).unwrap();
            std::fs::remove_file(root.join(LARGE)).unwrap();
            write(root, "c/new.env", format!("TOKEN={}\n", token(12)));
        },
    );
    assert_eq!(resumed.paths(), paths(&["c/new.env"]));
}

/// A mount that is not mounted looks like that. A part of a tree that is gone was removed.
#[test]
fn an_emptied_root_is_refused_when_a_scan_goes_on_and_scanned_when_it_is_begun_anew() {
    let stage = Stage::tree(FILES);
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    stage.interrupt_after(FILES as u64);
    let aside = unmount(stage.root());
    let again = || Scan::of([stage.root()]).workers(1).kept_in(stage.state.path()).run();
    let refused = again().unwrap_err().to_string();
    for part in ["is empty here, and 42 files were planned", "--fresh begins anew"] {
        assert!(refused.contains(part), "{refused} lacks {part}");
    }
    mount(stage.root(), &aside);
    let resumed = again().unwrap();
    assert!(resumed.is_resumed(), "the refusal cost nothing");
    assert_eq!(Essence::of(&resumed), Essence::of(&stage.fresh()));
    let aside = unmount(stage.root());
    assert_eq!(stage.anew().exit_status(), ExitStatus::CleanComplete, "asked to begin anew, it does");
    drop(aside);
}

#[test]
fn a_file_that_a_new_ignore_rule_names_is_left_out() {
    let (_stage, resumed) = resumed_after(
        |root| {
            git(root, &["init", "-q"]);
            write(root, "a/local.env", format!("TOKEN={}\n", token(13)));
        },
        |root| write(root, ".gitignore", "*.env\n"),
    );
    assert_eq!((resumed.paths(), resumed.exit), (paths(&[]), ExitStatus::CleanComplete));
}

/// A history whose last blob is large: it is stopped there.
fn history() -> Stage {
    let stage = Stage::empty(ScanScope::History);
    let root = stage.root();
    git(root, &["init", "-q", "-b", "main"]);
    for i in 0..FILES {
        write(root, &Stage::file(i), format!("blob {i}\n"));
    }
    write(root, "old.env", format!("TOKEN={}\n", token(20)));
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "small"]);
    write(root, LARGE, large_text());
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "large"]);
    stage
}

fn history_resumed_after(change: impl FnOnce(&Path)) -> (Stage, Essence) {
    let stage = history();
    stage.interrupt_after(1);
    change(stage.root());
    let resumed = Essence::of(&stage.again());
    assert_eq!(resumed, Essence::of(&stage.fresh()), "as a fresh scan");
    (stage, resumed)
}

#[test]
fn commits_made_after_an_interruption_are_read() {
    let (_stage, resumed) = history_resumed_after(|root| {
        for i in 0..30 {
            write(root, "new.env", format!("TOKEN={}\n", token(100 + i)));
            git(root, &["commit", "-q", "-a", "--allow-empty", "-m", "x"]);
            git(root, &["add", "-A"]);
            git(root, &["commit", "-q", "--allow-empty", "-m", "secret"]);
        }
    });
    assert_eq!(resumed.places.len(), 31);
}

#[test]
fn a_branch_made_after_an_interruption_is_read() {
    let (_stage, resumed) = history_resumed_after(|root| {
        git(root, &["checkout", "-q", "-b", "side"]);
        write(root, "side.env", format!("TOKEN={}\n", token(21)));
        git(root, &["add", "-A"]);
        git(root, &["commit", "-q", "-m", "side"]);
        git(root, &["checkout", "-q", "main"]);
    });
    assert_eq!(resumed.paths(), paths(&["old.env", "side.env"]));
}

#[test]
fn a_history_that_was_rewritten_is_reported_as_it_is_now() {
    let (_stage, resumed) = history_resumed_after(|root| {
        git(root, &["checkout", "-q", "--orphan", "anew"]);
        git(root, &["rm", "-q", "-r", "--cached", "."]);
        write(root, "anew.env", format!("TOKEN={}\n", token(22)));
        git(root, &["add", "anew.env"]);
        git(root, &["commit", "-q", "-m", "anew"]);
        git(root, &["branch", "-q", "-M", "anew", "main"]);
        git(root, &["reflog", "expire", "--expire=now", "--all"]);
        git(root, &["gc", "-q", "--prune=now"]);
    });
    assert_eq!(resumed.paths(), paths(&["anew.env"]));
}

#[test]
fn a_repacked_history_goes_on_where_it_was() {
    let stage = history();
    stage.interrupt_after(1);
    git(stage.root(), &["gc", "-q"]);
    let resumed = stage.again();
    assert!(resumed.is_resumed(), "no head moved");
    assert_eq!(Essence::of(&resumed), Essence::of(&stage.fresh()));
}

#[test]
fn what_has_not_changed_is_not_read_again_and_what_was_too_young_is() {
    let stage = Stage::tree(FILES);
    stage.settle();
    stage.interrupt_after(FILES as u64);
    let read_before = ReadBefore { same: FILES as u64, read_again: 0 };
    assert_eq!(stage.again().origin, Origin::Resumed(read_before));

    let stage = Stage::tree(FILES);
    stage.settle();
    stage.make_young(&Stage::file(0));
    stage.interrupt_after(FILES as u64);
    // The first file was as old as the look at it: the same stamp proves nothing.
    let Origin::Resumed(before) = stage.again().origin else { panic!("it was interrupted") };
    assert_eq!((before.same, before.read_again), (0, FILES as u64));
}

/// The blobs are in the list, and their objects are damaged when they are read. The heads and the list are the same afterwards.
#[test]
fn damaged_objects_that_were_mended_after_an_interruption_are_read() {
    let stage = history();
    let listed = git(stage.root(), &["ls-tree", "-r", "HEAD~1"]);
    let object_of = |line: &str| {
        let oid = line.split_whitespace().nth(2).unwrap();
        stage.root().join(".git/objects").join(&oid[..2]).join(&oid[2..])
    };
    let objects: Vec<_> = listed.lines().map(object_of).map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    assert_eq!(objects.len(), FILES + 1, "all but the large one");
    let replace = |path: &Path, content: &[u8]| {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, content).unwrap();
    };
    objects.iter().for_each(|(_, path)| replace(path, b"damaged"));
    let interrupted = stage.interrupt_after(1);
    assert!(interrupted.receipt.tally.unreadable_total() > 0, "{:?}", interrupted.receipt.tally);
    objects.iter().for_each(|(whole, path)| replace(path, whole));
    let resumed = Essence::of(&stage.again());
    assert_eq!(resumed, Essence::of(&stage.fresh()), "as a fresh scan");
    assert_eq!((resumed.paths(), resumed.is_complete), (paths(&["old.env"]), true));
}

#[test]
fn a_history_that_moved_on_is_scanned_anew_and_the_report_says_why() {
    let stage = history();
    stage.interrupt_after(1);
    git(stage.root(), &["commit", "-q", "--allow-empty", "-m", "x"]);
    let report = stage.again();
    let Origin::ScannedAnew { because } = &report.origin else { panic!("{:?}", report.origin) };
    assert!(because.starts_with("the history of /") && because.ends_with("has changed since"), "{because}");
}

#[test]
fn interrupted_again_while_it_compares_a_scan_says_what_it_did_not_look_at() {
    let stage = Stage::tree(FILES);
    stage.interrupt_after(FILES as u64);
    write(stage.root(), "a/f000.txt", format!("TOKEN={}\n", token(1)));
    // Stopped at once: nothing is compared, and what was found before is not called the state of things.
    let stopped = stage.stopped_at_once();
    assert_eq!((stopped.receipt.plan.uncompared, stopped.exit_status()), (FILES as u64, ExitStatus::Incomplete));
    let resumed = Essence::of(&stage.again());
    assert_eq!(resumed, Essence::of(&stage.fresh()));
}

#[test]
fn what_changed_is_read_again_with_the_rules_of_its_target() {
    let (stage, other) = (Stage::tree(FILES), tempfile::tempdir().unwrap());
    write(stage.root(), "a/f000.txt", "nothing\n");
    // The target that is interrupted brings rules of its own; the one behind it does not.
    let own = "[[rules]]\nid = 'own'\nregex = 'own_[a-z]{12}'\nkeywords = ['own_']\n";
    let own = || Rules::from_gitleaks(own, &mut |_| Err("no".into())).unwrap();
    let mut request = stage.request();
    request.paths.push(other.path().to_path_buf());
    request.rules.add_own(stage.root().canonicalize().unwrap(), own()).unwrap();
    stage.interrupt_of(&request, FILES as u64);
    for root in [stage.root(), other.path()] {
        write(root, "a/f000.txt", format!("own_abcdefghijkl\n\nTOKEN={}\n", token(1)));
    }
    let keeping = stage.keeping(false);
    let resumed = stage::run(&request, &keeping);
    let rules: Vec<(u32, &str)> = resumed
        .findings
        .iter()
        .flat_map(|finding| finding.locations.iter().map(|at| (at.occurrence.target, &finding.rule[..])))
        .collect();
    assert_eq!(rules, [(0, "own"), (1, "github-pat")]);
    assert_eq!(Essence::of(&resumed), Essence::of(&stage::run(&request, &Keeping::Nothing)));
}
