//! Numbers nobody else has.

use tessera_contracts::{OpId, RunIncarnation};

use crate::clock::wall_clock;

/// A number nobody else has.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(8) => u64::from_le_bytes(bytes).max(1),
        // Only before the kernel is seeded, at boot. Unique is enough, and no two moments are the same.
        _ => wall_clock().get() << 20 | u64::from(std::process::id()),
    }
}

/// What tells a run that is created now from any other of the same id.
pub fn random_incarnation() -> RunIncarnation {
    RunIncarnation::new(random_u64().max(1))
}

/// Idempotency keys: a sequence that starts somewhere nobody else does.
#[derive(Debug)]
pub struct OpIds(u64);

impl OpIds {
    /// The sequence from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence of its own.
    pub fn random() -> Self {
        Self(random_u64())
    }

    /// The next one.
    pub fn next_id(&mut self) -> OpId {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The finaliser of SplitMix64: consecutive states give unrelated ids, and no two states the same one.
        let mut id = self.0;
        id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        match id ^ (id >> 31) {
            0 => self.next_id(),
            id => OpId::new(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_sequence_differ_and_are_never_unassigned() {
        let mut ids = OpIds::new(u64::MAX - 3);
        let some: std::collections::BTreeSet<_> = (0..1_000).map(|_| ids.next_id()).collect();
        assert_eq!(some.len(), 1_000);
        assert!(!some.contains(&OpId::new(0)));
    }
}
