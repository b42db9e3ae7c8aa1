//! From a gRPC status to a [`KvError`]: above all, may the request have been applied?
//!
//! Only two things prove that it was not: the connection could not be made, or the server said so in words that it uses
//! before it proposes the request to its peers, or when the applied request failed as a whole. Everything else
//! (a broken stream, a late answer, "request timed out", "leader changed") leaves the question open.

use std::error::Error;

use tonic::{Code, ConnectError, Status};

use crate::kv::{Fate, KvError, KvErrorKind};

/// What a failed call to `endpoint` means.
pub(super) fn classify(endpoint: &str, status: &Status) -> KvError {
    let (fate, kind) = fate_and_kind(status);
    KvError::new(fate, kind, format!("{endpoint}: {}", status.message()))
}

fn fate_and_kind(status: &Status) -> (Fate, KvErrorKind) {
    use Fate::{Ambiguous, NotApplied, Unsent};
    if caused_by_connect(status) {
        return (Unsent, KvErrorKind::Connect);
    }
    let message = status.message();
    let says = |words: &str| message.contains(words);
    match status.code() {
        Code::Unavailable if says("etcdserver: no leader") => (NotApplied, KvErrorKind::NoLeader),
        Code::Unavailable if says("etcdserver: not capable") => (NotApplied, KvErrorKind::Other),
        Code::Unavailable if says("etcdserver: unhealthy cluster") => (NotApplied, KvErrorKind::NoLeader),
        // The transport's own clock may ring a moment before ours.
        Code::Cancelled if says("Timeout expired") => (Ambiguous, KvErrorKind::Deadline),
        // Timed out, leader changed, stopped, stream reset: the entry may be in the log.
        Code::Unavailable | Code::Cancelled | Code::Aborted | Code::Unknown | Code::Internal => {
            (Ambiguous, KvErrorKind::Transport)
        }
        Code::DeadlineExceeded => (Ambiguous, KvErrorKind::Deadline),
        Code::ResourceExhausted if says("database space exceeded") => (NotApplied, KvErrorKind::SpaceExceeded),
        Code::ResourceExhausted if says("larger than max") => (NotApplied, KvErrorKind::RequestTooLarge),
        Code::ResourceExhausted => (NotApplied, KvErrorKind::Overloaded),
        Code::NotFound if says("lease not found") => (NotApplied, KvErrorKind::LeaseNotFound),
        Code::FailedPrecondition if says("lease already exists") => (NotApplied, KvErrorKind::LeaseExists),
        Code::InvalidArgument if says("too many operations") => (NotApplied, KvErrorKind::TooManyOps),
        Code::InvalidArgument if says("duplicate key") => (NotApplied, KvErrorKind::DuplicateKey),
        Code::InvalidArgument if says("request is too large") => (NotApplied, KvErrorKind::RequestTooLarge),
        Code::InvalidArgument if says("authentication failed") => (NotApplied, KvErrorKind::Unauthenticated),
        // The token predates a change of users or roles; the server checks it again as it applies, and drops the request.
        Code::InvalidArgument if says("revision of auth store is old") => (NotApplied, KvErrorKind::Unauthenticated),
        Code::InvalidArgument if says("user name is empty") => (NotApplied, KvErrorKind::Unauthenticated),
        Code::InvalidArgument | Code::OutOfRange => (NotApplied, KvErrorKind::InvalidRequest),
        Code::Unauthenticated => (NotApplied, KvErrorKind::Unauthenticated),
        Code::PermissionDenied => (NotApplied, KvErrorKind::PermissionDenied),
        Code::Unimplemented => (NotApplied, KvErrorKind::UnexpectedResponse),
        Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition => (NotApplied, KvErrorKind::Other),
        Code::Ok | Code::DataLoss => (Ambiguous, KvErrorKind::Other),
    }
}

/// Whether the call failed because no connection could be made, so that not a byte of it was sent.
fn caused_by_connect(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate_of(code: Code, message: &str) -> (Fate, KvErrorKind) {
        let error = classify("http://e:1", &Status::new(code, message));
        assert!(error.message.starts_with("http://e:1: "));
        (error.fate, error.kind)
    }

    #[test]
    fn a_lost_answer_is_ambiguous_whatever_its_words() {
        for message in [
            "etcdserver: request timed out",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "http2 error",
            "transport error",
            // Without the typed cause, words alone do not prove that nothing was sent.
            "tcp connect error",
        ] {
            assert_eq!(fate_of(Code::Unavailable, message).0, Fate::Ambiguous, "{message}");
        }
        assert_eq!(fate_of(Code::DeadlineExceeded, "context deadline exceeded").0, Fate::Ambiguous);
        assert_eq!(fate_of(Code::Unknown, "h2 protocol error").0, Fate::Ambiguous);
    }

    #[test]
    fn refusals_of_the_server_are_sure_and_typed() {
        for (code, message, kind) in [
            (Code::Unavailable, "etcdserver: no leader", KvErrorKind::NoLeader),
            (Code::ResourceExhausted, "etcdserver: too many requests", KvErrorKind::Overloaded),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", KvErrorKind::SpaceExceeded),
            (Code::NotFound, "etcdserver: requested lease not found", KvErrorKind::LeaseNotFound),
            (Code::FailedPrecondition, "etcdserver: lease already exists", KvErrorKind::LeaseExists),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", KvErrorKind::TooManyOps),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", KvErrorKind::DuplicateKey),
            (Code::InvalidArgument, "etcdserver: request is too large", KvErrorKind::RequestTooLarge),
            (Code::Unauthenticated, "etcdserver: invalid auth token", KvErrorKind::Unauthenticated),
            (Code::PermissionDenied, "etcdserver: permission denied", KvErrorKind::PermissionDenied),
        ] {
            assert_eq!(fate_of(code, message), (Fate::NotApplied, kind), "{message}");
        }
    }

    #[test]
    fn a_refused_connection_is_unsent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert_eq!(classify("e", &status).fate, Fate::Unsent);
    }
}
