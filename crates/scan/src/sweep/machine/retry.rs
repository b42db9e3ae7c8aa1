//! How often and after which pause anything is tried again.

use std::time::Duration;

use crate::backoff::Backoff;

/// How often a call that fails for now is tried.
pub(super) const ATTEMPTS_MAX: u32 = 6;

const PAUSE_MIN: Duration = Duration::from_millis(40);
const PAUSE_MAX: Duration = Duration::from_millis(1_280);

/// Failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    failures: u32,
    attempts_max: u32,
    backoff: Backoff,
}

impl Retry {
    /// None so far; the last of `attempts_max` is final.
    pub(super) const fn new(attempts_max: u32) -> Self {
        Self { failures: 0, attempts_max, backoff: Backoff::new(PAUSE_MIN) }
    }

    /// It failed: how long to wait before the next attempt, or `None` if there is none.
    pub(super) fn failed(&mut self) -> Option<Duration> {
        self.failures += 1;
        (self.failures < self.attempts_max).then(|| self.backoff.next(PAUSE_MAX))
    }

    /// It succeeded: the next failure is the first.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.backoff.reset();
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
