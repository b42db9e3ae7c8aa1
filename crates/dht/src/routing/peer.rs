//! A peer, and how fast it answers.

use tessera_contracts::point::NodeId;

use crate::contact::Contact;

/// A peer of the table.
///
/// Two lines of a processor's cache: a search for the nearest of many reads the first of each, and only peers that are named or asked
/// cost a second.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// When it last answered us.
    pub answered_ms: u64,
    /// How fast it answers a question.
    pub round_trip: Smoothed,
    /// How fast it acknowledges a write, which is when its log has it: not how far it is.
    pub write_trip: Smoothed,
    /// Its announced capabilities; zero before.
    pub capabilities: u64,
    /// Requests in a row it has not answered.
    pub silences: u8,
    pub(super) live: bool,
    /// How to reach it.
    pub contact: Contact,
}

const _: () = assert!(size_of::<Peer>() == 128 && core::mem::offset_of!(Peer, live) < 64);

impl Peer {
    /// Whether it has a place of its bucket; else it waits for one as a spare.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }
}

/// Smoothed round-trip time, as TCP keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Smoothed {
    /// In eighths of a millisecond; zero before the first sample.
    srtt_8th: u32,
}

impl Smoothed {
    /// Adds a sample.
    pub fn record(&mut self, ms: u64) {
        let ms = ms.min(SAMPLE_MS_MAX) as i64;
        if self.srtt_8th == 0 {
            self.srtt_8th = (ms as u32 * 8).max(1);
            return;
        }
        let error = ms - i64::from(self.srtt_8th / 8);
        self.srtt_8th = (i64::from(self.srtt_8th) + error).max(1) as u32;
    }

    /// The smoothed round trip in milliseconds, if there was a sample.
    #[must_use]
    pub fn srtt_ms(&self) -> Option<u64> {
        (self.srtt_8th != 0).then_some(u64::from(self.srtt_8th / 8))
    }
}

/// Samples count as at most this.
const SAMPLE_MS_MAX: u64 = 60_000;

/// Smoothed round-trip time and its mean deviation, as TCP keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrip {
    mean: Smoothed,
    /// Smoothed deviation, in quarters of a millisecond.
    deviation_4th: u32,
}

impl RoundTrip {
    /// Adds a sample.
    pub fn record(&mut self, ms: u64) {
        let ms = ms.min(SAMPLE_MS_MAX);
        self.deviation_4th = match self.mean.srtt_ms() {
            None => ms as u32 * 2,
            Some(mean_ms) => self.deviation_4th - self.deviation_4th / 4 + mean_ms.abs_diff(ms) as u32,
        };
        self.mean.record(ms);
    }

    /// The smoothed round trip in milliseconds, if there was a sample.
    #[must_use]
    pub fn srtt_ms(&self) -> Option<u64> {
        self.mean.srtt_ms()
    }

    /// Mean plus four deviations: nearly every answer comes within it.
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
