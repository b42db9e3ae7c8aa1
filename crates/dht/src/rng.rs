//! A lane's own randomness, grown from one seed that the shell draws from the system when the lane starts.
//!
//! Every lane has its own, so that one lane's datagrams say nothing about another's. It is a keyed BLAKE3
//! stream: correlation ids and incarnations come from it, so it has to be unpredictable, not merely well spread.

use core::fmt;

const BUFFER_BYTES: usize = 256;

/// An unpredictable, reproducible stream of numbers.
#[derive(Clone)]
pub struct LaneRng {
    seed: [u8; 32],
    block: u64,
    buffer: [u8; BUFFER_BYTES],
    used: usize,
}

impl LaneRng {
    /// The stream of `seed`. Two lanes, or two starts of one lane, must never be given the same seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, block: 0, buffer: [0; BUFFER_BYTES], used: BUFFER_BYTES }
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            if self.used == BUFFER_BYTES {
                let mut hasher = blake3::Hasher::new_keyed(&self.seed);
                hasher.update(&self.block.to_le_bytes());
                hasher.finalize_xof().fill(&mut self.buffer);
                self.block += 1;
                self.used = 0;
            }
            *byte = self.buffer[self.used];
            self.used += 1;
        }
    }

    /// `N` random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }

    /// A random number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// A random number below `bound`, or zero if `bound` is zero. The bias of one part in 2^64 is of no use to an attacker.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A duration of `around_ms` give or take a quarter, so that nodes started together drift apart.
    pub fn jittered_ms(&mut self, around_ms: u64) -> u64 {
        around_ms - around_ms / 4 + self.below(around_ms / 2 + 1)
    }
}

impl fmt::Debug for LaneRng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneRng").field("block", &self.block).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_stream_and_another_seed_another() {
        let (mut a, mut b, mut c) = (LaneRng::new([1; 32]), LaneRng::new([1; 32]), LaneRng::new([2; 32]));
        let first: [u8; 600] = a.bytes();
        assert_eq!(first, b.bytes());
        assert_ne!(first, c.bytes());
        assert_ne!(first, a.bytes(), "the stream moves on");
    }

    #[test]
    fn below_and_jitter_keep_their_bounds() {
        let mut rng = LaneRng::new([3; 32]);
        assert_eq!(rng.below(0), 0);
        for _ in 0..1000 {
            assert!(rng.below(7) < 7);
            assert!((750..=1250).contains(&rng.jittered_ms(1000)));
        }
    }
}
