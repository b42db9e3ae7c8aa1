//! Pauses that double: between two tries of what failed, and between two looks for what is not there yet.

use std::time::Duration;

/// The next pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses that begin with `first`.
    pub(crate) const fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    /// How long to pause now, at most `longest`.
    pub(crate) fn next(&mut self, longest: Duration) -> Duration {
        let pause = self.next.min(longest);
        self.next = pause * 2;
        pause
    }

    /// Begins anew: it succeeded, or is there.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(Duration::from_millis(5));
        let mut pauses = |count: usize| -> Vec<u128> {
            (0..count).map(|_| backoff.next(Duration::from_millis(18)).as_millis()).collect()
        };
        assert_eq!(pauses(5), [5, 10, 18, 18, 18]);
        backoff.reset();
        assert_eq!(backoff.next(Duration::from_millis(3)), Duration::from_millis(3));
        assert_eq!(backoff.next(Duration::from_secs(1)), Duration::from_millis(6));
    }
}
