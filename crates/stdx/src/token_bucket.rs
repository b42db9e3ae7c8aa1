//! A token bucket in whole numbers: refills are exact after any number of calls, however they are spaced.
//!
//! Credit is counted in shares of a token so small that one tick refills a whole number of them, so nothing is rounded and
//! nothing drifts. Time is an argument, in the caller's ticks.

use core::fmt;
use core::num::NonZeroU32;

/// How fast a bucket fills: `tokens` in every `ticks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many tokens are added in [`ticks`](Self::ticks). Zero is a bucket that is never refilled.
    pub tokens: u32,
    /// In how much time.
    pub ticks: NonZeroU32,
}

/// Lets through `burst` at once and a [`Rate`] in the long run.
///
/// ```
/// use std::num::NonZeroU32;
/// use tessera_stdx::{Rate, TakeRefused, TokenBucket};
///
/// let per_second = Rate { tokens: 3, ticks: NonZeroU32::new(1_000).unwrap() };
/// let mut bucket = TokenBucket::full(per_second, 2, 0);
/// assert_eq!(bucket.take(0, 2), Ok(()));
/// assert_eq!(bucket.take(0, 1), Err(TakeRefused::RetryAfter { ticks: 334 }));
/// assert_eq!(bucket.take(334, 1), Ok(()));
/// assert_eq!(bucket.take(334, 3), Err(TakeRefused::Never { burst: 2 }));
/// ```
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate: Rate,
    burst: u32,
    level: TokenLevel,
}

/// The content of a bucket, apart from the rate and the burst: for many buckets that have those in common.
#[derive(Debug, Clone)]
pub struct TokenLevel {
    /// Of a token's `rate.ticks` shares each, `rate.tokens` of which arrive per tick. At most `burst` tokens.
    shares: u64,
    refilled_at: u64,
}

/// Why tokens were not given. None were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeRefused {
    /// There will be enough this long after the `now` of the call, if no other caller takes any; not sooner.
    RetryAfter {
        /// At least one.
        ticks: u64,
    },
    /// There will never be as many: it is more than the burst, or the rate is zero.
    Never {
        /// The most that can ever be taken at once.
        burst: u32,
    },
}

impl TokenBucket {
    /// A bucket that holds `burst` tokens and is full at `now`.
    pub fn full(rate: Rate, burst: u32, now: u64) -> Self {
        Self { rate, burst, level: TokenLevel::full(rate, burst, now) }
    }

    /// Takes `tokens`, all or none.
    ///
    /// No tick is credited twice: while `now` is before the latest one seen, nothing is refilled.
    pub fn take(&mut self, now: u64, tokens: u32) -> Result<(), TakeRefused> {
        self.level.take(self.rate, self.burst, now, tokens)
    }

    /// How many whole tokens could be taken at `now`.
    pub fn available(&self, now: u64) -> u32 {
        let mut refilled = self.level.clone();
        refilled.refill(self.rate, self.burst, now);
        (refilled.shares / u64::from(self.rate.ticks.get())) as u32 // At most `burst`.
    }
}

impl TokenLevel {
    /// That of a bucket of `burst` tokens that is full at `now`.
    pub fn full(rate: Rate, burst: u32, now: u64) -> Self {
        Self { shares: rate.shares_of(burst), refilled_at: now }
    }

    /// Takes `tokens` as [`TokenBucket::take`] does. If the rate or the burst is another than before, it is from now on.
    pub fn take(&mut self, rate: Rate, burst: u32, now: u64, tokens: u32) -> Result<(), TakeRefused> {
        self.refill(rate, burst, now);
        let wanted = rate.shares_of(tokens);
        if let Some(rest) = self.shares.checked_sub(wanted) {
            self.shares = rest;
            return Ok(());
        }
        if tokens > burst || rate.tokens == 0 {
            return Err(TakeRefused::Never { burst });
        }
        let refill_ticks = (wanted - self.shares).div_ceil(u64::from(rate.tokens));
        Err(TakeRefused::RetryAfter {
            ticks: (self.refilled_at - now.min(self.refilled_at)).saturating_add(refill_ticks),
        })
    }

    fn refill(&mut self, rate: Rate, burst: u32, now: u64) {
        let ticks = now.saturating_sub(self.refilled_at);
        let arrived = ticks.saturating_mul(u64::from(rate.tokens));
        self.shares = self.shares.saturating_add(arrived).min(rate.shares_of(burst));
        self.refilled_at = self.refilled_at.max(now);
    }
}

impl Rate {
    /// Two `u32` multiplied, so it cannot overflow.
    fn shares_of(self, tokens: u32) -> u64 {
        u64::from(tokens) * u64::from(self.ticks.get())
    }
}

impl fmt::Display for TakeRefused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RetryAfter { ticks } => write!(formatter, "rate limit reached: try again after {ticks} ticks"),
            Self::Never { burst } => {
                write!(formatter, "this limit never lets through so much at once: at most {burst}")
            }
        }
    }
}

impl core::error::Error for TakeRefused {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn rate(tokens: u32, ticks: u32) -> Rate {
        Rate { tokens, ticks: NonZeroU32::new(ticks).expect("the test says a time") }
    }

    /// A bucket told tick by tick, with a token as the fraction `shares / ticks`.
    struct Model {
        rate: Rate,
        burst: u32,
        shares: u128,
        now: u64,
    }

    impl Model {
        fn take(&mut self, now: u64, tokens: u32) -> bool {
            let ticks = u128::from(self.rate.ticks.get());
            while self.now < now {
                self.now += 1;
                self.shares = (self.shares + u128::from(self.rate.tokens)).min(u128::from(self.burst) * ticks);
            }
            let wanted = u128::from(tokens) * ticks;
            let enough = self.shares >= wanted;
            if enough {
                self.shares -= wanted;
            }
            enough
        }
    }

    proptest! {
        #[test]
        fn a_bucket_agrees_with_one_that_is_refilled_every_tick(
            tokens in 0..20_u32, ticks in 1..50_u32, burst in 0..30_u32, start in 0..1000_u64,
            calls in prop::collection::vec((-20..60_i64, 0..10_u32), 0..100),
        ) {
            let rate = rate(tokens, ticks);
            let mut bucket = TokenBucket::full(rate, burst, start);
            let mut model = Model { rate, burst, shares: u128::from(burst) * u128::from(ticks), now: start };
            let mut now = start;
            for (later, wanted) in calls {
                now = now.saturating_add_signed(later);
                prop_assert_eq!(bucket.take(now, wanted).is_ok(), model.take(now, wanted));
                prop_assert_eq!(u128::from(bucket.available(now)), model.shares / u128::from(ticks));
            }
        }

        #[test]
        fn waiting_as_told_is_enough_and_a_tick_less_is_not(
            tokens in any::<u32>(), ticks in 1..=u32::MAX, burst in any::<u32>(),
            start in any::<u64>(), first in any::<u32>(), second in any::<u32>(), later in any::<u32>(), back in any::<u32>(),
        ) {
            let mut bucket = TokenBucket::full(rate(tokens, ticks), burst, start);
            let _ = bucket.take(start.saturating_add(u64::from(later)), first);
            let now = start.saturating_add(u64::from(later)).saturating_sub(u64::from(back));
            match bucket.clone().take(now, second) {
                Ok(()) => prop_assert!(bucket.available(now) >= second),
                Err(TakeRefused::RetryAfter { ticks }) => {
                    prop_assert!(ticks >= 1);
                    if let Some(then) = now.checked_add(ticks) {
                        prop_assert!(bucket.clone().take(then - 1, second).is_err());
                        prop_assert_eq!(bucket.clone().take(then, second), Ok(()));
                    }
                }
                Err(TakeRefused::Never { .. }) => {
                    prop_assert!(second > burst || tokens == 0);
                    prop_assert!(bucket.take(u64::MAX, second).is_err());
                }
            }
        }
    }

    #[test]
    fn a_rate_that_does_not_divide_evenly_does_not_drift() {
        // A third of a token per tick, asked for at every tick for a long time.
        let mut bucket = TokenBucket::full(rate(1, 3), 1, 0);
        let taken = (0..300_000).filter(|now| bucket.take(*now, 1).is_ok()).count();
        assert_eq!(taken, 100_000);
    }

    #[test]
    fn the_burst_is_let_through_and_one_more_is_not() {
        let mut bucket = TokenBucket::full(rate(1, 10), 5, 0);
        assert_eq!(bucket.take(0, 5), Ok(()));
        assert_eq!(bucket.take(0, 1), Err(TakeRefused::RetryAfter { ticks: 10 }));
        assert_eq!(bucket.take(9, 1), Err(TakeRefused::RetryAfter { ticks: 1 }));
        assert_eq!(bucket.take(10, 1), Ok(()));
    }

    #[test]
    fn idling_for_ever_fills_the_bucket_and_no_more() {
        let mut bucket = TokenBucket::full(rate(u32::MAX, u32::MAX), u32::MAX, 0);
        assert_eq!(bucket.take(0, u32::MAX), Ok(()));
        assert_eq!(bucket.available(u64::MAX), u32::MAX);
        assert_eq!(bucket.take(u64::MAX, u32::MAX), Ok(()));
        assert!(bucket.take(u64::MAX, 1).is_err());
    }

    #[test]
    fn a_pause_too_long_to_multiply_still_fills_the_bucket() {
        let mut bucket = TokenBucket::full(rate(2, 1), 7, 0);
        assert_eq!(bucket.take(0, 7), Ok(()));
        assert_eq!(bucket.available(1 << 63), 7);
    }

    #[test]
    fn a_clock_that_swings_back_and_forth_earns_nothing() {
        let mut bucket = TokenBucket::full(rate(1, 10), 1, 100);
        assert_eq!(bucket.take(100, 1), Ok(()));
        let earned: Vec<_> = [0, 100, 50, 100, 99, 0, 100].map(|now| bucket.take(now, 1).is_ok()).into();
        assert_eq!(earned, [false; 7]);
        assert_eq!(bucket.take(50, 1), Err(TakeRefused::RetryAfter { ticks: 60 }));
        assert_eq!(bucket.take(110, 1), Ok(()));
    }

    #[test]
    fn taking_nothing_always_succeeds() {
        assert_eq!(TokenBucket::full(rate(0, 1), 0, 0).take(0, 0), Ok(()));
    }
}
