//! Random staged changes: additions, renames, copies, links, removals, submodules, and edits that are not staged.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::git::{commit_all, git, init};
use super::names;
use super::random::Random;
use super::token::{text_with, token};

/// Makes a repository in `dir` with a last commit, or none, and stages random changes.
pub(crate) fn grow(random: &mut Random, dir: &Path) {
    init(dir, &[]);
    if random.percent(85) {
        for _ in 0..random.within(1..8) {
            write_new(random, dir);
        }
        commit_all(dir, "base");
    }
    for _ in 0..random.within(1..7) {
        change(random, dir);
    }
    git(dir, &["add", "-A", "-f"]);
    // Edits that are not staged must not be read.
    for file in files(dir) {
        if random.percent(15) && !file.is_symlink() {
            write(random, &file);
        }
    }
    if random.percent(20) {
        write_new(random, dir);
    }
}

fn change(random: &mut Random, dir: &Path) {
    let files = files(dir);
    let target = free_path(random, dir);
    if files.is_empty() || random.percent(30) {
        return write_new(random, dir);
    }
    let file = random.pick(&files).clone();
    match random.below(7) {
        // A rename, sometimes with an edit.
        0 | 1 => {
            let Some(target) = target else { return };
            std::fs::rename(&file, &target).unwrap();
            if random.percent(30) && !target.is_symlink() {
                write(random, &target);
            }
        }
        // Identical content twice.
        2 => {
            if let Some(target) = target.filter(|_| !file.is_symlink()) {
                std::fs::copy(&file, target).unwrap();
            }
        }
        3 => {
            if let Some(target) = target {
                symlink(token(random), target).unwrap();
            }
        }
        4 => std::fs::remove_file(&file).unwrap(),
        // A link takes the place of a file, or a file that of a link.
        5 => {
            let was_link = file.is_symlink();
            std::fs::remove_file(&file).unwrap();
            if was_link {
                write(random, &file);
            } else {
                symlink("elsewhere", &file).unwrap();
            }
        }
        _ if !file.is_symlink() => write(random, &file),
        _ => {}
    }
}

fn free_path(random: &mut Random, dir: &Path) -> Option<PathBuf> {
    let path = dir.join(OsStr::from_bytes(&names::path(random)));
    let is_free = path.symlink_metadata().is_err()
        && path.ancestors().take_while(|above| *above != dir).all(|above| !above.is_symlink());
    (is_free && std::fs::create_dir_all(path.parent()?).is_ok()).then_some(path)
}

fn write_new(random: &mut Random, dir: &Path) {
    if let Some(path) = free_path(random, dir) {
        write(random, &path);
    }
}

fn write(random: &mut Random, path: &Path) {
    let tokens: Vec<String> = (0..*random.pick(&[0, 1, 1, 2])).map(|_| token(random)).collect();
    let text = text_with(random, &tokens.iter().map(String::as_str).collect::<Vec<_>>());
    std::fs::write(path, text).unwrap();
}

/// Files and links of the work tree.
fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true if entry.file_name() == ".git" => {}
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort_unstable();
    files
}
