//! Inputs that take long enough to be interrupted, and changes to them.

use std::fmt::Write as _;
use std::fs::FileTimes;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::git::{git, git_fed, init};
use super::random::Random;
use super::token::token;

/// Text without a secret.
fn filler(lines: usize) -> String {
    "fn main() { println!(\"hello, world\"); }\n".repeat(lines)
}

/// Text with a secret at its end.
fn secret_text(random: &mut Random) -> String {
    format!("{}token: {}\n", filler(random.below(400)), token(random))
}

/// A tree of about a thousand files, of which one in twenty has a secret.
pub(crate) fn tree(random: &mut Random, root: &Path) {
    for number in 0..random.within(700..1_300) {
        let dir = root.join(format!("d{:02}", number % 17));
        std::fs::create_dir_all(&dir).unwrap();
        let text = if number % 20 == 0 { secret_text(random) } else { filler(random.below(600)) };
        std::fs::write(dir.join(format!("f{number:04}")), text).unwrap();
    }
}

/// The surroundings of a large tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// A repository that tracks and ignores a part of the files.
    Repository,
}

/// A large tree of this kind.
pub(crate) fn tree_of(random: &mut Random, root: &Path, kind: Kind) {
    if kind == Kind::Repository {
        init(root, &[]);
    }
    tree(random, root);
    if kind == Kind::Repository {
        std::fs::write(root.join(".gitignore"), "*[05]\n").unwrap();
        track(random, root);
    }
}

/// Lets git track some files, ignored ones too.
fn track(random: &mut Random, root: &Path) {
    let files = files_of(root);
    let paths: Vec<&[u8]> = files.iter().map(|file| file.strip_prefix(root).unwrap().as_os_str().as_bytes()).collect();
    let tracked = random.some_of(&paths, 20);
    git_fed(root, &["add", "-f", "--pathspec-from-file=-", "--pathspec-file-nul"], &tracked.join(&0));
}

/// A change that a scan must not miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Append,
    AddInFront,
    AddBehind,
    Remove,
    Rename,
    RenameFolder,
    /// The same number of bytes, and the same time of modification.
    SameSizeAndTime,
    ReplaceTree,
    /// A rule ignores files that were read.
    Ignore,
    /// Files that were ignored are not any more.
    Unignore,
    /// Git tracks files that it ignored.
    Track,
    /// Git does not track files any more, and ignores them.
    Untrack,
}

impl Change {
    const ALL: [Self; 12] = [
        Self::Append,
        Self::AddInFront,
        Self::AddBehind,
        Self::Remove,
        Self::Rename,
        Self::RenameFolder,
        Self::SameSizeAndTime,
        Self::ReplaceTree,
        Self::Ignore,
        Self::Unignore,
        Self::Track,
        Self::Untrack,
    ];

    /// The changes that make sense in a tree of this kind.
    pub(crate) fn of(kind: Kind) -> &'static [Self] {
        match kind {
            Kind::Plain => &Self::ALL[..8],
            Kind::Repository => &Self::ALL,
        }
    }

    /// Makes the change to the tree in `root`.
    pub(crate) fn make(self, random: &mut Random, root: &Path) {
        let mut files = files_of(root);
        random.shuffle(&mut files);
        match self {
            Self::Append => {
                for file in files.iter().take(random.within(1..40)) {
                    let mut file = std::fs::File::options().append(true).open(file).unwrap();
                    writeln!(file, "token: {}", token(random)).unwrap();
                }
            }
            Self::AddInFront => {
                std::fs::create_dir_all(root.join("a")).unwrap();
                std::fs::write(root.join("a/first"), secret_text(random)).unwrap();
                std::fs::write(root.join("d00/a"), secret_text(random)).unwrap();
            }
            Self::AddBehind => {
                std::fs::create_dir_all(root.join("z")).unwrap();
                std::fs::write(root.join("z/last"), secret_text(random)).unwrap();
            }
            Self::Remove => {
                for file in files.iter().take(files.len() / 3) {
                    std::fs::remove_file(file).unwrap();
                }
            }
            Self::Rename => {
                for file in files.iter().take(40) {
                    std::fs::rename(file, file.with_extension("renamed")).unwrap();
                }
            }
            Self::RenameFolder => {
                let (from, to) = (root.join("d03"), root.join("b03"));
                if from.exists() {
                    std::fs::rename(from, to).unwrap();
                }
            }
            Self::SameSizeAndTime => {
                for file in files.iter().take(60) {
                    rewrite(random, file);
                }
            }
            Self::ReplaceTree => {
                let kind = if root.join(".git").exists() { Kind::Repository } else { Kind::Plain };
                std::fs::rename(root, root.with_extension("old")).unwrap();
                tree_of(random, root, kind);
                std::fs::remove_dir_all(root.with_extension("old")).unwrap();
            }
            Self::Ignore => std::fs::write(root.join(".gitignore"), "*[024568]\n").unwrap(),
            Self::Unignore => std::fs::write(root.join(".gitignore"), "*5\n!d0*/*5\n").unwrap(),
            Self::Track => track(random, root),
            Self::Untrack => {
                drop(git(root, &["rm", "-r", "-q", "-f", "--cached", "--ignore-unmatch", "d00", "d01", "d02"]))
            }
        }
    }
}

/// Writes a secret over the first bytes of a file, and sets its times back.
fn rewrite(random: &mut Random, path: &Path) {
    let before = path.metadata().unwrap();
    plant(random, path);
    let times = FileTimes::new().set_modified(before.modified().unwrap()).set_accessed(before.accessed().unwrap());
    std::fs::File::options().write(true).open(path).unwrap().set_times(times).unwrap();
}

/// Writes a secret over the first bytes of a file, which keeps its size if it is long enough.
pub(crate) fn plant(random: &mut Random, path: &Path) {
    let line = format!("token: {}\n", token(random));
    let mut text = std::fs::read(path).unwrap();
    if text.len() < line.len() {
        text.resize(line.len(), b'\n');
    }
    text[..line.len()].copy_from_slice(line.as_bytes());
    std::fs::write(path, text).unwrap();
}

fn files_of(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_path_buf()]);
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

/// A repository whose history has about a thousand blobs on two branches.
pub(crate) fn history(random: &mut Random, dir: &Path) {
    init(dir, &[]);
    let mut stream = String::new();
    for branch in ["main", "side"] {
        let commits = random.within(200..400);
        for number in 0..commits {
            let files: Vec<(String, String)> = (0..2)
                .map(|file| {
                    let text = if random.below(15) == 0 { secret_text(random) } else { unique_text(random) };
                    (format!("{branch}/f{:02}-{file}", number % 11), text)
                })
                .collect();
            commit(&mut stream, branch, &files);
        }
    }
    git_fed(dir, &["-c", "fastimport.unpackLimit=0", "fast-import", "--quiet"], stream.as_bytes());
}

fn unique_text(random: &mut Random) -> String {
    format!("// {:016x}\n{}", random.next(), filler(random.below(400)))
}

/// One commit in the language of `git fast-import`.
fn commit(stream: &mut String, branch: &str, files: &[(String, String)]) {
    writeln!(stream, "commit refs/heads/{branch}\ncommitter Ada <ada@example.org> 1700000000 +0000\ndata 6\nchange")
        .unwrap();
    for (path, text) in files {
        writeln!(stream, "M 100644 inline {path}\ndata {}\n{text}", text.len()).unwrap();
    }
}

/// A change of a history that a scan must not miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HistoryChange {
    NewCommits,
    NewBranch,
    DeleteBranch,
    /// A branch is set back and goes on differently, and the commits it left are removed.
    ForcePush,
    Repack,
    /// Another repository takes the place of the first.
    ReplaceRepository,
}

impl HistoryChange {
    pub(crate) const ALL: [Self; 6] =
        [Self::NewCommits, Self::NewBranch, Self::DeleteBranch, Self::ForcePush, Self::Repack, Self::ReplaceRepository];

    /// Makes the change to the repository in `dir`.
    pub(crate) fn make(self, random: &mut Random, dir: &Path) {
        match self {
            Self::NewCommits => add_commits(random, dir, "main"),
            Self::NewBranch => {
                let branch = format!("new-{}", random.below(1_000_000));
                add_commits(random, dir, &branch);
            }
            Self::DeleteBranch => {
                git(dir, &["update-ref", "-d", "refs/heads/side"]);
                prune(random, dir);
            }
            Self::ForcePush => {
                git(dir, &["update-ref", "refs/heads/main", "refs/heads/main~50"]);
                add_commits(random, dir, "main");
                prune(random, dir);
            }
            Self::Repack => drop(git(dir, &["repack", "-q", "-a", "-d", "-f"])),
            Self::ReplaceRepository => {
                std::fs::remove_dir_all(dir).unwrap();
                history(random, dir);
            }
        }
    }
}

/// Removes objects to which no ref leads, in half of the cases.
fn prune(random: &mut Random, dir: &Path) {
    if random.percent(50) {
        git(dir, &["reflog", "expire", "--expire=now", "--all"]);
        git(dir, &["repack", "-q", "-a", "-d"]);
        git(dir, &["prune", "--expire=now"]);
    }
}

/// Commits with a secret each on top of a branch, which is made if there is none.
fn add_commits(random: &mut Random, dir: &Path, branch: &str) {
    let mut stream = String::new();
    let exists = !git(dir, &["for-each-ref", &format!("refs/heads/{branch}")]).is_empty();
    for number in 0..random.within(1..30) {
        let from = if number == 0 && exists { format!("from refs/heads/{branch}^0\n") } else { String::new() };
        let text = format!("token: {}\n", token(random));
        writeln!(stream, "commit refs/heads/{branch}\ncommitter Ada <ada@example.org> 1700000000 +0000\ndata 4\nmore")
            .unwrap();
        writeln!(stream, "{from}M 100644 inline added/{number}\ndata {}\n{text}", text.len()).unwrap();
    }
    git_fed(dir, &["fast-import", "--quiet"], stream.as_bytes());
}
