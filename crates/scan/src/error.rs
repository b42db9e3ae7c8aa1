//! Why a scan could not be done, in words that say what to do.

use std::io;
use std::path::PathBuf;

use tessera_contracts::source_family::SourceError;
use tessera_contracts::{RunId, RunIncarnation};
use tessera_coordination::error::InfraError;
use tessera_coordination::run::status::RunStatus;
use tessera_detect::RuleError;

use crate::findings::SinkError;
use crate::fleet::patience::infra_of;
use crate::plan::record::PlanError;
use crate::plan::target::TargetError;
use crate::run::folder::FolderRefused;
use crate::run::job::JobError;
use crate::run::label::RunKey;
use crate::run::run_lock::Holder;
use crate::source::git::GitError;
use crate::sweep::worker::WorkerError;

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
    /// A target of a run that goes on cannot be reached from here as it was planned. Nothing was changed.
    #[error("{}. Once it can be read, the same command goes on; --fresh begins anew", .0.detail)]
    NotReachable(SourceError),
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
    /// A folder is not that of the run.
    #[error(transparent)]
    FolderRefused(#[from] FolderRefused),
    /// Another creation of the run took the place of the one that this program prepared.
    #[error("run {} was created anew as {current} while this program prepared it; give the same command again", .prepared.run)]
    OtherIncarnation {
        /// What this program prepared.
        prepared: RunKey,
        /// What is there.
        current: RunIncarnation,
    },
    /// Another process works on the run.
    #[error(
        "run {run} is in use by {} (lock file {}); wait for it to end, or stop it",
        .holder.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")),
        .holder.lock.display()
    )]
    Busy {
        /// The run.
        run: RunId,
        /// The process.
        holder: Holder,
    },
    /// A report was asked of a run that goes on.
    #[error("run {run} is {status} and has no final report")]
    NotEnded {
        /// The run.
        run: RunId,
        /// Where it stands.
        status: RunStatus,
    },
    /// Findings cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// What workers must know cannot be written or read.
    #[error(transparent)]
    Job(#[from] JobError),
    /// What the receipt is compared with cannot be written or read.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The coordinator refused or failed.
    #[error("the coordinator cannot be used: {0}")]
    Coordinator(String),
    /// Each ended run of a request keeps its number until it is retired.
    #[error("the coordinator remembers {0} runs of this scan; retire some of them")]
    TooManyRuns(u64),
    /// The coordinator does not let the caller in: the cause, and what to do.
    #[error("{0}")]
    Refused(String),
}

impl ScanError {
    /// Whether one target cannot be scanned, and others may.
    pub(crate) fn is_of_a_target(&self) -> bool {
        match self {
            Self::Path { .. } | Self::NotARepository(_) | Self::Target(_) | Self::Source(_) => true,
            Self::Git(error) => !matches!(error, GitError::Missing(_) | GitError::Io { .. }),
            _ => false,
        }
    }

    /// What a call to the coordinator failed with, in the words of the store and without the name of the call.
    pub fn coordinator(error: impl std::error::Error + 'static) -> Self {
        match infra_of(&error) {
            Some(infra @ InfraError::Refused { .. }) => Self::Refused(infra.message().to_owned()),
            Some(infra @ InfraError::Transient { .. }) => Self::Coordinator(infra.message().to_owned()),
            Some(InfraError::Corruption { .. }) | None => Self::Coordinator(error.to_string()),
        }
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
