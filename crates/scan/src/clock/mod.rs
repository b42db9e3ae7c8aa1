//! Where times come from, and the dates they are shown as.

pub mod calendar;

use tessera_contracts::LogicalTime;

/// Time, as the coordinator counts it: milliseconds.
pub trait Clock {
    /// Now.
    fn now(&self) -> LogicalTime;
}

impl<F: Fn() -> LogicalTime> Clock for F {
    fn now(&self) -> LogicalTime {
        self()
    }
}

/// Milliseconds since 1970 by the machine's clock.
pub fn wall_clock() -> LogicalTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    LogicalTime::new(since.as_millis() as u64)
}
