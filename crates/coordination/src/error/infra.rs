//! Failures of the store, as opposed to answers of the protocol.

use alloc::borrow::Cow;

/// The store failed. Whether to try again is the one thing a caller needs to know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InfraError {
    /// A timeout, a lost connection, a race lost too often: the same call may work later. It may also have taken
    /// effect already, which is what op ids are for.
    #[error("{operation} failed for now: {message}; try again with the same operation id")]
    Transient {
        /// The failing step, such as `checkpoint.commit`.
        operation: &'static str,
        /// What happened.
        message: Cow<'static, str>,
    },
    /// Stored bytes make no sense, or a record that must exist does not. Trying again will not help; a person must look.
    #[error("{operation} found corrupt state: {message}; do not retry, inspect the store")]
    Corruption {
        /// The failing step, such as `acquire.load_shard`.
        operation: &'static str,
        /// What was found.
        message: Cow<'static, str>,
    },
    /// The store does not let the caller in (a wrong password, a missing permission, a certificate), or the two do not
    /// understand each other. Trying again will not help before an operator acts.
    #[error("{message} (in {operation}); trying again does not help")]
    Refused {
        /// The failing step, such as `get_run`.
        operation: &'static str,
        /// The cause, and what to do about it.
        message: Cow<'static, str>,
    },
}

impl InfraError {
    /// A failure that may pass.
    pub fn transient(operation: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Transient { operation, message: message.into() }
    }

    /// A failure that will not.
    pub fn corruption(operation: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Corruption { operation, message: message.into() }
    }

    /// A refusal that lasts until an operator acts.
    pub fn refused(operation: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { operation, message: message.into() }
    }

    /// Every attempt lost a race.
    pub fn contended(operation: &'static str) -> Self {
        Self::transient(operation, "others kept writing first")
    }

    /// The protocol would refuse, while a write without an answer may still come to pass: a refusal would say that nothing
    /// has happened.
    pub fn undecided(operation: &'static str) -> Self {
        Self::transient(operation, "an earlier request was not answered and may yet be carried out")
    }

    /// Whether the same call may succeed later.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Transient { .. } => true,
            Self::Corruption { .. } | Self::Refused { .. } => false,
        }
    }

    /// The cause alone, for callers that add their own words on where and what next.
    pub fn message(&self) -> &str {
        match self {
            Self::Transient { message, .. } | Self::Corruption { message, .. } | Self::Refused { message, .. } => {
                message
            }
        }
    }

    /// The failing step.
    pub const fn operation(&self) -> &'static str {
        match self {
            Self::Transient { operation, .. }
            | Self::Corruption { operation, .. }
            | Self::Refused { operation, .. } => operation,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn only_a_transient_failure_invites_another_try() {
        let transient = InfraError::transient("renew.txn", "timed out");
        let corrupt = InfraError::corruption("acquire.load_shard", "unknown version 9");
        let refused = InfraError::refused("get_run", "the password is wrong");
        assert!(transient.is_transient() && !corrupt.is_transient() && !refused.is_transient());
        assert_eq!(transient.to_string(), "renew.txn failed for now: timed out; try again with the same operation id");
        assert_eq!(
            corrupt.to_string(),
            "acquire.load_shard found corrupt state: unknown version 9; do not retry, inspect the store"
        );
        assert_eq!(refused.to_string(), "the password is wrong (in get_run); trying again does not help");
        assert_eq!((corrupt.operation(), refused.operation()), ("acquire.load_shard", "get_run"));
        assert_eq!((transient.message(), refused.message()), ("timed out", "the password is wrong"));
    }
}
