//! A repository that a tree scan meets: what it tracks, and where its rules begin and end.
//!
//! A directory with a `.git` is the root of a working tree. From there down its own rules hold and those around it do not, as in git;
//! so a repository inside another, or in a folder of many, is read as if it were scanned alone.
//!
//! What is not known is not made up. If the index cannot be read (damaged, denied, of a later git, or behind a `.git` file whose
//! folder is not here), every file may be a tracked one: then the rules of this repository are set aside, its ignored files are
//! read too, and the receipt says so.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::source::ignored::Level;
use crate::source::tracked::Tracked;
use tessera_git_objects::layout::{common_dir_of, ignores_case, named_git_dir, oid_len_of};
use tessera_git_objects::plain_file;

/// Longest `.git` file.
const GIT_FILE_BYTES_MAX: u64 = 64 << 10;
/// Repositories whose index is kept for the next shard.
const RECENT_MAX: usize = 8;

/// A repository, seen from the root of its working tree.
#[derive(Debug)]
pub struct Repository {
    /// `None` if that cannot be known.
    tracked: Option<Tracked>,
    /// The rules in `info/exclude`.
    pub exclude: Level,
}

impl Repository {
    /// The repository whose working tree has this root, if it is one.
    pub fn at(dir: &Path) -> Option<Self> {
        let unknown = Some(Self { tracked: None, exclude: Level::NONE });
        let dot_git = dir.join(".git");
        let absent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        if std::fs::symlink_metadata(&dot_git).is_err_and(|error| absent(&error)) {
            return None;
        }
        // Git follows a link here. A link to nothing is like a file that names a folder that is not here.
        let (git_dir, is_elsewhere) = match std::fs::metadata(&dot_git) {
            Ok(metadata) if metadata.is_dir() => (dot_git, false),
            Ok(metadata) if metadata.is_file() => match plain_file::read(&dot_git, GIT_FILE_BYTES_MAX) {
                Ok(text) => (named_git_dir(dir, &text.unwrap_or_default())?, true),
                Err(_) => return unknown,
            },
            Ok(_) => return None,
            Err(_) => return unknown,
        };
        let is_there = |name: &str| match std::fs::symlink_metadata(git_dir.join(name)) {
            Ok(_) => Ok(true),
            Err(error) if absent(&error) => Ok(false),
            Err(error) => Err(error),
        };
        match (is_there("HEAD"), is_there("index")) {
            // A folder that only bears the name.
            (Ok(false), Ok(false)) if !is_elsewhere => return None,
            (Ok(false), Ok(false)) | (Err(_), _) | (_, Err(_)) => return unknown,
            _ => {}
        }
        let Ok(common_dir) = common_dir_of(&git_dir) else { return unknown };
        let settings = oid_len_of(&common_dir).and_then(|oid_len| Ok((oid_len, ignores_case(&common_dir)?))).ok();
        let tracked = settings.and_then(|(oid_len, ignores_case)| {
            let tracked = Tracked::read(&git_dir, oid_len).ok()?;
            Some(if ignores_case { tracked.in_any_case() } else { tracked })
        });
        Some(Self { tracked, exclude: Level::of_file(&common_dir.join("info/exclude")) })
    }

    /// Whether it is known what the repository tracks. If not, its rules do not count.
    pub fn is_known(&self) -> bool {
        self.tracked.is_some()
    }

    /// Whether this path below its root is a tracked file, or a directory with one in it.
    pub fn tracks(&self, path: &[u8], is_dir: bool) -> bool {
        let has = if is_dir { Tracked::has_below } else { Tracked::has_file };
        self.tracked.as_ref().is_some_and(|tracked| has(tracked, path))
    }

    /// Whether this path below its root is where a submodule stands.
    pub fn has_submodule(&self, path: &[u8]) -> bool {
        self.tracked.as_ref().is_some_and(|tracked| tracked.has_submodule(path))
    }
}

/// Repositories met lately, so that each shard of one does not read its index again.
#[derive(Debug, Default)]
pub struct Recent(Mutex<Vec<(Box<Path>, Arc<Repository>)>>);

impl Recent {
    /// The repository with this root, if it is one.
    pub fn at(&self, dir: &Path) -> Option<Arc<Repository>> {
        // A thread that panicked here left whole entries behind.
        let lock = || self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, known)) = lock().iter().find(|(root, _)| **root == *dir) {
            return Some(Arc::clone(known));
        }
        let repository = Arc::new(Repository::at(dir)?);
        let mut recent = lock();
        if recent.len() >= RECENT_MAX {
            recent.remove(0);
        }
        recent.push((dir.into(), Arc::clone(&repository)));
        Some(repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_only_bears_the_name_makes_no_repository() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Repository::at(dir.path()).is_none());
        std::fs::create_dir(dir.path().join(".git")).unwrap();
        assert!(Repository::at(dir.path()).is_none());
        std::fs::remove_dir(dir.path().join(".git")).unwrap();
        std::fs::write(dir.path().join(".git"), "no repository at all\n").unwrap();
        assert!(Repository::at(dir.path()).is_none());
    }

    #[test]
    fn a_repository_whose_folder_is_not_here_is_one_of_which_nothing_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let dot_git = dir.path().join(".git");
        std::fs::write(&dot_git, "gitdir: /no/such/place/.git\n").unwrap();
        assert!(!Repository::at(dir.path()).unwrap().is_known());
        std::fs::remove_file(&dot_git).unwrap();
        std::os::unix::fs::symlink("/no/such/place", &dot_git).unwrap();
        assert!(!Repository::at(dir.path()).unwrap().is_known());
    }

    #[test]
    fn an_index_that_cannot_be_read_makes_nothing_known() {
        let repository = test_support::Repository::new();
        repository.commit("first", &[("a", "1")]);
        assert!(Repository::at(repository.path()).unwrap().tracks(b"a", false));
        std::fs::write(repository.path().join(".git/index"), "what").unwrap();
        let unknown = Repository::at(repository.path()).unwrap();
        assert!(!unknown.is_known() && !unknown.tracks(b"a", false));
    }

    #[test]
    fn the_least_recent_repository_is_forgotten_and_met_anew() {
        let places: Vec<_> = (0..=RECENT_MAX).map(|_| test_support::Repository::new()).collect();
        let recent = Recent::default();
        let met: Vec<_> = places.iter().map(|place| recent.at(place.path()).unwrap()).collect();
        assert!(Arc::ptr_eq(&met[RECENT_MAX], &recent.at(places[RECENT_MAX].path()).unwrap()));
        assert!(!Arc::ptr_eq(&met[0], &recent.at(places[0].path()).unwrap()));
    }
}
