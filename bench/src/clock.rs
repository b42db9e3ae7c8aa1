//! CPU time and wall time of this process.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A moment, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    cpu: Duration,
    wall: Instant,
}

/// The time between two moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    /// CPU time of all threads of this process: a body may use helpers, and their work counts.
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(cpu.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(cpu.tv_nsec).unwrap_or_default();
        Self { cpu: Duration::new(seconds, nanos), wall: Instant::now() }
    }

    pub(crate) fn passed(self) -> Passed {
        let now = Self::now();
        Passed { cpu: now.cpu.saturating_sub(self.cpu), wall: now.wall.duration_since(self.wall) }
    }
}
