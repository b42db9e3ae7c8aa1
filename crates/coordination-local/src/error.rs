//! Why a coordination file cannot be used.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use tessera_coordination::error::InfraError;

/// Why [`LocalCoordinator::open`](crate::LocalCoordinator::open) refused; says what to do about it.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the file open.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is of a format that this program does not know.
    Format {
        /// The file.
        path: PathBuf,
        /// The format it says it has; `None` if it does not say.
        found: Option<u32>,
        /// The one format that this program reads and writes.
        known: u32,
    },
    /// The file is not a coordination file, or it is damaged.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem found.
        problem: String,
    },
    /// The file cannot be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The coordinator's configuration does not allow the records of the file.
    Config {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => write!(
                f,
                "{} is in use by another process: one process at a time may coordinate through it; wait for it to end, \
                 or give this one another file",
                path.display()
            ),
            Self::Format { path, found: Some(found), known } => write!(
                f,
                "{} has format {found}, and this program reads only {known}: use the program that wrote it \
                 to finish its runs, or start with a new file",
                path.display()
            ),
            Self::Format { path, found: None, .. } => {
                write!(f, "{} is a database, but not of coordination runs: give another file", path.display())
            }
            Self::Damaged { path, problem } => write!(
                f,
                "{} cannot be used ({problem}): move it away to start with a new file; runs recorded in it would begin \
                 again",
                path.display()
            ),
            Self::Io { path, source } => {
                write!(
                    f,
                    "{} cannot be opened ({source}): check that its folder exists and can be written",
                    path.display()
                )
            }
            Self::Config { path, problem } => write!(f, "{}: {problem}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl OpenError {
    pub(crate) fn of_database(path: &Path, error: redb::DatabaseError) -> Self {
        let path = path.to_path_buf();
        match error {
            redb::DatabaseError::DatabaseAlreadyOpen => Self::InUse { path },
            redb::DatabaseError::Storage(redb::StorageError::Io(source))
                if source.kind() != io::ErrorKind::InvalidData =>
            {
                Self::Io { path, source }
            }
            other => Self::Damaged { path, problem: other.to_string() },
        }
    }

    pub(crate) fn of_load(path: &Path, failed: Failed) -> Self {
        let path = path.to_path_buf();
        match failed {
            Failed::Storage(problem) => Self::Io { path, source: io::Error::other(problem) },
            Failed::Records(error @ (InfraError::Transient { .. } | InfraError::Refused { .. })) => {
                Self::Config { path, problem: error.to_string() }
            }
            Failed::Records(error @ InfraError::Corruption { .. }) => {
                Self::Damaged { path, problem: error.to_string() }
            }
        }
    }
}

/// Why a file that is open did not take a batch, or could not be read again.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The storage refused.
    Storage(String),
    /// Its records are damaged, or the configuration has no room for them.
    Records(InfraError),
}

impl Failed {
    pub(crate) fn storage(error: &dyn std::error::Error) -> Self {
        Self::Storage(error.to_string())
    }
}

impl From<InfraError> for Failed {
    fn from(error: InfraError) -> Self {
        Self::Records(error)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(problem) => f.write_str(problem),
            Self::Records(error) => error.fmt(f),
        }
    }
}
