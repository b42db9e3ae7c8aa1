//! Random folders: repositories in plain folders, in each other and beside each other, with ignore files and tracked files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::git::{command, git, git_fed, init};
use super::names;
use super::random::Random;
use super::token::{text_with, token};

/// The tree that was made.
#[derive(Debug, Default)]
pub(crate) struct Field {
    pub(crate) root: PathBuf,
    pub(crate) repositories: Vec<PathBuf>,
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
}

/// Repositories inside each other, at most.
const NESTED_MAX: usize = 2;

/// Fills `root` with a random tree.
pub(crate) fn grow(random: &mut Random, root: &Path) -> Field {
    let mut field = Field { root: root.to_path_buf(), ..Field::default() };
    if random.percent(35) {
        // A plain folder with repositories in it.
        let (folders, files) = populate(random, &mut field, root, 6);
        field.files.extend(files);
        for folder in random.some_of(&folders, 30) {
            // No rule where there is no repository.
            std::fs::write(folder.join(".gitignore"), patterns(random)).unwrap();
        }
        if random.percent(30) {
            field.files.extend(lookalike(random, root));
        }
        for number in 0..random.within(1..3) {
            let dir = root.join(OsStr::from_bytes(&names::path(random)));
            let dir = if is_free(root, &dir) { dir } else { root.join(format!("repository-{number}")) };
            repository(random, &mut field, &dir, 0);
        }
    } else {
        repository(random, &mut field, root, 0);
    }
    field
}

/// Whether something can be made at `path`: nothing is there, and neither a file, a link nor a repository is above it.
fn is_free(root: &Path, path: &Path) -> bool {
    let above = path.ancestors().skip(1).take_while(|above| *above != root);
    let is_plain = |above: &Path| {
        above.symlink_metadata().map_or(true, |metadata| metadata.is_dir())
            && above.join(".git").symlink_metadata().is_err()
    };
    path.symlink_metadata().is_err() && above.into_iter().all(is_plain)
}

fn repository(random: &mut Random, field: &mut Field, dir: &Path, depth: usize) {
    init(dir, &[]);
    field.repositories.push(dir.to_path_buf());
    let count = random.within(4..16);
    let (folders, mut files) = populate(random, field, dir, count);
    if random.percent(20) {
        files.extend(lookalike(random, dir));
    }
    track(random, dir, &files);
    if depth < NESTED_MAX && random.percent(40) {
        nest(random, field, dir, &folders, depth);
    }
    ignore(random, dir, &folders);
    if random.percent(20) {
        worktree(random, field, dir);
    }
    disturb(random, &files);
    field.files.extend(files.into_iter().filter(|file| file.is_file()));
}

/// A repository in a repository; git may know it as a submodule.
fn nest(random: &mut Random, field: &mut Field, outer: &Path, folders: &[PathBuf], depth: usize) {
    let dir = random.pick(folders).join(OsStr::from_bytes(&names::name(random)));
    if !is_free(outer, &dir) {
        return;
    }
    repository(random, field, &dir, depth + 1);
    if random.percent(30) {
        let mut commit = command(&dir, &["commit", "-q", "--allow-empty", "-m", "nested"]);
        assert!(commit.status().unwrap().success());
        add(outer, &[dir]);
    }
}

fn worktree(random: &mut Random, field: &mut Field, dir: &Path) {
    git(dir, &["commit", "-q", "--allow-empty", "-m", "for a worktree"]);
    let path = if random.percent(50) { dir.join("worktree") } else { dir.with_extension("worktree") };
    // Beside the field the worktree would lie outside of everything that is scanned.
    if path.exists() || !path.starts_with(&field.root) {
        return;
    }
    let mut add = command(dir, &["worktree", "add", "-q", "--detach"]);
    assert!(add.arg(&path).status().unwrap().success());
    let (folders, files) = populate(random, field, &path, 4);
    ignore(random, &path, &folders);
    field.repositories.push(path);
    field.files.extend(files);
}

/// Writes files into `dir`; returns the folders and files there are now.
fn populate(random: &mut Random, field: &mut Field, dir: &Path, count: usize) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut folders, mut files) = (BTreeSet::from([dir.to_path_buf()]), BTreeSet::new());
    for _ in 0..count {
        let path = dir.join(OsStr::from_bytes(&names::path(random)));
        if !is_free(dir, &path) {
            continue;
        }
        let parent = path.parent().unwrap();
        std::fs::create_dir_all(parent).unwrap();
        folders.extend(parent.ancestors().take_while(|above| *above != dir).map(Path::to_path_buf));
        if random.percent(6) {
            symlink(random.pick(&["a", "../b", "/etc/hostname", "gone", "."]), &path).unwrap();
        } else {
            write(random, &path);
        }
        files.insert(path);
    }
    field.folders.extend(folders.iter().cloned());
    (folders.into_iter().collect(), files.into_iter().collect())
}

/// A folder that looks like a repository without a working tree, with files where git keeps objects.
fn lookalike(random: &mut Random, dir: &Path) -> Vec<PathBuf> {
    const OBJECT: &str = "objects/0f/0123456789abcdef0123456789abcdef012345";
    let folder = dir.join("mirror");
    let mut names =
        random.some_of(&["objects/x.env", "objects/pack/x.env", "objects/0f/x", "objects/info/x", "refs/x"], 40);
    names.extend(["HEAD", "refs/heads/main"]);
    if random.percent(30) {
        names.push(OBJECT);
    }
    let mut made = |name: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write(random, &path);
        path
    };
    // Whatever becomes of the others, this one stays.
    made("objects/pack/not-of-git");
    names.into_iter().map(made).collect()
}

fn write(random: &mut Random, path: &Path) {
    let tokens: Vec<String> = (0..*random.pick(&[0, 1, 1, 1, 2])).map(|_| token(random)).collect();
    let mut text = text_with(random, &tokens.iter().map(String::as_str).collect::<Vec<_>>());
    if random.percent(4) {
        text.splice(0..0, [0; 8]);
    }
    std::fs::write(path, text).unwrap();
}

/// Puts some files into the index, ignored or not.
fn track(random: &mut Random, dir: &Path, files: &[PathBuf]) {
    let tracked = random.some_of(files, 50);
    add(dir, &tracked);
}

fn add(dir: &Path, files: &[PathBuf]) {
    if files.is_empty() {
        return;
    }
    let paths: Vec<&[u8]> = files.iter().map(|file| file.strip_prefix(dir).unwrap().as_os_str().as_bytes()).collect();
    let args = ["--literal-pathspecs", "add", "-f", "--pathspec-from-file=-", "--pathspec-file-nul"];
    git_fed(dir, &args, &paths.join(&0));
}

/// Writes ignore files.
fn ignore(random: &mut Random, dir: &Path, folders: &[PathBuf]) {
    let mut written = Vec::new();
    for folder in random.some_of(folders, 45) {
        let file = folder.join(".gitignore");
        let text = patterns(random);
        match random.below(20) {
            // Git obeys neither a link nor a folder of this name.
            0 => {
                std::fs::write(folder.join("rules"), text).unwrap();
                let _ = symlink("rules", file);
            }
            1 => drop(std::fs::create_dir(file)),
            _ => {
                std::fs::write(&file, text).unwrap();
                written.push(file);
            }
        }
    }
    if random.percent(15) && dir.join(".git").is_dir() {
        std::fs::create_dir_all(dir.join(".git/info")).unwrap();
        std::fs::write(dir.join(".git/info/exclude"), patterns(random)).unwrap();
    }
    let tracked = random.some_of(&written, 40);
    add(dir, &tracked);
}

fn patterns(random: &mut Random) -> Vec<u8> {
    let end: &[u8] = if random.percent(5) { b"\r\n" } else { b"\n" };
    let mut text = if random.percent(3) { b"\xef\xbb\xbf".to_vec() } else { Vec::new() };
    for _ in 0..random.within(1..5) {
        text.extend(pattern(random));
        text.extend(end);
    }
    if random.percent(20) {
        text.truncate(text.len() - end.len());
    }
    text
}

fn pattern(random: &mut Random) -> Vec<u8> {
    const FIXED: [&[u8]; 30] = [
        b"*.log",
        b"*.env",
        b"!keep.log",
        b"!*.env",
        b"*",
        b"!*/",
        b"/*",
        b"!/src",
        b"*/",
        b"**",
        b"**/a",
        b"a/**",
        b"a/**/b",
        b"src/*",
        b"!src/*.env",
        b"[ab]",
        b"[!a]*",
        b"[a-c].b",
        b"?",
        b"x.*",
        b"# remark",
        b"",
        b"\\#hash",
        b"\\!bang",
        b"trail\\ ",
        b"*.l?g  ",
        b"a\\",
        b"[",
        b"**.log",
        b"doc/**/",
    ];
    if random.percent(55) {
        return random.pick(&FIXED).to_vec();
    }
    let mut pattern = Vec::new();
    if random.percent(20) {
        pattern.push(b'!');
    }
    if random.percent(25) {
        pattern.push(b'/');
    }
    pattern.extend(if random.percent(60) { names::name(random) } else { names::path(random) });
    if random.percent(25) {
        pattern.push(b'/');
    }
    pattern
}

/// Changes some files after git has seen them.
fn disturb(random: &mut Random, files: &[PathBuf]) {
    for file in random.some_of(files, 15) {
        if file.is_symlink() {
            continue;
        }
        match random.below(4) {
            0 => std::fs::remove_file(&file).unwrap(),
            1 => {
                std::fs::remove_file(&file).unwrap();
                std::fs::create_dir(&file).unwrap();
                write(random, &file.join("inside"));
            }
            2 => {
                std::fs::remove_file(&file).unwrap();
                symlink("elsewhere", &file).unwrap();
            }
            _ => write(random, &file),
        }
    }
}

/// Fills `root` with one repository that has many ignore rules and no other repository inside.
pub(crate) fn grow_ignoring(random: &mut Random, root: &Path) -> Field {
    let mut field = Field { root: root.to_path_buf(), ..Field::default() };
    init(root, &[]);
    let (folders, files) = populate(random, &mut field, root, 30);
    track(random, root, &files);
    ignore(random, root, &folders);
    disturb(random, &files);
    field
}
