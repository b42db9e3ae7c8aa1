//! What `.gitignore` files say about a path, level by level.
//!
//! Rules of a deeper directory win over those above it, and the last rule of a file that matches wins over those
//! before it, as in git. Files are read from the root of the repository down, so that scanning a subdirectory ignores what
//! scanning the whole would; `.git/info/exclude` counts as the outermost. A user's own global excludes do not
//! count: two machines of a fleet must leave out the same things.
//!
//! Git goes on tracking a file that an ignore rule names, so tracked files are read although they are named
//! ([`Tracked`]).

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Bytes read of one ignore file; what comes after is not honoured.
pub const IGNORE_FILE_BYTES_MAX: u64 = 1 << 20;

/// The rules of one directory; paths are asked relative to it.
#[derive(Debug)]
pub struct Level(Option<Box<Gitignore>>);

/// What one level says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: ask the level above.
    Silent,
    /// Leave it out.
    Ignore,
    /// Keep it, whatever the levels above say.
    Keep,
}

impl Level {
    /// No rules.
    pub const NONE: Self = Self(None);

    /// The rules in `dir/.gitignore`.
    pub fn of_directory(dir: &Path) -> Self {
        Self::read(&dir.join(".gitignore"))
    }

    fn read(path: &Path) -> Self {
        let Ok(file) = std::fs::File::open(path) else { return Self::NONE };
        let mut bytes = Vec::new();
        if file.take(IGNORE_FILE_BYTES_MAX).read_to_end(&mut bytes).is_err() {
            return Self::NONE;
        }
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Self {
        let mut builder = GitignoreBuilder::new("");
        for line in bytes.split(|&byte| byte == b'\n') {
            // A line that is no pattern is passed over, as git does.
            let _ = builder.add_line(None, &String::from_utf8_lossy(line));
        }
        match builder.build() {
            Ok(rules) if !rules.is_empty() => Self(Some(Box::new(rules))),
            _ => Self::NONE,
        }
    }

    /// What it says about `path`, which is relative to its directory.
    pub fn verdict(&self, path: &[u8], is_dir: bool) -> Verdict {
        let Some(rules) = &self.0 else { return Verdict::Silent };
        match rules.matched(Path::new(OsStr::from_bytes(path)), is_dir) {
            ignore::Match::None => Verdict::Silent,
            ignore::Match::Ignore(_) => Verdict::Ignore,
            ignore::Match::Whitelist(_) => Verdict::Keep,
        }
    }
}

/// The rules above a target, innermost first, each with the way from its directory to the target.
#[derive(Debug, Default)]
pub struct Above(Vec<(Level, Vec<u8>)>);

impl Above {
    /// Reads the rules of the directories from the repository's root down to, but not including, `target`.
    pub fn of_target(target: &Path) -> Self {
        let Some(root) = repository_root(target) else { return Self::default() };
        let mut levels = Vec::new();
        let way_from = |dir: &Path| target.strip_prefix(dir).unwrap_or(Path::new("")).as_os_str().as_bytes().to_vec();
        let mut dir = target;
        while dir != root {
            let Some(parent) = dir.parent() else { break };
            dir = parent;
            levels.push((Level::of_directory(dir), way_from(dir)));
        }
        levels.push((Level::read(&root.join(".git/info/exclude")), way_from(&root)));
        levels.retain(|(level, _)| level.0.is_some());
        Self(levels)
    }

    /// What they say about `path` below the target.
    pub fn verdict(&self, path: &[u8], is_dir: bool) -> Verdict {
        for (level, way) in &self.0 {
            let mut whole = way.clone();
            if !whole.is_empty() {
                whole.push(b'/');
            }
            whole.extend_from_slice(path);
            match level.verdict(&whole, is_dir) {
                Verdict::Silent => {}
                verdict => return verdict,
            }
        }
        Verdict::Silent
    }
}

/// The nearest directory at or above `path` that holds a `.git`.
pub fn repository_root(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok()).map(Path::to_path_buf)
}

/// Files that git tracks although an ignore rule names them: paths below the target with `/`, sorted.
#[derive(Debug, Default)]
pub struct Tracked(Vec<Vec<u8>>);

impl Tracked {
    /// Asks git. Without git, or outside a repository, there are none.
    pub fn of_target(target: &Path) -> Self {
        if repository_root(target).is_none() {
            return Self::default();
        }
        let listing = Command::new("git")
            .args(["-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--ignored", "--exclude-standard"])
            .current_dir(target)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let Ok(listing) = listing else { return Self::default() };
        let mut paths: Vec<Vec<u8>> =
            listing.stdout.split(|&byte| byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect();
        paths.sort_unstable();
        Self(paths)
    }

    /// Whether this file is one of them.
    pub fn has_file(&self, path: &[u8]) -> bool {
        self.0.binary_search_by(|known| known.as_slice().cmp(path)).is_ok()
    }

    /// Whether one of them lies below this directory.
    pub fn has_below(&self, dir: &[u8]) -> bool {
        let mut prefix = dir.to_vec();
        prefix.push(b'/');
        let at = self.0.partition_point(|known| known.as_slice() < prefix.as_slice());
        self.0.get(at).is_some_and(|known| known.starts_with(&prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_matching_line_wins_and_directories_can_be_meant_alone() {
        let level = Level::parse(b"*.log\n!keep.log\nbuild/\n/only-here\n\xff\xfe\n");
        assert_eq!(level.verdict(b"a/x.log", false), Verdict::Ignore);
        assert_eq!(level.verdict(b"keep.log", false), Verdict::Keep);
        assert_eq!(level.verdict(b"build", true), Verdict::Ignore);
        assert_eq!(level.verdict(b"build", false), Verdict::Silent);
        assert_eq!(level.verdict(b"only-here", false), Verdict::Ignore);
        assert_eq!(level.verdict(b"a/only-here", false), Verdict::Silent);
        assert_eq!(Level::parse(b"").verdict(b"x", false), Verdict::Silent);
    }

    #[test]
    fn a_subdirectory_is_scanned_as_it_would_be_from_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join(".git/info")).unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join(".git/info/exclude"), "excluded\n").unwrap();
        std::fs::write(root.join(".gitignore"), "/a/b/secret\n*.tmp\n").unwrap();
        std::fs::write(root.join("a/.gitignore"), "!keep.tmp\n").unwrap();
        let above = Above::of_target(&root.join("a/b"));
        assert_eq!(above.verdict(b"secret", false), Verdict::Ignore);
        assert_eq!(above.verdict(b"x.tmp", false), Verdict::Ignore);
        assert_eq!(above.verdict(b"keep.tmp", false), Verdict::Keep);
        assert_eq!(above.verdict(b"excluded", false), Verdict::Ignore);
        assert_eq!(above.verdict(b"other", false), Verdict::Silent);
    }

    #[test]
    fn tracked_files_are_known_with_the_directories_above_them() {
        let tracked = Tracked(vec![b"a/b/c".to_vec(), b"x".to_vec()]);
        assert!(tracked.has_file(b"x") && tracked.has_below(b"a") && tracked.has_below(b"a/b"));
        assert!(!tracked.has_file(b"a") && !tracked.has_below(b"x") && !tracked.has_below(b"a/b/c"));
    }
}
