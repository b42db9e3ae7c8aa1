//! How a worker stands with its coordinator, in numbers that others may read at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::InfraError;
use tessera_coordination::events::EventSink;

use crate::sweep::worker::WorkerProgress;

/// Bounds of the histogram of latencies.
pub const LATENCY_BOUNDS: [Duration; 10] =
    [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000].map(Duration::from_millis);

/// A worker as others see it.
#[derive(Debug, Default)]
pub struct ServingState {
    /// What it has done.
    pub progress: Arc<WorkerProgress>,
    /// Runs that go on, as it saw them last.
    pub runs: AtomicU64,
    /// Of these, those that it cannot work on.
    pub runs_unusable: AtomicU64,
    /// Calls to the coordinator that were tried again.
    pub retries: AtomicU64,
    /// Times that the coordinator went away.
    pub outages: AtomicU64,
    has_looked: AtomicBool,
    outage: Mutex<Option<String>>,
    latency: Latency,
}

/// A histogram as it was at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latencies {
    /// Calls that took no longer than each bound.
    pub up_to: [u64; LATENCY_BOUNDS.len()],
    /// All of them.
    pub count: u64,
    /// How long they took together.
    pub sum: Duration,
}

#[derive(Debug, Default)]
struct Latency {
    up_to: [AtomicU64; LATENCY_BOUNDS.len()],
    longer: AtomicU64,
    micros: AtomicU64,
}

impl ServingState {
    /// Why the coordinator cannot be used, while it cannot.
    pub fn outage(&self) -> Option<String> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the coordinator has ever answered.
    pub fn has_looked(&self) -> bool {
        self.has_looked.load(Ordering::Relaxed)
    }

    pub(super) fn looked(&self, runs: usize) {
        self.runs.store(runs as u64, Ordering::Relaxed);
        self.has_looked.store(true, Ordering::Relaxed);
        if let Some(outage) = self.outage.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(outage);
        }
    }

    pub(super) fn failed(&self, cause: &str) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if outage.replace(cause.to_owned()).is_none() {
            self.outages.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn took(&self, time: Duration) {
        let bucket = LATENCY_BOUNDS.iter().position(|bound| time <= *bound);
        bucket.map_or(&self.latency.longer, |at| &self.latency.up_to[at]).fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.latency.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// How long calls to the coordinator took so far.
    pub fn latency(&self) -> Latencies {
        let mut latencies = Latencies::default();
        let mut count = 0;
        for (up_to, bucket) in latencies.up_to.iter_mut().zip(&self.latency.up_to) {
            count += bucket.load(Ordering::Relaxed);
            *up_to = count;
        }
        latencies.count = count + self.latency.longer.load(Ordering::Relaxed);
        latencies.sum = Duration::from_micros(self.latency.micros.load(Ordering::Relaxed));
        latencies
    }
}

/// A backend whose calls are timed.
#[derive(Debug)]
pub struct Timed<B> {
    /// The backend itself, for operations of its own.
    pub inner: B,
    state: Arc<ServingState>,
}

impl<B> Timed<B> {
    /// Times calls to `inner`.
    pub const fn new(inner: B, state: Arc<ServingState>) -> Self {
        Self { inner, state }
    }
}

impl<B> Wrapper for Timed<B> {
    type Inner = B;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut B, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = operation(&mut self.inner, events);
        self.state.took(started.elapsed());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_each_call_once_and_up_to_every_bound_above() {
        let state = ServingState::default();
        for millis in [0, 1, 2, 100, 40_000] {
            state.took(Duration::from_millis(millis));
        }
        let latencies = state.latency();
        assert_eq!(latencies.up_to, [2, 3, 3, 3, 4, 4, 4, 4, 4, 4]);
        assert_eq!((latencies.count, latencies.sum), (5, Duration::from_millis(40_103)));
    }

    #[test]
    fn an_outage_counts_once_until_the_coordinator_answers() {
        let state = ServingState::default();
        assert!(!state.has_looked());
        state.failed("away");
        state.failed("still away");
        assert_eq!((state.outage().as_deref(), state.outages.load(Ordering::Relaxed)), (Some("still away"), 1));
        state.looked(3);
        assert_eq!((state.outage(), state.runs.load(Ordering::Relaxed), state.has_looked()), (None, 3, true));
        state.failed("away again");
        assert_eq!((state.outages.load(Ordering::Relaxed), state.retries.load(Ordering::Relaxed)), (2, 3));
    }
}
