//! Answers of the protocol in the words of stories.
//!
//! Every variant of every error has a phrase of its own, so that a story tells precisely which one it expects. Matches
//! are exhaustive: an error that is new does not compile until it has a phrase.

use tessera_contracts::cursor::CursorViolation;
use tessera_contracts::manifest::ManifestError;
use tessera_contracts::split::{CoverageError, ResidualError};
use tessera_coordination::IdempotentOutcome;
use tessera_coordination::error::{
    AccessRefused, AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, CursorRefused,
    ExpiredBecause, GetRunError, GetShardError, InfraError, LeaseRefused, OpIdConflict, OrderError, ParkError,
    RegisterShardsError, ReleaseError, RenewError, RunNotFound, RunTransitionError, SplitError, SplitRefused,
    UnparkError,
};
use tessera_coordination::run::config::ConfigError;
use tessera_coordination::shard_limits::{LimitScope, ShardLimitViolation};

use crate::line::Line;

/// Something that was refused, in words.
pub(crate) trait Refused {
    fn line(&self) -> Line;
}

/// How an operation with an op id went.
pub(crate) fn outcome<T>(outcome: &IdempotentOutcome<T>) -> Line {
    Line::new(match outcome {
        IdempotentOutcome::Executed(_) => "executed",
        IdempotentOutcome::Replayed(_) => "replayed",
        IdempotentOutcome::Superseded(_) => "superseded",
    })
}

/// The answer to something that either went well or was refused.
pub(crate) fn line_of<T, E: Refused>(result: &Result<T, E>, well: impl FnOnce(&T) -> Line) -> Line {
    match result {
        Ok(value) => well(value),
        Err(error) => error.line(),
    }
}

impl Refused for AccessRefused {
    fn line(&self) -> Line {
        match self {
            Self::TenantMismatch { expected } => Line::refused("tenant mismatch").fact("expected", expected),
            Self::ShardNotFound { key } => Line::refused("shard not found").fact("key", key),
            Self::OtherIncarnation { run, presented, current } => Line::refused("other incarnation")
                .fact("run", run.get())
                .fact("presented", presented.get())
                .fact("current", current.get()),
            Self::RunNotActive { run, status } => {
                Line::refused("run not active").fact("run", run.get()).fact("status", status)
            }
        }
    }
}

impl Refused for LeaseRefused {
    fn line(&self) -> Line {
        match self {
            Self::Terminal { status } => Line::refused("terminal").fact("status", status),
            Self::StaleFence { presented, current } => {
                Line::refused("stale fence").fact("presented", presented).fact("current", current)
            }
            Self::Expired { deadline, now, because } => {
                Line::refused("expired").fact("deadline", deadline).fact("now", now).fact(
                    "because",
                    match because {
                        ExpiredBecause::Deadline => "deadline",
                        ExpiredBecause::SessionLost => "session lost",
                    },
                )
            }
            Self::OwnerDivergence { presented } => {
                Line::refused("not the holder").fact("presented", worker(*presented))
            }
        }
    }
}

fn worker(id: tessera_contracts::WorkerId) -> String {
    format!("w{}", id.get())
}

impl Refused for OpIdConflict {
    fn line(&self) -> Line {
        Line::refused("op id conflict").fact("op", self.op_id.get())
    }
}

impl Refused for CursorViolation {
    fn line(&self) -> Line {
        match self {
            Self::Reset { .. } => Line::refused("cursor reset"),
            Self::Regression { .. } => Line::refused("cursor regression"),
            Self::BelowRange { .. } => Line::refused("cursor below range"),
            Self::AboveRange { .. } => Line::refused("cursor above range"),
        }
    }
}

impl Refused for CursorRefused {
    fn line(&self) -> Line {
        match self {
            Self::MissingKey => Line::refused("missing key"),
            Self::Regression(violation) | Self::OutOfBounds(violation) => violation.line(),
        }
    }
}

impl Refused for SplitRefused {
    fn line(&self) -> Line {
        match self {
            Self::Coverage(CoverageError::Edge { edge, child }) => {
                Line::refused(format_args!("children miss the {edge}")).fact("child", child)
            }
            Self::Coverage(CoverageError::Gap { child, next }) => {
                Line::refused("children leave a gap").fact("child", child).fact("next", next)
            }
            Self::Coverage(CoverageError::Overlap { child, next }) => {
                Line::refused("children overlap").fact("child", child).fact("next", next)
            }
            Self::Residual(ResidualError::KeptStart) => Line::refused("kept part misses the start"),
            Self::Residual(ResidualError::ResidualEnd) => Line::refused("residual misses the end"),
            Self::Residual(ResidualError::Overlap) => Line::refused("kept part and residual overlap"),
            Self::Residual(ResidualError::Gap) => Line::refused("kept part and residual leave a gap"),
            Self::Residual(ResidualError::Cursor(_)) => Line::refused("progress would leave the kept part"),
            Self::SpawnCap { spawned, added, max } => {
                Line::refused("spawn cap").fact("spawned", spawned).fact("added", added).fact("max", max)
            }
        }
    }
}

impl Refused for ShardLimitViolation {
    fn line(&self) -> Line {
        let scope = match self.scope {
            LimitScope::Tenant => "tenant limit",
            LimitScope::Coordinator => "total limit",
        };
        Line::refused(scope).fact("held", self.held).fact("added", self.added).fact("max", self.max)
    }
}

impl Refused for InfraError {
    fn line(&self) -> Line {
        let (verdict, message) = match self {
            Self::Transient { message, .. } => ("store failed for now", message),
            Self::Corruption { message, .. } => ("store is corrupt", message),
            Self::Refused { message, .. } => ("store refuses the caller", message),
        };
        Line::refused(verdict).fact("in", self.operation()).fact("message", format_args!("{message:?}"))
    }
}

fn no_room() -> Line {
    Line::refused("no room")
}

impl Refused for AcquireError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::Terminal { status } => Line::refused("terminal").fact("status", status),
            Self::AlreadyLeased(held) => {
                Line::refused("already leased").fact("until", held.until).fact("owner", worker(held.current_owner()))
            }
            Self::UnassignedWorker => Line::refused("unassigned worker"),
            Self::RetriesExhausted { key, acquisitions } => {
                Line::refused("retries exhausted").fact("acquisitions", acquisitions).fact("key", key)
            }
            Self::ReportedUnreachable { key } => Line::refused("reported unreachable").fact("key", key),
            Self::HeldBack { key, until } => Line::refused("held back").fact("until", until).fact("key", key),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for RenewError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::Lease(refused) => refused.line(),
            Self::BackendError(error) => error.line(),
        }
    }
}

macro_rules! progress_errors {
    ($($error:ident),*) => {
        $(impl Refused for $error {
            fn line(&self) -> Line {
                match self {
                    Self::Access(refused) => refused.line(),
                    Self::Lease(refused) => refused.line(),
                    Self::OpIdConflict(conflict) => conflict.line(),
                    Self::Cursor(refused) => refused.line(),
                    Self::ResourceExhausted(_) => no_room(),
                    Self::BackendError(error) => error.line(),
                }
            }
        })*
    };
}

progress_errors!(CheckpointError, CompleteError, ReleaseError);

impl Refused for ParkError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::Lease(refused) => refused.line(),
            Self::OpIdConflict(conflict) => conflict.line(),
            Self::ResourceExhausted(_) => no_room(),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for SplitError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::Lease(refused) => refused.line(),
            Self::OpIdConflict(conflict) => conflict.line(),
            Self::Split(refused) => refused.line(),
            Self::LimitExceeded(violation) => violation.line(),
            Self::ResourceExhausted(_) => no_room(),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for UnparkError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::OpIdConflict(conflict) => conflict.line(),
            Self::NotParked { status } => Line::refused("not parked").fact("status", status),
            Self::FenceMoved { expected, current } => {
                Line::refused("fence moved").fact("expected", expected).fact("current", current)
            }
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for OrderError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::Lease(refused) => refused.line(),
            Self::NotLeased { key } => Line::refused("not leased").fact("key", key),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for RunNotFound {
    fn line(&self) -> Line {
        Line::refused("run not found").fact("run", self.run.get())
    }
}

impl Refused for CreateRunError {
    fn line(&self) -> Line {
        match self {
            Self::AlreadyExists { run } => Line::refused("run exists").fact("run", run.get()),
            Self::UnassignedRun => Line::refused("unassigned run"),
            Self::UnassignedTenant => Line::refused("unassigned tenant"),
            Self::UnassignedIncarnation => Line::refused("unassigned incarnation"),
            Self::InvalidConfig(ConfigError::ZeroLeaseDuration) => Line::refused("zero lease duration"),
            Self::TooManyRuns { held } => Line::refused("too many runs").fact("held", held),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for ManifestError {
    fn line(&self) -> Line {
        match self {
            Self::TooManyShards { count, max } => {
                Line::refused("too many root shards").fact("count", count).fact("max", max)
            }
            Self::NoShards => Line::refused("no root shards"),
            Self::UnassignedId { index } => Line::refused("root has id 0").fact("index", index),
            Self::DerivedId { index, .. } => Line::refused("root has a derived id").fact("index", index),
            Self::DuplicateId { first_index, index, .. } => {
                Line::refused("root listed twice").fact("first", first_index).fact("index", index)
            }
            Self::Unbounded { index, edge, .. } => {
                Line::refused("root is unbounded").fact("index", index).fact("edge", edge)
            }
            Self::Spec { index, source, .. } => {
                Line::refused("root range invalid").fact("index", index).fact("why", source)
            }
            Self::Overlap { first_index, second_index, .. } => {
                Line::refused("roots overlap").fact("first", first_index).fact("second", second_index)
            }
            Self::Cursor { index, source, .. } => {
                Line::refused("root cursor invalid").fact("index", index).fact("why", source)
            }
            Self::CursorOutOfRange { index, source, .. } => {
                Line::refused("root cursor out of range").fact("index", index).fact("why", source)
            }
        }
    }
}

impl Refused for RegisterShardsError {
    fn line(&self) -> Line {
        match self {
            Self::RunNotFound(missing) => missing.line(),
            Self::NotInitializing { run, status } => {
                Line::refused("not initializing").fact("run", run.get()).fact("status", status)
            }
            Self::OpIdConflict(conflict) => conflict.line(),
            Self::Manifest(error) => error.line(),
            Self::LimitExceeded(violation) => violation.line(),
            Self::Create(error) => error.line(),
            Self::ConfigMismatch { run } => Line::refused("config mismatch").fact("run", run.get()),
            Self::ResourceExhausted(_) => no_room(),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for RunTransitionError {
    fn line(&self) -> Line {
        match self {
            Self::RunNotFound(missing) => missing.line(),
            Self::OpIdConflict(conflict) => conflict.line(),
            Self::Illegal { run, from, to } => {
                Line::refused("illegal transition").fact("run", run.get()).fact("from", from).fact("to", to)
            }
            Self::ShardsOpen { run, active, parked } => {
                Line::refused("shards open").fact("run", run.get()).fact("active", active).fact("parked", parked)
            }
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for GetRunError {
    fn line(&self) -> Line {
        match self {
            Self::RunNotFound(missing) => missing.line(),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for GetShardError {
    fn line(&self) -> Line {
        match self {
            Self::Access(refused) => refused.line(),
            Self::BackendError(error) => error.line(),
        }
    }
}

impl Refused for ClaimError {
    fn line(&self) -> Line {
        match self {
            Self::RunNotFound(missing) => missing.line(),
            Self::RunNotActive { run, status } => {
                Line::refused("run not active").fact("run", run.get()).fact("status", status)
            }
            Self::UnassignedWorker => Line::refused("unassigned worker"),
            Self::NoneAvailable { earliest_deadline } => {
                Line::refused("none available").optional("earliest", *earliest_deadline)
            }
            Self::Throttled { retry_after } => Line::refused("throttled").fact("until", retry_after),
            Self::BackendError(error) => error.line(),
        }
    }
}
