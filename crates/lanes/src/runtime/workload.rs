//! How much of its time a thread works.
//!
//! Looked at over seconds: a burst, such as that of nodes that start and meet each other, says little about the time after it.

use std::time::{Duration, Instant};

/// So long is looked at before anything is said.
const WINDOW: Duration = Duration::from_secs(4);

/// A thread's notes on its sleep.
#[derive(Debug)]
pub(super) struct Workload {
    since: Instant,
    slept: Duration,
}

impl Workload {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, slept: Duration::ZERO }
    }

    /// The thread slept from one moment to the other. Says, once in a while, how many of a hundred parts of its time it worked.
    pub(super) fn note_sleep(&mut self, from: Instant, to: Instant) -> Option<u8> {
        self.slept += to.saturating_duration_since(from);
        let window = to.saturating_duration_since(self.since);
        if window < WINDOW {
            return None;
        }
        let worked = window.saturating_sub(self.slept).as_micros() * 100 / window.as_micros();
        *self = Self::new(to);
        Some(worked as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_three_quarters_of_its_time_works_a_quarter() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut workload = Workload::new(start);
        let mut said: Vec<u8> =
            (0..99).filter_map(|n| workload.note_sleep(at(n * 100 + 25), at(n * 100 + 100))).collect();
        assert_eq!(said, [25, 25]);
        // It begins anew each time, and bounds hold even if the clock steps.
        said.clear();
        said.extend(workload.note_sleep(at(9_900), at(16_000)));
        said.extend(workload.note_sleep(at(17_000), at(16_500)));
        said.extend(workload.note_sleep(at(20_000), at(20_000)));
        assert_eq!(said, [5, 100]);
    }
}
