//! Backends around backends: one that takes turns, one that makes durable what it did, one that loses answers on purpose.

use crate::error::InfraError;
use crate::events::EventSink;

/// A backend around another, through which every operation passes by one method.
///
/// A type that implements this has all of the backend traits that the backend inside has; a batched operation passes once.
///
/// ```
/// use tessera_coordination::backend::Wrapper;
/// use tessera_coordination::error::InfraError;
/// use tessera_coordination::events::EventSink;
///
/// /// Counts what is asked of a backend.
/// struct Counted<B> {
///     inner: B,
///     calls: u64,
/// }
///
/// impl<B> Wrapper for Counted<B> {
///     type Inner = B;
///
///     fn pass<T, E: From<InfraError>>(
///         &mut self,
///         events: &mut dyn EventSink,
///         operation: impl FnOnce(&mut B, &mut dyn EventSink) -> Result<T, E>,
///     ) -> Result<T, E> {
///         self.calls += 1;
///         operation(&mut self.inner, events)
///     }
/// }
///
/// fn takes_any_backend(_: impl tessera_coordination::CoordinationFacade) {}
/// takes_any_backend(Counted { inner: tessera_coordination::InMemoryCoordinator::default(), calls: 0 });
/// ```
pub trait Wrapper {
    /// The backend inside.
    type Inner;

    /// Runs one operation on the backend inside, or answers in its place that it failed. The operation tells of what it does
    /// to the sink that it is handed, which need not be `events`: a wrapper may live by what it hears there.
    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut Self::Inner, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E>;
}
