//! The truth about trees, histories and staged changes, from git and the file system alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::compare::Truth;
use super::git::{command, git, git_fed, records};
use super::report::Place;
use super::token::tokens_in;

/// Whether a path of a target is in scope.
pub(crate) type Scope<'s> = &'s dyn Fn(&[u8]) -> bool;

/// Everything is in scope.
pub(crate) const ALL: Scope<'static> = &|_| true;

/// The truth about the files of a folder, or about one file.
pub(crate) fn tree(target: &Path) -> Truth {
    tree_within(target, ALL)
}

/// The truth about those files of a folder that are in scope.
pub(crate) fn tree_within(target: &Path, scope: Scope<'_>) -> Truth {
    let mut files = BTreeSet::new();
    match target.metadata().unwrap().is_dir() {
        true => {
            let is_within = in_repository(target);
            if is_within {
                listed_by_git(target, target, &mut files);
            }
            walked(target, target, is_within, &mut files);
        }
        false => drop(files.insert(PathBuf::new())),
    }
    files.retain(|file| scope(file.as_os_str().as_bytes()));
    of_files(target, &files)
}

/// The truth about every file of a folder, ignored or not.
pub(crate) fn every_file(target: &Path) -> Truth {
    let mut files = BTreeSet::new();
    let mut folders = vec![target.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                files.insert(entry.path().strip_prefix(target).unwrap().to_path_buf());
            }
        }
    }
    of_files(target, &files)
}

fn of_files(target: &Path, files: &BTreeSet<PathBuf>) -> Truth {
    let mut truth = Truth::counted();
    truth.skipped = BTreeMap::from([("symbolic link", 0), ("binary", 0)]);
    for file in files {
        let path = if file.as_os_str().is_empty() { target.to_path_buf() } else { target.join(file) };
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_symlink() {
            *truth.skipped.get_mut("symbolic link").unwrap() += 1;
            continue;
        }
        if !metadata.is_file() {
            continue;
        }
        let text = std::fs::read(&path).unwrap();
        if text.contains(&0) {
            *truth.skipped.get_mut("binary").unwrap() += 1;
            continue;
        }
        *truth.scanned.as_mut().unwrap() += 1;
        let shown = if file.as_os_str().is_empty() { Path::new(target.file_name().unwrap()) } else { file.as_path() };
        add(&mut truth, target, shown.as_os_str().as_bytes(), None, &text);
    }
    truth
}

fn add(truth: &mut Truth, target: &Path, path: &[u8], blob: Option<&str>, text: &[u8]) {
    for found in tokens_in(text) {
        let place = Place {
            target: target.to_string_lossy().into_owned(),
            path: legible(path),
            blob: blob.map(str::to_owned),
            line: found.line,
            offset: found.offset,
        };
        truth.places.insert(place, found.token);
    }
}

/// A name as reports write it: each byte that is no UTF-8 as `\xff`, so that names that differ stay apart.
fn legible(name: &[u8]) -> String {
    let chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let odd: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("{}{odd}", chunk.valid())
    };
    name.utf8_chunks().map(chunk).collect()
}

/// Whether git takes a folder for a part of a repository.
fn in_repository(folder: &Path) -> bool {
    command(folder, &["rev-parse", "--git-dir"]).output().unwrap().status.success()
}

/// Whether a folder is the root of a working tree. One that is merely called `.git` makes none.
fn is_root(folder: &Path) -> bool {
    folder.join(".git").symlink_metadata().is_ok() && {
        let answer = command(folder, &["rev-parse", "--show-toplevel"]).output().unwrap();
        answer.stdout.strip_suffix(b"\n") == Some(folder.as_os_str().as_bytes())
    }
}

/// Outside repositories everything counts. A repository is listed by git, also where another one around it ignores the folder.
fn walked(target: &Path, folder: &Path, is_within: bool, files: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if !entry.file_type().unwrap().is_dir() {
            if !is_within {
                files.insert(path.strip_prefix(target).unwrap().to_path_buf());
            }
        } else if entry.file_name() != ".git" {
            let is_root = is_root(&path);
            if is_root {
                listed_by_git(target, &path, files);
            }
            walked(target, &path, is_within || is_root, files);
        }
    }
}

/// The files below `folder` that git tracks, and those that it neither tracks nor ignores.
fn listed_by_git(target: &Path, folder: &Path, files: &mut BTreeSet<PathBuf>) {
    let listing = git(folder, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    for record in records(&listing) {
        let path = folder.join(OsStr::from_bytes(record));
        let relative = path.strip_prefix(target).unwrap();
        // A tracked file may be gone, or a link may have taken the place of its folder.
        let mut above = relative.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let through_link = above.any(|above| target.join(above).is_symlink());
        let metadata = path.symlink_metadata().ok().filter(|_| !through_link);
        // Other repositories are listed as folders.
        if metadata.is_some_and(|metadata| !metadata.is_dir()) {
            files.insert(relative.to_path_buf());
        }
    }
}

/// The truth about every blob that a ref of a repository leads to, at each of its paths.
pub(crate) fn history(target: &Path, scope: Scope<'_>) -> Truth {
    let mut truth = Truth::counted();
    truth.skipped = BTreeMap::from([("binary", 0)]);
    let paths = paths_of_blobs(target);
    let blobs = contents(target, &reachable(target));
    for (blob, text) in &blobs {
        let none = BTreeSet::new();
        let paths = paths.get(blob).unwrap_or(&none);
        if !paths.is_empty() && !paths.iter().any(|path| scope(path)) {
            continue;
        }
        if text.contains(&0) {
            *truth.skipped.get_mut("binary").unwrap() += 1;
            continue;
        }
        *truth.scanned.as_mut().unwrap() += 1;
        for path in paths.iter().filter(|path| scope(path)) {
            add(&mut truth, target, path, Some(blob), text);
        }
        if paths.is_empty() {
            truth.pathless.insert((target.to_string_lossy().into_owned(), blob.clone()));
            add(&mut truth, target, b"", Some(blob), text);
        }
    }
    let cut = cut_off(target);
    if cut > 0 {
        truth.unreadable.insert("history cut off (shallow clone)", cut);
    }
    truth
}

/// Commits whose parents a shallow clone left out. Git lists commits without parents among them, too.
fn cut_off(repository: &Path) -> u64 {
    let shallow = git(repository, &["rev-parse", "--git-path", "shallow"]);
    let shallow = repository.join(String::from_utf8_lossy(&shallow).trim_end());
    let commits = std::fs::read_to_string(shallow).unwrap_or_default();
    let has_parent = |commit: &&str| {
        let text = git(repository, &["cat-file", "commit", commit]);
        String::from_utf8_lossy(&text)
            .lines()
            .take_while(|line| !line.is_empty())
            .any(|line| line.starts_with("parent "))
    };
    commits.lines().filter(has_parent).count() as u64
}

/// Objects that refs lead to.
fn reachable(repository: &Path) -> Vec<String> {
    let listing = git(repository, &["rev-list", "--objects", "--all", "--no-object-names"]);
    let mut objects: Vec<String> = String::from_utf8(listing).unwrap().lines().map(str::to_owned).collect();
    objects.sort_unstable();
    objects.dedup();
    objects
}

/// The blobs among these objects, with their contents.
fn contents(repository: &Path, objects: &[String]) -> BTreeMap<String, Vec<u8>> {
    let mut blobs = BTreeMap::new();
    if objects.is_empty() {
        return blobs;
    }
    let output = git_fed(repository, &["cat-file", "--batch"], (objects.join("\n") + "\n").as_bytes());
    let mut rest = &output[..];
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let header = std::str::from_utf8(&rest[..end]).unwrap();
        let [oid, kind, size] = header.split(' ').collect::<Vec<_>>()[..] else { panic!("git says {header:?}") };
        let size: usize = size.parse().unwrap();
        rest = &rest[end + 1..];
        if kind == "blob" {
            blobs.insert(oid.to_owned(), rest[..size].to_vec());
        }
        rest = &rest[size + 1..];
    }
    blobs
}

/// Every path under which a blob stands: in a commit against each of its parents, or in a tree that a ref names.
///
/// A path that a commit has and does not bring in is one of a parent's, so that differences name every path there is.
fn paths_of_blobs(repository: &Path) -> BTreeMap<String, BTreeSet<Vec<u8>>> {
    let mut paths: BTreeMap<String, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let args = ["log", "--all", "--raw", "-m", "--root", "--no-renames", "--no-abbrev", "-z", "--format="];
    for (entry, path) in raw_entries(&git(repository, &args)) {
        if entry.is_blob() {
            paths.entry(entry.oid).or_default().insert(path);
        }
    }
    let refs = git(repository, &["for-each-ref", "--format=%(refname)"]);
    for name in String::from_utf8(refs).unwrap().lines() {
        let peeled = format!("{name}^{{}}");
        if git(repository, &["cat-file", "-t", &peeled]).starts_with(b"tree") {
            for record in records(&git(repository, &["ls-tree", "-r", "-z", &peeled])) {
                let tab = record.iter().position(|&byte| byte == b'\t').unwrap();
                let words: Vec<&str> = std::str::from_utf8(&record[..tab]).unwrap().split(' ').collect();
                paths.entry(words[2].to_owned()).or_default().insert(record[tab + 1..].to_vec());
            }
        }
    }
    paths
}

/// One line of `git diff --raw`.
#[derive(Debug)]
struct RawEntry {
    mode: String,
    oid: String,
    status: String,
}

impl RawEntry {
    /// Whether it names text: a file or a link, and neither a removal nor a submodule.
    fn is_blob(&self) -> bool {
        self.mode.starts_with("100") || self.mode == "120000"
    }
}

fn raw_entries(output: &[u8]) -> Vec<(RawEntry, Vec<u8>)> {
    let (mut entries, mut fields) = (Vec::new(), records(output));
    while let Some(field) = fields.next() {
        let text = String::from_utf8_lossy(field.trim_ascii_start()).into_owned();
        let Some(header) = text.strip_prefix(':') else { continue };
        let words: Vec<&str> = header.split(' ').collect();
        let [_, mode, _, oid, status] = words[..] else { panic!("git says {text:?}") };
        let entry = RawEntry { mode: mode.into(), oid: oid.into(), status: status.into() };
        entries.push((entry, fields.next().unwrap().to_vec()));
    }
    entries
}

/// The truth about the staged changes of a repository, with the index that `index` names or its own.
///
/// Staged links and submodules are counted, and the product may read the text of a link or skip it.
pub(crate) fn staged(target: &Path, index: Option<&Path>, scope: Scope<'_>) -> (Truth, Staged) {
    let mut diff = command(target, &["diff", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev"]);
    if let Some(index) = index {
        diff.env("GIT_INDEX_FILE", index);
    }
    let (mut truth, mut counts) = (Truth::default(), Staged::default());
    let entries = raw_entries(&super::git::answer(diff));
    let taken: Vec<_> = entries.iter().filter(|(entry, _)| ["A", "M", "T"].contains(&&entry.status[..])).collect();
    let oids: Vec<String> =
        taken.iter().filter(|(entry, _)| entry.is_blob()).map(|(entry, _)| entry.oid.clone()).collect();
    let texts = contents(target, &oids);
    let mut read = BTreeSet::new();
    for (entry, path) in taken {
        match &entry.mode[..] {
            "160000" => counts.submodules += 1,
            "120000" => counts.links += 1,
            _ if !scope(path) => {}
            _ => {
                read.insert(&entry.oid);
                add(&mut truth, target, path, Some(&entry.oid), &texts[&entry.oid]);
            }
        }
    }
    counts.blobs = read.len() as u64;
    (truth, counts)
}

/// Staged entries, by kind.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Staged {
    /// Different contents of files that are in scope.
    pub(crate) blobs: u64,
    pub(crate) links: u64,
    pub(crate) submodules: u64,
}
