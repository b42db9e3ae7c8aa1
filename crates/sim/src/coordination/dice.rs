//! Chance under control: one number decides everything that happens in a world.

/// A stream of random numbers from a seed (SplitMix64); the same on every machine.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    /// A number from `low` to `high`, both possible.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in so many of a million cases.
    pub const fn happens(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < per_million as u64
    }
}
