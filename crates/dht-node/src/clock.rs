//! The two clocks of a lane: the runtime's own time, shifted to agree with the time used before the lane ran, and the wall clock,
//! read now and then. In virtual time there is no other clock than the runtime's.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tessera_dht::time::Now;
use tessera_lanes::LaneTime;

/// The wall clock is read again after this long: reading it for every datagram would be a per cent of the work.
const WALL_CLOCK_EVERY_MS: u64 = 250;

/// The clocks of one lane.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Origin,
    /// The offset added to the runtime's time; known from the first call on.
    shift_ms: Option<u64>,
    last: Now,
    wall_read_ms: u64,
}

/// The clock beside the runtime's.
#[derive(Debug)]
enum Origin {
    /// The system's, since then.
    System(Instant),
    /// None: time zero of the runtime is this.
    Virtual(Now),
}

impl Clock {
    /// Time zero of a virtual runtime is `zero`, and the lane is made at `now`.
    pub(crate) fn at_virtual(zero: Now, now: LaneTime) -> Self {
        let mut clock = Self { origin: Origin::Virtual(zero), shift_ms: None, last: zero, wall_read_ms: 0 };
        clock.at(now);
        clock
    }

    /// `origin` lies before the start of the runtime and is the same for all lanes of a node.
    pub(crate) fn new(origin: Instant) -> Self {
        let mono_ms = origin.elapsed().as_millis() as u64;
        let last = Now { mono_ms, unix_ms: unix_ms() };
        Self { origin: Origin::System(origin), shift_ms: None, last, wall_read_ms: mono_ms }
    }

    /// The time while the lane recovers and has none of its own yet.
    pub(crate) fn early(&self) -> Now {
        self.last
    }

    /// The time of a turn.
    pub(crate) fn at(&mut self, time: LaneTime) -> Now {
        let origin = match self.origin {
            Origin::System(origin) => origin,
            Origin::Virtual(zero) => {
                let elapsed_ms = time.millis();
                self.last = Now { mono_ms: zero.mono_ms + elapsed_ms, unix_ms: zero.unix_ms + elapsed_ms };
                return self.last;
            }
        };
        let elapsed_ms = || origin.elapsed().as_millis() as u64;
        let shift_ms = *self.shift_ms.get_or_insert_with(|| elapsed_ms().saturating_sub(time.millis()));
        // A monotone clock never goes back, not even by the rounding of its first reading.
        let mono_ms = (time.millis() + shift_ms).max(self.last.mono_ms);
        let unix_ms = if mono_ms >= self.wall_read_ms + WALL_CLOCK_EVERY_MS {
            self.wall_read_ms = mono_ms;
            unix_ms()
        } else {
            self.last.unix_ms + (mono_ms - self.last.mono_ms)
        };
        self.last = Now { mono_ms, unix_ms };
        self.last
    }
}

/// Milliseconds since 1970; zero before it.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_virtual_time_the_wall_clock_is_the_runtimes() {
        let mut clock = Clock::at_virtual(Now { mono_ms: 5, unix_ms: 1_000 }, LaneTime(7_000));
        assert_eq!(clock.early(), Now { mono_ms: 12, unix_ms: 1_007 });
        assert_eq!(clock.at(LaneTime(9_000)), Now { mono_ms: 14, unix_ms: 1_009 });
    }

    #[test]
    fn a_lane_that_starts_late_goes_on_where_its_recovery_was() {
        let origin = Instant::now() - std::time::Duration::from_secs(100);
        let mut clock = Clock::new(origin);
        let early = clock.early();
        assert!(early.mono_ms >= 100_000);
        let first = clock.at(LaneTime(3_000_000));
        assert!(first.mono_ms >= early.mono_ms && first.mono_ms < early.mono_ms + 60_000);
        let later = clock.at(LaneTime(3_700_000));
        assert_eq!(later.mono_ms, first.mono_ms + 700);
        assert_eq!(clock.at(LaneTime(3_699_000)).mono_ms, later.mono_ms, "time does not go back");
        assert!(later.unix_ms.abs_diff(unix_ms()) < 60_000);
    }
}
