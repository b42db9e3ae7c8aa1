//! A call that was to end a session and did not.

use alloc::boxed::Box;
use core::fmt;

use crate::error::OperationError;

/// Why a session-ending call failed, and what became of the session.
pub enum SessionFailure<S, E> {
    /// The hold stands: the store failed for now, or the request was wrong. Try again, or do something else with it.
    Kept {
        /// The session.
        session: Box<S>,
        /// What went wrong.
        error: E,
    },
    /// The hold is gone: the shard was taken over or settled, the lease ran out, or the run is over.
    Lost {
        /// How that showed.
        error: E,
    },
}

impl<S, E: OperationError> SessionFailure<S, E> {
    pub(super) fn sort(session: S, error: E) -> Self {
        if error.ends_session() { Self::Lost { error } } else { Self::Kept { session: Box::new(session), error } }
    }
}

impl<S, E> SessionFailure<S, E> {
    /// What went wrong.
    pub const fn error(&self) -> &E {
        match self {
            Self::Kept { error, .. } | Self::Lost { error } => error,
        }
    }

    /// What went wrong, without the session.
    pub fn into_error(self) -> E {
        match self {
            Self::Kept { error, .. } | Self::Lost { error } => error,
        }
    }

    /// The session, if the hold stands.
    pub fn into_session(self) -> Option<S> {
        match self {
            Self::Kept { session, .. } => Some(*session),
            Self::Lost { .. } => None,
        }
    }

    /// Whether the hold stands.
    pub const fn is_kept(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }
}

impl<S, E: fmt::Debug> fmt::Debug for SessionFailure<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_kept() { "Kept" } else { "Lost" };
        f.debug_struct(name).field("error", self.error()).finish_non_exhaustive()
    }
}

impl<S, E: fmt::Display> fmt::Display for SessionFailure<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = if self.is_kept() { "the session stands" } else { "the session is over" };
        write!(f, "{}; {outcome}", self.error())
    }
}

// Not an `Error` itself: it holds a session, which borrows its backend and cannot outlive it. So `?` gives up the session and
// hands on what went wrong.

impl<S, E: core::error::Error + 'static> From<SessionFailure<S, E>> for Box<dyn core::error::Error> {
    fn from(failure: SessionFailure<S, E>) -> Self {
        failure.into_error().into()
    }
}

impl<S, E> From<SessionFailure<S, E>> for Box<dyn core::error::Error + Send + Sync>
where
    E: core::error::Error + Send + Sync + 'static,
{
    fn from(failure: SessionFailure<S, E>) -> Self {
        failure.into_error().into()
    }
}
