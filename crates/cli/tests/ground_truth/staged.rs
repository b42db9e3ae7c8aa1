//! Staged changes: the content and paths of the next commit, from the index that the commit is made of.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::truth::cases::{self, Outcome};
use super::truth::command::{Tessera, program};
use super::truth::compare::{Truth, compare_findings};
use super::truth::git::{self, commit_all, git};
use super::truth::oracle::{self, Staged};
use super::truth::report::Report;
use super::truth::{changes, token};

/// Places, counts and exit code. The text of a link may be read or skipped, but the link is counted.
fn compare_staged(report: &Report, truth: &Truth, counts: Staged) -> Outcome {
    compare_findings(report, truth)?;
    let least = counts.blobs + counts.links;
    let receipt = &report.receipt;
    let problem = |what: String| Err(format!("{}\n  exit {:?}, {receipt:?}\n  {what}", report.line, report.code));
    if !(least..=least + counts.submodules).contains(&receipt.enumerated) {
        return problem(format!("{} items are counted, and staged are {counts:?}", receipt.enumerated));
    }
    let code = if truth.places.is_empty() { 0 } else { 1 };
    if report.code != Some(code) || !receipt.complete {
        return problem(format!("the exit code must be {code}"));
    }
    Ok(())
}

#[test]
fn staged_changes_are_read_at_their_paths() {
    cases::run(30, |case| {
        let repository = case.folder("repository");
        changes::grow(&mut case.random, &repository);
        let report = Tessera::of(case).scan(&["--staged".as_ref(), repository.as_os_str()])?;
        let (truth, counts) = oracle::staged(&repository, None, oracle::ALL);
        compare_staged(&report, &truth, counts)
    });
}

/// Several repositories in one command, each with its own index, also if the environment names another.
#[test]
fn an_index_of_another_repository_is_not_read() {
    cases::run(12, |case| {
        let (one, two) = (case.folder("one"), case.folder("two"));
        changes::grow(&mut case.random, &one);
        changes::grow(&mut case.random, &two);
        let tessera = Tessera::of(case).at(&one).with("GIT_INDEX_FILE", one.join(".git/index"));
        let tessera = if case.random.percent(50) { tessera.with("GIT_DIR", one.join(".git")) } else { tessera };
        let report = tessera.scan(&["--staged".as_ref(), two.as_os_str()])?;
        let (truth, counts) = oracle::staged(&two, None, oracle::ALL);
        compare_staged(&report, &truth, counts)
    });
}

/// `git commit -a` and `git commit PATH` make an index of their own, and name it to the hook.
#[test]
fn a_hook_reads_the_index_that_the_commit_is_made_of() {
    cases::run(10, |case| {
        let repository = case.folder("repository");
        git::init(&repository, &[]);
        for name in ["kept", "changed", "other"] {
            std::fs::write(repository.join(name), "nothing\n").unwrap();
        }
        commit_all(&repository, "base");
        let secret = |case: &mut cases::Case| format!("token: {}\n", token::token(&mut case.random));
        std::fs::write(repository.join("changed"), secret(case)).unwrap();
        std::fs::write(repository.join("other"), secret(case)).unwrap();
        let (args, expected): (&[&str], &[&str]) = match case.random.below(3) {
            0 => (&["commit", "-a", "-m", "all"], &["changed", "other"]),
            1 => (&["commit", "-m", "one", "--", "changed"], &["changed"]),
            _ => {
                git(&repository, &["add", "other"]);
                (&["commit", "-m", "staged"], &["other"])
            }
        };
        let report = report_of_hook(case, &repository, args)?;
        let found: Vec<&str> = report.places.keys().map(|place| &place.path[..]).collect();
        if found != expected || report.code != Some(1) {
            return Err(format!("{args:?}: the hook saw {found:?}, and the commit has {expected:?}; {report:?}"));
        }
        Ok(())
    });
}

/// Commits with a hook that scans staged changes and lets the commit fail.
fn report_of_hook(case: &cases::Case, repository: &Path, args: &[&str]) -> Result<Report, String> {
    let (hooks, out) = (case.folder("hooks"), case.dir().join("out"));
    let script = format!(
        "#!/bin/sh\nexport TESSERA_STATE_DIR={state}\n{program} scan --staged --format json . >{out}\necho $? >{out}.code\nexit 1\n",
        state = case.folder("state").display(),
        program = program().display(),
        out = out.display(),
    );
    let hook = hooks.join("pre-commit");
    std::fs::write(&hook, script).unwrap();
    std::os::unix::fs::chown(&hook, None, None).unwrap();
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let setting = format!("core.hooksPath={}", hooks.display());
    let all: Vec<OsString> = [OsStr::new("-c"), setting.as_ref()]
        .into_iter()
        .chain(args.iter().map(OsStr::new))
        .map(OsStr::to_owned)
        .collect();
    let status = git::command(repository, &all).stderr(std::process::Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(1), "the hook lets the commit fail");
    let code = std::fs::read_to_string(out.with_extension("code")).unwrap().trim().parse().ok();
    let ended = super::truth::command::Ended {
        code,
        stdout: std::fs::read(&out).unwrap(),
        stderr: String::new(),
        line: format!("a hook of git {args:?}"),
        hung: false,
    };
    ended.report()
}
