//! Parking: the reason, a short text for people, and advice on when to try again.
//!
//! `retry_after` is advice. A parked shard stays parked until someone unparks it: reviving work is a decision with a name
//! on it (`unpark_shard` takes an op id and the expected fence), and a clock must not take it silently. Listings and
//! `explain_claim` show which parked shards are due.

use core::fmt;

use tessera_contracts::canonical::{CanonicalBytes, CanonicalSink};
use tessera_contracts::ids::LogicalTime;

use super::status::ParkReason;

/// Longest detail text, in bytes.
pub const PARK_DETAIL_BYTES_MAX: usize = 512;

/// Why and until when, as the record's fixed part stores it; the detail text is stored beside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ParkInfo {
    /// Why.
    pub reason: ParkReason,
    /// From when on trying again may make sense.
    pub retry_after: Option<LogicalTime>,
}

/// A request to park.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Park<'a> {
    /// Why.
    pub reason: ParkReason,
    /// What happened, in words.
    pub detail: Option<ParkDetail<'a>>,
    /// From when on trying again may make sense.
    pub retry_after: Option<LogicalTime>,
}

impl Park<'_> {
    /// Parks for `reason`, with nothing further to say.
    pub const fn because(reason: ParkReason) -> Self {
        Self { reason, detail: None, retry_after: None }
    }
}

impl<'a> Park<'a> {
    /// The same with a detail text, cut to [`PARK_DETAIL_BYTES_MAX`].
    #[must_use]
    pub fn with_detail(self, detail: &'a str) -> Self {
        Self { detail: ParkDetail::new(detail), ..self }
    }

    /// The same with advice on when to try again.
    #[must_use]
    pub const fn with_retry_after(self, retry_after: LogicalTime) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }
}

impl From<ParkReason> for Park<'_> {
    fn from(reason: ParkReason) -> Self {
        Self::because(reason)
    }
}

impl CanonicalBytes for ParkReason {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.u8(self.as_u8());
    }
}

impl CanonicalBytes for Park<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.reason.write_canonical(sink);
        sink.optional_bytes(self.detail.map(|detail| detail.as_str().as_bytes()));
        self.retry_after.write_canonical(sink);
    }
}

/// A text of 1 to [`PARK_DETAIL_BYTES_MAX`] bytes that tells people why a shard was parked. It should name no secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParkDetail<'a>(&'a str);

impl<'a> ParkDetail<'a> {
    /// The text, cut at the last whole character that fits. An empty text is none.
    pub fn new(text: &'a str) -> Option<Self> {
        let cut = text.floor_char_boundary(PARK_DETAIL_BYTES_MAX);
        (cut > 0).then(|| Self(&text[..cut]))
    }

    /// The text.
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

impl fmt::Display for ParkDetail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    #[test]
    fn a_detail_is_cut_at_the_last_whole_character_that_fits() {
        assert_eq!(ParkDetail::new(""), None);
        let exact: String = "x".repeat(PARK_DETAIL_BYTES_MAX);
        assert_eq!(ParkDetail::new(&exact).unwrap().as_str().len(), PARK_DETAIL_BYTES_MAX);
        let over: String = "x".repeat(PARK_DETAIL_BYTES_MAX + 1);
        assert_eq!(ParkDetail::new(&over).unwrap().as_str().len(), PARK_DETAIL_BYTES_MAX);
        let wide: String = "ü".repeat(PARK_DETAIL_BYTES_MAX);
        assert_eq!(ParkDetail::new(&wide).unwrap().as_str().len(), PARK_DETAIL_BYTES_MAX);
        let odd = alloc::format!("x{wide}");
        assert_eq!(ParkDetail::new(&odd).unwrap().as_str().len(), PARK_DETAIL_BYTES_MAX - 1);
    }
}
