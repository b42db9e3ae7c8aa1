//! Where a repository keeps its objects and refs.
//!
//! What this does not know (refs in tables, object formats of the future) is refused rather than read in part: the caller
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
/// At most so many of them: a repository that names more is hostile.
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
    /// Git passes it over and takes the repository around it, which is another one.
    #[error("{} is no repository that can be read: {what}", path.display())]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
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
        Self::at(found_above(path)?.git_dir)
    }

    /// The repository that `dir` itself is: the root of a working tree, or a bare one. `None` if it is none, even if it lies in one.
    pub fn of_root(dir: &Path) -> Result<Option<Self>, LayoutError> {
        git_dir_at(dir)?.map(Self::at).transpose()
    }

    /// What all working trees share. Two working trees with the same folder have the same history.
    pub fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    /// Whether this is a linked working tree, which has the history of another one.
    pub fn is_linked(&self) -> bool {
        self.git_dir != self.common_dir
    }

    fn at(git_dir: PathBuf) -> Result<Self, LayoutError> {
        let common_dir = common_dir_of(&git_dir)?;
        let config = read_if_there(&common_dir.join("config"))?.unwrap_or_default();
        let mut oid_len = 20;
        for (name, value) in settings(&config, "extensions") {
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
        let linked = std::fs::read_dir(self.common_dir.join("worktrees"));
        let linked = linked.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
        let is_hidden = match linked {
            Ok(linked) => {
                roots.extend(linked);
                false
            }
            Err(error) => !is_absent(&error),
        };
        let tips = Tips::of(&self.common_dir, &roots);
        Tips { is_broken: tips.is_broken || is_hidden, ..tips }
    }

    /// Commits whose parents were left out when this repository was cloned.
    pub fn shallow(&self) -> Result<HashSet<Oid>, LayoutError> {
        let text = read_if_there(&self.common_dir.join("shallow"))?.unwrap_or_default();
        Ok(text.split(|&byte| byte == b'\n').filter_map(Oid::from_hex).collect())
    }
}

/// Where the paths of the repository that `path` is or lies in begin: at the root of its working tree, or at its own folder if it
/// has none.
pub fn root_of(path: &Path) -> Result<PathBuf, LayoutError> {
    found_above(path).map(|found| found.root)
}

struct Found {
    root: PathBuf,
    git_dir: PathBuf,
}

fn found_above(path: &Path) -> Result<Found, LayoutError> {
    let start = path.canonicalize().map_err(io_at(path))?;
    for dir in start.ancestors() {
        if let Some(git_dir) = git_dir_at(dir)? {
            return Ok(Found { root: dir.to_path_buf(), git_dir });
        }
    }
    Err(LayoutError::NoRepository(path.to_path_buf()))
}

/// The folder of the repository that `dir` itself is, if it is one.
fn git_dir_at(dir: &Path) -> Result<Option<PathBuf>, LayoutError> {
    if let Some(git_dir) = git_dir_in(dir)? {
        return Ok(Some(git_dir));
    }
    if is_git_dir(dir).map_err(io_at(dir))? {
        return Ok(Some(dir.to_path_buf()));
    }
    match missing_of_bare(dir) {
        Some(missing) => {
            let what = format!("it has other names of a mirror, and no {missing:?}");
            Err(LayoutError::Damaged { path: dir.to_path_buf(), what })
        }
        None => Ok(None),
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
    let format = settings(&config, "extensions").into_iter().rfind(|(name, _)| name == "objectformat");
    match format.as_ref().map(|(_, value)| value.as_str()) {
        None | Some("sha1") => Ok(20),
        Some("sha256") => Ok(32),
        Some(other) => {
            Err(LayoutError::Unsupported { path: common_dir.to_path_buf(), what: format!("objectformat = {other}") })
        }
    }
}

/// The folder of the repository whose working tree has this root, if it is one.
fn git_dir_in(dir: &Path) -> Result<Option<PathBuf>, LayoutError> {
    let dot_git = dir.join(".git");
    let damaged = |what: String| LayoutError::Damaged { path: dot_git.clone(), what };
    let is_there = is_entry(&dot_git).map_err(|error| damaged(error.to_string()))?;
    if !is_there {
        return Ok(None);
    }
    let metadata = std::fs::metadata(&dot_git).map_err(|error| damaged(error.to_string()))?;
    if metadata.is_file() {
        // A linked working tree or a submodule: a file says where the folder is.
        let text = read_if_there(&dot_git)?.unwrap_or_default();
        let named = named_git_dir(dir, &text).ok_or_else(|| damaged("the file names no folder of git".into()))?;
        return match is_entry(&named.join("HEAD")) {
            Ok(true) => Ok(Some(named)),
            Ok(false) => Err(damaged(format!("it names {}, which has no `HEAD`", named.display()))),
            Err(error) => Err(damaged(format!("it names {}: {error}", named.display()))),
        };
    }
    if is_git_dir(&dot_git).map_err(|error| damaged(error.to_string()))? {
        return Ok(Some(dot_git));
    }
    // A folder that only bears the name has nothing of a repository in it.
    match REMAINS.iter().find(|name| dot_git.join(name).symlink_metadata().is_ok()) {
        Some(name) => Err(damaged(format!("it has {name:?}, and not all of `HEAD`, `objects` and `refs`"))),
        None => Ok(None),
    }
}

/// What a folder lacks that otherwise looks like a repository without a working tree: it has a `HEAD` that git wrote, or git's folders of
/// objects, and one more of git's names.
fn missing_of_bare(dir: &Path) -> Option<&'static str> {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    let head = plain_file::read(&dir.join("HEAD"), FILE_BYTES_MAX).ok().flatten().unwrap_or_default();
    let has_head = head.starts_with(b"ref: ") || Oid::from_hex(head.trim_ascii_end()).is_some();
    let has_store = is_there("objects/pack") || is_there("objects/info");
    let has_refs = is_there("refs") || is_there("packed-refs");
    let is_remainder = (has_head && (has_refs || is_there("objects"))) || (has_store && (has_refs || is_there("HEAD")));
    ["HEAD", "objects", "refs"].into_iter().find(|name| is_remainder && !is_there(name))
}

/// What tells the folder of a damaged repository from one that only bears the name.
const REMAINS: [&str; 4] = ["HEAD", "objects", "refs", "packed-refs"];

/// Whether git takes a folder for one of its own. In old repositories `HEAD` is a link, and leads nowhere if refs are packed.
pub fn is_git_dir(path: &Path) -> io::Result<bool> {
    let is_folder = |name: &str| match std::fs::metadata(path.join(name)) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    };
    Ok(is_entry(&path.join("HEAD"))? && is_folder("objects")? && is_folder("refs")?)
}

/// Whether a folder of this kind, `objects`, has only names in it that git gives. Others are files that were put there, or the folder is none
/// of git's.
pub fn has_only_objects(objects: &Path) -> io::Result<bool> {
    for folder in std::fs::read_dir(objects)? {
        let folder = folder?;
        let name = folder.file_name();
        let name = name.as_bytes();
        if name.starts_with(b"tmp_") {
            continue;
        }
        let fits: fn(&[u8]) -> bool = match name {
            b"pack" => is_name_of_pack,
            b"info" => is_name_of_info,
            [_, _] if is_hex(name) => is_name_of_loose,
            _ => return Ok(false),
        };
        if !folder.file_type()?.is_dir() {
            return Ok(false);
        }
        for file in std::fs::read_dir(folder.path())? {
            if !fits(file?.file_name().as_bytes()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn is_hex(name: &[u8]) -> bool {
    name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_name_of_loose(name: &[u8]) -> bool {
    name.starts_with(b"tmp_") || (matches!(name.len(), 38 | 62) && is_hex(name))
}

fn is_name_of_pack(name: &[u8]) -> bool {
    const ENDINGS: [&str; 8] = ["pack", "idx", "rev", "bitmap", "keep", "promisor", "mtimes", "lock"];
    let is_pack = || {
        let name = std::str::from_utf8(name).ok()?.strip_prefix("pack-")?;
        let (hash, ending) = name.split_once('.')?;
        Some(matches!(hash.len(), 40 | 64) && is_hex(hash.as_bytes()) && ENDINGS.contains(&ending))
    };
    [b"tmp_".as_slice(), b".tmp-", b"multi-pack-index"].iter().any(|start| name.starts_with(start))
        || is_pack().unwrap_or(false)
}

fn is_name_of_info(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [b"packs", b"alternates", b"http-alternates", b"commit-graphs"];
    NAMES.contains(&name) || name.starts_with(b"commit-graph")
}

fn is_entry(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether names that differ in the case of their letters alone are the same file to the repository with this shared folder: where
/// it was made, they are the same file on disk.
pub fn ignores_case(common_dir: &Path) -> Result<bool, LayoutError> {
    let config = read_if_there(&common_dir.join("config"))?.unwrap_or_default();
    let setting = settings(&config, "core").into_iter().rfind(|(name, _)| name == "ignorecase");
    Ok(setting.is_some_and(|(_, value)| !matches!(&value[..], "false" | "no" | "off" | "0")))
}

/// Names and values in a section, in lower case.
fn settings(config: &[u8], section: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in String::from_utf8_lossy(config).lines().map(str::trim) {
        let line = match line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            // A setting may stand behind the name of its section.
            Some((name, rest)) => {
                is_inside = name.trim().eq_ignore_ascii_case(section);
                rest.trim()
            }
            None => line,
        };
        if is_inside && !line.is_empty() {
            let plain = |text: &str| text.trim().trim_matches('"').to_ascii_lowercase();
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
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

    /// Git would go on to the repository around it, and nothing would be said of this one.
    #[test]
    fn a_damaged_repository_is_never_taken_for_the_one_around_it() {
        let outer = Repository::new();
        let inner = outer.path().join("inner");
        let dot_git = inner.join(".git");
        let discovered = || Layout::discover(&inner.join("sub")).map(|layout| layout.git_dir);
        let outer_git = outer.path().canonicalize().unwrap().join(".git");
        std::fs::create_dir_all(inner.join("sub")).unwrap();
        std::fs::create_dir(&dot_git).unwrap();
        assert_eq!(discovered().unwrap(), outer_git, "a folder that only bears the name");
        outer.git(&["init", "-q", "-b", "main", "inner"]);
        assert!(discovered().unwrap().ends_with("inner/.git"));
        std::fs::remove_file(dot_git.join("HEAD")).unwrap();
        assert!(matches!(discovered(), Err(LayoutError::Damaged { .. })), "without HEAD");
        std::os::unix::fs::symlink("refs/heads/packed", dot_git.join("HEAD")).unwrap();
        assert!(discovered().unwrap().ends_with("inner/.git"), "HEAD is a link that leads nowhere");
        std::fs::remove_dir_all(&dot_git).unwrap();
        std::os::unix::fs::symlink(".git", &dot_git).unwrap();
        assert!(matches!(discovered(), Err(LayoutError::Damaged { .. })), "it cannot be looked into");
        std::fs::remove_file(&dot_git).unwrap();
        for text in ["", "gitdir: /no/such/place\n"] {
            std::fs::write(&dot_git, text).unwrap();
            assert!(matches!(discovered(), Err(LayoutError::Damaged { .. })), "{text:?}");
        }
    }

    /// A mirror lies where a working tree may be around it, too.
    #[test]
    fn a_damaged_mirror_is_never_taken_for_the_repository_around_it() {
        let outer = Repository::new();
        outer.commit("first", &[("a", "1")]);
        for (lost, is_folder) in [("HEAD", false), ("refs", true), ("objects", true)] {
            let mirror = outer.path().join(format!("without-{lost}.git"));
            outer.git(&["clone", "-q", "--bare", ".", mirror.to_str().unwrap()]);
            assert_eq!(Layout::discover(&mirror).unwrap().git_dir, mirror.canonicalize().unwrap());
            let lost = mirror.join(lost);
            let removed = if is_folder { std::fs::remove_dir_all(&lost) } else { std::fs::remove_file(&lost) };
            removed.unwrap();
            assert!(matches!(Layout::discover(&mirror), Err(LayoutError::Damaged { .. })), "{mirror:?}");
        }
        let plain = outer.path().join("plain");
        for folder in ["objects", "refs"] {
            std::fs::create_dir_all(plain.join(folder)).unwrap();
        }
        assert!(Layout::discover(&plain).unwrap().git_dir.ends_with(".git"), "names that other programs use too");
    }

    #[test]
    fn objects_are_told_from_files_that_lie_between_them() {
        let repository = Repository::new();
        repository.commit("packed", &[("a", "1")]);
        repository.git(&["repack", "-adq", "--write-bitmap-index"]);
        repository.git(&["multi-pack-index", "write"]);
        repository.git(&["commit-graph", "write"]);
        repository.commit("loose", &[("a", "2")]);
        let objects = repository.path().join(".git/objects");
        assert!(has_only_objects(&objects).unwrap());
        let hidden = "0".repeat(37) + "x";
        for name in ["x", "pack/x.env", "pack/pack-1.pack", "info/x", "a/x", "ab", &format!("ab/{hidden}")] {
            let path = objects.join(name);
            let made = path.parent().unwrap().symlink_metadata().is_err();
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            assert!(!has_only_objects(&objects).unwrap(), "{name}");
            std::fs::remove_file(&path).unwrap();
            if made {
                std::fs::remove_dir(path.parent().unwrap()).unwrap();
            }
        }
        assert!(has_only_objects(&objects).unwrap());
    }

    #[test]
    fn the_setting_that_makes_letters_alike_is_read_as_git_reads_it() {
        let repository = Repository::new();
        let config = repository.path().join(".git/config");
        for (text, expected) in [
            ("", false),
            ("[core]\n\tignoreCase = true\n", true),
            ("[core]\n\tignorecase\n", true),
            ("[Core] ignorecase = 1\n", true),
            ("[core]\n\tignorecase = true\n\tignorecase = off\n", false),
            ("[x]\n\tignorecase = true\n", false),
        ] {
            std::fs::write(&config, text).unwrap();
            let git = repository.git(&["config", "--bool", "--default", "false", "core.ignorecase"]) == "true";
            assert_eq!((ignores_case(&repository.path().join(".git")).unwrap(), git), (expected, expected), "{text:?}");
        }
    }

    #[test]
    fn working_trees_that_cannot_be_listed_break_the_tips() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1")]);
        let linked = repository.path().join(".git/worktrees");
        assert!(!Layout::discover(repository.path()).unwrap().tips().is_broken);
        std::os::unix::fs::symlink("worktrees", linked).unwrap();
        assert!(Layout::discover(repository.path()).unwrap().tips().is_broken);
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
        let reftable = [("refstorage".to_owned(), "reftable".to_owned())];
        assert_eq!(settings(config, "extensions"), reftable);
        assert_eq!(settings(b"[extensions] refStorage = reftable\n[core]\n", "extensions"), reftable);
        let repository = Repository::new();
        std::fs::write(repository.path().join(".git/config"), config).unwrap();
        let error = Layout::discover(repository.path()).unwrap_err();
        assert!(error.to_string().contains("refstorage = reftable"), "{error}");
    }
}
