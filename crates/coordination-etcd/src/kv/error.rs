//! What went wrong in the store, and whether the request may have taken effect.
//!
//! The second question decides everything: a request that was surely not applied may be repeated, one that may have
//! been must first be asked about. So each error carries a [`Fate`] beside its [`KvErrorKind`].

use core::fmt;

/// Whether a failed request may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The request never left: no connection could be made, or no time was left to try.
    Unsent,
    /// The store answered that it did not apply the request.
    NotApplied,
    /// The answer was lost or too late. The request may have been applied, or may yet be.
    Ambiguous,
}

/// What kind of failure it was: who should act, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvErrorKind {
    /// No endpoint accepted a connection.
    Connect,
    /// The call's deadline passed.
    Deadline,
    /// The connection broke while the call was under way.
    Transport,
    /// The asked member sees no leader: it is cut off, or an election is under way.
    NoLeader,
    /// The store is too busy to take the request.
    Overloaded,
    /// The store's space quota is used up: compact, defragment, and clear the alarm.
    SpaceExceeded,
    /// A named etcd lease does not exist (any more).
    LeaseNotFound,
    /// An etcd lease of that id exists already.
    LeaseExists,
    /// More operations than the server's `--max-txn-ops`.
    TooManyOps,
    /// One key is written twice in one transaction.
    DuplicateKey,
    /// The request is larger than the server's `--max-request-bytes`.
    RequestTooLarge,
    /// The user or the password was not accepted, or none was sent.
    Unauthenticated,
    /// The token of a login is too old, or not yet known to the asked member: a new login helps.
    TokenUnknown,
    /// One side does not accept the other's certificate, or does not speak TLS.
    Tls,
    /// The user may not touch these keys.
    PermissionDenied,
    /// The request is malformed, for instance an empty key.
    InvalidRequest,
    /// The revision that was to be read at is no longer kept.
    Compacted,
    /// The answer could not be understood: not an etcd, or another version of it.
    UnexpectedResponse,
    /// Anything else the server said.
    Other,
}

/// A failed store call.
#[derive(Clone, PartialEq, Eq)]
pub struct KvError {
    /// Whether the request may have taken effect.
    pub fate: Fate,
    /// What kind of failure it was.
    pub kind: KvErrorKind,
    /// Where and in whose words: the endpoint and the server's message.
    pub message: String,
}

impl KvError {
    /// A failure of `kind` with the given fate.
    pub fn new(fate: Fate, kind: KvErrorKind, message: impl Into<String>) -> Self {
        Self { fate, kind, message: message.into() }
    }

    /// The store refused: the request was surely not applied.
    pub fn not_applied(kind: KvErrorKind, message: impl Into<String>) -> Self {
        Self::new(Fate::NotApplied, kind, message)
    }

    /// The request may have been applied.
    pub fn ambiguous(kind: KvErrorKind, message: impl Into<String>) -> Self {
        Self::new(Fate::Ambiguous, kind, message)
    }

    /// Whether trying again later could help at all; a malformed or forbidden request fails for ever.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self.kind {
            KvErrorKind::Connect
            | KvErrorKind::Deadline
            | KvErrorKind::Transport
            | KvErrorKind::NoLeader
            | KvErrorKind::Overloaded
            | KvErrorKind::TokenUnknown => true,
            KvErrorKind::SpaceExceeded
            | KvErrorKind::LeaseNotFound
            | KvErrorKind::LeaseExists
            | KvErrorKind::TooManyOps
            | KvErrorKind::DuplicateKey
            | KvErrorKind::RequestTooLarge
            | KvErrorKind::Unauthenticated
            | KvErrorKind::Tls
            | KvErrorKind::PermissionDenied
            | KvErrorKind::InvalidRequest
            | KvErrorKind::Compacted
            | KvErrorKind::UnexpectedResponse
            | KvErrorKind::Other => false,
        }
    }

    /// Whether an operator must act before any call of this kind can succeed: the caller is not let in, or it and the
    /// server do not understand each other. Other errors that a repetition does not cure (a lease that is gone, a store
    /// without space) depend on the moment or on the one request.
    #[must_use]
    pub const fn needs_operator(&self) -> bool {
        match self.kind {
            KvErrorKind::Unauthenticated
            | KvErrorKind::Tls
            | KvErrorKind::PermissionDenied
            | KvErrorKind::TooManyOps
            | KvErrorKind::RequestTooLarge
            | KvErrorKind::UnexpectedResponse => true,
            KvErrorKind::Connect
            | KvErrorKind::Deadline
            | KvErrorKind::Transport
            | KvErrorKind::NoLeader
            | KvErrorKind::Overloaded
            | KvErrorKind::TokenUnknown
            | KvErrorKind::SpaceExceeded
            | KvErrorKind::LeaseNotFound
            | KvErrorKind::LeaseExists
            | KvErrorKind::DuplicateKey
            | KvErrorKind::InvalidRequest
            | KvErrorKind::Compacted
            | KvErrorKind::Other => false,
        }
    }
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            KvErrorKind::Connect => "no etcd endpoint accepted a connection",
            KvErrorKind::Deadline => "etcd did not answer before the deadline",
            KvErrorKind::Transport => "the connection to etcd broke during the call",
            KvErrorKind::NoLeader => "etcd has no leader at the moment",
            KvErrorKind::Overloaded => "etcd is overloaded",
            KvErrorKind::SpaceExceeded => {
                "etcd's space quota is used up: compact, defragment, then `etcdctl alarm disarm`"
            }
            KvErrorKind::LeaseNotFound => "the etcd lease is gone",
            KvErrorKind::LeaseExists => "an etcd lease of that id exists already",
            KvErrorKind::TooManyOps => "the transaction has more operations than etcd's --max-txn-ops allows",
            KvErrorKind::DuplicateKey => "the transaction writes one key twice",
            KvErrorKind::RequestTooLarge => "the request is larger than etcd's --max-request-bytes",
            KvErrorKind::Unauthenticated => "etcd did not accept the user or the password: check the login",
            KvErrorKind::TokenUnknown => "etcd does not know the token of this login",
            KvErrorKind::Tls => "TLS with etcd failed: check the certificates and the host's name",
            KvErrorKind::PermissionDenied => {
                "the etcd user may not touch these keys: grant its role the namespace's prefix"
            }
            KvErrorKind::InvalidRequest => "etcd called the request malformed",
            KvErrorKind::Compacted => "etcd no longer keeps the revision that was read at",
            KvErrorKind::UnexpectedResponse => "the answer is not one that etcd gives: is the endpoint an etcd server?",
            KvErrorKind::Other => "etcd refused",
        };
        let fate = match self.fate {
            Fate::Unsent => "not sent",
            Fate::NotApplied => "not applied",
            Fate::Ambiguous => "may have been applied",
        };
        write!(f, "{what} ({fate}): {}", self.message)
    }
}

impl fmt::Debug for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvError({:?}, {:?}: {})", self.fate, self.kind, self.message)
    }
}

impl std::error::Error for KvError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_happened_where_and_whether_it_may_have_been_applied() {
        let error = KvError::ambiguous(KvErrorKind::Deadline, "http://10.0.0.1:2379 after 2s");
        let text = error.to_string();
        assert!(text.contains("deadline") && text.contains("may have been applied") && text.contains("10.0.0.1"));
    }
}
