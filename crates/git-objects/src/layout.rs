//! Where a repository keeps its objects and refs.
//!
//! What this does not know (refs in tables, object formats of the future) is refused rather than read in part: whoever asks
//! can still let git do it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::oid::Oid;
use crate::plain_file;
use crate::refs::Tips;

/// Deepest nesting of borrowed object folders, as in git.
const ALTERNATES_DEPTH_MAX: u32 = 5;
/// Most of them: whoever names more means harm.
const ALTERNATES_MAX: usize = 1_000;
/// Longest file that says where things are.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Folders of a repository.
#[derive(Debug, Clone)]
pub struct Layout {
    /// What belongs to this working tree: its `HEAD`.
    git_dir: PathBuf,
    /// What all working trees share: refs and objects.
    common_dir: PathBuf,
    /// Bytes of an object's name.
    pub oid_len: usize,
}

/// Why a repository cannot be read here.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// No repository is there.
    #[error("there is no repository at {} nor above it", .0.display())]
    NoRepository(PathBuf),
    /// It is stored in a way that only git knows.
    #[error("the repository {} uses {what}, which only git reads", path.display())]
    Unsupported {
        /// Where.
        path: PathBuf,
        /// The way.
        what: String,
    },
    /// A file of it cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> LayoutError + '_ {
    |source| LayoutError::Io { path: path.to_path_buf(), source }
}

/// What lies in a file; `None` if there is none.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, LayoutError> {
    plain_file::read(path, FILE_BYTES_MAX).map_err(io_at(path))
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes.trim_ascii_end()))
}

impl Layout {
    /// The repository that `path` is or lies in.
    pub fn discover(path: &Path) -> Result<Self, LayoutError> {
        let start = path.canonicalize().map_err(io_at(path))?;
        for dir in start.ancestors() {
            let dot_git = dir.join(".git");
            if is_git_dir(&dot_git) {
                return Self::at(dot_git);
            }
            if is_git_dir(dir) {
                return Self::at(dir.to_path_buf());
            }
            // A linked working tree or a submodule: a file says where the folder is.
            if dot_git.is_file()
                && let Some(text) = read_if_there(&dot_git)?
                && let Some(git_dir) = named_git_dir(dir, &text)
            {
                return Self::at(git_dir);
            }
        }
        Err(LayoutError::NoRepository(path.to_path_buf()))
    }

    fn at(git_dir: PathBuf) -> Result<Self, LayoutError> {
        let common_dir = common_dir_of(&git_dir)?;
        let config = read_if_there(&common_dir.join("config"))?.unwrap_or_default();
        let mut oid_len = 20;
        for (name, value) in extensions(&config) {
            let is_unknown = match (&name[..], &value[..]) {
                ("objectformat", "sha1") | ("refstorage", "files") => false,
                ("objectformat", "sha256") => {
                    oid_len = 32;
                    false
                }
                ("objectformat" | "refstorage", _) => true,
                // Others say nothing about how objects and refs are stored.
                _ => false,
            };
            if is_unknown {
                return Err(LayoutError::Unsupported { path: git_dir, what: format!("{name} = {value}") });
            }
        }
        Ok(Self { git_dir, common_dir, oid_len })
    }

    /// Folders of objects: its own, and those it borrows from.
    pub(crate) fn object_dirs(&self) -> Result<Vec<PathBuf>, LayoutError> {
        let mut dirs = vec![self.common_dir.join("objects")];
        // By their real paths: a folder that borrows from itself can be spelt in many ways.
        let mut known = HashSet::from([dirs[0].canonicalize().map_err(io_at(&dirs[0]))?]);
        let mut borrowed = vec![(dirs[0].clone(), 0)];
        while let Some((dir, depth)) = borrowed.pop() {
            let text = read_if_there(&dir.join("info/alternates"))?.unwrap_or_default();
            let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#');
            for line in lines.filter(|_| depth < ALTERNATES_DEPTH_MAX) {
                // What is gone lends nothing: the objects it had are missing, and counted so.
                let Ok(other) = dir.join(path_of(line)).canonicalize() else { continue };
                if !known.insert(other.clone()) {
                    continue;
                }
                if known.len() > ALTERNATES_MAX {
                    let what = format!("objects of more than {ALTERNATES_MAX} others");
                    return Err(LayoutError::Unsupported { path: self.git_dir.clone(), what });
                }
                dirs.push(other.clone());
                borrowed.push((other, depth + 1));
            }
        }
        Ok(dirs)
    }

    /// What all refs and heads point at.
    pub fn tips(&self) -> Tips {
        let mut roots = vec![self.git_dir.clone()];
        let worktrees = self.common_dir.join("worktrees");
        if let Ok(entries) = std::fs::read_dir(&worktrees) {
            roots.extend(entries.flatten().map(|entry| entry.path()));
        }
        Tips::of(&self.common_dir, &roots)
    }

    /// Commits whose parents were left out when this repository was cloned.
    pub fn shallow(&self) -> Result<HashSet<Oid>, LayoutError> {
        let text = read_if_there(&self.common_dir.join("shallow"))?.unwrap_or_default();
        Ok(text.split(|&byte| byte == b'\n').filter_map(Oid::from_hex).collect())
    }
}

/// The folder that a `.git` file in `dir` names; `None` if the text names none.
pub fn named_git_dir(dir: &Path, text: &[u8]) -> Option<PathBuf> {
    text.strip_prefix(b"gitdir: ").map(|named| dir.join(path_of(named)))
}

/// The folder that all working trees of the repository with this folder share.
pub fn common_dir_of(git_dir: &Path) -> Result<PathBuf, LayoutError> {
    Ok(match read_if_there(&git_dir.join("commondir"))? {
        Some(named) => git_dir.join(path_of(&named)),
        None => git_dir.to_path_buf(),
    })
}

/// Bytes of an object's name in the repository with this shared folder.
pub fn oid_len_of(common_dir: &Path) -> Result<usize, LayoutError> {
    let config = read_if_there(&common_dir.join("config"))?.unwrap_or_default();
    let format = extensions(&config).into_iter().rfind(|(name, _)| name == "objectformat");
    match format.as_ref().map(|(_, value)| value.as_str()) {
        None | Some("sha1") => Ok(20),
        Some("sha256") => Ok(32),
        Some(other) => {
            Err(LayoutError::Unsupported { path: common_dir.to_path_buf(), what: format!("objectformat = {other}") })
        }
    }
}

fn is_git_dir(path: &Path) -> bool {
    path.join("HEAD").exists() && path.join("objects").is_dir() && path.join("refs").is_dir()
}

/// Names and values in the section `extensions`, in lower case.
fn extensions(config: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in String::from_utf8_lossy(config).lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            is_inside = section.trim_end_matches(']').trim().eq_ignore_ascii_case("extensions");
        } else if is_inside && let Some((name, value)) = line.split_once('=') {
            let plain = |text: &str| text.trim().trim_matches('"').to_ascii_lowercase();
            found.push((plain(name), plain(value)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Repository;

    fn tips(path: &Path) -> Vec<Oid> {
        let mut tips = Layout::discover(path).unwrap().tips();
        assert!(!tips.is_broken);
        tips.oids.sort();
        tips.oids
    }

    #[test]
    fn refs_are_found_loose_and_packed_and_loose_ones_count() {
        let repository = Repository::new();
        let first = repository.commit("first", &[("a", "1")]);
        repository.git(&["tag", "old"]);
        repository.git(&["pack-refs", "--all"]);
        let second = repository.commit("second", &[("a", "2")]);
        repository.git(&["branch", "deep/er/branch"]);
        let oid = |hex: &str| Oid::from_hex(hex.as_bytes()).unwrap();
        let mut expected = vec![oid(&first), oid(&second)];
        expected.sort();
        assert_eq!(tips(repository.path()), expected);
        // Main moved on: its packed value is no ref any more.
        repository.git(&["tag", "-d", "old"]);
        assert_eq!(tips(repository.path()), [oid(&second)]);
    }

    #[test]
    fn a_linked_working_tree_shares_refs_and_has_a_head_of_its_own() {
        let repository = Repository::new();
        let main = repository.commit("main", &[("a", "1")]);
        let outside = tempfile::tempdir().unwrap();
        let linked = outside.path().join("linked");
        repository.git(&["worktree", "add", "-q", "--detach", linked.to_str().unwrap()]);
        std::fs::create_dir(linked.join("sub")).unwrap();
        assert_eq!(tips(&linked.join("sub")), [Oid::from_hex(main.as_bytes()).unwrap()]);
        assert!(Layout::discover(&linked).unwrap().object_dirs().unwrap()[0].is_dir());
        assert!(matches!(Layout::discover(outside.path()), Err(LayoutError::NoRepository(_))));
    }

    #[test]
    fn a_folder_that_borrows_from_itself_in_many_spellings_is_read_once() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1")]);
        let info = repository.path().join(".git/objects/info");
        std::fs::create_dir_all(&info).unwrap();
        let spellings: Vec<String> = (1..60).map(|times| "../objects/".repeat(times)).collect();
        std::fs::write(info.join("alternates"), spellings.join("\n")).unwrap();
        assert_eq!(Layout::discover(repository.path()).unwrap().object_dirs().unwrap().len(), 1);
    }

    #[test]
    fn what_only_git_can_read_is_refused() {
        let config = b"[core]\n\tbare = true\n[Extensions]\n\trefStorage = reftable\n[x]\nrefstorage = files\n";
        assert_eq!(extensions(config), [("refstorage".to_owned(), "reftable".to_owned())]);
        let repository = Repository::new();
        std::fs::write(repository.path().join(".git/config"), config).unwrap();
        let error = Layout::discover(repository.path()).unwrap_err();
        assert!(error.to_string().contains("refstorage = reftable"), "{error}");
    }
}
