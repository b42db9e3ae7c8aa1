//! How often and after which pause anything is tried again.

use std::time::Duration;

/// How often a call that fails for now is tried.
pub(super) const ATTEMPTS_MAX: u32 = 6;

const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Pauses double so many times.
const DOUBLINGS_MAX: u32 = 6;

/// Failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    failures: u32,
    attempts_max: u32,
}

impl Retry {
    /// None so far; the last of `attempts_max` is final.
    pub(super) const fn new(attempts_max: u32) -> Self {
        Self { failures: 0, attempts_max }
    }

    /// It failed: how long to wait before the next attempt, or `None` if there is none.
    pub(super) fn failed(&mut self) -> Option<Duration> {
        self.failures += 1;
        (self.failures < self.attempts_max).then(|| PAUSE_MIN * (1 << self.failures.min(DOUBLINGS_MAX)))
    }

    /// It succeeded: the next failure is the first.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_the_last_failure_is_final() {
        let mut retry = Retry::new(10);
        let pauses: Vec<u128> = std::iter::from_fn(|| retry.failed()).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [40, 80, 160, 320, 640, 1_280, 1_280, 1_280, 1_280]);
        assert_eq!(retry.failed(), None);
        retry.succeeded();
        assert_eq!(retry.failed(), Some(Duration::from_millis(40)));
        assert_eq!(Retry::new(1).failed(), None);
    }
}
