//! Why a scan could not be done, in words that say what to do.

use std::io;
use std::path::PathBuf;

use tessera_contracts::source_family::SourceError;
use tessera_detect::RuleError;

use crate::job::JobError;
use crate::sink::SinkError;
use crate::source::git::GitError;
use crate::target::TargetError;
use crate::worker::WorkerError;

/// A scan that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A path cannot be scanned.
    #[error("cannot scan {}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A history was asked of something that has none.
    #[error("{} is not a git repository; leave out --history or --staged to scan its files", .0.display())]
    NotARepository(PathBuf),
    /// Too much to describe.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A source cannot be read at all.
    #[error("{0}")]
    Source(SourceError),
    /// Git failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The rules contradict one another.
    #[error("the rules cannot be used: {0}")]
    Rules(RuleError),
    /// The folder of the run cannot be used.
    #[error("cannot use the folder {}: {source}; choose another with --state-dir (--findings in a fleet), or --no-resume to keep nothing", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Findings cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// What workers must know cannot be written or read.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The coordinator refused or failed.
    #[error("the coordinator cannot be used: {0}")]
    Coordinator(String),
}

impl ScanError {
    pub(crate) fn coordinator(error: impl std::fmt::Display) -> Self {
        Self::Coordinator(error.to_string())
    }
}

impl From<WorkerError> for ScanError {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Sink(error) => Self::Sink(error),
            WorkerError::Coordinator { message, .. } => Self::Coordinator(message),
        }
    }
}
