//! Trees: files that git tracks or does not ignore are read, in every surrounding.

use std::path::PathBuf;

use super::truth::cases::{self, Case};
use super::truth::command::Tessera;
use super::truth::compare::{compare, compare_findings};
use super::truth::{git, oracle, tree};

/// A folder or file of the field that git does not ignore.
fn target(case: &mut Case, field: &tree::Field) -> PathBuf {
    let random = &mut case.random;
    let chosen = match random.below(10) {
        0..4 => return field.root.clone(),
        4..7 => random.pick(&field.repositories).clone(),
        7..9 => random.pick(&field.folders).clone(),
        _ if !field.files.is_empty() => random.pick(&field.files).clone(),
        _ => return field.root.clone(),
    };
    let is_taken = chosen.canonicalize().is_ok_and(|path| path == chosen) && !is_ignored(&chosen);
    if is_taken { chosen } else { field.root.clone() }
}

/// Whether a repository around `path` ignores it. The user named it, so that an answer would be a matter of taste.
fn is_ignored(path: &std::path::Path) -> bool {
    let above = path.ancestors().skip(1).filter(|folder| folder.join(".git").exists());
    above.into_iter().any(|folder| {
        let mut check = git::command(folder, &["check-ignore", "-q", "--no-index"]);
        check.arg(path).status().unwrap().code() != Some(1)
    })
}

#[test]
fn a_tree_is_read_as_git_and_the_file_system_list_it() {
    cases::run(40, |case| {
        let root = case.folder("field");
        let field = tree::grow(&mut case.random, &root);
        let target = target(case, &field);
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), target.as_os_str()])?;
        compare(&report, &oracle::tree(&target))
    });
}

#[test]
fn ignore_rules_mean_what_they_mean_to_git() {
    cases::run(35, |case| {
        let root = case.folder("field");
        tree::grow_ignoring(&mut case.random, &root);
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), root.as_os_str()])?;
        compare(&report, &oracle::tree(&root))
    });
}

#[test]
fn no_ignore_reads_every_file() {
    cases::run(10, |case| {
        let root = case.folder("field");
        tree::grow(&mut case.random, &root);
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), "--no-ignore".as_ref(), root.as_os_str()])?;
        compare_findings(&report, &oracle::every_file(&root))
    });
}
