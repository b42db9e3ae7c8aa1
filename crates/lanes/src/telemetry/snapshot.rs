//! All counters at one moment, and the difference of two such moments: rates, shares, rankings.

use std::sync::Arc;
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;

use crate::class::{Class, DropCause};
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::histogram::{BUCKETS, percentile};

/// The counters of every lane, read at about the same time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By lane.
    pub lanes: Vec<LaneSnapshot>,
}

/// The counters of one lane.
#[derive(Clone, Debug)]
pub struct LaneSnapshot {
    /// Per class.
    pub classes: [ClassSnapshot; 3],
    /// Messages sent and dropped, by kind.
    pub kinds: Box<[(u64, u64); 256]>,
    /// The other counters, by name.
    pub totals: Vec<(&'static str, u64)>,
}

/// The counters of one class of one lane.
#[derive(Clone, Debug)]
pub struct ClassSnapshot {
    /// Accepted as they are.
    pub enqueued: u64,
    /// Said by another.
    pub coalesced: u64,
    /// Dropped, by cause.
    pub dropped: [u64; DropCause::ALL.len()],
    /// Handled.
    pub drained: u64,
    /// Waiting.
    pub depth: u64,
    /// The most that ever waited.
    pub depth_high_water: u64,
    /// How full the fullest ring is, in thousandths.
    pub fullest_permille: u64,
    /// Microseconds from send to handling, by bucket.
    pub latency: Box<[u64; BUCKETS]>,
}

impl ClassSnapshot {
    /// Dropped for any cause.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// The latency in microseconds that `permille` of the messages did not exceed.
    #[must_use]
    pub fn latency_percentile(&self, permille: u64) -> u64 {
        percentile(&self.latency, permille)
    }
}

impl Snapshot {
    /// Reads the counters of `lanes`.
    #[must_use]
    pub fn of(lanes: &[Arc<LaneCounters>]) -> Self {
        Self { lanes: lanes.iter().map(|counters| LaneSnapshot::of(counters)).collect() }
    }

    /// A counter by name, summed over the lanes; zero for a name there is not.
    #[must_use]
    pub fn total(&self, name: &str) -> u64 {
        self.lanes.iter().map(|lane| lane.total(name)).sum()
    }

    /// The `most` lanes that sent the most messages of `class` between `earlier` and this, with how many, and how many of
    /// theirs were dropped.
    #[must_use]
    pub fn noisiest_producers(&self, earlier: &Self, class: Class, most: usize) -> Vec<(LaneIndex, u64, u64)> {
        let mut ranking: Vec<(LaneIndex, u64, u64)> = self
            .lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| {
                let now = &lane.classes[class.index()];
                let then = earlier.lanes.get(index).map(|lane| &lane.classes[class.index()]);
                let sent = |class: &ClassSnapshot| class.enqueued + class.coalesced + class.dropped_total();
                let (sent_then, dropped_then) = then.map_or((0, 0), |then| (sent(then), then.dropped_total()));
                (
                    LaneIndex(index as u8),
                    sent(now).saturating_sub(sent_then),
                    now.dropped_total().saturating_sub(dropped_then),
                )
            })
            .filter(|(_, sent, _)| *sent > 0)
            .collect();
        ranking.sort_by_key(|(lane, sent, dropped)| (std::cmp::Reverse((*sent, *dropped)), *lane));
        ranking.truncate(most);
        ranking
    }

    /// The `most` message kinds with the most traffic between `earlier` and this: kind, sent, dropped.
    #[must_use]
    pub fn hottest_kinds(&self, earlier: &Self, most: usize) -> Vec<(u8, u64, u64)> {
        let sum = |snapshot: &Self, kind: usize| {
            snapshot.lanes.iter().map(|lane| lane.kinds[kind]).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let mut ranking: Vec<(u8, u64, u64)> = (0..=u8::MAX)
            .map(|kind| {
                let (now, then) = (sum(self, usize::from(kind)), sum(earlier, usize::from(kind)));
                (kind, now.0.saturating_sub(then.0), now.1.saturating_sub(then.1))
            })
            .filter(|(_, sent, dropped)| sent + dropped > 0)
            .collect();
        ranking.sort_by_key(|(kind, sent, dropped)| (std::cmp::Reverse(sent + dropped), *kind));
        ranking.truncate(most);
        ranking
    }

    /// Messages enqueued and drained a second in `class` since `earlier`, `elapsed` ago.
    #[must_use]
    pub fn rates(&self, earlier: &Self, class: Class, elapsed: Duration) -> (f64, f64) {
        let sum = |snapshot: &Self, of: fn(&ClassSnapshot) -> u64| -> u64 {
            snapshot.lanes.iter().map(|lane| of(&lane.classes[class.index()])).sum()
        };
        let rate = |of: fn(&ClassSnapshot) -> u64| {
            sum(self, of).saturating_sub(sum(earlier, of)) as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        (rate(|class| class.enqueued), rate(|class| class.drained))
    }
}

impl LaneSnapshot {
    fn of(counters: &LaneCounters) -> Self {
        Self {
            classes: Class::ALL.map(|class| {
                let counters = counters.class(class);
                ClassSnapshot {
                    enqueued: counters.enqueued.get(),
                    coalesced: counters.coalesced.get(),
                    dropped: std::array::from_fn(|cause| counters.dropped[cause].get()),
                    drained: counters.drained.get(),
                    depth: counters.depth.get(),
                    depth_high_water: counters.depth_high_water.get(),
                    fullest_permille: counters.fullest_permille.get(),
                    latency: Box::new(counters.latency.counts()),
                }
            }),
            kinds: Box::new(std::array::from_fn(|kind| {
                (counters.kind_sent.get(kind as u8), counters.kind_dropped.get(kind as u8))
            })),
            totals: vec![
                ("payloads_kept", counters.payloads_kept.get()),
                ("datagrams_in", counters.datagrams_in.get()),
                ("datagrams_out", counters.datagrams_out.get()),
                ("datagrams_out_dropped", counters.datagrams_out_dropped.get()),
                ("receive_calls", counters.receive_calls.get()),
                ("send_calls", counters.send_calls.get()),
                ("misrouted", counters.misrouted.get()),
                ("misrouted_dropped", counters.misrouted_dropped.get()),
                ("forwarded", counters.forwarded.get()),
                ("commands", counters.commands.get()),
                ("timers_fired", counters.timers_fired.get()),
                ("timers_refused", counters.timers_refused.get()),
                ("busy_micros", counters.busy_micros.get()),
                ("turns", counters.turns.get()),
                ("sleeps", counters.sleeps.get()),
                ("wakes", counters.wakes.get()),
                ("acks_taken", counters.acks_taken.get()),
                ("acks_given_up", counters.acks_given_up.get()),
                ("log_records", counters.log_records.get()),
                ("log_soft_dropped", counters.log_soft_dropped.get()),
                ("log_refused", counters.log_refused.get()),
                ("log_durable", counters.log_durable.get()),
                ("log_syncs", counters.log_syncs.get()),
                ("handoffs_pending", counters.handoffs_pending.get()),
                ("map_version", counters.map_version.get()),
                ("incarnations", counters.incarnations.get()),
                ("traces_dropped", counters.traces_dropped.get()),
            ],
        }
    }

    /// A counter by name; zero for a name there is not.
    #[must_use]
    pub fn total(&self, name: &str) -> u64 {
        self.totals.iter().find(|(other, _)| *other == name).map_or(0, |(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Kind;

    #[test]
    fn rankings_name_the_loudest_first_and_leave_out_the_silent() {
        let lanes: Vec<Arc<LaneCounters>> = (0..3).map(|_| Arc::default()).collect();
        let before = Snapshot::of(&lanes);
        lanes[1].class(Class::Hints).enqueued.add(10);
        lanes[2].class(Class::Hints).enqueued.add(5);
        lanes[2].class(Class::Hints).dropped[0].add(20);
        lanes[1].kind_sent.add(Kind::new(7), 10);
        lanes[2].kind_sent.add(Kind::new(9), 5);
        lanes[2].kind_dropped.add(Kind::new(9), 20);
        let after = Snapshot::of(&lanes);
        let producers = after.noisiest_producers(&before, Class::Hints, 5);
        assert_eq!(producers, [(LaneIndex(2), 25, 20), (LaneIndex(1), 10, 0)]);
        assert_eq!(after.hottest_kinds(&before, 1), [(9, 5, 20)]);
        assert_eq!(after.rates(&before, Class::Hints, Duration::from_secs(3)).0, 5.0);
    }
}
