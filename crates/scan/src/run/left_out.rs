//! What a list of repositories names and a run does not scan.
//!
//! One bad entry must not keep the others from being scanned, and must not be forgotten either: it is part of the plan, so every
//! report of the run names it, and no such run is complete.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::wire::{Malformed, Reader, Writer};

/// Something that was asked for and is no part of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// As it was named.
    pub path: PathBuf,
    /// Where it was named, such as a line of a list; empty if it was found below a folder.
    pub named_at: String,
    /// Why it is left out.
    pub why: String,
}

impl LeftOut {
    /// One that was named nowhere but was found, or was good when it was named.
    pub fn found(path: &Path, why: impl ToString) -> Self {
        Self { path: path.to_path_buf(), named_at: String::new(), why: why.to_string() }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.bytes(self.path.as_os_str().as_bytes());
        writer.bytes(self.named_at.as_bytes());
        writer.bytes(self.why.as_bytes());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let path = Path::new(OsStr::from_bytes(reader.bytes()?)).to_path_buf();
        Ok(Self { path, named_at: reader.text()?.to_owned(), why: reader.text()?.to_owned() })
    }
}
