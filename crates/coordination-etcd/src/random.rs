//! Random numbers for jitter, spread and names: cheap, seedable, and no secret.

/// Steele, Lea and Flood's SplitMix64: one addition and three mixes per number, every seed good.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The sequence that `seed` begins.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "an endless generator is no iterator that can be exhausted")]
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`, or zero for a bound of zero. The slight bias of the modulus does not matter here.
    pub const fn below(&mut self, bound: u64) -> u64 {
        let number = self.next();
        if bound == 0 { 0 } else { number % bound }
    }
}

/// Spreads a number evenly over 64 bits; one to one.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // Reference values of SplitMix64 for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
