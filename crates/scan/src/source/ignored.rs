//! What `.gitignore` files say about a path, level by level.
//!
//! Rules of a deeper directory win over those above it, and the last rule of a file that matches wins over those before it, as in
//! git. Rules hold inside the repository they lie in ([`Repository`]): from the root of its
//! working tree down, with `info/exclude` as the outermost, and not inside a repository below it. Where there is no repository
//! no rule holds, as in git: a copy of a working tree without its `.git` does not tell which of its files were tracked, and those are
//! read whatever the rules say. A scan of a subdirectory reads the rules above it too, so that it leaves out what a scan of the whole would; the rules are not asked about the target itself, which was named. A user's own global excludes
//! do not count: two machines of a fleet must leave out the same things.
//!
//! Ignore files come with what is scanned. One that is a symbolic link or no regular file is none, as in git. One that is too long or cannot
//! be read keeps everything below its directory, since it may take back what the rules above it say: more is read, never less.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::source::pattern::Pattern;
use crate::source::repository::{Recent, Repository};
use tessera_git_objects::plain_file;

/// Longest ignore file that is obeyed.
pub const IGNORE_FILE_BYTES_MAX: u64 = 1 << 20;

/// Most patterns of an ignore file that is obeyed: each is tried on each path.
pub const PATTERNS_MAX: usize = 20_000;

/// The rules of one directory; paths are asked relative to it.
#[derive(Debug)]
pub enum Level {
    /// The rules.
    Known(Vec<Pattern>),
    /// There are rules, and it is not known which.
    Unknown,
}

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
    pub const NONE: Self = Self::Known(Vec::new());

    /// The rules in `dir/.gitignore`.
    pub fn of_directory(dir: &Path) -> Self {
        Self::of_read(plain_file::read_no_link(&dir.join(".gitignore"), IGNORE_FILE_BYTES_MAX))
    }

    /// The rules in a file that git follows links to.
    pub fn of_file(path: &Path) -> Self {
        Self::of_read(plain_file::read(path, IGNORE_FILE_BYTES_MAX))
    }

    fn of_read(read: io::Result<Option<Vec<u8>>>) -> Self {
        match read {
            Ok(Some(bytes)) => Self::parse(&bytes),
            Ok(None) => Self::NONE,
            Err(error) if is_no_file(&error) => Self::NONE,
            Err(_) => Self::Unknown,
        }
    }

    fn parse(bytes: &[u8]) -> Self {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let patterns: Vec<Pattern> = bytes.split(|&byte| byte == b'\n').filter_map(Pattern::parse).collect();
        // A part of the rules could ignore what the rest keeps.
        if patterns.len() > PATTERNS_MAX { Self::Unknown } else { Self::Known(patterns) }
    }

    /// What it says about `path`, which is relative to its directory.
    pub fn verdict(&self, path: &[u8], is_dir: bool) -> Verdict {
        let Self::Known(patterns) = self else { return Verdict::Keep };
        match patterns.iter().rev().find(|pattern| pattern.matches(path, is_dir)) {
            None => Verdict::Silent,
            Some(pattern) if pattern.is_negated => Verdict::Keep,
            Some(_) => Verdict::Ignore,
        }
    }
}

/// Whether a name was not read because it is a link, a directory, a pipe or the like.
fn is_no_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// What holds for a target because of the directories above it.
#[derive(Debug, Default)]
pub struct Above {
    /// Rules from the target up to the root of its repository, innermost first, each with the way from its directory to the target.
    levels: Vec<(Level, Vec<u8>)>,
    /// Repositories around the target, innermost first, each with the way from its root to the target.
    repositories: Vec<(Arc<Repository>, Vec<u8>)>,
}

impl Above {
    /// Looks at the directories above `target`, which is an absolute path.
    pub fn of_target(target: &Path, recent: &Recent) -> Self {
        let mut above = Self::default();
        let mut levels = Vec::new();
        let way_from = |dir: &Path| target.strip_prefix(dir).unwrap_or(Path::new("")).as_os_str().as_bytes().to_vec();
        for dir in target.ancestors().skip(1) {
            let way = way_from(dir);
            // What lies in git's own folder is no part of the working tree around it.
            if way.split(|&byte| byte == b'/').next() == Some(b".git") {
                return Self::default();
            }
            if above.repositories.is_empty() {
                levels.push((Level::of_directory(dir), way.clone()));
            }
            if let Some(repository) = recent.at(dir) {
                above.repositories.push((repository, way));
            }
        }
        // Outside of a repository, rules above the target do not count.
        if above.repositories.first().is_some_and(|(repository, _)| repository.is_known()) {
            above.levels = levels;
        }
        above
    }

    /// What they say about `path` below the target, if no repository begins between.
    pub fn verdict(&self, path: &[u8], is_dir: bool) -> Verdict {
        let exclude = self.repositories.first().map(|(repository, way)| (&repository.exclude, way));
        let levels = self.levels.iter().map(|(level, way)| (level, way)).chain(exclude);
        for (level, way) in levels {
            match level.verdict(&joined(way, path), is_dir) {
                Verdict::Silent => {}
                verdict => return verdict,
            }
        }
        Verdict::Silent
    }

    /// Whether a repository around the target tracks this path below it, or something in it if it is a directory.
    pub fn tracks(&self, path: &[u8], is_dir: bool) -> bool {
        self.repositories.iter().any(|(repository, way)| repository.tracks(&joined(way, path), is_dir))
    }

    /// Whether the repository around the target has a submodule at this path below it.
    pub fn has_submodule(&self, path: &[u8]) -> bool {
        self.repositories.first().is_some_and(|(repository, way)| repository.has_submodule(&joined(way, path)))
    }

    /// Whether the target lies in a repository.
    pub fn is_in_repository(&self) -> bool {
        !self.repositories.is_empty()
    }

    /// Whether the target lies in a repository of which it is known what it tracks.
    pub fn is_known(&self) -> bool {
        self.is_in_repository() && !self.is_unknown()
    }

    /// Whether the target lies in a repository of which it is not known what it tracks.
    pub fn is_unknown(&self) -> bool {
        self.repositories.first().is_some_and(|(repository, _)| !repository.is_known())
    }
}

fn joined(way: &[u8], path: &[u8]) -> Vec<u8> {
    [way, b"/", path].concat()
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
        assert_eq!(level.verdict(b"\xff\xfe", false), Verdict::Ignore);
        assert_eq!(Level::parse(b"").verdict(b"x", false), Verdict::Silent);
    }

    #[test]
    fn a_subdirectory_is_scanned_as_it_would_be_from_the_root() {
        let repository = test_support::Repository::new();
        let root = repository.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join(".git/info/exclude"), "excluded\n").unwrap();
        std::fs::write(root.join(".gitignore"), "/a/b/secret\n*.tmp\n").unwrap();
        std::fs::write(root.join("a/.gitignore"), "!keep.tmp\n").unwrap();
        std::fs::write(root.join("a/b/tracked.tmp"), "").unwrap();
        repository.git(&["add", "-f", "a/b/tracked.tmp"]);
        let above = Above::of_target(&root.join("a/b"), &Recent::default());
        assert_eq!(above.verdict(b"secret", false), Verdict::Ignore);
        assert_eq!(above.verdict(b"x.tmp", false), Verdict::Ignore);
        assert_eq!(above.verdict(b"keep.tmp", false), Verdict::Keep);
        assert_eq!(above.verdict(b"excluded", false), Verdict::Ignore);
        assert_eq!(above.verdict(b"other", false), Verdict::Silent);
        assert!(above.tracks(b"tracked.tmp", false) && !above.tracks(b"x.tmp", false) && !above.is_unknown());
        let inside = Above::of_target(&root.join(".git/info"), &Recent::default());
        assert_eq!(
            inside.verdict(b"excluded", false),
            Verdict::Silent,
            "git's own folder is no part of the working tree"
        );
        std::fs::write(root.join(".git/index"), "what").unwrap();
        let unknown = Above::of_target(&root.join("a/b"), &Recent::default());
        assert!(unknown.is_unknown());
        assert_eq!(unknown.verdict(b"x.tmp", false), Verdict::Silent);
    }

    #[test]
    fn an_ignore_file_that_is_a_link_is_not_obeyed_and_an_exclude_file_that_is_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let (rules, link) = (dir.path().join("rules"), dir.path().join(".gitignore"));
        std::fs::write(&rules, "a\n").unwrap();
        std::os::unix::fs::symlink(&rules, &link).unwrap();
        assert_eq!(Level::of_directory(dir.path()).verdict(b"a", false), Verdict::Silent);
        assert_eq!(Level::of_file(&link).verdict(b"a", false), Verdict::Ignore);
    }

    #[test]
    fn an_ignore_file_beyond_a_bound_is_not_obeyed_in_part() {
        let rules = |lines: usize| [&b"x\n".repeat(lines)[..], b"!x\n"].concat();
        assert_eq!(Level::parse(&rules(PATTERNS_MAX - 1)).verdict(b"x", false), Verdict::Keep);
        assert_eq!(
            Level::parse(&rules(PATTERNS_MAX)).verdict(b"y", false),
            Verdict::Keep,
            "whatever the rules above say"
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".gitignore"), "a\n").unwrap();
        assert_eq!(Level::of_directory(dir.path()).verdict(b"a", false), Verdict::Ignore);
        let padding = IGNORE_FILE_BYTES_MAX as usize - 1;
        std::fs::write(dir.path().join(".gitignore"), ["a\n", &"#".repeat(padding)].concat()).unwrap();
        assert_eq!(Level::of_directory(dir.path()).verdict(b"a", false), Verdict::Keep);
        std::fs::remove_file(dir.path().join(".gitignore")).unwrap();
        std::fs::create_dir(dir.path().join(".gitignore")).unwrap();
        assert_eq!(Level::of_directory(dir.path()).verdict(b"a", false), Verdict::Silent, "no file is no rules");
    }
}
