//! Path filters: each place is judged by its own path, and a blob is read if one of its paths is in scope.

use std::ffi::OsStr;

use super::truth::cases;
use super::truth::command::Tessera;
use super::truth::compare::{compare, compare_findings};
use super::truth::globs::Filters;
use super::truth::history::{self, Size};
use super::truth::{changes, oracle, tree};

fn args<'a>(first: &[&'a str], filters: &Filters, target: &'a OsStr) -> Vec<&'a OsStr> {
    let words = first.iter().copied().chain(filters.args());
    words.map(OsStr::new).chain([target]).collect()
}

#[test]
fn filters_of_a_tree_take_the_paths_they_name() {
    cases::run(15, |case| {
        let root = case.folder("field");
        tree::grow_ignoring(&mut case.random, &root);
        let filters = Filters::random(&mut case.random);
        let report = Tessera::of(case).scan(&args(&["--no-resume"], &filters, root.as_os_str()))?;
        let mut truth = oracle::tree_within(&root, &|path| filters.take(path));
        // A folder that is left out counts once, so that links in it are not counted.
        truth.skipped.clear();
        compare(&report, &truth)
    });
}

#[test]
fn filters_of_a_history_judge_every_path_of_a_blob() {
    cases::run(25, |case| {
        let repository = case.folder("repository");
        history::grow(&mut case.random, &repository, Size { odd_refs: false, ..Size::default() });
        let filters = Filters::random(&mut case.random);
        let report = Tessera::of(case).scan(&args(&["--no-resume", "--history"], &filters, repository.as_os_str()))?;
        compare(&report, &oracle::history(&repository, &|path| filters.take(path)))
    });
}

#[test]
fn filters_of_staged_changes_judge_every_path() {
    cases::run(15, |case| {
        let repository = case.folder("repository");
        changes::grow(&mut case.random, &repository);
        let filters = Filters::random(&mut case.random);
        let report = Tessera::of(case).scan(&args(&["--staged"], &filters, repository.as_os_str()))?;
        compare_findings(&report, &oracle::staged(&repository, None, &|path| filters.take(path)).0)
    });
}

/// The rule of the built-in rules, with a path of its own or an allowlist around it.
#[test]
fn path_rules_and_allowlists_judge_every_path_of_a_blob() {
    const RULE: &str = "[[rules]]\nid = 'github-pat'\nregex = '''\\b(ghp_[0-9A-Za-z]{36})\\b'''\nkeywords = ['ghp_']\n";
    type Meaning = fn(&[u8]) -> bool;
    let kinds: [(&str, Meaning); 4] = [
        ("[allowlist]\npaths = ['''^tests/''']\n", |path| !path.starts_with(b"tests/")),
        ("[allowlist]\npaths = ['''\\.env$''']\n", |path| !path.ends_with(b".env")),
        ("path = '''\\.env$'''\n", |path| path.ends_with(b".env")),
        ("[rules.allowlist]\npaths = ['''(^|/)src/''']\n", |path| {
            let folders: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
            !folders[..folders.len() - 1].contains(&&b"src"[..])
        }),
    ];
    cases::run(15, |case| {
        let (text, takes) = *case.random.pick(&kinds);
        let rules = case.dir().join("rules.toml");
        std::fs::write(&rules, format!("{RULE}{text}")).unwrap();
        let repository = case.folder("repository");
        history::grow(&mut case.random, &repository, Size { odd_refs: false, ..Size::default() });
        let words = ["--no-resume", "--history", "--rules"].map(OsStr::new);
        let args = [&words[..], &[rules.as_os_str(), repository.as_os_str()]].concat();
        let truth = oracle::history(&repository, &takes);
        compare_findings(&Tessera::of(case).scan(&args)?, &truth).map_err(|problem| format!("{text}{problem}"))
    });
}
