//! Whether a target can be read from here.
//!
//! A mount point whose file system is missing is an empty directory, and a walk over it meets nothing: everything planned
//! would count as gone. So a worker asks first. What one worker cannot reach another may; so it hands the shard back instead
//! of judging it.

use std::io;
use std::path::Path;

use tessera_contracts::source_family::{SourceError, SourceErrorClass};

use crate::plan::heads::Heads;
use crate::plan::record::{Listed, PlanRecord};
use crate::plan::target::{Target, TargetKind};
use crate::source::git;
use crate::source::git::hex_oid;

/// Why `target` cannot be read from here as it was planned, if it cannot.
pub(crate) fn check(target: &Target, plan: Option<&PlanRecord>) -> Result<(), SourceError> {
    let plan = plan.and_then(|plan| plan.target(target.number));
    match target.kind {
        TargetKind::Tree => {
            let planned = plan.map_or(0, |plan| plan.planned.planned);
            judge_tree(&target.path, look_at(&target.path), planned)
        }
        TargetKind::Objects { .. } => {
            let heads = plan.and_then(|plan| match &plan.listed {
                Listed::Objects { heads, .. } => heads.as_ref(),
                Listed::Paths { .. } => None,
            });
            repository(&target.path, heads)
        }
        TargetKind::Open { .. } => Err(target.without_connector()),
    }
}

/// What lies at the root of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootSeen {
    /// A file, or a directory with something in it.
    Filled,
    /// A directory with nothing in it.
    Empty,
}

fn look_at(root: &Path) -> io::Result<RootSeen> {
    if !std::fs::symlink_metadata(root)?.is_dir() {
        return Ok(RootSeen::Filled);
    }
    let first = std::fs::read_dir(root)?.next().transpose()?;
    Ok(if first.is_some() { RootSeen::Filled } else { RootSeen::Empty })
}

/// Why a tree with `planned` files cannot be read from where its root was `seen` like this, if it cannot.
pub fn judge_tree(root: &Path, seen: io::Result<RootSeen>, planned: u64) -> Result<(), SourceError> {
    match seen {
        Err(error) => Err(unreachable(class_of(&error), format!("cannot list {}: {error}", root.display()))),
        Ok(RootSeen::Empty) if planned > 0 => {
            let items = if planned == 1 { "1 file was".to_owned() } else { format!("{planned} files were") };
            let said = format!("{} is empty here, and {items} planned; is something not mounted?", root.display());
            Err(unreachable(SourceErrorClass::NotFound, said))
        }
        Ok(RootSeen::Empty | RootSeen::Filled) => Ok(()),
    }
}

fn repository(path: &Path, heads: Option<&Heads>) -> Result<(), SourceError> {
    let failed = |error: io::Error| unreachable(class_of(&error), format!("cannot read {}: {error}", path.display()));
    std::fs::metadata(path).map_err(failed)?;
    let is_one = git::is_repository(path);
    if !is_one.map_err(|error| unreachable(SourceErrorClass::NotFound, error.to_string()))? {
        let said = format!("there is no git repository at {} here", path.display());
        return Err(unreachable(SourceErrorClass::NotFound, said));
    }
    match heads.and_then(|heads| heads.missing_in(path)) {
        None => Ok(()),
        Some(oid) => {
            let said = format!("the repository at {} does not have {} here", path.display(), hex_oid(&oid));
            Err(unreachable(SourceErrorClass::NotFound, said))
        }
    }
}

fn unreachable(class: SourceErrorClass, said: String) -> SourceError {
    SourceError::new(class, said)
}

fn class_of(error: &io::Error) -> SourceErrorClass {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => SourceErrorClass::NotFound,
        io::ErrorKind::PermissionDenied => SourceErrorClass::PermissionDenied,
        _ => SourceErrorClass::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::plan::Surveyed;
    use crate::plan::target::ReadOptions;
    use crate::source::Source;
    use crate::source::git::list::{ObjectList, Scope};
    use test_support::Repository;

    fn target(path: &Path, kind: TargetKind) -> Target {
        Target { number: 0, path: path.to_path_buf(), kind, rules: 0, options: ReadOptions::default() }
    }

    fn planned(target: &Target, lists: &Path) -> PlanRecord {
        let heads = match target.kind {
            TargetKind::Tree | TargetKind::Open { .. } => None,
            TargetKind::Objects { .. } => Some(Heads::of(&target.path).unwrap()),
        };
        let source = Source::of_target(target.clone(), lists).unwrap();
        Plan::new(&[Surveyed::of(source, heads, lists).unwrap()], 1, Vec::new()).record
    }

    fn class(target: &Target, plan: &PlanRecord) -> Option<SourceErrorClass> {
        check(target, Some(plan)).err().map(|error| error.class)
    }

    #[test]
    fn an_empty_folder_is_unreachable_only_if_something_was_planned_in_it() {
        let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = target(dir.path(), TargetKind::Tree);
        let nothing = planned(&tree, lists.path());
        assert_eq!(class(&tree, &nothing), None, "it was empty when it was planned");
        std::fs::write(dir.path().join("a"), "x").unwrap();
        let something = planned(&tree, lists.path());
        assert_eq!(class(&tree, &something), None);
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert_eq!(class(&tree, &something), None, "what is missing in a tree is counted one by one");
        std::fs::remove_file(dir.path().join("b")).unwrap();
        assert_eq!(class(&tree, &something), Some(SourceErrorClass::NotFound));
        assert_eq!(
            class(&target(&dir.path().join("none"), TargetKind::Tree), &nothing),
            Some(SourceErrorClass::NotFound)
        );
    }

    #[test]
    fn a_root_that_may_not_be_read_is_unreachable_whatever_was_planned_in_it() {
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        for planned in [0, 1, 7] {
            let error = judge_tree(Path::new("/srv/closed"), denied(), planned).unwrap_err();
            assert_eq!(error.class, SourceErrorClass::PermissionDenied);
            assert!(error.to_string().contains("/srv/closed"), "{error}");
        }
    }

    #[test]
    fn a_single_file_is_reachable_while_it_is_there() {
        let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = target(&dir.path().join("a"), TargetKind::Tree);
        std::fs::write(&file.path, "x").unwrap();
        let plan = planned(&file, lists.path());
        assert_eq!(class(&file, &plan), None);
        std::fs::remove_file(&file.path).unwrap();
        assert_eq!(class(&file, &plan), Some(SourceErrorClass::NotFound));
    }

    #[test]
    fn a_repository_without_the_planned_heads_is_another_one() {
        let (repository, lists) = (Repository::new(), tempfile::tempdir().unwrap());
        repository.commit("first", &[("a", "1")]);
        let list = ObjectList::build(repository.path(), Scope::History, lists.path()).unwrap();
        let history = target(repository.path(), TargetKind::Objects { list });
        let plan = planned(&history, lists.path());
        assert_eq!(class(&history, &plan), None);
        let other = Repository::new();
        other.commit("other", &[("a", "2")]);
        let elsewhere = |path: &Path| class(&Target { path: path.to_path_buf(), ..history.clone() }, &plan);
        assert_eq!(elsewhere(other.path()), Some(SourceErrorClass::NotFound));
        assert_eq!(elsewhere(lists.path()), Some(SourceErrorClass::NotFound), "no repository");
        assert_eq!(elsewhere(&lists.path().join("none")), Some(SourceErrorClass::NotFound));
    }
}
