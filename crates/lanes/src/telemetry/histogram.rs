//! Latency by logarithmic buckets: a quarter octave wide, so a percentile read from it is at most a quarter too high.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values 0 to 3 have a bucket each, then four per octave up to 2^32.
pub const BUCKETS: usize = 4 + 30 * 4;

/// A single-writer histogram. It takes its memory with the first value: a lane that is alone never has one.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

impl Clone for Histogram {
    fn clone(&self) -> Self {
        let copy = self.buckets.get().map(|_| Box::new(self.counts().map(AtomicU64::new)));
        Self { buckets: copy.map_or_else(OnceLock::new, OnceLock::from) }
    }
}

impl Histogram {
    /// Counts `value`; only the owner of the histogram may call this.
    pub fn record(&self, value: u32) {
        let buckets = self.buckets.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        let bucket = &buckets[bucket_of(value)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> [u64; BUCKETS] {
        let Some(buckets) = self.buckets.get() else { return [0; BUCKETS] };
        std::array::from_fn(|bucket| buckets[bucket].load(Ordering::Relaxed))
    }
}

/// The value below or at which `permille` of the counted values lie, as the upper edge of its bucket; 0 if none was counted.
#[must_use]
pub fn percentile(counts: &[u64; BUCKETS], permille: u64) -> u64 {
    let total: u64 = counts.iter().sum();
    let rank = (total * permille).div_ceil(1000).max(1);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= rank {
            return upper_edge(bucket);
        }
    }
    0
}

fn bucket_of(value: u32) -> usize {
    if value < 4 {
        return value as usize;
    }
    let octave = value.ilog2() as usize; // From 2 up.
    let quarter = (value >> (octave - 2)) as usize & 3;
    4 + (octave - 2) * 4 + quarter
}

fn upper_edge(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let octave = (bucket - 4) / 4 + 2;
    let quarter = (bucket - 4) as u64 % 4;
    ((4 + quarter + 1) << (octave - 2)) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_lies_at_or_below_its_edge_and_within_a_quarter(value: u32) {
            let edge = upper_edge(bucket_of(value));
            prop_assert!(u64::from(value) <= edge);
            prop_assert!(edge <= u64::from(value) + u64::from(value) / 4, "{value} in bucket up to {edge}");
        }
    }

    #[test]
    fn percentiles_are_read_from_the_counts() {
        let histogram = Histogram::default();
        assert_eq!(percentile(&histogram.counts(), 500), 0);
        for value in 1..=100 {
            histogram.record(value);
        }
        let counts = histogram.counts();
        assert!((50..=62).contains(&percentile(&counts, 500)));
        assert!((95..=118).contains(&percentile(&counts, 950)));
        histogram.record(u32::MAX);
        assert_eq!(percentile(&histogram.counts(), 1000), u64::from(u32::MAX));
    }
}
