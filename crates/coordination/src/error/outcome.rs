//! The answer to an operation that may be a retry.

/// Whether an operation took effect now or is remembered from before. The result is the same either way; the difference
/// matters to metrics, and `Superseded` to a caller that relies on the effect still standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdempotentOutcome<T> {
    /// First execution.
    Executed(T),
    /// A retry: this is what the first execution answered.
    Replayed(T),
    /// A retry of something that took effect and was undone since (a park, after the shard was unparked). Nothing was
    /// done now: doing it again takes a new op id and a valid lease.
    Superseded(T),
}

impl<T> IdempotentOutcome<T> {
    /// The result, however it came about.
    pub fn into_inner(self) -> T {
        match self {
            Self::Executed(value) | Self::Replayed(value) | Self::Superseded(value) => value,
        }
    }

    /// The result, however it came about.
    pub const fn get(&self) -> &T {
        match self {
            Self::Executed(value) | Self::Replayed(value) | Self::Superseded(value) => value,
        }
    }

    /// Whether it took effect by this very call.
    pub const fn is_executed(&self) -> bool {
        matches!(self, Self::Executed(_))
    }

    /// The same outcome of another result.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> IdempotentOutcome<U> {
        match self {
            Self::Executed(value) => IdempotentOutcome::Executed(f(value)),
            Self::Replayed(value) => IdempotentOutcome::Replayed(f(value)),
            Self::Superseded(value) => IdempotentOutcome::Superseded(f(value)),
        }
    }
}
