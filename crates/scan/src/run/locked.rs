//! One coordinator for several workers of one process.
//!
//! A coordinator in memory is a single structure, and every call to it takes microseconds; so workers take turns behind
//! one lock, which they hold for one call. It is the only thing they share. Backends with a handle for each worker (a
//! file, etcd) need none of this.

use std::sync::{Arc, Mutex, PoisonError};

use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::InfraError;
use tessera_coordination::events::EventSink;

/// A backend that several workers take turns with.
#[derive(Debug)]
pub struct Locked<B>(Arc<Mutex<B>>);

impl<B> Locked<B> {
    /// Shares `backend`.
    pub fn new(backend: B) -> Self {
        Self(Arc::new(Mutex::new(backend)))
    }
}

impl<B> Clone for Locked<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Wrapper for Locked<B> {
    type Inner = B;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut B, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        // A backend decides before it changes anything, so one that panicked holds what it held before.
        operation(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), events)
    }
}
