//! A report about several targets says of every path which of them it lies in.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::path::Path;

use scan_support::{commit_all, git, scan, tessera, token, write};
use serde_json::{Value, json};

/// A repository in `dir` that lacks a blob, and the blob's id: nothing else is known of what cannot be read.
fn damaged(dir: &Path) -> (String, String) {
    std::fs::create_dir_all(dir).unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
    write(dir, "lost", format!("text of {}\n", dir.display()));
    commit_all(dir, "a file");
    let blob = git(dir, &["rev-parse", "HEAD:lost"]);
    let (folder, name) = blob.trim().split_at(2);
    std::fs::remove_file(dir.join(".git/objects").join(folder).join(name)).unwrap();
    (dir.to_str().unwrap().to_owned(), blob.trim().to_owned())
}

fn printed(args: &[&str], format: &str) -> String {
    let output = tessera().args(["scan", "--no-resume", "--format", format]).args(args).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_was_not_read_is_named_with_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let lost = ["one", "two"].map(|name| damaged(&root.join(name)));
    let args = ["--history", &lost[0].0, &lost[1].0];

    let report = scan(&root, &args).report;
    let told = |example: &Value| (example["target"].clone(), example["path"].clone());
    let mut examples: Vec<_> = report["receipt"]["unreadable_examples"].as_array().unwrap().iter().map(told).collect();
    examples.sort_by_key(|example| example.0.to_string());
    assert_eq!(examples, lost.clone().map(|(target, blob)| (json!(target), json!(blob))), "{:#}", report["receipt"]);

    let human = printed(&args, "human");
    let sarif = printed(&args, "sarif");
    for (target, blob) in &lost {
        assert!(human.contains(&format!("    {target}/{blob}: ")), "{human}");
        assert!(sarif.contains(&format!("{blob} in {target} was not read")), "{sarif}");
    }
    let alone = printed(&args[..2], "human");
    assert!(alone.contains(&format!("    {}: ", lost[0].1)), "{alone}");
}

#[test]
fn files_of_one_name_that_are_targets_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let files = ["one/key.env", "two/key.env"].map(|path| {
        write(&root, path, format!("{}\n", token(1)));
        root.join(path).to_str().unwrap().to_owned()
    });
    let human = printed(&[&files[0], &files[1]], "human");
    for file in &files {
        assert!(human.contains(&format!("  {file}:1:1")), "{human}");
    }
    let alone = printed(&[&files[0]], "human");
    assert!(alone.contains("  key.env:1:1"), "{alone}");
}
