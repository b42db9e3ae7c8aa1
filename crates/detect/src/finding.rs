//! What was found, where, how sure, and how to speak of it without saying it.
//!
//! A secret is held in [`Secret`], whose `Debug` prints a length. Reports show [`Secret::redacted`]. Two ids let
//! runs, machines and baselines agree without the secret: [`SecretId`] is the same wherever the secret occurs,
//! [`FindingId`] names one occurrence, so that work done twice adds nothing twice. Both are keyed: a short password
//! could otherwise be guessed from its hash.

use alloc::string::String;
use core::fmt;
use core::ops::Range;

use tessera_contracts::canonical::CanonicalSink;
use tessera_contracts::domain;

use crate::check::Outcome;
use crate::decode::Chain;
use crate::lines::Position;
use crate::rule::{Confidence, Rule, Severity};

/// Bytes that must not be printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(&'a [u8]);

impl<'a> Secret<'a> {
    /// Wraps bytes that must not be printed.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes themselves: for `--show-secrets`, allowlists and hashing only.
    pub fn expose(self) -> &'a [u8] {
        self.0
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing in it, as for a finding that is a path.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// A form for reports: the first four characters of a secret of sixteen or more, then stars.
    ///
    /// Four characters are mostly the token's public prefix (`ghp_`, `AKIA`) and help to recognise it. A shorter secret
    /// may be a password, of which four characters are too much, so it shows none. The end is never shown, and
    /// the number of stars is fixed, so that the length is not told.
    ///
    /// ```
    /// use tessera_detect::Secret;
    ///
    /// assert_eq!(Secret::new(b"abcd1234efgh5678").redacted(), "abcd****");
    /// assert_eq!(Secret::new(b"correct horse").redacted(), "****");
    /// ```
    pub fn redacted(self) -> String {
        const SHOWN: usize = 4;
        const SHOW_FROM: usize = 16;
        let shown = if self.0.len() >= SHOW_FROM { SHOWN } else { 0 };
        let mut out: String =
            self.0[..shown].iter().map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' }).collect();
        out.push_str("****");
        out
    }
}

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// One secret in one place.
#[derive(Clone, Debug)]
pub struct Finding<'a> {
    /// The rule that spoke.
    pub rule: &'a Rule,
    /// The whole match, in bytes of the source. For a decoded secret: the encoded bytes.
    pub span: Range<u64>,
    /// The secret within it.
    pub secret_span: Range<u64>,
    /// Where the match begins.
    pub start: Position,
    /// Where it ends (just past its last byte).
    pub end: Position,
    /// The secret, decoded.
    pub secret: Secret<'a>,
    /// The whole match, decoded. It contains the secret.
    pub matched: Secret<'a>,
    /// Shannon entropy of the secret, in bits a byte.
    pub entropy: f32,
    /// How sure this finding is.
    pub confidence: Confidence,
    /// What the offline check said.
    pub outcome: Outcome,
    /// Through which encodings the secret was reached, outermost first.
    pub decoded_from: Chain,
}

impl Finding<'_> {
    /// How bad a leak is.
    pub fn severity(&self) -> Severity {
        self.rule.severity
    }

    /// The same for the same secret anywhere, under one key.
    pub fn secret_id(&self, key: &IdKey) -> SecretId {
        key.secret_id(self.secret.expose())
    }

    /// The same for the same occurrence: rule, secret, place in the source, and the source itself.
    ///
    /// `source` is what identifies the source within a run: a path, a blob id.
    pub fn id(&self, key: &IdKey, source: &[u8]) -> FindingId {
        let mut hasher = domain::FINDING_ID_V1.hasher();
        hasher.fixed(&key.0);
        hasher.bytes(source);
        hasher.bytes(self.rule.id.as_bytes());
        hasher.fixed(&self.secret_id(key).0);
        hasher.u64(self.secret_span.start);
        hasher.u64(self.secret_span.end);
        FindingId(hasher.finish())
    }
}

/// The key under which ids are made: one a tenant, or the all-zero one where nobody asked for a private one.
#[derive(Clone)]
pub struct IdKey([u8; 32]);

impl IdKey {
    /// Wraps a tenant's key.
    pub fn new(tenant: [u8; 32]) -> Self {
        Self(tenant)
    }

    /// The id of a secret under this key.
    pub fn secret_id(&self, secret: &[u8]) -> SecretId {
        let mut hasher = domain::SECRET_ID_V1.hasher();
        hasher.fixed(&self.0);
        hasher.bytes(secret);
        SecretId(hasher.finish())
    }
}

impl fmt::Debug for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdKey(32 bytes)")
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 32]);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

id!(
    /// Names a secret without telling it.
    SecretId
);
id!(
    /// Names one occurrence of a secret.
    FindingId
);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn debug_and_redaction_do_not_tell() {
        let secret = Secret::new(b"ghp_averylongandverysecrettoken");
        assert_eq!(format!("{secret:?}"), "Secret(31 bytes)");
        assert_eq!(secret.redacted(), "ghp_****");
        assert_eq!(Secret::new(b"fifteen-letters").redacted(), "****");
        assert_eq!(Secret::new(b"sixteen-letters!").redacted(), "sixt****");
        assert_eq!(format!("{:?}", IdKey::new([7; 32])), "IdKey(32 bytes)");
    }
}
