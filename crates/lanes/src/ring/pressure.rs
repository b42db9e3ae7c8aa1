//! The flag by which a full control ring makes all producers shed load for its receiver.
//!
//! One per receiving lane. Each producer raises it for itself and takes its own raise back; while any raise stands, all
//! producers shed Coordination and Hints to that lane, so its loop has little else to drain than Control.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many producers find the control ring to this lane full.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    raised: AtomicU32,
}

impl Pressure {
    /// Whether lower classes to this lane are to be shed. A stale answer sheds or admits a few too many: no harm.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed) != 0
    }
}

/// One producer's raise, taken back when it is healthy again or gone.
#[derive(Debug)]
pub(crate) struct PressureHold {
    pressure: Arc<Pressure>,
    held: bool,
}

impl PressureHold {
    pub(crate) fn new(pressure: Arc<Pressure>) -> Self {
        Self { pressure, held: false }
    }

    pub(crate) fn is_raised_by_anyone(&self) -> bool {
        self.pressure.is_raised()
    }

    pub(crate) fn set(&mut self, held: bool) {
        if held != self.held {
            self.held = held;
            if held {
                self.pressure.raised.fetch_add(1, Ordering::Relaxed);
            } else {
                self.pressure.raised.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for PressureHold {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_that_dies_takes_its_raise_with_it() {
        let pressure = Arc::new(Pressure::default());
        let mut first = PressureHold::new(pressure.clone());
        let mut second = PressureHold::new(pressure.clone());
        first.set(true);
        first.set(true);
        second.set(true);
        second.set(false);
        assert!(pressure.is_raised(), "one producer's health does not speak for another");
        drop(first);
        assert!(!pressure.is_raised());
    }
}
