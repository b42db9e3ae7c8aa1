//! What the lookups of a lane came to, added up: how they ended, how long they took, how far they led, how many were asked at once.
//!
//! Distributions rather than means: one lookup in a hundred that takes seconds is what an operator looks for, and a mean hides it.

use super::{Finish, LookupStats};

/// Bounds a histogram has at most.
const BOUNDS_MAX: usize = 10;

const MILLISECONDS: &[u64] = &[1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500];
const HOPS: &[u64] = &[0, 1, 2, 3, 4, 6, 8];
const PARALLEL: &[u64] = &[3, 4, 5, 6, 7, 8];

const _: () = assert!(MILLISECONDS.len() <= BOUNDS_MAX && HOPS.len() <= BOUNDS_MAX && PARALLEL.len() <= BOUNDS_MAX);

/// How many values were at most each of a few bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for what is above all of them.
    counts: [u64; BOUNDS_MAX + 1],
    sum: u64,
}

impl Histogram {
    const fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: [0; BOUNDS_MAX + 1], sum: 0 }
    }

    fn record(&mut self, value: u64) {
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[at] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Each bound, and how many values were at most that.
    pub fn at_most(&self) -> impl Iterator<Item = (u64, u64)> {
        self.bounds.iter().zip(&self.counts).scan(0, |so_far, (bound, count)| {
            *so_far += count;
            Some((*bound, *so_far))
        })
    }

    /// How many values there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

/// All lookups that a lane has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupTotals {
    ended: [u64; Finish::ALL.len()],
    /// From start to end.
    pub milliseconds: Histogram,
    /// How many answers in a row led to the result, or to the nearest node.
    pub hops: Histogram,
    /// The most requests that a lookup allowed itself in flight.
    pub parallel: Histogram,
}

impl Default for LookupTotals {
    fn default() -> Self {
        Self {
            ended: [0; Finish::ALL.len()],
            milliseconds: Histogram::new(MILLISECONDS),
            hops: Histogram::new(HOPS),
            parallel: Histogram::new(PARALLEL),
        }
    }
}

impl LookupTotals {
    /// A lookup has ended.
    pub(crate) fn record(&mut self, finish: Finish, stats: &LookupStats) {
        self.ended[finish as usize] += 1;
        self.milliseconds.record(stats.elapsed_ms);
        self.hops.record(u64::from(stats.hops));
        self.parallel.record(u64::from(stats.alpha_peak));
    }

    /// How many ended for each reason.
    pub fn ended(&self) -> impl Iterator<Item = (Finish, u64)> {
        Finish::ALL.into_iter().zip(self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_up_to_the_first_bound_that_is_not_below_it() {
        let mut histogram = Histogram::new(&[1, 5, 10]);
        for value in [0, 1, 2, 5, 6, 10, 11, u64::MAX] {
            histogram.record(value);
        }
        assert!(histogram.at_most().eq([(1, 2), (5, 4), (10, 6)]));
        assert_eq!((histogram.count(), histogram.sum()), (8, u64::MAX));
    }

    #[test]
    fn every_reason_has_its_own_place() {
        let mut totals = LookupTotals::default();
        for (times, finish) in Finish::ALL.into_iter().enumerate() {
            for _ in 0..=times {
                totals.record(finish, &LookupStats { hops: 2, elapsed_ms: 7, alpha_peak: 4, ..LookupStats::default() });
            }
        }
        assert!(totals.ended().map(|(_, count)| count).eq(1..=Finish::ALL.len() as u64));
        let sums = [totals.hops, totals.milliseconds, totals.parallel].map(|histogram| histogram.sum());
        assert_eq!(sums, [2, 7, 4].map(|of_one| of_one * totals.hops.count()));
    }
}
