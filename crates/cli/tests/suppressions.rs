//! Known findings are left out, and nothing else: rules and ignore files of one target, baselines.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::path::Path;

use scan_support::{commit_all, git, repository, scan, tessera, token, write};
use serde_json::Value;

const ALLOWS_TESTS: &str = "[extend]\nuseDefault = false\n[[rules]]\nid = 'own-one'\nregex = 'ghp_[0-9A-Za-z]{36}'\n\
                            [[allowlists]]\npaths = ['^tests/']\n";
const OTHER_RULES: &str = "[[rules]]\nid = 'own-two'\nregex = 'two_[a-z]{12}'\n";

/// Two targets with the same files.
fn two_targets() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for target in ["one", "two"] {
        write(dir.path(), &format!("{target}/a.env"), format!("TOKEN={}\n", token(1)));
        write(dir.path(), &format!("{target}/tests/b.env"), format!("x\nTOKEN={}\n", token(2)));
        write(dir.path(), &format!("{target}/c"), "two_abcdefghijkl\n");
    }
    dir
}

fn make_repository(path: &Path) {
    git(path, &["init", "-q", "-b", "main"]);
    commit_all(path, "all of it");
}

#[test]
fn an_ignore_file_of_one_target_silences_no_other() {
    let dir = two_targets();
    write(dir.path(), "one/.gitleaksignore", "a.env:github-pat:1\n");
    let places = scan(dir.path(), &["one", "two"]).places();
    assert_eq!(places, ["one tests/b.env:2", "two a.env:1", "two tests/b.env:2"]);
    // The id of a secret silences it in its own target only.
    let report = scan(dir.path(), &["two"]).report;
    let id = report["findings"][0]["secret_id"].as_str().unwrap();
    write(dir.path(), "two/.gitleaksignore", id);
    let places = scan(dir.path(), &["one", "two"]).places();
    assert_eq!(places, ["one tests/b.env:2", "two tests/b.env:2"]);
    std::fs::remove_file(dir.path().join("one/.gitleaksignore")).unwrap();
    assert_eq!(scan(dir.path(), &["two", "one"]).places(), ["one a.env:1", "one tests/b.env:2", "two tests/b.env:2"]);
}

/// The same name and line at the root of a repository and in a folder of it.
#[test]
fn an_ignore_file_names_places_below_its_own_folder() {
    let dir = repository();
    for (number, folder) in ["", "src/", "src/src/"].into_iter().enumerate() {
        write(dir.path(), &format!("{folder}x.env"), format!("TOKEN={}\n", token(number as u64)));
    }
    commit_all(dir.path(), "all of it");
    let all = ["src src/x.env:1", "src x.env:1"];
    for (file, line, left) in [
        (".gitleaksignore", "x.env", &all[..]),
        (".gitleaksignore", "src/x.env", &all[..1]),
        (".gitleaksignore", "src/src/x.env", &all[1..]),
        ("src/.gitleaksignore", "x.env", &all[..1]),
        ("src/.gitleaksignore", "src/x.env", &all[1..]),
        ("src/.gitleaksignore", "src/src/x.env", &all[..]),
    ] {
        write(dir.path(), file, format!("{line}:github-pat:1\n"));
        assert_eq!(scan(dir.path(), &["src"]).places(), left, "{line} in {file}");
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    // The id of a secret in the file of the repository holds in its folders.
    let report = scan(dir.path(), &["src/x.env"]).report;
    write(dir.path(), ".gitleaksignore", report["findings"][0]["secret_id"].as_str().unwrap());
    assert_eq!(scan(dir.path(), &["src"]).places(), all[..1]);
    // A history names its paths from the root, whichever folder is named.
    let commit = git(dir.path(), &["rev-parse", "HEAD"]);
    write(dir.path(), ".gitleaksignore", format!("{}:src/x.env:github-pat:1\n", commit.trim()));
    assert_eq!(scan(dir.path(), &["--history", "src"]).places(), ["src src/src/x.env:1", "src x.env:1"]);
}

#[test]
fn an_ignore_file_of_one_history_silences_no_other() {
    let dir = two_targets();
    make_repository(&dir.path().join("one"));
    git(dir.path(), &["clone", "-q", "one", "clone"]);
    let commit = git(&dir.path().join("one"), &["rev-parse", "HEAD"]);
    write(dir.path(), "one/.gitleaksignore", format!("{}:a.env:github-pat:1\n", commit.trim()));
    let places = scan(dir.path(), &["--history", "one", "clone"]).places();
    assert_eq!(places, ["clone a.env:1", "clone tests/b.env:2", "one tests/b.env:2"]);
}

#[test]
fn rules_of_one_target_hold_for_it_alone() {
    let dir = two_targets();
    write(dir.path(), "one/.gitleaks.toml", ALLOWS_TESTS);
    let scanned = scan(dir.path(), &["one", "two"]);
    assert_eq!(scanned.places(), ["one a.env:1", "two a.env:1", "two tests/b.env:2"]);
    assert!(scanned.said.contains("rules of one/.gitleaks.toml are used for one"), "{}", scanned.said);
    // Each target has rules of its own, in any order, as trees and as histories.
    write(dir.path(), "two/.gitleaks.toml", OTHER_RULES);
    let expected = ["one a.env:1", "two c:1"];
    assert_eq!(scan(dir.path(), &["one", "two"]).places(), expected);
    assert_eq!(scan(dir.path(), &["two", "one"]).places(), expected);
    for target in ["one", "two"] {
        make_repository(&dir.path().join(target));
    }
    let scanned = scan(dir.path(), &["--history", "two", "one"]);
    assert_eq!(scanned.places(), expected);
    let rules: Vec<&str> = scanned.report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["own-two", "own-one"]);
    // Rules that are named hold for all.
    assert_eq!(
        scan(dir.path(), &["--rules", "one/.gitleaks.toml", "one", "two"]).places(),
        ["one a.env:1", "two a.env:1"]
    );
    assert_eq!(scan(dir.path(), &["--rules", "builtin", "one", "two"]).places().len(), 4);
}

#[test]
fn rules_of_a_target_are_in_the_name_of_the_run_and_in_its_report() {
    let (dir, state) = (two_targets(), tempfile::tempdir().unwrap());
    write(
        dir.path(),
        "two/.gitleaks.toml",
        OTHER_RULES.replace("[[rules]]", "[[rules]]\ndescription = 'A title of two'"),
    );
    let run = |args: &[&str]| {
        let mut command = tessera();
        command.current_dir(dir.path()).args(args).arg("--state-dir").arg(state.path());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let scanned: Value = serde_json::from_str(&run(&["scan", "--format", "json", "one", "two"])).unwrap();
    let title = |report: &Value| {
        let findings = report["findings"].as_array().unwrap().clone();
        findings.iter().find(|finding| finding["rule"] == "own-two").unwrap()["title"].clone()
    };
    assert_eq!(title(&scanned), "A title of two");
    let id = scanned["run"].as_str().unwrap();
    let ended: Value = serde_json::from_str(&run(&["runs", "report", id, "--format", "json"])).unwrap();
    assert_eq!(title(&ended), "A title of two");
    std::fs::remove_file(dir.path().join("two/.gitleaks.toml")).unwrap();
    let other: Value = serde_json::from_str(&run(&["scan", "--format", "json", "one", "two"])).unwrap();
    assert_ne!(other["run"], scanned["run"], "what finds other things is another run");
}

/// A report in gitleaks' format.
fn gitleaks_report(dir: &Path, args: &[&str]) -> Value {
    let mut command = tessera();
    command.current_dir(dir).args(["scan", "--no-resume", "--format", "gitleaks"]).args(args);
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
}

#[test]
fn a_rotated_secret_at_a_known_place_is_reported() {
    for args in [&["--history"][..], &[]] {
        let dir = repository();
        write(dir.path(), "a.env", format!("x\nTOKEN={}\n", token(1)));
        commit_all(dir.path(), "first");
        let args = |more: &[&'static str]| [args, more, &["."]].concat();
        // As gitleaks writes it: with the secret, and without our own id of it.
        let mut known = gitleaks_report(dir.path(), &args(&["--show-secrets"]));
        known[0].as_object_mut().unwrap().remove("SecretID");
        assert_eq!(known[0]["Secret"], token(1));
        let outside = tempfile::tempdir().unwrap();
        write(outside.path(), "known.json", known.to_string());
        let baseline = outside.path().join("known.json");
        let with = [&["--baseline", baseline.to_str().unwrap()][..], &args(&[])].concat();
        let scanned = scan(dir.path(), &with);
        assert_eq!((scanned.code, scanned.said.contains("warning")), (0, false), "{}", scanned.said);
        // Another secret at the same file and line, in the same commit: only the secret tells them apart.
        write(dir.path(), "a.env", format!("x\nTOKEN={}\n", token(2)));
        let commit = commit_all(dir.path(), "rotated");
        if args(&[]).len() > 1 {
            known[0]["Fingerprint"] = format!("{commit}:a.env:github-pat:2").into();
            known[0]["Commit"] = commit.into();
        }
        write(outside.path(), "known.json", known.to_string());
        let scanned = scan(dir.path(), &with);
        assert!(scanned.paths().contains(&"a.env".to_owned()), "{}", scanned.report);
        let ids: Vec<_> = scanned.report["findings"].as_array().unwrap().iter().map(|one| &one["secret_id"]).collect();
        let rotated = scan(dir.path(), &["."]).report["findings"][0]["secret_id"].clone();
        assert!(ids.contains(&&rotated), "{ids:?}");
    }
}

#[test]
fn a_redacted_baseline_hides_nothing_and_says_why() {
    let dir = repository();
    write(dir.path(), "a.env", format!("TOKEN={}\n", token(1)));
    commit_all(dir.path(), "first");
    let ours = gitleaks_report(dir.path(), &["."]);
    assert_eq!(ours[0]["Secret"], "ghp_****");
    let outside = tempfile::tempdir().unwrap();
    let baseline = outside.path().join("known.json");
    let with = ["--baseline", baseline.to_str().unwrap(), "."];
    write(outside.path(), "known.json", ours.to_string());
    assert_eq!(scan(dir.path(), &with).code, 0, "our own names the secret");
    let mut theirs = ours;
    theirs[0].as_object_mut().unwrap().remove("SecretID");
    theirs[0]["Secret"] = "REDACTED".into();
    write(outside.path(), "known.json", theirs.to_string());
    let scanned = scan(dir.path(), &with);
    assert_eq!(scanned.code, 1);
    assert!(
        scanned.said.contains("1 of 1 findings of the baseline") && scanned.said.contains("redacted"),
        "{}",
        scanned.said
    );
}

#[test]
fn what_rules_extend_is_looked_for_in_the_working_directory_and_then_beside_them() {
    let dir = two_targets();
    let rule = |id: &str, regex: &str| format!("[[rules]]\nid = '{id}'\nregex = '{regex}'\n");
    write(dir.path(), "one/.gitleaks.toml", "[extend]\npath = 'config/base.toml'\n");
    write(dir.path(), "config/base.toml", rule("of-the-working-directory", "ghp_[0-9A-Za-z]{36}"));
    write(dir.path(), "one/config/base.toml", rule("beside-the-file", "two_[a-z]{12}"));
    let found = |at: &str, args: &[&str]| {
        let report = scan(&dir.path().join(at), args).report;
        let rules =
            report["findings"].as_array().unwrap().iter().map(|finding| finding["rule"].as_str().unwrap().to_owned());
        rules.collect::<std::collections::BTreeSet<String>>().into_iter().collect::<Vec<_>>()
    };
    for args in [&["one"][..], &["--rules", "one/.gitleaks.toml", "one"]] {
        assert_eq!(found("", args), ["of-the-working-directory"], "{args:?}");
    }
    // The working directory of the command counts, and not the one above the file.
    assert_eq!(found("one", &["."]), ["beside-the-file"]);
    assert_eq!(found("two", &["../one"]), ["beside-the-file"]);
    std::fs::remove_file(dir.path().join("config/base.toml")).unwrap();
    for args in [&["one"][..], &["--rules", "one/.gitleaks.toml", "one"]] {
        assert_eq!(found("", args), ["beside-the-file"], "{args:?}");
    }
}
