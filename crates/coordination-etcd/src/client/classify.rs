//! From a gRPC status to a [`KvError`]: above all, may the request have been applied?
//!
//! Only two things prove that it was not: the connection could not be made, or the server said so in words that it uses
//! before it proposes the request to its peers, or when the applied request failed as a whole. Everything else
//! (a broken stream, a late answer, "request timed out", "leader changed") leaves the question open.
//!
//! The second question is whether the error can pass. A wrong password, a missing permission and a certificate that one side
//! does not trust stay wrong until an operator acts; a token that a member does not know is fetched anew.

use std::error::Error;
use std::io;

use tonic::{Code, ConnectError, Status};

use crate::kv::{Fate, KvError, KvErrorKind};

/// What a failed call to `endpoint` means.
pub(super) fn classify(endpoint: &str, status: &Status) -> KvError {
    let (fate, kind) = fate_and_kind(status);
    let hint = if endpoint.starts_with("https:") { tls_hint(status) } else { "" };
    KvError::new(fate, kind, format!("{endpoint}: {}{hint}", status.message()))
}

/// What else may be wrong when a connection under TLS ends early. The server does not say, and it may also have died.
fn tls_hint(status: &Status) -> &'static str {
    if status.message().contains("tls handshake eof") {
        "; perhaps the server speaks no TLS (etcd:// instead of etcds://)"
    } else if status.code() == Code::Cancelled && status.message().contains("operation was canceled") {
        "; perhaps the server asks for another client certificate (--coordinator-cert, --coordinator-key)"
    } else {
        ""
    }
}

fn fate_and_kind(status: &Status) -> (Fate, KvErrorKind) {
    use Fate::{Ambiguous, NotApplied, Unsent};
    match connect_failure(status) {
        Some(ConnectFailure::Tls) => return (Unsent, KvErrorKind::Tls),
        Some(ConnectFailure::Other) => return (Unsent, KvErrorKind::Connect),
        None => {}
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
        Code::InvalidArgument if says("revision of auth store is old") => (NotApplied, KvErrorKind::TokenUnknown),
        Code::InvalidArgument if says("user name is empty") => (NotApplied, KvErrorKind::Unauthenticated),
        Code::OutOfRange if says("has been compacted") => (NotApplied, KvErrorKind::Compacted),
        Code::InvalidArgument | Code::OutOfRange => (NotApplied, KvErrorKind::InvalidRequest),
        // The token is too old, or the asked member has not heard of it yet.
        Code::Unauthenticated => (NotApplied, KvErrorKind::TokenUnknown),
        // A login at a cluster that has authentication switched off.
        Code::FailedPrecondition if says("authentication is not enabled") => (NotApplied, KvErrorKind::Unauthenticated),
        Code::PermissionDenied => (NotApplied, KvErrorKind::PermissionDenied),
        Code::Unimplemented => (NotApplied, KvErrorKind::UnexpectedResponse),
        Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition => (NotApplied, KvErrorKind::Other),
        Code::Ok | Code::DataLoss => (Ambiguous, KvErrorKind::Other),
    }
}

/// Why no connection could be made.
enum ConnectFailure {
    /// One side does not accept the other's certificate, or does not speak TLS as it should.
    Tls,
    /// Anything else: nothing listens there, or the network is away.
    Other,
}

/// Why the call failed before a byte of it was sent, if that is so.
fn connect_failure(status: &Status) -> Option<ConnectFailure> {
    let mut failure = None;
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            failure = Some(ConnectFailure::Other);
        }
        // The TLS library reports what it cannot accept, and nothing else does, as invalid data.
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if failure.is_some() && kind == Some(io::ErrorKind::InvalidData) {
            return Some(ConnectFailure::Tls);
        }
        source = error.source();
    }
    failure
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
            (Code::Unauthenticated, "etcdserver: invalid auth token", KvErrorKind::TokenUnknown),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", KvErrorKind::TokenUnknown),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                KvErrorKind::Unauthenticated,
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", KvErrorKind::Unauthenticated),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", KvErrorKind::Unauthenticated),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", KvErrorKind::Compacted),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", KvErrorKind::InvalidRequest),
            (Code::PermissionDenied, "etcdserver: permission denied", KvErrorKind::PermissionDenied),
        ] {
            assert_eq!(fate_of(code, message), (Fate::NotApplied, kind), "{message}");
        }
    }

    #[test]
    fn a_refused_connection_is_unsent() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        let error = classify("e", &status);
        assert_eq!((error.fate, error.kind), (Fate::Unsent, KvErrorKind::Connect));
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_told_from_a_refused_connection() {
        let distrusted = io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer");
        let status = Status::from_error(Box::new(ConnectError(Box::new(distrusted))));
        let error = classify("https://e:1", &status);
        assert_eq!((error.fate, error.kind), (Fate::Unsent, KvErrorKind::Tls));
        assert!(!error.is_transient());
        // The same words after the connection was made prove nothing.
        let late = io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer");
        assert_ne!(classify("https://e:1", &Status::from_error(Box::new(late))).kind, KvErrorKind::Tls);
    }

    #[test]
    fn a_connection_that_ends_early_under_tls_hints_at_certificates() {
        let closed = classify("https://e:1", &Status::cancelled("operation was canceled"));
        assert!(closed.is_transient() && closed.message.contains("client certificate"), "{closed}");
        let plain = classify("http://e:1", &Status::cancelled("operation was canceled"));
        assert!(!plain.message.contains("client certificate"), "{plain}");
    }
}
