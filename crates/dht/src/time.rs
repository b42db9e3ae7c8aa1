//! The two clocks a lane is told about; it can read neither by itself.
//!
//! Timers, round trips and rates need a clock that never steps back; key periods, record lifetimes and signatures need
//! one that strangers share. Both arrive with every call, so a simulator owns time entirely.

use core::time::Duration;

/// One instant, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds on the node's monotone clock: an arbitrary origin, never going back.
    pub mono_ms: u64,
    /// Milliseconds since 1970 on the wall clock: may step either way.
    pub unix_ms: u64,
}

impl Now {
    /// Seconds since 1970.
    #[must_use]
    pub fn unix_secs(self) -> u64 {
        self.unix_ms / 1000
    }

    /// Both clocks moved on by `by`.
    #[must_use]
    pub fn later(self, by: Duration) -> Self {
        let ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Self { mono_ms: self.mono_ms.saturating_add(ms), unix_ms: self.unix_ms.saturating_add(ms) }
    }
}
