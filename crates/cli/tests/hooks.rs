//! Hooks that git calls: before a commit, before a push, and on a server before it takes what is pushed.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::path::Path;
use std::process::Output;

use scan_support::{commit_all, git, git_command, repository, tessera, token, write};

fn hook(dir: &Path, args: &[&str]) -> Output {
    tessera().current_dir(dir).arg("hook").args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

fn tried(dir: &Path, args: &[&str]) -> (bool, String) {
    let output = git_command(dir, args).output().unwrap();
    (output.status.success(), said(&output))
}

fn secret(seed: u64) -> String {
    format!("key = '{}'\n", token(seed))
}

#[test]
fn a_commit_with_a_secret_is_refused_until_the_hook_is_gone() {
    let repository = repository();
    let dir = repository.path();
    assert!(hook(dir, &["install"]).status.success());
    assert!(hook(dir, &["install", "--", "--severity", "low"]).status.success(), "ours is written again");
    write(dir, "a.py", secret(1));
    git(dir, &["add", "-A"]);
    let (done, told) = tried(dir, &["commit", "-m", "a secret"]);
    assert!(!done && told.contains("a.py:1") && !told.contains(&token(1)), "{told}");
    write(dir, "a.py", "nothing\n");
    commit_all(dir, "no secret");
    // Only what is staged counts.
    write(dir, "a.py", secret(1));
    write(dir, "b.py", "nothing\n");
    git(dir, &["add", "b.py"]);
    git(dir, &["commit", "-q", "-m", "b"]);
    assert!(hook(dir, &["uninstall"]).status.success());
    commit_all(dir, "no hook");
    assert_eq!(hook(dir, &["uninstall"]).status.code(), Some(2));
}

#[test]
fn a_hook_of_the_user_stays_and_flags_that_scan_does_not_know_are_refused() {
    let repository = repository();
    let dir = repository.path();
    write(dir, ".git/hooks/pre-commit", "#!/bin/sh\nexit 0\n");
    for command in ["install", "uninstall"] {
        let refused = hook(dir, &[command]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(said(&refused).contains("a hook of your own"), "{}", said(&refused));
    }
    assert_eq!(hook(dir, &["install", "pre-push", "--", "--nosuch"]).status.code(), Some(2));
    assert!(!dir.join(".git/hooks/pre-push").exists());
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(said(&hook(elsewhere.path(), &["install"])).contains("is no repository"));
}

/// A bare repository, and a clone of it with one commit that was pushed.
fn server_and_clone() -> (tempfile::TempDir, tempfile::TempDir) {
    let (server, clone) = (tempfile::tempdir().unwrap(), repository());
    git(server.path(), &["init", "-q", "--bare", "-b", "main"]);
    git(clone.path(), &["remote", "add", "origin", server.path().to_str().unwrap()]);
    write(clone.path(), "old.py", secret(1));
    commit_all(clone.path(), "an old secret");
    git(clone.path(), &["push", "-q", "origin", "main"]);
    (server, clone)
}

#[test]
fn a_push_with_a_secret_in_any_new_commit_is_refused() {
    let (_server, clone) = server_and_clone();
    let dir = clone.path();
    assert!(hook(dir, &["install", "pre-push"]).status.success());
    write(dir, "new.py", "nothing\n");
    commit_all(dir, "the old secret is known to the server");
    git(dir, &["push", "-q", "origin", "main"]);
    write(dir, "new.py", secret(2));
    commit_all(dir, "a secret");
    write(dir, "new.py", "nothing\n");
    commit_all(dir, "and away");
    let (done, told) = tried(dir, &["push", "origin", "main"]);
    assert!(!done && told.contains("new.py:1") && !told.contains("old.py"), "{told}");
    git(dir, &["push", "-q", "origin", "HEAD~2:refs/heads/before"]);
    git(dir, &["push", "-q", "origin", ":before"]);
}

#[test]
fn a_server_refuses_what_it_does_not_have_yet_and_keeps_none_of_it() {
    let (server, clone) = server_and_clone();
    let dir = clone.path();
    assert!(hook(server.path(), &["install", "pre-receive"]).status.success());
    git(dir, &["checkout", "-q", "-b", "side"]);
    write(dir, "clean.py", "nothing\n");
    commit_all(dir, "clean");
    git(dir, &["push", "-q", "origin", "side"]);
    write(dir, "new.py", secret(2));
    let refused = commit_all(dir, "a secret");
    write(dir, "new.py", "nothing\n");
    commit_all(dir, "and away");
    let (done, told) = tried(dir, &["push", "origin", "side", "HEAD:refs/heads/another"]);
    assert!(!done && told.contains("new.py:1") && !told.contains("old.py"), "{told}");
    assert!(told.contains(&refused[..12]), "{told}");
    assert!(!tried(server.path(), &["cat-file", "-e", &refused]).0, "nothing of it is kept");
    git(dir, &["tag", "-a", "-m", "a tag", "v1", "HEAD~2"]);
    git(dir, &["push", "-q", "origin", "v1", "main:refs/heads/copy"]);
    git(dir, &["push", "-q", "origin", ":side"]);
}

#[test]
fn what_cannot_be_read_is_not_let_pass() {
    let repository = repository();
    write(repository.path(), "a", "1");
    commit_all(repository.path(), "first");
    let mut command = tessera();
    command.current_dir(repository.path()).args(["hook", "run", "pre-receive"]);
    let mut child = command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let line = format!("{} {} refs/heads/main\n", "0".repeat(40), "12".repeat(20));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), line.as_bytes()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
}
