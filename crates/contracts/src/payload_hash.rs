//! The fingerprint of an operation's parameters, kept in op-logs to tell a retry from a reused id.

use core::fmt;
use core::num::NonZeroU64;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::domain;

/// 64 bits of BLAKE3 over an operation's name and parameters. Never zero, so that zero can mean "no entry".
///
/// `Debug` and `Display` hide the value: a refused operation must not tell the hash of the first one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadHash(NonZeroU64);

impl PayloadHash {
    /// Hashes `payload` as a parameter of the operation `operation`.
    ///
    /// The name is hashed in front, so that a checkpoint and a completion with one cursor differ.
    pub fn of(operation: &'static str, payload: &impl CanonicalBytes) -> Self {
        let mut hasher = domain::OP_PAYLOAD_V1.hasher();
        hasher.tag(operation);
        payload.write_canonical(&mut hasher);
        Self::from_digest(hasher.finish_u64())
    }

    /// The stored form of a hash; zero is not one.
    pub const fn from_stored(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// The number to store.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    fn from_digest(digest: u64) -> Self {
        Self(NonZeroU64::new(digest).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PayloadHash(<redacted>)")
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn the_operation_name_is_part_of_the_hash() {
        assert_eq!(PayloadHash::of("checkpoint", &7_u64), PayloadHash::of("checkpoint", &7_u64));
        assert_ne!(PayloadHash::of("checkpoint", &7_u64), PayloadHash::of("complete", &7_u64));
        assert_ne!(PayloadHash::of("checkpoint", &7_u64), PayloadHash::of("checkpoint", &8_u64));
    }

    #[test]
    fn a_digest_of_zero_becomes_one_and_zero_is_not_stored() {
        assert_eq!(PayloadHash::from_digest(0).get(), 1);
        assert_eq!(PayloadHash::from_digest(2).get(), 2);
        assert_eq!(PayloadHash::from_stored(0), None);
        assert_eq!(PayloadHash::from_stored(9).map(PayloadHash::get), Some(9));
    }

    #[test]
    fn debug_hides_the_value() {
        assert_eq!(format!("{:?}", PayloadHash::of("park", &1_u8)), "PayloadHash(<redacted>)");
    }
}
