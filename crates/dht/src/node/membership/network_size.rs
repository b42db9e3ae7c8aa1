//! About how many nodes there are.
//!
//! The median of estimates from recent lookups all over the space, one of each sixteenth of it, so that a crowd in one place does not
//! fool us however often it is visited; without enough of them, the estimate from our own neighbourhood.

use core::cell::Cell;

use crate::routing::RoutingTable;

const SAMPLES: usize = 16;

/// Fewer samples than this say less than our own neighbourhood.
const SAMPLES_MIN: usize = 3;

/// An estimate is good for so long: every write that is served asks for one, and it hardly changes.
const ESTIMATE_MS: u64 = 1000;

/// A sample older than this says nothing about a network that grows or shrinks.
const SAMPLE_MS_MAX: u64 = 120_000;

/// Estimates of the network's size from lookups at points all over the space.
#[derive(Debug, Default)]
pub(super) struct NetworkSize {
    /// The newest of each sixteenth of the space: when it was taken, and its estimate.
    samples: [Option<(u64, f64)>; SAMPLES],
    taken: usize,
    estimate: Cell<Option<Estimate>>,
}

/// An estimate made at a time from so many samples and peers.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    made_ms: u64,
    samples: usize,
    peers: usize,
    size: f64,
}

impl NetworkSize {
    pub(super) fn sample(&mut self, now_ms: u64, around: &[u8; 32], size: f64) {
        self.samples[usize::from(around[0] >> 4)] = Some((now_ms, size));
        self.taken += 1;
    }

    pub(super) fn at(&self, now_ms: u64, table: &RoutingTable) -> f64 {
        let (samples, peers) = (self.taken, table.live_len());
        let is_good =
            |known: &Estimate| (known.samples, known.peers) == (samples, peers) && now_ms - known.made_ms < ESTIMATE_MS;
        if let Some(known) = self.estimate.get().filter(is_good) {
            return known.size;
        }
        let size = self.median(now_ms).unwrap_or_else(|| table.network_size());
        self.estimate.set(Some(Estimate { made_ms: now_ms, samples, peers, size }));
        size
    }

    fn median(&self, now_ms: u64) -> Option<f64> {
        let mut recent = [0.0; SAMPLES];
        let mut len = 0;
        for (at_ms, sample) in self.samples.iter().flatten() {
            if now_ms.saturating_sub(*at_ms) <= SAMPLE_MS_MAX {
                recent[len] = *sample;
                len += 1;
            }
        }
        recent[..len].sort_by(f64::total_cmp);
        (len >= SAMPLES_MIN).then(|| recent[len / 2].max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::TableLimits;
    use tessera_contracts::point::NodeId;

    #[test]
    fn three_recent_samples_outvote_the_neighbourhood_and_old_ones_do_not_count() {
        let (mut size, table) =
            (NetworkSize::default(), RoutingTable::new(NodeId::from_bytes([1; 32]), TableLimits::default()));
        let alone = table.network_size();
        for (n, sample) in [100.0, 5000.0].into_iter().enumerate() {
            size.sample(n as u64, &[n as u8 * 16; 32], sample);
            assert_eq!(size.at(n as u64, &table), alone);
        }
        size.sample(2, &[16; 32], 4000.0);
        assert_eq!(size.at(2, &table), alone, "two of one region are one");
        size.sample(2, &[32; 32], 300.0);
        assert_eq!(size.at(2, &table), 300.0);
        assert_eq!(size.at(SAMPLE_MS_MAX + 1, &table), alone, "the first sample is too old, and two are too few");
    }
}
