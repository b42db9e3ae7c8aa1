//! Repositories in unusual or damaged states: what git reaches is read, and what cannot be reached is never called clean.

use std::path::Path;

use super::truth::cases::{self, Case, Outcome};
use super::truth::command::Tessera;
use super::truth::compare::{Truth, compare, compare_findings};
use super::truth::git::{commit_all, git, git_line, init};
use super::truth::report::Report;
use super::truth::token::token;
use super::truth::{large, oracle};

/// A repository with a first commit without secrets.
fn repository(dir: &Path, args: &[&str]) {
    init(dir, args);
    std::fs::write(dir.join("first"), "nothing\n").unwrap();
    commit_all(dir, "first");
}

/// Commits a file with a secret; returns the commit.
fn commit_secret(case: &mut Case, dir: &Path) -> String {
    let number = case.random.below(1_000_000);
    std::fs::write(dir.join(format!("{number}.env")), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
    commit_all(dir, "secret");
    git_line(dir, &["rev-parse", "HEAD"])
}

fn scan(case: &Case, scope: &str, target: &Path) -> Result<Report, String> {
    Tessera::of(case).scan(&["--no-resume".as_ref(), scope.as_ref(), target.as_os_str()])
}

/// An error, or a report that is not clean.
fn not_clean(ended: &Result<Report, String>) -> Outcome {
    match ended {
        Ok(report) if report.receipt.complete || report.code == Some(0) => {
            Err(format!("{}\n  exit {:?}, {:?}", report.line, report.code, report.receipt))
        }
        Ok(_) => Ok(()),
        Err(said) if said.contains("ended with Some(2)") => Ok(()),
        Err(said) => Err(said.clone()),
    }
}

#[test]
fn a_symbolic_ref_that_leads_out_of_the_refs_is_followed() {
    cases::run(4, |case| {
        let dir = case.folder("repository");
        repository(&dir, &[]);
        let secret = commit_secret(case, &dir);
        git(&dir, &["reset", "-q", "--hard", "HEAD~1"]);
        let name = *case.random.pick(&["ORIG_HEAD", "KEPT_HEAD", "main-worktree/ORIG_HEAD"]);
        std::fs::write(dir.join(".git").join(name.rsplit('/').next().unwrap()), format!("{secret}\n")).unwrap();
        std::fs::write(dir.join(".git/refs/heads/symbolic"), format!("ref: {name}\n")).unwrap();
        let truth = oracle::history(&dir, oracle::ALL);
        assert_eq!(truth.places.len(), 1, "git follows it");
        compare(&scan(case, "--history", &dir)?, &truth)
    });
}

/// Another working tree has a detached `HEAD`, and the folder in which git notes it cannot be listed.
#[test]
fn working_trees_that_cannot_be_listed_are_not_called_clean() {
    cases::run(1, |case| {
        let dir = case.folder("repository");
        repository(&dir, &[]);
        let linked = case.dir().join("linked");
        git(&dir, &["worktree", "add", "-q", "--detach", linked.to_str().unwrap()]);
        commit_secret(case, &linked);
        compare(&scan(case, "--history", &dir)?, &oracle::history(&dir, oracle::ALL))?;
        let noted = dir.join(".git/worktrees");
        std::fs::rename(&noted, case.dir().join("away")).unwrap();
        std::os::unix::fs::symlink("worktrees", &noted).unwrap();
        let ended = scan(case, "--history", &dir);
        not_clean(&ended)?;
        // The commit is still in the repository, and all that is in it is read.
        if ended?.places.len() == 1 { Ok(()) } else { Err("the secret is not found".into()) }
    });
}

/// What may happen to the folder of a repository that lies in another one.
const DAMAGES: [fn(&Path); 5] = [
    |dot_git| std::fs::remove_file(dot_git.join("HEAD")).unwrap(),
    |dot_git| std::fs::remove_dir_all(dot_git.join("refs")).unwrap(),
    |dot_git| std::fs::rename(dot_git.join("objects"), dot_git.join("objects.bak")).unwrap(),
    |dot_git| {
        std::fs::rename(dot_git, dot_git.with_extension("away")).unwrap();
        std::fs::write(dot_git, "").unwrap();
    },
    |dot_git| {
        std::fs::rename(dot_git, dot_git.with_extension("away")).unwrap();
        std::os::unix::fs::symlink(".git", dot_git).unwrap();
    },
];

#[test]
fn a_damaged_repository_is_not_taken_for_the_one_around_it() {
    cases::run(2 * DAMAGES.len() as u64, |case| {
        let outer = case.folder("outer");
        repository(&outer, &[]);
        let inner = outer.join("inner");
        repository(&inner, &[]);
        commit_secret(case, &inner);
        let number = case.number as usize;
        DAMAGES[number / 2 % DAMAGES.len()](&inner.join(".git"));
        not_clean(&scan(case, if number.is_multiple_of(2) { "--history" } else { "--staged" }, &inner))
    });
}

/// Git passes over what is left of a mirror, and takes the repository around it.
#[test]
fn a_damaged_mirror_is_not_taken_for_the_repository_around_it() {
    cases::run(6, |case| {
        let (outer, inner) = (case.folder("outer"), case.folder("inner"));
        repository(&outer, &[]);
        repository(&inner, &[]);
        commit_secret(case, &inner);
        let mirror = outer.join("mirror.git");
        git(&inner, &["clone", "-q", "--bare", ".", mirror.to_str().unwrap()]);
        compare(&scan(case, "--history", &mirror)?, &oracle::history(&mirror, oracle::ALL))?;
        let number = case.number as usize;
        DAMAGES[number / 2 % 3](&mirror);
        not_clean(&scan(case, if number.is_multiple_of(2) { "--history" } else { "--staged" }, &mirror))
    });
}

/// Git once made `HEAD` a link. It leads nowhere when refs are packed.
#[test]
fn a_head_that_is_a_link_makes_a_repository() {
    cases::run(2, |case| {
        let outer = case.folder("outer");
        repository(&outer, &[]);
        let inner = outer.join("inner");
        repository(&inner, &[]);
        commit_secret(case, &inner);
        if case.number.is_multiple_of(2) {
            git(&inner, &["pack-refs", "--all"]);
        }
        std::fs::remove_file(inner.join(".git/HEAD")).unwrap();
        std::os::unix::fs::symlink("refs/heads/main", inner.join(".git/HEAD")).unwrap();
        compare(&scan(case, "--history", &inner)?, &oracle::history(&inner, oracle::ALL))
    });
}

/// One ref to an object that is not there leaves all other refs.
#[test]
fn a_ref_that_leads_nowhere_costs_itself_alone() {
    cases::run(3, |case| {
        let dir = case.folder("repository");
        repository(&dir, &[]);
        commit_secret(case, &dir);
        let truth = oracle::history(&dir, oracle::ALL);
        let lost = ["1".repeat(40), String::new(), "rubbish".into()];
        std::fs::write(dir.join(".git/refs/heads/lost"), &lost[case.number as usize % 3]).unwrap();
        let report = scan(case, "--history", &dir)?;
        compare_findings(&report, &truth)?;
        not_clean(&Ok(report))
    });
}

/// The detached head of another working tree moves while a scan is interrupted.
#[test]
fn a_head_of_another_working_tree_that_moves_during_an_interruption_is_noticed() {
    cases::run(2, |case| {
        let origin = case.folder("origin");
        large::history(&mut case.random, &origin);
        // Refs in tables are read by git alone.
        let format = ["--ref-format=reftable", "--ref-format=files"][case.number as usize % 2];
        let dir = case.dir().join("repository");
        let args = ["clone", "-q", "--bare", format, origin.to_str().unwrap(), dir.to_str().unwrap()];
        git(&origin, &args);
        let linked = case.dir().join("linked");
        git(&dir, &["worktree", "add", "-q", "--detach", linked.to_str().unwrap(), "main"]);
        let tessera = Tessera::of(case);
        let args = ["-j1".as_ref(), "--history".as_ref(), dir.as_os_str()];
        tessera.scan(&[&args[..], &["--max-time".as_ref(), "1ms".as_ref()]].concat())?;
        commit_secret(case, &linked);
        compare(&tessera.scan(&args)?, &oracle::history(&dir, oracle::ALL))
    });
}

/// Where a repository was made on a disk that does not tell upper from lower case, git goes on tracking a renamed file.
#[test]
fn a_tracked_file_of_which_only_the_case_changed_is_read() {
    cases::run(2, |case| {
        let dir = case.folder("repository");
        repository(&dir, &[]);
        git(&dir, &["config", "core.ignoreCase", if case.number.is_multiple_of(2) { "true" } else { "false" }]);
        std::fs::create_dir(dir.join("Conf")).unwrap();
        std::fs::write(dir.join("Conf/Secret.env"), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
        commit_all(&dir, "tracked");
        std::fs::rename(dir.join("Conf"), dir.join("conf")).unwrap();
        std::fs::rename(dir.join("conf/Secret.env"), dir.join("conf/secret.env")).unwrap();
        std::fs::write(dir.join(".gitignore"), "*.env\n").unwrap();
        let mut truth = Truth::default();
        if case.number.is_multiple_of(2) {
            truth.join(oracle::every_file(&dir.join("conf")));
        }
        let expected: Vec<String> = truth.places.keys().map(|place| format!("conf/{}", place.path)).collect();
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), dir.as_os_str()])?;
        let found: Vec<&String> = report.places.keys().map(|place| &place.path).collect();
        if found == expected.iter().collect::<Vec<_>>() && report.receipt.complete {
            Ok(())
        } else {
            Err(format!("found {found:?}, and there are {expected:?}; {:?}", report.receipt))
        }
    });
}

/// Outside of repositories `.git` is a name like others.
#[test]
fn a_folder_of_that_name_hides_nothing_where_there_is_no_repository() {
    cases::run(4, |case| {
        let root = case.folder("plain");
        let hidden = root.join(*case.random.pick(&[".git", ".git/config", "a/.git", "a/.git/hooks/b"]));
        std::fs::create_dir_all(hidden.parent().unwrap()).unwrap();
        std::fs::write(&hidden, format!("TOKEN={}\n", token(&mut case.random))).unwrap();
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), root.as_os_str()])?;
        compare(&report, &oracle::every_file(&root))
    });
}

/// With `diff.relative` git tells the changes below a folder alone.
#[test]
fn settings_of_a_repository_hide_no_staged_change() {
    cases::run(4, |case| {
        let dir = case.folder("repository");
        repository(&dir, &[]);
        for (name, value) in [
            ("diff.relative", "true"),
            ("diff.external", "true"),
            ("diff.renames", "copies"),
            ("diff.ignoreSubmodules", "all"),
            ("diff.noprefix", "true"),
            ("core.quotePath", "true"),
        ] {
            if name == "diff.relative" || case.random.percent(50) {
                git(&dir, &["config", name, value]);
            }
        }
        std::fs::create_dir(dir.join("sub")).unwrap();
        std::fs::write(dir.join("sub/none"), "nothing\n").unwrap();
        std::fs::write(dir.join("secret"), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
        git(&dir, &["add", "-A"]);
        let target = if case.number.is_multiple_of(2) { dir.join("sub") } else { dir.clone() };
        let report = scan(case, "--staged", &target)?;
        let found: Vec<&String> = report.places.keys().map(|place| &place.path).collect();
        if found == ["secret"] && report.code == Some(1) { Ok(()) } else { Err(format!("found {found:?}")) }
    });
}
