//! The folder of one run: findings, lists of objects, and on one machine the coordinator's file.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tessera_contracts::RunId;

use crate::error::ScanError;
use crate::op_ids::random_u64;

/// The folder of one run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    is_temporary: bool,
}

impl RunFolder {
    /// A folder that is gone when the run ends.
    pub(crate) fn temporary(run: RunId) -> Result<Self, ScanError> {
        let name = format!("tessera-{:016x}-{:016x}", run.get(), random_u64());
        Self::create(std::env::temp_dir().join(name), true)
    }

    /// The folder of a run below `state_dir`.
    pub fn kept(state_dir: &Path, run: RunId) -> Result<Self, ScanError> {
        Self::create(state_dir.join(format!("{:016x}", run.get())), false)
    }

    /// The folder of a run that somebody else made.
    pub(crate) fn existing(findings: &Path, run: RunId) -> Self {
        Self { path: findings.join(format!("{:016x}", run.get())), is_temporary: false }
    }

    fn create(path: PathBuf, is_temporary: bool) -> Result<Self, ScanError> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        created.map_err(|source| ScanError::Folder { path: path.clone(), source })?;
        Ok(Self { path, is_temporary })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where findings go.
    pub fn findings(&self) -> PathBuf {
        self.path.join("findings")
    }

    /// Forgets everything in it, at one stroke: it is moved aside first, so that a crash in the middle leaves no run with
    /// half of its findings.
    pub fn clear(&self) -> Result<(), ScanError> {
        let failed = |source| ScanError::Folder { path: self.path.clone(), source };
        let unless_missing = |done: io::Result<()>| match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        let aside = self.path.with_extension("gone");
        unless_missing(fs::remove_dir_all(&aside))?;
        unless_missing(fs::rename(&self.path, &aside))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(failed)?;
        unless_missing(fs::remove_dir_all(&aside))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
