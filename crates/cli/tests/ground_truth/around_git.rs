//! Repositories that git lists only with difficulty: tracked files are read, or the scan does not claim to be complete.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::truth::cases::{self, Case, Outcome};
use super::truth::command::Tessera;
use super::truth::compare::{Truth, compare};
use super::truth::git::{self, init};
use super::truth::report::Report;
use super::truth::token::token;
use super::truth::{oracle, tree};

/// A repository with a tracked file that an ignore rule names, and an untracked one.
fn repository(case: &mut Case, dir: &Path) {
    init(dir, &[]);
    for name in ["tracked", "untracked", "open"] {
        std::fs::create_dir_all(dir.join("conf")).unwrap();
        std::fs::write(dir.join(format!("conf/{name}.env")), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
    }
    // Rules further down name tracked files, too.
    std::fs::create_dir_all(dir.join("conf/deep")).unwrap();
    std::fs::write(dir.join("conf/deep/tracked"), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
    std::fs::write(dir.join("conf/.gitignore"), "deep\n").unwrap();
    git::git(dir, &["add", "-f", "conf/tracked.env", "conf/deep/tracked"]);
    std::fs::write(dir.join(".gitignore"), "*tracked.env\n").unwrap();
}

fn scan(tessera: &Tessera, target: &Path) -> Result<Report, String> {
    tessera.scan(&["--no-resume".as_ref(), target.as_os_str()])
}

/// The whole truth, or an honest answer: more than the truth, an incomplete report, or an error.
fn told_or_incomplete(target: &Path, ended: Result<Report, String>, truth: &Truth) -> Outcome {
    match ended {
        Ok(report) if report.receipt.complete => told_at_least(target, &report, truth),
        Ok(report) if report.code == Some(3) || report.code == Some(1) => Ok(()),
        Ok(report) => Err(format!("exit code {:?} of an incomplete scan", report.code)),
        Err(said) if said.contains("ended with Some(2)") => Ok(()),
        Err(said) => Err(said),
    }
}

/// Everything that git would list, and nothing that is not there. Ignored files may be read where git cannot tell what it tracks.
fn told_at_least(target: &Path, report: &Report, truth: &Truth) -> Outcome {
    let all = oracle::every_file(target).places;
    let missing: Vec<_> = truth.places.keys().filter(|place| !report.places.contains_key(place)).collect();
    let wrong: Vec<_> = report.places.keys().filter(|place| !all.contains_key(place)).collect();
    let is_told = missing.is_empty() && wrong.is_empty() && report.code == Some(1);
    if is_told {
        Ok(())
    } else {
        Err(format!("{:?}: missing {missing:?}, wrong {wrong:?}, {:?}", report.code, report.receipt))
    }
}

#[test]
fn tracked_files_are_read_whichever_folder_is_the_target() {
    cases::run(3, |case| {
        let parent = case.folder("parent");
        let outer = parent.join("outer");
        repository(case, &outer);
        repository(case, &outer.join("vendor/inner"));
        let targets =
            [parent.clone(), outer.clone(), outer.join("conf"), outer.join("vendor"), outer.join("vendor/inner")];
        for target in targets {
            compare(&scan(&Tessera::of(case), &target)?, &oracle::tree(&target))?;
        }
        Ok(())
    });
}

/// In containers the files of a checkout often belong to another user, and git refuses such a repository.
#[test]
fn a_repository_of_another_user_is_read_as_git_would_list_it() {
    if !rustix::process::geteuid().is_root() {
        return test_support::skipped("only root can give files to another user");
    }
    cases::run(5, |case| {
        let root = case.folder("field");
        let field = tree::grow(&mut case.random, &root);
        repository(case, &root.join("certain"));
        let status = Command::new("chown").args(["-R", "12345:12345"]).arg(&root).status().unwrap();
        assert!(status.success());
        for target in [&field.root, &root.join("certain")] {
            compare(&scan(&Tessera::of(case), target)?, &oracle::tree(target))?;
        }
        Ok(())
    });
}

#[test]
fn variables_of_git_that_point_elsewhere_change_nothing() {
    cases::run(12, |case| {
        let (root, other) = (case.folder("field"), case.folder("other"));
        tree::grow(&mut case.random, &root);
        repository(case, &root.join("certain"));
        repository(case, &other);
        let mut tessera = Tessera::of(case).at(&other);
        let variables = [
            ("GIT_DIR", other.join(".git")),
            ("GIT_WORK_TREE", other.clone()),
            ("GIT_INDEX_FILE", other.join(".git/index")),
            ("GIT_INDEX_FILE", PathBuf::from(".git/index")),
            ("GIT_OBJECT_DIRECTORY", other.join(".git/objects")),
            ("GIT_COMMON_DIR", other.join(".git")),
            ("GIT_CEILING_DIRECTORIES", root.parent().unwrap().to_path_buf()),
            ("GIT_LITERAL_PATHSPECS", PathBuf::from("1")),
            ("GIT_NAMESPACE", PathBuf::from("other")),
        ];
        for (name, value) in case.random.some_of(&variables, 35) {
            tessera = tessera.with(name, value);
        }
        compare(&scan(&tessera, &root)?, &oracle::tree(&root))
            .map_err(|problem| format!("{:?}: {problem}", tessera.variables))
    });
}

#[test]
fn without_git_nothing_that_is_tracked_is_passed_over_in_silence() {
    cases::run(10, |case| {
        let root = case.folder("field");
        tree::grow(&mut case.random, &root);
        repository(case, &root.join("certain"));
        let tessera = Tessera::of(case).with("PATH", case.folder("empty"));
        told_or_incomplete(&root, scan(&tessera, &root), &oracle::tree(&root))
    });
}

#[test]
fn a_damaged_index_is_not_an_empty_one() {
    cases::run(6, |case| {
        let root = case.folder("repository");
        repository(case, &root);
        let truth = oracle::tree(&root);
        let index = root.join(".git/index");
        let mut bytes = std::fs::read(&index).unwrap();
        match case.random.below(3) {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes[..4].copy_from_slice(b"none"),
            _ => {
                let at = case.random.within(12..bytes.len());
                bytes[at] ^= 0x55;
            }
        }
        std::fs::write(&index, bytes).unwrap();
        // Git may read an index in which one byte is wrong, and then lists other paths.
        let is_read = git::command(&root, &["ls-files"]).output().unwrap().status.success();
        let truth = if is_read { oracle::tree(&root) } else { truth };
        told_or_incomplete(&root, scan(&Tessera::of(case), &root), &truth)
    });
}

#[test]
fn an_ignore_file_that_is_a_pipe_does_not_stop_the_scan() {
    cases::run(1, |case| {
        let root = case.folder("repository");
        repository(case, &root);
        std::fs::remove_file(root.join(".gitignore")).unwrap();
        let truth = oracle::tree(&root);
        let status = Command::new("mkfifo").arg(root.join(".gitignore")).status().unwrap();
        assert!(status.success());
        compare(&scan(&Tessera::of(case), &root)?, &truth)
    });
}

#[test]
fn an_ignore_file_that_is_a_link_is_not_obeyed_as_git_does_not() {
    cases::run(1, |case| {
        let root = case.folder("repository");
        repository(case, &root);
        std::fs::rename(root.join(".gitignore"), root.join("rules")).unwrap();
        std::os::unix::fs::symlink("rules", root.join(".gitignore")).unwrap();
        compare(&scan(&Tessera::of(case), &root)?, &oracle::tree(&root))
    });
}

/// A folder named `.git` that is no repository does not end the repository around it.
#[test]
fn a_folder_that_only_looks_like_a_repository_is_none() {
    cases::run(4, |case| {
        let root = case.folder("repository");
        repository(case, &root);
        let fake = root.join("fake/.git");
        if case.random.percent(50) {
            std::fs::create_dir_all(&fake).unwrap();
        } else {
            std::fs::create_dir_all(fake.parent().unwrap()).unwrap();
            std::fs::write(&fake, "not a repository\n").unwrap();
        }
        for name in ["tracked.env", "untracked.env", "open.env"] {
            std::fs::write(root.join("fake").join(name), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
        }
        git::git(&root, &["add", "-f", "fake/tracked.env"]);
        compare(&scan(&Tessera::of(case), &root)?, &oracle::tree(&root))
    });
}
