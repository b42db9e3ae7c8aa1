//! What is scanned and with which rules, as flags choose it: ranges of commits, standard input, rules, severity, exit code, redaction.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use scan_support::{Scanned, commit_all, git, repository, scan, tessera, token, write};
use serde_json::Value;

fn secret(seed: u64) -> String {
    format!("key = '{}'\n", token(seed))
}

fn raw(dir: &Path, args: &[&str]) -> Output {
    tessera().current_dir(dir).args(["scan", "--no-resume", "--quiet"]).args(args).output().unwrap()
}

#[test]
fn a_range_of_commits_is_what_they_add() {
    let repository = repository();
    let dir = repository.path();
    write(dir, "old.py", secret(1));
    let old = commit_all(dir, "old");
    git(dir, &["branch", "base"]);
    write(dir, "new.py", secret(2));
    commit_all(dir, "new");
    std::fs::remove_file(dir.join("new.py")).unwrap();
    commit_all(dir, "gone");
    let new = vec!["new.py".to_owned()];
    for args in [&["base..HEAD"][..], &["base.."], &["--since", &old], &["--since", "base", "--branch", "main"]] {
        let scanned = scan(dir, args);
        assert_eq!((scanned.paths(), scanned.code), (new.clone(), 1), "{args:?} {}", scanned.said);
    }
    assert_eq!(scan(dir, &["HEAD~1..HEAD"]).code, 0);
    assert_eq!(scan(dir, &["--branch", "base"]).paths(), ["old.py"]);
    let mut both = scan(dir, &["--since", "2001-01-01"]).paths();
    both.sort();
    assert_eq!(both, ["new.py", "old.py"]);
    for (args, part) in [
        (&["nosuch..HEAD"][..], "nosuch"),
        (&["--since", "mian"], "neither a commit nor a date"),
        (&["--branch", "nosuch"], "no branch"),
        (&["--staged", "base..HEAD"], "neither with --staged"),
    ] {
        let output = raw(dir, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
    // A file of such a name is a file.
    write(dir, "base..HEAD", "nothing\n");
    assert_eq!(scan(dir, &["base..HEAD"]).report["receipt"]["scanned"], 1);
}

fn piped(args: &[&str], text: &[u8]) -> Output {
    let mut command = tessera();
    command.args(["scan", "-", "--quiet"]).args(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn standard_input_is_scanned_and_left_nowhere() {
    let found = Scanned::of(&piped(&["--format", "json"], format!("x\n{}", secret(1)).as_bytes()));
    assert_eq!((found.code, &found.report["targets"][0]), (1, &Value::from("stdin")));
    assert_eq!(found.places(), ["stdin stdin:2"]);
    assert_eq!(piped(&[], b"nothing\n").status.code(), Some(0));
    assert_eq!(piped(&["."], b"").status.code(), Some(2), "alone");
    assert_eq!(piped(&["--history"], b"").status.code(), Some(2));
}

#[test]
fn rules_are_chosen_by_name_and_severity() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.py", format!("{}password = '{}'\n", secret(1), ["Vk7-pLq", "2wXz9"].concat()));
    let rules = |args: &[&str]| -> Vec<String> {
        let report = scan(dir.path(), args).report;
        let rule = |finding: &Value| finding["rule"].as_str().unwrap().to_owned();
        let mut rules: Vec<String> = report["findings"].as_array().unwrap().iter().map(rule).collect();
        rules.sort();
        rules
    };
    let all = rules(&[]);
    assert_eq!(all.len(), 2, "{all:?}");
    let other = all.iter().find(|rule| *rule != "github-pat").unwrap();
    assert_eq!(rules(&["--rule", "github-pat"]), ["github-pat"]);
    assert_eq!(rules(&["--rule", "github-pat", "--rule", other]), all);
    assert_eq!(rules(&["--no-rule", "github-pat"]), [other.as_str()]);
    assert_eq!(rules(&["--severity", "critical"]), ["github-pat"]);
    for args in [&["--rule", "nosuch"][..], &["--no-rule", "nosuch"], &["--rule", other, "--no-rule", other]] {
        assert_eq!(raw(dir.path(), args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_exit_code_for_secrets_is_the_users_and_for_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let code = |args: &[&str]| raw(dir.path(), args).status.code();
    assert_eq!(code(&["--exit-code", "7"]), Some(0));
    write(dir.path(), "a.py", secret(1));
    assert_eq!((code(&["--exit-code", "7"]), code(&["--exit-code", "0"]), code(&[])), (Some(7), Some(0), Some(1)));
    assert_eq!(code(&["--exit-code", "7", "nosuch"]), Some(2));
}

#[test]
fn a_part_of_a_secret_is_shown_on_request_and_only_there() {
    let dir = tempfile::tempdir().unwrap();
    let token = token(1);
    write(dir.path(), &format!("{token}.py"), format!("key = '{token}'\n"));
    let told = |args: &[&str]| String::from_utf8(raw(dir.path(), args).stdout).unwrap();
    let half = told(&["--redact=50", "--format", "gitleaks"]);
    assert!(half.contains(&format!("\"{}...\"", &token[..20])) && !half.contains(&token[..22]), "{half}");
    assert_eq!(told(&["--redact", "--format", "csv"]), told(&["--format", "csv"]));
    assert!(told(&["--redact=0", "--format", "csv"]).contains(&token));
    assert_eq!(raw(dir.path(), &["--redact=101"]).status.code(), Some(2));
}
