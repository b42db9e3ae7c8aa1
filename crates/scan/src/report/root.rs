//! Where the paths begin that other programs are told.
//!
//! A code host looks for a file by its path in the repository, whichever folder of it was scanned, and two targets may both have an
//! `x.py`. So formats that other programs read name a place by a *root* and a path below it. The root of a target is its repository; a
//! folder that lies in none is a root itself.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tessera_git_objects::layout;

use crate::plan::target::{Target, TargetKind};
use crate::report::finding::Location;

/// The roots of all targets.
#[derive(Debug, Default)]
pub(super) struct Roots {
    paths: Vec<PathBuf>,
    /// The number of its root and its own path below it, by the number of a target.
    targets: BTreeMap<u32, (usize, Vec<u8>)>,
}

impl Roots {
    pub(super) fn of(targets: &[Target]) -> Self {
        let mut roots = Self::default();
        for target in targets {
            let (root, below) = root_of(target);
            let number = roots.paths.iter().position(|known| *known == root).unwrap_or_else(|| {
                roots.paths.push(root);
                roots.paths.len() - 1
            });
            roots.targets.insert(target.number, (number, below));
        }
        roots
    }

    /// All roots, by number.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The number of a place's root.
    pub(super) fn number_of(&self, location: &Location) -> usize {
        self.targets.get(&location.occurrence.target).map_or(0, |(number, _)| *number)
    }

    /// The path of a place below its root; empty for a blob that stands at no path.
    pub(super) fn path_of(&self, location: &Location) -> Vec<u8> {
        let occurrence = &location.occurrence;
        let below = self.targets.get(&occurrence.target).map_or(&[][..], |(_, below)| below);
        match (below, &occurrence.path[..]) {
            ([], path) => path.to_vec(),
            (below, []) => below.to_vec(),
            // A member of an archive that is the target itself.
            (below, path) if path.starts_with(b"!") => [below, path].concat(),
            (below, path) => [below, b"/", path].concat(),
        }
    }

    /// The path of a place as a program without roots understands it: below the only root, or from the top of the file system.
    pub(super) fn plain_path_of(&self, location: &Location) -> Vec<u8> {
        let path = self.path_of(location);
        match &self.paths[..] {
            [] | [_] => path,
            paths => paths[self.number_of(location)]
                .join(std::ffi::OsStr::from_bytes(&path))
                .into_os_string()
                .into_encoded_bytes(),
        }
    }
}

/// The root of a target, and the target's path below it.
fn root_of(target: &Target) -> (PathBuf, Vec<u8>) {
    let path = &target.path;
    let is_tree = target.kind == TargetKind::Tree;
    if let Ok(root) = layout::root_of(path) {
        // Paths in a history begin at the root whichever folder is named.
        let below = path.strip_prefix(&root).ok().filter(|_| is_tree).unwrap_or(Path::new(""));
        let below = below.as_os_str().as_bytes().to_vec();
        return (root, below);
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if is_tree && path.is_file() => (folder.to_path_buf(), name.as_bytes().to_vec()),
        _ => (path.clone(), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use test_support::Repository;

    use super::*;
    use crate::report::tests::{findings, report};

    fn target(number: u32, path: &Path, kind: TargetKind) -> Target {
        Target { number, path: path.to_path_buf(), kind, ..report().targets[0].clone() }
    }

    fn told(roots: &Roots, target: u32, path: &str) -> (PathBuf, String) {
        let mut location = findings().remove(0).locations.remove(0);
        location.occurrence.target = target;
        location.occurrence.path = path.into();
        let path = String::from_utf8(roots.path_of(&location)).unwrap();
        (roots.paths()[roots.number_of(&location)].clone(), path)
    }

    #[test]
    fn a_place_in_a_repository_is_named_below_its_root_whichever_folder_was_scanned() {
        let repository = Repository::new();
        let root = repository.path().canonicalize().unwrap();
        repository.commit("first", &[("src/deep/x.py", "1"), ("one.txt", "2")]);
        let tree = |number, path: &str| target(number, &root.join(path), TargetKind::Tree);
        let history = target(3, &root.join("src"), TargetKind::Objects { list: [0; 16] });
        let roots = Roots::of(&[tree(0, ""), tree(1, "src"), tree(2, "one.txt"), history]);
        let places = [(0, "src/x.py"), (1, "deep/x.py"), (2, ""), (2, "!member"), (3, "src/deep/x.py")];
        let paths = places.map(|(target, path)| {
            let (at, path) = told(&roots, target, path);
            assert_eq!(at, root);
            path
        });
        assert_eq!(paths, ["src/x.py", "src/deep/x.py", "one.txt", "one.txt!member", "src/deep/x.py"]);
    }

    #[test]
    fn folders_outside_of_repositories_are_roots_themselves_and_do_not_collide() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(dir.join(name)).unwrap();
            std::fs::write(dir.join(name).join("x.py"), "").unwrap();
        }
        let tree = |number, path: &str| target(number, &dir.join(path), TargetKind::Tree);
        let roots = Roots::of(&[tree(0, "a"), tree(1, "b"), tree(2, "b/x.py")]);
        assert_eq!(told(&roots, 0, "x.py"), (dir.join("a"), "x.py".into()));
        assert_eq!(told(&roots, 1, "x.py"), (dir.join("b"), "x.py".into()));
        assert_eq!(told(&roots, 2, ""), (dir.join("b"), "x.py".into()));
        let mut location = findings().remove(0).locations.remove(0);
        location.occurrence.target = 1;
        location.occurrence.path = b"x.py".to_vec();
        assert_eq!(roots.plain_path_of(&location), dir.join("b/x.py").into_os_string().into_encoded_bytes());
    }
}
