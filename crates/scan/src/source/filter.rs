//! `--include` and `--exclude`.
//!
//! A glob without `/` speaks about names anywhere (`*.lock`), one with `/` about paths from the target down
//! (`vendor/**`). Exclusion wins, and cuts off whole directories; inclusion is asked of files only, so that
//! `--include '*.rs'` still finds the directories they lie in.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::plan::target::ReadOptions;

/// Globs made ready.
#[derive(Debug)]
pub struct Filter {
    include: Option<GlobSet>,
    exclude: Option<GlobSet>,
}

/// A glob that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter {glob:?} is not a glob: {reason}")]
pub struct FilterError {
    /// As given.
    pub glob: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Filter {
    /// Makes the globs of `options` ready.
    pub fn new(options: &ReadOptions) -> Result<Self, FilterError> {
        Ok(Self { include: set(&options.include)?, exclude: set(&options.exclude)? })
    }

    /// Whether a path below the target (with `/`) is to be read or descended into.
    pub fn takes(&self, path: &[u8], is_dir: bool) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        if self.exclude.as_ref().is_some_and(|globs| globs.is_match(path)) {
            return false;
        }
        is_dir || self.include.as_ref().is_none_or(|globs| globs.is_match(path))
    }

    /// Whether a file at this path is to be read, where no directory was descended into to get there: what is excluded
    /// cuts off all that lies below.
    pub fn takes_file(&self, path: &[u8]) -> bool {
        if self.exclude.is_some() {
            let ends = memchr::memchr_iter(b'/', path);
            if ends.into_iter().any(|end| !self.takes(&path[..end], true)) {
                return false;
            }
        }
        self.takes(path, false)
    }
}

fn set(globs: &[String]) -> Result<Option<GlobSet>, FilterError> {
    if globs.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        let refused = |error: globset::Error| FilterError { glob: glob.clone(), reason: error.kind().to_string() };
        let trimmed = glob.trim_end_matches('/');
        let anywhere = match trimmed.strip_prefix('/') {
            Some(rooted) => rooted.to_owned(),
            None if trimmed.contains('/') => trimmed.to_owned(),
            None => format!("**/{trimmed}"),
        };
        set.add(GlobBuilder::new(&anywhere).literal_separator(true).build().map_err(refused)?);
    }
    let all = globs.join(", ");
    set.build().map(Some).map_err(|error| FilterError { glob: all, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> Filter {
        let owned = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect();
        Filter::new(&ReadOptions { include: owned(include), exclude: owned(exclude), ..ReadOptions::default() })
            .unwrap()
    }

    #[test]
    fn names_match_anywhere_and_paths_from_the_target_down() {
        let filter = filter(&[], &["*.lock", "vendor/**", "/build", "node_modules/"]);
        for (path, taken) in [
            ("Cargo.lock", false),
            ("a/b/yarn.lock", false),
            ("vendor/x/y", false),
            ("a/vendor/x", true),
            ("build", false),
            ("a/build", true),
            ("a/node_modules", false),
            ("src/main.rs", true),
        ] {
            assert_eq!(filter.takes(path.as_bytes(), false), taken, "{path}");
        }
    }

    #[test]
    fn inclusion_is_asked_of_files_only_and_exclusion_wins() {
        let filter = filter(&["*.rs"], &["gen.rs"]);
        assert!(filter.takes(b"src", true) && filter.takes(b"src/a.rs", false));
        assert!(!filter.takes(b"src/a.py", false) && !filter.takes(b"src/gen.rs", false));
    }

    #[test]
    fn an_excluded_directory_cuts_off_what_lies_below_it() {
        let filter = filter(&[], &["vendor", "/build", "a/b", "*.egg"]);
        for (path, taken) in [
            ("vendor/x", false),
            ("a/vendor/x/y", false),
            ("vendor2/x", true),
            ("build/x", false),
            ("a/build/x", true),
            ("a/b/c/d", false),
            ("b/a/b/c", true),
            ("x.egg/info", false),
            ("src/main.rs", true),
        ] {
            assert_eq!(filter.takes_file(path.as_bytes()), taken, "{path}");
        }
        let filter = self::filter(&["*.rs"], &["gen"]);
        assert!(filter.takes_file(b"src/a.rs") && !filter.takes_file(b"gen/a.rs") && !filter.takes_file(b"src/a.py"));
    }

    #[test]
    fn a_broken_glob_is_named() {
        let options = ReadOptions { include: vec!["a[".into()], ..ReadOptions::default() };
        let error = Filter::new(&options).unwrap_err();
        assert_eq!(error.glob, "a[");
    }
}
