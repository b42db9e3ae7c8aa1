//! Averages, rates and scores in which a sample counts half as much after every half-life.
//!
//! The usual recurrence `average += alpha * (sample - average)` assumes samples at regular intervals: with one alpha a burst
//! and a trickle age alike, and with an alpha taken from the interval a second sample in the same tick counts for nothing.
//! Here each sample has weight one when it arrives, and every weight halves per half-life. The average is the weighted sum
//! over the sum of the weights, right from the first sample; the two sums are useful themselves, as a decaying score and a
//! decaying count.
//!
//! Time is an argument. The arithmetic is plain IEEE addition, multiplication and division, so it gives the same bits on
//! every machine.

use core::num::NonZeroU64;

/// Samples weighted by age.
///
/// ```
/// use std::num::NonZeroU64;
/// use tessera_stdx::Ewma;
///
/// let mut round_trip = Ewma::new(NonZeroU64::new(1_000).unwrap());
/// assert_eq!(round_trip.average(), None);
/// round_trip.record(0, 40.0);
/// assert_eq!(round_trip.average(), Some(40.0));
/// round_trip.record(1_000, 70.0); // The first counts half now.
/// assert_eq!(round_trip.average(), Some((0.5 * 40.0 + 70.0) / 1.5));
/// assert_eq!(round_trip.sum_at(2_000), 45.0);
/// ```
#[derive(Debug, Clone)]
pub struct Ewma {
    half_life: NonZeroU64,
    updated_at: u64,
    sum: f64,
    weight: f64,
}

impl Ewma {
    /// No samples yet. A sample's weight halves in every `half_life`.
    pub const fn new(half_life: NonZeroU64) -> Self {
        Self { half_life, updated_at: 0, sum: 0.0, weight: 0.0 }
    }

    /// Adds a sample that was seen at `now`. Time does not go back: an earlier `now` counts as the latest one seen.
    /// A sum beyond what an `f64` holds stays at its bound.
    ///
    /// # Panics
    ///
    /// If `sample` is not finite, since it would spoil every later answer.
    pub fn record(&mut self, now: u64, sample: f64) {
        assert!(sample.is_finite(), "a sample is a finite number, not {sample}");
        let decay = self.decay_until(now);
        // Kept finite: an infinite sum would not decay, and once its weight is gone it would be no number at all.
        self.sum = (self.sum * decay + sample).clamp(f64::MIN, f64::MAX);
        self.weight = self.weight * decay + 1.0;
        self.updated_at = self.updated_at.max(now);
    }

    /// The mean of the samples, weighted by age; `None` before the first. It does not change with time alone.
    pub fn average(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    /// The sum of the samples at `now`, each halved per half-life of its age: a score that is forgotten.
    pub fn sum_at(&self, now: u64) -> f64 {
        self.sum * self.decay_until(now)
    }

    /// The number of samples at `now`, each halved per half-life of its age: a measure of how many there were lately.
    pub fn count_at(&self, now: u64) -> f64 {
        self.weight * self.decay_until(now)
    }

    fn decay_until(&self, now: u64) -> f64 {
        halved(now.saturating_sub(self.updated_at), self.half_life)
    }
}

/// One half to the power of `elapsed / half_life`.
fn halved(elapsed: u64, half_life: NonZeroU64) -> f64 {
    let whole_half_lives = elapsed / half_life;
    if whole_half_lives >= 1_000 {
        return 0.0; // Below 1e-300: nothing of a sample is left. Also keeps the exponent below in range.
    }
    let power_of_half = f64::from_bits((1_023 - whole_half_lives) << 52);
    let rest = (elapsed % half_life) as f64 / half_life.get() as f64;
    power_of_half * exp_negative(rest * core::f64::consts::LN_2)
}

/// `e` to the power of `-x` for `x` from 0 to ln 2. The series in nested form; the terms left out are below 1e-17.
fn exp_negative(x: f64) -> f64 {
    const TERMS: u32 = 16;
    (1..=TERMS).rev().fold(1.0, |inner, term| 1.0 - x / f64::from(term) * inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn half_life(ticks: u64) -> NonZeroU64 {
        NonZeroU64::new(ticks).expect("the test says a half-life")
    }

    fn close(ours: f64, expected: f64) -> bool {
        (ours - expected).abs() <= 1e-9 * expected.abs().max(1e-6)
    }

    proptest! {
        #[test]
        fn the_decay_is_the_power_that_the_standard_library_computes(elapsed in 0..1_000_000_u64, ticks in 1..100_000_u64) {
            let expected = 0.5_f64.powf(elapsed as f64 / ticks as f64);
            let ours = halved(elapsed, half_life(ticks));
            prop_assert!((ours - expected).abs() <= 1e-12 * expected || expected < 1e-290, "{} is not {}", ours, expected);
        }

        #[test]
        fn it_agrees_with_weighing_every_sample_by_its_age(
            ticks in 1..1000_u64, samples in prop::collection::vec((0..500_u64, -100.0..100.0_f64), 1..60), later in 0..2000_u64,
        ) {
            let mut ewma = Ewma::new(half_life(ticks));
            let (mut now, mut seen): (u64, Vec<(u64, f64)>) = (0, Vec::new());
            for (after, sample) in samples {
                now += after;
                ewma.record(now, sample);
                seen.push((now, sample));
            }
            let sums_at = |then: u64| {
                seen.iter().fold((0.0, 0.0, 0.0), |(sum, size, weight), (at, sample)| {
                    let one = 0.5_f64.powf((then - at) as f64 / ticks as f64);
                    (sum + sample * one, size + sample.abs() * one, weight + one)
                })
            };
            // Samples of both signs cancel out, so errors are measured against the size of what was added.
            let (sum, size, weight) = sums_at(now);
            let average = ewma.average().expect("there was a sample");
            prop_assert!((average - sum / weight).abs() <= 1e-9 * (size / weight).max(1e-6), "{} is not {}", average, sum / weight);
            let (sum, size, weight) = sums_at(now + later);
            prop_assert!((ewma.sum_at(now + later) - sum).abs() <= 1e-9 * size.max(1e-6));
            prop_assert!(close(ewma.count_at(now + later), weight));
        }

        #[test]
        fn the_average_stays_between_the_least_and_the_greatest_sample(
            ticks in 1..1000_u64, samples in prop::collection::vec((any::<u32>(), 0..1000_u32), 1..60),
        ) {
            let mut ewma = Ewma::new(half_life(ticks));
            for (now, sample) in &samples {
                ewma.record(u64::from(*now), f64::from(*sample));
            }
            let average = ewma.average().expect("there was a sample");
            let (least, greatest) = (samples.iter().map(|s| s.1).min(), samples.iter().map(|s| s.1).max());
            prop_assert!(average >= f64::from(least.unwrap()) - 1e-6 && average <= f64::from(greatest.unwrap()) + 1e-6);
        }
    }

    #[test]
    fn a_sample_counts_half_after_one_half_life() {
        let mut ewma = Ewma::new(half_life(10));
        ewma.record(5, 8.0);
        assert_eq!([5, 15, 25, 35].map(|now| ewma.sum_at(now)), [8.0, 4.0, 2.0, 1.0]);
    }

    #[test]
    fn samples_of_one_tick_count_alike() {
        let mut ewma = Ewma::new(half_life(10));
        ewma.record(5, 1.0);
        ewma.record(5, 2.0);
        ewma.record(5, 6.0);
        assert_eq!((ewma.average(), ewma.count_at(5)), (Some(3.0), 3.0));
    }

    #[test]
    fn after_an_age_only_the_new_sample_counts() {
        let mut ewma = Ewma::new(half_life(1));
        ewma.record(0, 1e6);
        ewma.record(u64::MAX, 3.0);
        assert_eq!((ewma.average(), ewma.sum_at(u64::MAX)), (Some(3.0), 3.0));
    }

    #[test]
    fn a_clock_that_goes_back_ages_nothing() {
        let mut ewma = Ewma::new(half_life(10));
        ewma.record(100, 4.0);
        ewma.record(0, 2.0);
        assert_eq!((ewma.average(), ewma.sum_at(0), ewma.sum_at(110)), (Some(3.0), 6.0, 3.0));
    }

    #[test]
    fn the_average_outlives_the_weight_of_its_samples() {
        let mut ewma = Ewma::new(half_life(1));
        ewma.record(0, 4.0);
        assert_eq!((ewma.average(), ewma.count_at(5_000)), (Some(4.0), 0.0));
    }

    #[test]
    fn samples_too_large_to_add_up_do_not_spoil_later_answers() {
        let mut ewma = Ewma::new(half_life(1));
        ewma.record(0, f64::MAX);
        ewma.record(0, f64::MAX);
        assert_eq!((ewma.sum_at(0), ewma.sum_at(5_000)), (f64::MAX, 0.0));
        ewma.record(5_000, 3.0);
        assert_eq!(ewma.average(), Some(3.0));
    }

    #[test]
    #[should_panic(expected = "finite")]
    fn a_sample_that_is_not_a_number_is_a_bug() {
        Ewma::new(half_life(1)).record(0, f64::NAN);
    }
}
