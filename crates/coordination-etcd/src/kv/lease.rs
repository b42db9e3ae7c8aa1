//! etcd leases: expiry of keys by time, granted, kept alive and revoked as a whole.

use core::fmt;
use core::time::Duration;

/// Names an etcd lease. Zero means "no lease".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtcdLeaseId(pub i64);

impl EtcdLeaseId {
    /// A key attached to no lease lives until it is deleted.
    pub const NONE: Self = Self(0);

    /// A usable id made from a random number: positive, and never the "no lease" id.
    #[must_use]
    pub const fn from_random(random: u64) -> Self {
        let id = (random >> 1) as i64;
        if id == 0 { Self(1) } else { Self(id) }
    }
}

impl fmt::Display for EtcdLeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The answer to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedLease {
    /// The lease's id, as asked for.
    pub id: EtcdLeaseId,
    /// How long it lives without a keep-alive: the server raises what is below its own minimum.
    pub ttl: Duration,
}

/// What a lease has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimeToLive {
    /// Time left before it expires, in whole seconds as etcd counts.
    pub remaining: Duration,
    /// Its full length.
    pub granted: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_random_number_makes_the_no_lease_id_or_a_negative_one() {
        for random in [0, 1, 2, u64::MAX, 1 << 63] {
            let id = EtcdLeaseId::from_random(random);
            assert!(id.0 > 0, "{random} -> {id:?}");
        }
    }
}
