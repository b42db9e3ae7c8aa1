//! How a lookup ended, and the numbers it ends with.

/// Why a lookup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// What was wanted was found.
    Found,
    /// All who should know have been asked.
    Exhausted,
    /// Time ran out.
    OutOfTime,
    /// The request cap was reached.
    OutOfRequests,
    /// There was no node to ask.
    Alone,
    /// The caller gave up.
    Cancelled,
}

impl Finish {
    /// Every reason there is.
    pub const ALL: [Self; 6] =
        [Self::Found, Self::Exhausted, Self::OutOfTime, Self::OutOfRequests, Self::Alone, Self::Cancelled];

    /// The reason as metrics name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Exhausted => "exhausted",
            Self::OutOfTime => "out_of_time",
            Self::OutOfRequests => "out_of_requests",
            Self::Alone => "alone",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The values a small number went through: the first ones, and how many changes there were in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trajectory {
    values: [u8; 16],
    changes: u16,
}

impl Trajectory {
    pub(super) fn note(&mut self, value: usize) {
        if let Some(slot) = self.values.get_mut(usize::from(self.changes)) {
            *slot = value.min(usize::from(u8::MAX)) as u8;
        }
        self.changes = self.changes.saturating_add(1);
    }

    /// The first values, the one at the start included.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.values[..usize::from(self.changes).min(self.values.len())]
    }

    /// How many values there were, those not kept included.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.changes)
    }

    /// Whether nothing has been noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }
}

/// Numbers every lookup ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LookupStats {
    /// Requests sent, retries included.
    pub requests: u16,
    /// Answers that were used.
    pub answers: u16,
    /// Requests that were not answered in time.
    pub timeouts: u16,
    /// Refusals, of any kind.
    pub refusals: u16,
    /// Answers that were invalid.
    pub lies: u16,
    /// How many answers in a row led to the result, or to the nearest node.
    pub hops: u8,
    /// How many requests the lookup allowed itself in flight, as that changed.
    pub alpha: Trajectory,
    /// The most requests the lookup allowed itself in flight.
    pub alpha_peak: u8,
    /// The same at the end.
    pub alpha_end: u8,
    /// From start to end.
    pub elapsed_ms: u64,
}
