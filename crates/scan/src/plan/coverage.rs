//! How much of a plan was met, in numbers that add up over any cut of the keys.
//!
//! Shards are split and change hands, so a plan is not compared shard by shard. Each segment says how many planned keys it
//! passed and the sum of their hashes; whatever the segments are, their sums are the plan's if and only if each planned
//! key was passed once.

use xxhash_rust::xxh3::xxh3_128;

use crate::wire::{Malformed, Reader, Writer};

/// Planned keys, by number and by the sum of their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Planned items that were passed, be it that they were met or that they were found missing.
    pub planned: u64,
    /// The sum of hashes of their keys, modulo 2^128.
    pub digest: u128,
    /// Items that were met and not planned.
    pub added: u64,
}

impl Coverage {
    /// Counts a planned item.
    pub fn pass(&mut self, key: &[u8]) {
        self.planned = self.planned.saturating_add(1);
        self.digest = self.digest.wrapping_add(xxh3_128(key));
    }

    /// Adds what another passed.
    pub fn merge(&mut self, other: &Self) {
        self.planned = self.planned.saturating_add(other.planned);
        self.digest = self.digest.wrapping_add(other.digest);
        self.added = self.added.saturating_add(other.added);
    }

    /// Whether this is all that `plan` counts, each item once.
    pub fn covers(&self, plan: &Self) -> bool {
        (self.planned, self.digest) == (plan.planned, plan.digest)
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u64(self.planned);
        writer.fixed(&self.digest.to_le_bytes());
        writer.u64(self.added);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let planned = reader.u64()?;
        Ok(Self { planned, digest: u128::from_le_bytes(reader.array()?), added: reader.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(keys: &[Vec<u8>]) -> Coverage {
        let mut coverage = Coverage::default();
        keys.iter().for_each(|key| coverage.pass(key));
        coverage
    }

    #[test]
    fn a_key_in_the_place_of_another_does_not_cover_the_plan() {
        let plan = of(&[vec![1], vec![2]]);
        assert!(of(&[vec![2], vec![1]]).covers(&plan));
        assert!(!of(&[vec![1], vec![1]]).covers(&plan) && !of(&[vec![1], vec![3]]).covers(&plan));
        assert!(!of(&[vec![1]]).covers(&plan));
        assert!(Coverage { added: 5, ..plan }.covers(&plan), "what is new takes nothing away");
    }

    proptest! {
        #[test]
        fn parts_add_up_however_the_keys_are_cut(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..20),
            cut in 0_usize..21,
        ) {
            let (low, high) = keys.split_at(cut.min(keys.len()));
            let mut sum = of(high);
            sum.merge(&of(low));
            prop_assert_eq!(sum, of(&keys));
            let mut writer = Writer::default();
            sum.write(&mut writer);
            prop_assert_eq!(Coverage::read(&mut Reader(&writer.0)), Ok(sum));
        }
    }
}
