//! `--staged` reads the content that git is about to commit, in hooks and outside of them. Git itself lists it.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use scan_support::{Scanned, commit_all, git, git_command, repository, scan, tessera, token, write};

fn secret(seed: u64) -> String {
    format!("TOKEN={}\n", token(seed))
}

/// Paths that git says are staged, but for those that go away.
fn staged(dir: &Path) -> Vec<String> {
    let listed = git(dir, &["diff", "--cached", "--name-only", "--no-renames", "--diff-filter=d", "-z"]);
    listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

#[test]
fn a_rename_is_reported_at_its_new_path_and_the_same_content_at_each_of_its_paths() {
    let dir = repository();
    write(dir.path(), "old.env", secret(1));
    write(dir.path(), "kept.env", secret(2));
    commit_all(dir.path(), "first");
    git(dir.path(), &["mv", "old.env", "new.env"]);
    write(dir.path(), "copy/one.env", secret(3));
    write(dir.path(), "copy/two.env", secret(3));
    // Also content that stands elsewhere in the last commit.
    write(dir.path(), "copy/of-kept.env", secret(2));
    git(dir.path(), &["add", "-A"]);
    let scanned = scan(dir.path(), &["--staged"]);
    assert_eq!(scanned.paths(), ["copy/of-kept.env", "copy/one.env", "copy/two.env", "new.env"]);
    assert_eq!(scanned.paths(), staged(dir.path()));
    let no_commit = |finding: &serde_json::Value| {
        finding["locations"].as_array().unwrap().iter().all(|location| location.get("commit").is_none())
    };
    assert!(scanned.report["findings"].as_array().unwrap().iter().all(no_commit), "no commit has them there yet");
}

#[test]
fn staged_links_are_counted_and_their_targets_are_not_read() {
    let dir = repository();
    write(dir.path(), "outside-of-the-index.env", secret(1));
    write(dir.path(), "plain", "text\n");
    std::os::unix::fs::symlink("outside-of-the-index.env", dir.path().join("link")).unwrap();
    git(dir.path(), &["add", "plain", "link"]);
    let scanned = scan(dir.path(), &["--staged"]);
    let receipt = &scanned.report["receipt"];
    assert_eq!((scanned.code, &receipt["enumerated"], &receipt["scanned"]), (0, &2.into(), &1.into()));
    assert_eq!(receipt["skipped"]["symbolic link"], 1);
}

#[test]
fn a_merge_that_is_not_resolved_is_not_called_clean() {
    let dir = repository();
    write(dir.path(), "a", "1\n");
    commit_all(dir.path(), "base");
    git(dir.path(), &["checkout", "-q", "-b", "side"]);
    write(dir.path(), "a", "2\n");
    commit_all(dir.path(), "side");
    git(dir.path(), &["checkout", "-q", "main"]);
    write(dir.path(), "a", "3\n");
    commit_all(dir.path(), "main");
    git_command(dir.path(), &["merge", "-q", "side"]).output().unwrap();
    let scanned = scan(dir.path(), &["--staged"]);
    assert_eq!((scanned.code, &scanned.report["receipt"]["unreadable"]["unmerged in the index"]), (3, &1.into()));
    assert_eq!(scanned.report["receipt"]["unreadable_examples"][0]["path"], "a");
}

#[test]
fn an_excluded_folder_is_left_out_of_what_is_staged_and_of_a_history() {
    let dir = repository();
    for (path, seed) in ["vendor/a.env", "src/vendor/b.env", "src/c.env", "vendored.env"].iter().zip(1..) {
        write(dir.path(), path, secret(seed));
    }
    git(dir.path(), &["add", "-A"]);
    for glob in ["vendor", "vendor/"] {
        let scanned = scan(dir.path(), &["--staged", "--exclude", glob]);
        assert_eq!(scanned.paths(), ["src/c.env", "vendored.env"], "{glob}");
        assert_eq!(scanned.report["receipt"]["skipped"]["excluded by a filter"], 2);
    }
    assert_eq!(scan(dir.path(), &["--staged", "--exclude", "/src"]).paths(), ["vendor/a.env", "vendored.env"]);
    commit_all(dir.path(), "all");
    assert_eq!(scan(dir.path(), &["--history", "--exclude", "vendor"]).paths(), ["src/c.env", "vendored.env"]);
}

/// A hook that scans the staged changes of `target` and keeps the report in `folder`, together with git's own list.
fn hook(dir: &Path, folder: &Path, target: &str) {
    let path = dir.join(".git/hooks/pre-commit");
    let (program, folder) = (env!("CARGO_BIN_EXE_tessera"), folder.display());
    let text = format!(
        "#!/bin/sh\n\
         echo \"$GIT_INDEX_FILE\" > '{folder}/index'\n\
         git diff --cached --name-only --no-renames --diff-filter=d > '{folder}/expected'\n\
         '{program}' scan --no-resume --quiet --staged --format json {target} > '{folder}/report'\n\
         echo $? > '{folder}/code'\n"
    );
    write(dir, ".git/hooks/pre-commit", text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The hook's view: the index that git named, the paths that git lists as staged, and the report.
fn seen(folder: &Path) -> (String, Vec<String>, Vec<String>) {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let scanned = Scanned {
        report: serde_json::from_str(&read("report")).unwrap(),
        said: String::new(),
        code: read("code").trim().parse().unwrap(),
    };
    let mut expected: Vec<String> = read("expected").lines().map(str::to_owned).collect();
    expected.sort();
    (read("index").trim().to_owned(), expected, scanned.paths())
}

#[test]
fn a_hook_reads_the_index_that_is_being_committed() {
    let (dir, folder) = (repository(), tempfile::tempdir().unwrap());
    for path in ["a.env", "b.env", "sub/c.env"] {
        write(dir.path(), path, "nothing yet\n");
    }
    commit_all(dir.path(), "first");
    hook(dir.path(), folder.path(), "");
    // The whole index.
    write(dir.path(), "a.env", secret(1));
    git(dir.path(), &["add", "a.env"]);
    git(dir.path(), &["commit", "-q", "-m", "plain"]);
    let (_, expected, reported) = seen(folder.path());
    assert_eq!((&reported, &expected[..]), (&expected, &["a.env".to_owned()][..]));
    // `-a`: an index that git made for this commit.
    write(dir.path(), "b.env", secret(2));
    git(dir.path(), &["commit", "-q", "-a", "-m", "all"]);
    let (index, expected, reported) = seen(folder.path());
    assert!(index.ends_with("index.lock"), "{index}");
    assert_eq!((&reported, &expected[..]), (&expected, &["b.env".to_owned()][..]));
    // Some paths: other staged changes are not part of the commit.
    write(dir.path(), "a.env", secret(3));
    write(dir.path(), "sub/c.env", secret(4));
    git(dir.path(), &["add", "a.env"]);
    git(dir.path(), &["commit", "-q", "-m", "one path", "sub/c.env"]);
    let (index, expected, reported) = seen(folder.path());
    assert!(index.contains("next-index"), "{index}");
    assert_eq!((&reported, &expected[..]), (&expected, &["sub/c.env".to_owned()][..]));
    // An index that the caller of git named, below a folder of the working tree.
    let own = folder.path().join("own-index");
    let with_own = |args: &[&str]| {
        let output = git_command(&dir.path().join("sub"), args).env("GIT_INDEX_FILE", &own).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    with_own(&["read-tree", "HEAD"]);
    write(dir.path(), "b.env", secret(5));
    with_own(&["add", "../b.env"]);
    with_own(&["commit", "-q", "-m", "an index elsewhere"]);
    let (index, expected, reported) = seen(folder.path());
    assert_eq!(index, own.to_str().unwrap());
    assert_eq!((&reported, &expected[..]), (&expected, &["b.env".to_owned()][..]));
}

#[test]
fn a_hook_of_a_linked_working_tree_reads_its_index() {
    let (dir, folder) = (repository(), tempfile::tempdir().unwrap());
    write(dir.path(), "a.env", "nothing yet\n");
    commit_all(dir.path(), "first");
    let linked = folder.path().join("linked");
    git(dir.path(), &["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    hook(dir.path(), folder.path(), "");
    write(dir.path(), "staged-in-main.env", secret(1));
    git(dir.path(), &["add", "-A"]);
    write(&linked, "a.env", secret(2));
    git(&linked, &["commit", "-q", "-a", "-m", "in the linked tree"]);
    let (_, expected, reported) = seen(folder.path());
    assert_eq!((&reported, &expected[..]), (&expected, &["a.env".to_owned()][..]));
}

#[test]
fn a_hook_that_scans_another_repository_reads_the_index_of_that_one() {
    let (dir, folder, other) = (repository(), tempfile::tempdir().unwrap(), repository());
    write(dir.path(), "mine.env", secret(1));
    commit_all(dir.path(), "first");
    write(other.path(), "theirs.env", secret(2));
    git(other.path(), &["add", "-A"]);
    hook(dir.path(), folder.path(), other.path().to_str().unwrap());
    write(dir.path(), "mine.env", secret(3));
    git(dir.path(), &["commit", "-q", "-a", "-m", "mine"]);
    assert_eq!(seen(folder.path()).2, ["theirs.env"]);
}

#[test]
fn a_foreign_index_or_repository_in_the_environment_is_not_read() {
    let (dir, other, outside) = (repository(), repository(), tempfile::tempdir().unwrap());
    write(dir.path(), "mine.env", secret(1));
    git(dir.path(), &["add", "-A"]);
    write(other.path(), "theirs.env", secret(2));
    git(other.path(), &["add", "-A"]);
    let foreign = other.path().join(".git");
    for variables in [
        &[("GIT_INDEX_FILE", foreign.join("index"))][..],
        &[("GIT_DIR", foreign.clone())],
        &[("GIT_DIR", foreign.clone()), ("GIT_INDEX_FILE", foreign.join("index"))],
        &[("GIT_DIR", foreign.clone()), ("GIT_WORK_TREE", other.path().to_path_buf())],
        &[("GIT_OBJECT_DIRECTORY", foreign.join("objects"))],
        &[("GIT_INDEX_FILE", outside.path().join("no-such-index"))],
    ] {
        for cwd in [dir.path(), outside.path(), other.path()] {
            let mut command = tessera();
            command.current_dir(cwd).args(["scan", "--no-resume", "--staged", "--format", "json"]).arg(dir.path());
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            let scanned = Scanned::of(&command.output().unwrap());
            assert_eq!(scanned.paths(), ["mine.env"], "{variables:?} in {}", cwd.display());
        }
    }
}
