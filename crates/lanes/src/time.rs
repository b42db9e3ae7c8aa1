//! Time as handlers see it: microseconds since the runtime began, read once per turn and passed in.
//!
//! A handler that is given its time runs the same under a virtual clock. Only the runtime's shell reads a real one.

use core::time::Duration;

/// Microseconds since the runtime (or the simulation) began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LaneTime(pub u64);

impl LaneTime {
    /// The time `delay` after this one, or the end of time.
    #[must_use]
    pub const fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(micros(delay)))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, the tick of the timing wheel.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// The first tick that is not before this time: a timer may be late by a tick, never early.
    #[must_use]
    pub const fn millis_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// The low 32 bits, as stamped into an envelope.
    #[must_use]
    pub const fn stamp(self) -> u32 {
        self.0 as u32
    }
}

/// A duration in microseconds, saturating: 584,000 years are enough.
#[must_use]
pub(crate) const fn micros(duration: Duration) -> u64 {
    let micros = duration.as_micros();
    if micros > u64::MAX as u128 { u64::MAX } else { micros as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_tick_is_never_before_its_deadline() {
        assert_eq!(LaneTime(1000).millis_ceil(), 1);
        assert_eq!(LaneTime(1001).millis_ceil(), 2);
        assert_eq!(LaneTime(u64::MAX).after(Duration::MAX), LaneTime(u64::MAX));
        assert_eq!(LaneTime(5).since(LaneTime(9)), Duration::ZERO);
    }
}
