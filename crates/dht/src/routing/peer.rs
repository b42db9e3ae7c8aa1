//! A peer, and how fast it answers.

use tessera_contracts::point::NodeId;

use crate::contact::Contact;

/// A peer of the table.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// How to reach it.
    pub contact: Contact,
    /// How fast it answers.
    pub round_trip: RoundTrip,
    /// When it last answered us.
    pub answered_ms: u64,
    /// Requests in a row it has not answered.
    pub silences: u8,
    /// What it said it can do; zero before it said so.
    pub capabilities: u64,
    pub(super) live: bool,
}

/// Smoothed round-trip time, as TCP keeps it: the mean and the mean deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrip {
    /// Smoothed round trip in eighths of a millisecond; zero before the first sample.
    srtt_8th: u32,
    /// Smoothed deviation, in quarters of a millisecond.
    deviation_4th: u32,
}

impl RoundTrip {
    /// Adds a sample.
    pub fn record(&mut self, ms: u64) {
        let ms = ms.min(60_000) as i64;
        if self.srtt_8th == 0 {
            self.srtt_8th = (ms as u32 * 8).max(1);
            self.deviation_4th = ms as u32 * 2;
            return;
        }
        let error = ms - i64::from(self.srtt_8th / 8);
        self.srtt_8th = (i64::from(self.srtt_8th) + error).max(1) as u32;
        self.deviation_4th = (i64::from(self.deviation_4th) + error.abs() - i64::from(self.deviation_4th / 4)) as u32;
    }

    /// The smoothed round trip in milliseconds, if there was a sample.
    #[must_use]
    pub fn srtt_ms(&self) -> Option<u64> {
        (self.srtt_8th != 0).then_some(u64::from(self.srtt_8th / 8))
    }

    /// Mean plus four deviations: what nearly every answer keeps within.
    #[must_use]
    pub fn slow_ms(&self) -> Option<u64> {
        self.srtt_ms().map(|ms| ms + u64::from(self.deviation_4th))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_follows_its_samples() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.srtt_ms(), None);
        round_trip.record(80);
        assert_eq!(round_trip.srtt_ms(), Some(80));
        for _ in 0..100 {
            round_trip.record(200);
        }
        assert!((190..=200).contains(&round_trip.srtt_ms().unwrap()));
        round_trip.record(0);
        assert!(round_trip.srtt_ms().is_some(), "a sample of zero is a sample");
    }
}
