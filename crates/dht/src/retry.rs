//! The retry policy: how often a peer is tried again, and after which pause. All of it is here, so that no two parts of a lane
//! multiply each other's tries.

/// How often one peer is sent one request: a datagram may be lost, and a refused cookie comes with the right one.
pub const ATTEMPTS_MAX: u8 = 2;

/// Unanswered requests in a row after which a holder is written to no more.
pub const HOLDER_SILENCES_MAX: u8 = 3;

/// Pauses that a holder of announcements is granted beyond what it takes, before it is given up: else a holder that always asks for another would
/// keep the operation for itself, and such operations would soon be all there are.
pub const HOLDER_PAUSES_MAX: u8 = 8;

/// The pause that a holder may ask for.
const HOLDER_PAUSE_MS_MIN: u64 = 100;
const HOLDER_PAUSE_MS_MAX: u64 = 10_000;

/// A held record whose holder was asked too often is given to it so many times before the record is due again.
pub const REGIVEN_MAX: u8 = 3;

/// Tries after which a lost contact is given up, unless it is one of the nearest.
pub const LOST_TRIES_MAX: u8 = 12;

/// Between two tries of a lost contact.
pub const LOST: Backoff = Backoff { min_ms: 15_000, max_ms: 10 * 60 * 1000 };

/// Between two rounds of joining.
pub const JOIN: Backoff = Backoff { min_ms: 1000, max_ms: 60 * 1000 };

/// Between two lookups for our own neighbours because lost contacts came back: contacts that come and go on purpose would have us ask absent
/// ones without end.
pub const LOOK: Backoff = Backoff { min_ms: 15_000, max_ms: 10 * 60 * 1000 };

/// Whether a request that was sent so many times may be sent once more.
#[must_use]
pub fn may_repeat(attempts: u8) -> bool {
    attempts < ATTEMPTS_MAX
}

/// The pause that a holder gets which asked for `asked_ms`.
#[must_use]
pub fn holder_pause_ms(asked_ms: u32) -> u64 {
    u64::from(asked_ms).clamp(HOLDER_PAUSE_MS_MIN, HOLDER_PAUSE_MS_MAX)
}

/// A pause that doubles with each try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause.
    pub min_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Backoff {
    /// The pause after so many tries in vain.
    #[must_use]
    pub fn after_tries(&self, tries: u8) -> u64 {
        (self.min_ms << tries).min(self.max_ms)
    }

    /// The pause after one of `pause_ms`; zero for none before.
    #[must_use]
    pub fn after_pause(&self, pause_ms: u64) -> u64 {
        (pause_ms * 2).clamp(self.min_ms, self.max_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_least_to_the_most() {
        let backoff = Backoff { min_ms: 10, max_ms: 70 };
        assert_eq!([0, 1, 2, 3, 12].map(|tries| backoff.after_tries(tries)), [10, 20, 40, 70, 70]);
        assert_eq!([0, 5, 10, 35, 36, 70].map(|pause_ms| backoff.after_pause(pause_ms)), [10, 10, 20, 70, 70, 70]);
    }

    #[test]
    fn a_request_is_sent_twice_at_most() {
        assert_eq!([0, 1, 2, 3].map(may_repeat), [true, true, false, false]);
    }

    #[test]
    fn a_holder_gets_the_pause_it_asks_for_within_bounds() {
        assert_eq!([0, 99, 101, 10_000, u32::MAX].map(holder_pause_ms), [100, 100, 101, 10_000, 10_000]);
    }
}
