//! The folder of one creation of a run: its label, what is looked for, lists of objects, findings.
//!
//! It lies at `RUN/INCARNATION` below the folder for all findings (on one machine, below the folder for all runs). Another
//! creation of the same run has another folder, so nothing that an earlier one left can be taken for findings of this one.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tessera_contracts::{RunId, RunIncarnation};
use tessera_coordination::run::record::RunRecord;

use crate::error::ScanError;
use crate::op_ids::random_u64;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::label::{LabelError, RunKey, RunLabel};

/// The folder of one creation of a run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    label: RunLabel,
    is_temporary: bool,
}

/// Why a folder is not that of a run.
#[derive(Debug, thiserror::Error)]
pub enum FolderRefused {
    /// There is none.
    #[error("there is no folder {} for run {}; --findings must name the folder that the submitter named", path.display(), key)]
    Missing {
        /// Where it would be.
        path: PathBuf,
        /// The run.
        key: RunKey,
    },
    /// Its label says that it is another run's.
    #[error(
        "the folder {} belongs to run {} of {}, and not to run {} of {}",
        path.display(), found.key, found.coordinator, wanted.key, wanted.coordinator
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        found: Box<RunLabel>,
        /// Whose it was to be.
        wanted: Box<RunLabel>,
    },
    /// Its label cannot be read.
    #[error("the folder {} cannot be used: {source}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: LabelError,
    },
}

impl RunFolder {
    /// A folder that is gone when the run ends.
    pub(crate) fn temporary(label: RunLabel) -> Result<Self, ScanError> {
        let name = format!("tessera-{}-{:016x}", label.key.run, random_u64());
        Self::make(std::env::temp_dir().join(name), label, true)
    }

    /// Makes the folder of a run below `root`, or finds it if it is there: a submitter that died may have made it.
    pub fn create(root: &Path, label: RunLabel) -> Result<Self, ScanError> {
        let path = path_of(root, label.key);
        match RunLabel::load(&path) {
            Ok(found) => Self::checked(path, found, label).map_err(ScanError::from),
            Err(error) if error.is_missing() => Self::make(path, label, false),
            Err(source) => Err(FolderRefused::Unreadable { path, source }.into()),
        }
    }

    /// The folder of a run below `root`, which another process made.
    pub fn open(root: &Path, label: RunLabel) -> Result<Self, FolderRefused> {
        let path = path_of(root, label.key);
        match RunLabel::load(&path) {
            Ok(found) => Self::checked(path, found, label),
            Err(error) if error.is_missing() => Err(FolderRefused::Missing { path, key: label.key }),
            Err(source) => Err(FolderRefused::Unreadable { path, source }),
        }
    }

    /// The folder below `root` of a run that `coordinator` knows.
    pub fn of_run(root: &Path, coordinator: CoordinatorName, record: &RunRecord) -> Result<Self, FolderRefused> {
        let key = RunKey::new(record.run, record.incarnation);
        Self::open(root, RunLabel { coordinator, tenant: record.tenant, key, created_at: record.created_at })
    }

    fn checked(path: PathBuf, found: RunLabel, wanted: RunLabel) -> Result<Self, FolderRefused> {
        if found.names_same_run(&wanted) {
            Ok(Self { path, label: found, is_temporary: false })
        } else {
            Err(FolderRefused::Foreign { path, found: found.into(), wanted: wanted.into() })
        }
    }

    fn make(path: PathBuf, label: RunLabel, is_temporary: bool) -> Result<Self, ScanError> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        created.map_err(|source| ScanError::Folder { path: path.clone(), source })?;
        label.store(&path).map_err(|source| FolderRefused::Unreadable { path: path.clone(), source })?;
        Ok(Self { path, label, is_temporary })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where findings go.
    pub fn findings(&self) -> PathBuf {
        self.path.join("findings")
    }

    /// Which run it is for, and which creation of it.
    pub const fn key(&self) -> RunKey {
        self.label.key
    }

    /// Whose run it holds.
    pub const fn label(&self) -> &RunLabel {
        &self.label
    }

    /// Takes it away.
    pub fn remove(&self) -> Result<(), ScanError> {
        remove_dir(&self.path)?;
        // The folder of all creations of the run; others may still be in it.
        let _ = self.path.parent().map(fs::remove_dir);
        Ok(())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The folder of all creations of a run.
pub fn run_dir(root: &Path, run: RunId) -> PathBuf {
    root.join(run.to_string())
}

/// Where the folder of one creation of a run lies.
fn path_of(root: &Path, key: RunKey) -> PathBuf {
    run_dir(root, key.run).join(key.incarnation.to_string())
}

/// The creations of a run that have a folder below `root`.
pub fn incarnations_in(root: &Path, run: RunId) -> io::Result<Vec<RunIncarnation>> {
    names_in(&run_dir(root, run))
}

/// Runs that have a folder below `root`.
pub fn runs_in(root: &Path) -> io::Result<Vec<RunId>> {
    names_in(root)
}

/// The folders whose names are ids, in their order. A folder that is not there holds none.
fn names_in<T: std::str::FromStr + Ord>(dir: &Path) -> io::Result<Vec<T>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
    }
    names.sort();
    Ok(names)
}

/// Removes a folder at one stroke: it is moved aside first, so that a crash in the middle leaves no run with half of its
/// findings.
pub(crate) fn remove_dir(path: &Path) -> Result<(), ScanError> {
    let unless_missing = |done: io::Result<()>| match done {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ScanError::Folder { path: path.to_path_buf(), source })
        }
        _ => Ok(()),
    };
    let aside = path.with_extension("gone");
    unless_missing(fs::remove_dir_all(&aside))?;
    unless_missing(fs::rename(path, &aside))?;
    unless_missing(fs::remove_dir_all(&aside))
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{LogicalTime, TenantId};

    use super::*;

    fn label(run: u64, incarnation: u64) -> RunLabel {
        RunLabel {
            coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
            tenant: TenantId::from_name("t"),
            key: RunKey::new(RunId::new(run), RunIncarnation::new(incarnation)),
            created_at: LogicalTime::new(1),
        }
    }

    #[test]
    fn each_creation_of_a_run_has_a_folder_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = (label(1, 10), label(1, 20));
        let made = RunFolder::create(root.path(), first.clone()).unwrap();
        let missing = RunFolder::open(root.path(), second.clone()).unwrap_err();
        assert!(matches!(missing, FolderRefused::Missing { .. }) && missing.to_string().contains("--findings"));
        let other = RunFolder::create(root.path(), second).unwrap();
        assert_ne!(made.path(), other.path());
        assert_eq!(incarnations_in(root.path(), RunId::new(1)).unwrap().len(), 2);
        assert_eq!(runs_in(root.path()).unwrap(), [RunId::new(1)]);
        made.remove().unwrap();
        assert!(RunFolder::open(root.path(), first).is_err());
        other.remove().unwrap();
        assert_eq!(runs_in(root.path()).unwrap(), [], "the last one takes the folder of the run with it");
    }

    #[test]
    fn a_folder_of_another_coordinator_tenant_or_without_a_label_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let mine = label(1, 10);
        RunFolder::create(root.path(), mine.clone()).unwrap();
        let elsewhere = CoordinatorName::Etcd { namespace: "other".into() };
        for foreign in [
            RunLabel { coordinator: elsewhere, ..mine.clone() },
            RunLabel { tenant: TenantId::from_name("u"), ..mine.clone() },
        ] {
            let refused = RunFolder::open(root.path(), foreign.clone()).unwrap_err();
            assert!(matches!(refused, FolderRefused::Foreign { .. }), "{refused}");
            assert!(RunFolder::create(root.path(), foreign).is_err());
        }
        // Made before by a submitter that died before it wrote the label.
        let path = path_of(root.path(), label(2, 10).key);
        fs::create_dir_all(&path).unwrap();
        assert!(matches!(RunFolder::open(root.path(), label(2, 10)), Err(FolderRefused::Missing { .. })));
        RunFolder::create(root.path(), label(2, 10)).unwrap();
        RunFolder::open(root.path(), label(2, 10)).unwrap();
        fs::write(path.join("run"), b"TSRRUN99").unwrap();
        let newer = RunFolder::open(root.path(), label(2, 10)).unwrap_err();
        assert!(newer.to_string().contains("another version"), "{newer}");
        assert!(RunFolder::create(root.path(), label(2, 10)).is_err());
    }
}
