//! What another program writes to standard input, as a file that can be scanned.
//!
//! A file and not memory: it may be long. It lies in a folder of its own that only its owner can look into.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tessera_scan::op_ids::random_u64;

/// Text that was piped into the program.
#[derive(Debug)]
pub(crate) struct Piped {
    folder: PrivateFolder,
    path: PathBuf,
}

impl Piped {
    pub(crate) fn read(input: &mut dyn Read) -> Result<Self, String> {
        let mut spooled = || -> io::Result<Self> {
            let folder = PrivateFolder::new("stdin")?;
            let path = folder.path().join("stdin");
            io::copy(input, &mut File::create_new(&path)?)?;
            Ok(Self { folder, path })
        };
        spooled().map_err(|error| format!("cannot keep standard input in {}: {error}", std::env::temp_dir().display()))
    }

    pub(crate) fn path(&self) -> &Path {
        debug_assert!(self.path.starts_with(self.folder.path()));
        &self.path
    }
}

/// A folder for a short time, its owner's alone.
#[derive(Debug)]
pub(crate) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    pub(crate) fn new(what: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("tessera-{what}-{:016x}", random_u64()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What is left behind is its owner's alone.
        let _ = fs::remove_dir_all(&self.0);
    }
}
