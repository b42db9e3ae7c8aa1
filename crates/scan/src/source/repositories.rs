//! Many repositories at once: those that a list names, or that lie below a folder.
//!
//! What cannot be scanned is said with the line that names it, and the others are scanned. A repository that is named twice, be
//! it by other paths, is scanned once: where a history is asked for, the working trees of one repository are one, since every head
//! of every working tree is part of that history.
//!
//! A list is bytes, not text: paths need not be UTF-8. A line is a path as it stands there; one that begins with `#` is a remark.
//!
//! Left out on purpose: symbolic links below a folder are not followed, and a repository inside `.git` (that of a submodule which is
//! not checked out) is not looked for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tessera_git_objects::layout::{Layout, LayoutError, is_git_dir};

use crate::run::left_out::LeftOut;
use crate::run::request::ScanScope;
use crate::source::git;

/// Longest list.
pub const LIST_BYTES_MAX: u64 = 256 << 20;

/// Folders that are looked at to tell whether there is any repository below one.
const LOOKED_AT_MAX: usize = 10_000;

/// Repositories that were asked for.
#[derive(Debug, Default)]
pub struct Repositories {
    /// Those to be scanned: absolute, without links, each once, in the order in which they were named.
    pub paths: Vec<PathBuf>,
    /// Those that cannot be.
    pub left_out: Vec<LeftOut>,
    /// Those that were named again.
    pub repeated: Vec<Repeated>,
}

/// A repository that was named before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// As it was named the second time.
    pub path: PathBuf,
    /// Where, as in [`LeftOut`].
    pub named_at: String,
    /// As it is scanned.
    pub scanned_as: PathBuf,
}

/// Why a list is none.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// It cannot be read.
    #[error("cannot read {name}: {source}")]
    Io {
        /// The list.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// Paths have no zero bytes.
    #[error("{name} is binary; a list of repositories has one path on each line")]
    Binary {
        /// The list.
        name: String,
    },
    /// There is nothing to scan.
    #[error("{name} names no repository; a list has one path on each line, and lines that begin with # are remarks")]
    Empty {
        /// The list.
        name: String,
    },
}

/// The path that stands for all that are the same.
#[derive(Debug)]
struct Known {
    /// Its place in the paths that were gathered.
    at: usize,
    path: PathBuf,
    named_at: String,
    is_linked: bool,
}

/// Where a repository is.
#[derive(Debug)]
struct Checked {
    canonical: PathBuf,
    /// What makes it the same as another.
    same: PathBuf,
    /// Whether it is a linked working tree of another one.
    is_linked: bool,
}

/// Collects repositories.
#[derive(Debug)]
pub struct Gathering {
    scope: ScanScope,
    /// What makes two paths the same, and which path stands for it.
    known: HashMap<PathBuf, Known>,
    gathered: Repositories,
}

impl Gathering {
    /// Nothing yet. In a scan of files each working tree is a target; in one of histories each repository is.
    pub fn new(scope: ScanScope) -> Self {
        Self { scope, known: HashMap::new(), gathered: Repositories::default() }
    }

    /// Adds the repositories that a list names. `name` is how errors call it.
    pub fn list(&mut self, name: &str, list: &mut dyn io::Read) -> Result<(), ListError> {
        let failed = |source| ListError::Io { name: name.to_owned(), source };
        let mut text = Vec::new();
        let mut bounded = io::Read::take(list, LIST_BYTES_MAX + 1);
        io::Read::read_to_end(&mut bounded, &mut text).map_err(failed)?;
        if text.len() as u64 > LIST_BYTES_MAX {
            return Err(failed(io::Error::other(format!("it has more than {LIST_BYTES_MAX} bytes"))));
        }
        if text.contains(&0) {
            return Err(ListError::Binary { name: name.to_owned() });
        }
        let mut is_empty = true;
        for (line, number) in text.split(|&byte| byte == b'\n').zip(1_u64..) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            is_empty = false;
            let named_at = format!("{name}, line {number}");
            self.named(Path::new(OsStr::from_bytes(line)), named_at);
        }
        if is_empty { Err(ListError::Empty { name: name.to_owned() }) } else { Ok(()) }
    }

    /// Adds the repository at `path`.
    fn named(&mut self, path: &Path, named_at: String) {
        match self.checked(path) {
            Ok(checked) => self.add(path, checked, named_at),
            Err(why) => self.gathered.left_out.push(LeftOut { path: path.to_path_buf(), named_at, why }),
        }
    }

    /// Adds all repositories below `dir`, and `dir` itself if it is one.
    pub fn below(&mut self, dir: &Path) -> io::Result<()> {
        let root = dir.canonicalize()?;
        // A folder that cannot be listed is left out; the root is what the user named.
        std::fs::read_dir(&root)?;
        walk(&root, usize::MAX, &mut |found| {
            match found {
                Found::Repository(path) => match self.checked(&path) {
                    Ok(checked) => self.add(&path, checked, String::new()),
                    Err(why) => self.gathered.left_out.push(LeftOut::found(&path, why)),
                },
                Found::Unlisted(path, error) => {
                    self.gathered.left_out.push(LeftOut::found(&path, format!("cannot list it: {error}")));
                }
            }
            true
        });
        Ok(())
    }

    /// What was found, and what was not.
    pub fn finish(self) -> Repositories {
        self.gathered
    }

    fn add(&mut self, path: &Path, checked: Checked, named_at: String) {
        let Checked { canonical, same, is_linked } = checked;
        let gathered = &mut self.gathered;
        let mut path = path.to_path_buf();
        let Some(known) = self.known.get_mut(&same) else {
            let at = gathered.paths.len();
            self.known.insert(same, Known { at, path, named_at, is_linked });
            gathered.paths.push(canonical);
            return;
        };
        let mut repeated_at = named_at;
        if known.is_linked && !is_linked {
            // Linked working trees come and go: the repository they belong to stands for all.
            known.is_linked = false;
            let linked = std::mem::replace(&mut gathered.paths[known.at], canonical.clone());
            gathered.repeated.iter_mut().filter(|one| one.scanned_as == linked).for_each(|one| {
                one.scanned_as.clone_from(&canonical);
            });
            std::mem::swap(&mut known.path, &mut path);
            std::mem::swap(&mut known.named_at, &mut repeated_at);
        }
        let scanned_as = gathered.paths[known.at].clone();
        gathered.repeated.push(Repeated { path, named_at: repeated_at, scanned_as });
    }

    /// Where a repository is, or why it cannot be scanned.
    fn checked(&self, path: &Path) -> Result<Checked, String> {
        let canonical = path.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "it is not there".to_owned(),
            _ => error.to_string(),
        })?;
        if !canonical.is_dir() {
            return Err("it is no directory".to_owned());
        }
        let none = || "it is no git repository".to_owned();
        let layout = match Layout::discover(&canonical) {
            Ok(layout) => Some(layout),
            Err(LayoutError::NoRepository(_)) => return Err(none()),
            Err(error @ LayoutError::Damaged { .. }) => return Err(error.to_string()),
            // Perhaps git can read it.
            Err(error) => match git::is_repository(&canonical) {
                Ok(true) => None,
                Ok(false) => return Err(error.to_string()),
                Err(error) => return Err(error.to_string()),
            },
        };
        if self.scope != ScanScope::History {
            let is_bare = is_git_dir(&canonical).unwrap_or(false);
            return match is_bare {
                true => Err("it is bare and has no files of its own; --history reads what is committed".to_owned()),
                false => Ok(Checked { same: canonical.clone(), canonical, is_linked: false }),
            };
        }
        let is_linked = layout.as_ref().is_some_and(Layout::is_linked);
        let same = layout.and_then(|layout| layout.common_dir().canonicalize().ok());
        Ok(Checked { same: same.unwrap_or_else(|| canonical.clone()), canonical, is_linked })
    }
}

/// Whether there is a repository below `dir`, as far as a short look tells.
pub fn any_below(dir: &Path) -> bool {
    let mut is_any = false;
    walk(dir, LOOKED_AT_MAX, &mut |found| {
        is_any = matches!(found, Found::Repository(_));
        !is_any
    });
    is_any
}

/// A folder with none of these is no repository, not even a damaged one.
const NAMES: [&[u8]; 4] = [b".git", b"HEAD", b"objects", b"refs"];

enum Found {
    Repository(PathBuf),
    /// A folder that cannot be listed.
    Unlisted(PathBuf, io::Error),
}

/// Shows `visit` the repositories at and below `root`, in the order of their paths, until it returns false or `folders_max` folders
/// were looked at.
fn walk(root: &Path, folders_max: usize, visit: &mut dyn FnMut(Found) -> bool) {
    let mut open = vec![root.to_path_buf()];
    for _ in 0..folders_max {
        let Some(dir) = open.pop() else { return };
        let (mut below, mut has_names) = (Vec::new(), false);
        let listed = std::fs::read_dir(&dir).and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name();
                has_names |= NAMES.contains(&name.as_bytes());
                // A link may lead anywhere, also back.
                if name != ".git" && entry.file_type()?.is_dir() {
                    below.push(entry.path());
                }
            }
            Ok(())
        });
        if let Err(error) = listed
            && !visit(Found::Unlisted(dir.clone(), error))
        {
            return;
        }
        let is_bare = has_names && is_git_dir(&dir).unwrap_or(false);
        // A folder that only bears the name is no repository; a damaged one is shown, so that it is named.
        let is_repository = has_names && !matches!(Layout::of_root(&dir), Ok(None));
        if !is_bare {
            // The first is looked at first.
            below.sort_unstable_by(|a, b| b.cmp(a));
            open.append(&mut below);
        }
        if is_repository && !visit(Found::Repository(dir)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Repository;

    fn listed(scope: ScanScope, list: &[u8]) -> Result<Repositories, ListError> {
        let mut gathering = Gathering::new(scope);
        gathering.list("list", &mut &*list)?;
        Ok(gathering.finish())
    }

    fn below(scope: ScanScope, dir: &Path) -> Repositories {
        let mut gathering = Gathering::new(scope);
        gathering.below(dir).unwrap();
        gathering.finish()
    }

    fn init(dir: &Path, args: &[&str]) {
        std::fs::create_dir_all(dir).unwrap();
        let status = std::process::Command::new("git").arg("-C").arg(dir).args(["init", "-q"]).args(args).status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn each_line_is_judged_by_itself_and_named_with_its_number() {
        let repository = Repository::new();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let (path, at) = (repository.path().to_str().unwrap(), dir.path().to_str().unwrap());
        let list = format!("# ours\r\n\n{at}/gone\n{path}\r\n{at}/file\n{at}\n   \n{path}/.git/..\n");
        let found = listed(ScanScope::History, list.as_bytes()).unwrap();
        assert_eq!(found.paths, [repository.path().canonicalize().unwrap()]);
        let lines: Vec<_> = found.left_out.iter().map(|left| (left.named_at.as_str(), left.why.as_str())).collect();
        assert_eq!(
            lines,
            [
                ("list, line 3", "it is not there"),
                ("list, line 5", "it is no directory"),
                ("list, line 6", "it is no git repository")
            ]
        );
        assert_eq!((found.repeated.len(), found.repeated[0].named_at.as_str()), (1, "list, line 8"));
    }

    #[test]
    fn a_list_without_a_path_and_one_that_is_no_text_are_refused() {
        for empty in ["", "\n\n", "# only\n# remarks"] {
            assert!(matches!(listed(ScanScope::History, empty.as_bytes()), Err(ListError::Empty { .. })), "{empty:?}");
        }
        assert!(matches!(listed(ScanScope::History, b"/srv/a\0b"), Err(ListError::Binary { .. })));
        let mut endless = std::fs::File::open("/dev/zero").unwrap();
        let error = Gathering::new(ScanScope::Files).list("x", &mut endless).unwrap_err();
        assert!(matches!(error, ListError::Io { .. }), "{error}");
    }

    #[test]
    fn names_that_are_no_text_are_paths_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join(OsStr::from_bytes(b"odd\xff\x1b[2J"));
        init(&odd, &[]);
        let found = listed(ScanScope::History, odd.as_os_str().as_bytes()).unwrap();
        assert_eq!(found.paths, [odd.canonicalize().unwrap()]);
        assert_eq!(below(ScanScope::History, dir.path()).paths, found.paths);
    }

    #[test]
    fn all_repositories_below_a_folder_are_found_and_one_history_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        init(&root.join("a"), &[]);
        init(&root.join("a/vendored/b"), &[]);
        init(&root.join("deep/er/bare.git"), &["--bare"]);
        std::fs::create_dir_all(root.join("plain/.git")).unwrap();
        std::fs::create_dir_all(root.join("damaged/.git/objects")).unwrap();
        init(&root.join("mirror.git"), &["--bare"]);
        std::fs::remove_file(root.join("mirror.git/HEAD")).unwrap();
        std::os::unix::fs::symlink(&root, root.join("deep/loop")).unwrap();
        let commit =
            ["-C", root.join("a").to_str().unwrap(), "-c", "user.name=a", "-c", "user.email=a@b"].map(str::to_owned);
        let git = |args: &[&str]| {
            let status = std::process::Command::new("git").args(&commit).args(args).status();
            assert!(status.unwrap().success());
        };
        git(&["commit", "-q", "--allow-empty", "-m", "x"]);
        git(&["worktree", "add", "-q", root.join("tree").to_str().unwrap()]);

        let names = |found: &Repositories| -> Vec<String> {
            let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            found.paths.iter().map(name).collect()
        };
        let histories = below(ScanScope::History, &root);
        assert_eq!(names(&histories), ["a", "a/vendored/b", "deep/er/bare.git"]);
        let repeated = Repeated { path: root.join("tree"), named_at: String::new(), scanned_as: root.join("a") };
        assert_eq!(histories.repeated, [repeated], "a working tree has the history of its repository");
        let left_out = |found: &Repositories| found.left_out.iter().map(|left| left.path.clone()).collect::<Vec<_>>();
        assert_eq!(left_out(&histories), [root.join("damaged"), root.join("mirror.git")]);

        let files = below(ScanScope::Files, &root);
        assert_eq!(names(&files), ["a", "a/vendored/b", "tree"]);
        assert_eq!(left_out(&files), [root.join("damaged"), root.join("deep/er/bare.git"), root.join("mirror.git")]);
        assert!(any_below(&root) && !any_below(&root.join("plain")));
        assert!(Gathering::new(ScanScope::Files).below(&root.join("gone")).is_err());
    }
}
