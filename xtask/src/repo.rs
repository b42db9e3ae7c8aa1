//! Where things are: the tree, the target folder, the files a reader of the repository sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The checkout this program was built from, and the folder it may write to.
#[derive(Debug)]
pub(crate) struct Repo {
    pub(crate) root: PathBuf,
    /// The cargo target folder: tools, logs and fuzz corpora go here, never into the tree.
    pub(crate) target: PathBuf,
}

impl Repo {
    pub(crate) fn find() -> Result<Self, String> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        // Run by cargo, the variable is set; run by hand, the path of the build still says where the tree is.
        let xtask = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        let root = xtask.parent().ok_or("xtask has no parent folder")?.to_path_buf();
        if !root.join("Cargo.toml").is_file() {
            return Err(format!("{} is not a Tessera checkout: start this with `cargo xtask`", root.display()));
        }
        // We are <target>/<profile>/xtask, however the target folder was configured.
        let exe = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
        let target = exe.ancestors().nth(2).ok_or("this program is not in a cargo target folder")?.to_path_buf();
        Ok(Self { root, target })
    }

    /// A folder below the target folder, made if missing.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.target.join("xtask").join(name);
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        Ok(folder)
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Every file that is, or would be, committed, relative to the root and sorted.
    pub(crate) fn files(&self) -> Result<Vec<String>, String> {
        let listed = self.git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let mut files: Vec<String> = match listed {
            Some(listed) => listed.split('\0').filter(|name| !name.is_empty()).map(str::to_string).collect(),
            None => {
                let mut found = Vec::new();
                walk(&self.root, &self.root, &mut found)?;
                found
            }
        };
        files.retain(|name| self.root.join(name).is_file());
        files.sort();
        files.dedup();
        Ok(files)
    }

    pub(crate) fn read(&self, name: &str) -> Result<String, String> {
        let path = self.root.join(name);
        fs::read_to_string(&path).map_err(|error| format!("cannot read {name}: {error}"))
    }

    /// Git's view of the tree; equal before and after means that we changed nothing. `None` outside a git checkout.
    pub(crate) fn tree_state(&self) -> Option<TreeState> {
        let status = self.git(&["status", "--porcelain", "--untracked-files=all"])?;
        let diff = self.git(&["diff", "HEAD"])?;
        Some(TreeState { status, diff })
    }

    fn git(&self, args: &[&str]) -> Option<String> {
        let output = Command::new("git").args(args).current_dir(&self.root).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The tree as git sees it at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TreeState {
    status: String,
    diff: String,
}

impl TreeState {
    /// The lines of the status that appeared or went since `before`.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes: Vec<String> = Vec::new();
        for line in self.status.lines().filter(|line| !before.status.lines().any(|old| old == *line)) {
            changes.push(format!("new:  {line}"));
        }
        for line in before.status.lines().filter(|line| !self.status.lines().any(|new| new == *line)) {
            changes.push(format!("gone: {line}"));
        }
        if changes.is_empty() && self.diff != before.diff {
            changes.push("the content of an already modified file".to_string());
        }
        changes
    }
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if path.is_dir() {
            if name != ".git" && !name.starts_with("target") {
                walk(root, &path, found)?;
            }
        } else if let Ok(relative) = path.strip_prefix(root) {
            found.push(relative.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(status: &str, diff: &str) -> TreeState {
        TreeState { status: status.to_string(), diff: diff.to_string() }
    }

    #[test]
    fn a_tree_that_stays_the_same_has_no_changes() {
        assert!(state(" M a\n", "x").changes_since(&state(" M a\n", "x")).is_empty());
    }

    #[test]
    fn new_gone_and_rewritten_files_are_all_changes() {
        let before = state(" M a\n", "x");
        assert_eq!(state(" M a\n?? b\n", "x").changes_since(&before), ["new:  ?? b"]);
        assert_eq!(state("", "x").changes_since(&before), ["gone:  M a"]);
        assert_eq!(state(" M a\n", "y").changes_since(&before).len(), 1);
    }
}
