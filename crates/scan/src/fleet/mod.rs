//! One scan on many machines.
//!
//! The submitter plans a run, writes what is looked for into the run's folder ([`crate::job`]), registers the shards and
//! follows ([`follow()`]). Workers anywhere find the run through the coordinator, read its job, and sweep shards as they do on one
//! machine ([`serve()`]). What they find goes to files of their own in the run's folder, which all machines reach under the same
//! path, as they do what is scanned. Nobody waits for anybody: workers come and go, and so may the submitter.
//!
//! A coordinator that cannot be reached is tried again for a while; then the program ends with a message. Nothing is lost by
//! that: what was checkpointed stands, the rest is done again.

pub mod follow;
pub mod serve;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::WorkerId;
use tessera_coordination::CoordinationFacade;

use crate::error::ScanError;
pub use follow::{Following, follow};
pub use serve::{Serving, serve};

/// How to reach the coordinator.
pub trait Connect {
    /// A handle for one worker.
    type Backend: CoordinationFacade;

    /// A new handle.
    fn connect(&self) -> Result<Self::Backend, String>;

    /// A worker is gone for good: whatever the coordinator keeps for it can be forgotten. A wish; it would expire anyway.
    fn leave(&self, backend: &mut Self::Backend, worker: WorkerId) {
        let _ = (backend, worker);
    }
}

/// Bears failures of the coordinator for a while.
#[derive(Debug)]
struct Patience {
    give_up_after: Duration,
    failing: Option<(Instant, u32)>,
}

const RETRY_WAIT_MAX: Duration = Duration::from_secs(2);

impl Patience {
    const fn new(give_up_after: Duration) -> Self {
        Self { give_up_after, failing: None }
    }

    fn succeeded(&mut self) {
        self.failing = None;
    }

    /// Waits a little, or says that it has been too long.
    fn failed(&mut self, message: &str, stop: &AtomicBool) -> Result<(), ScanError> {
        let (since, times) = self.failing.unwrap_or((Instant::now(), 0));
        let lasted = since.elapsed();
        if lasted >= self.give_up_after {
            let waited = lasted.as_secs();
            let said =
                format!("{message}; gave up after {waited} s. What was checkpointed stands: start again to go on");
            return Err(ScanError::Coordinator(said));
        }
        self.failing = Some((since, times + 1));
        pause((Duration::from_millis(50) * (1 << times.min(6))).min(RETRY_WAIT_MAX), stop);
        Ok(())
    }
}

/// Sleeps, but not on after `stop` is set.
fn pause(length: Duration, stop: &AtomicBool) {
    let until = Instant::now() + length;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_borne_for_a_while_and_a_success_starts_it_anew() {
        let stop = AtomicBool::new(true);
        let mut patience = Patience::new(Duration::from_millis(30));
        patience.failed("away", &stop).unwrap();
        std::thread::sleep(Duration::from_millis(40));
        patience.succeeded();
        patience.failed("away", &stop).unwrap();
        std::thread::sleep(Duration::from_millis(40));
        let error = patience.failed("away", &stop).unwrap_err().to_string();
        assert!(error.contains("away") && error.contains("gave up"), "{error}");
    }
}
