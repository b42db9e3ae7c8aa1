//! The three alarms of the message bus, from counters that are looked at now and then.
//!
//! * a control ring more than half full, for as long as [`SUSTAINED`];
//! * any control message dropped;
//! * more than 5 % of the coordination messages dropped over a minute.
//!
//! Pure: the observer calls it with the time and a snapshot. It adds an alarm that only the supervisor can raise: a disk that hangs.

use std::collections::VecDeque;
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;

use crate::class::{Class, DropCause};
use crate::telemetry::snapshot::Snapshot;
use crate::time::LaneTime;

/// How long a control ring may stay half full.
pub const SUSTAINED: Duration = Duration::from_secs(5);
/// How far back coordination drops are counted.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Looks kept for the window; looks come at least this far apart.
const LOOKS_MAX: usize = 128;

/// Something that needs an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// A control ring to this lane has been more than half full for a while: the lane does not keep up.
    ControlCongested {
        /// Which lane.
        lane: LaneIndex,
    },
    /// Control messages were dropped: a lane died with them in flight, or so many waited that older ones gave way to newer ones.
    ControlDropped {
        /// How many within the window.
        messages: u64,
    },
    /// More than 5 % of the coordination messages were dropped within the window.
    CoordinationDropping {
        /// How many of a thousand.
        permille: u64,
    },
    /// This lane cannot serve because its disk does not answer: it opens its log, or its predecessor's writer has not ended.
    DiskHangs {
        /// Which lane.
        lane: LaneIndex,
    },
}

impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ControlCongested { lane } => {
                write!(f, "lane {}: its control ring stays more than half full; the lane does not keep up", lane.0)
            }
            Self::ControlDropped { messages } => write!(f, "{messages} control messages were dropped"),
            Self::CoordinationDropping { permille } => {
                write!(f, "{}.{} % of coordination messages are dropped", permille / 10, permille % 10)
            }
            Self::DiskHangs { lane } => {
                write!(f, "lane {}: does not serve, because the disk of its log does not answer", lane.0)
            }
        }
    }
}

/// The state of the alarms between looks.
#[derive(Clone, Debug, Default)]
pub struct Alarms {
    looks: VecDeque<Look>,
    congested_since: Vec<Option<LaneTime>>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: LaneTime,
    control_dropped: u64,
    coordination_sent: u64,
    coordination_dropped: u64,
}

impl Alarms {
    /// Looks at the counters and says which alarms stand.
    pub fn observe(&mut self, now: LaneTime, snapshot: &Snapshot) -> Vec<Alarm> {
        let mut standing = Vec::new();
        self.congested_since.resize(snapshot.lanes.len(), None);
        for (index, lane) in snapshot.lanes.iter().enumerate() {
            let congested = lane.classes[Class::Control.index()].fullest_permille > 500;
            let since = &mut self.congested_since[index];
            *since = congested.then(|| since.unwrap_or(now));
            if since.is_some_and(|since| now.since(since) >= SUSTAINED) {
                standing.push(Alarm::ControlCongested { lane: LaneIndex(index as u8) });
            }
        }
        let look = Look::at(now, snapshot);
        while self.looks.len() > 1 && now.since(self.looks[1].at) >= WINDOW {
            self.looks.pop_front(); // Keep one look that is a window old, to count from.
        }
        let first = self.looks.front().copied().unwrap_or(Look::default_at(now));
        // A ghost's last counts may have been seen and then be gone: its successor goes on from a copy made before.
        let control = look.control_dropped.saturating_sub(first.control_dropped);
        if control > 0 {
            standing.push(Alarm::ControlDropped { messages: control });
        }
        let sent = look.coordination_sent.saturating_sub(first.coordination_sent);
        let dropped = look.coordination_dropped.saturating_sub(first.coordination_dropped);
        let permille = (dropped * 1000).checked_div(sent).unwrap_or(0);
        if permille > 50 {
            standing.push(Alarm::CoordinationDropping { permille });
        }
        if self.looks.len() < LOOKS_MAX
            && self.looks.back().is_none_or(|last| now.since(last.at) >= WINDOW / LOOKS_MAX as u32)
        {
            self.looks.push_back(look);
        }
        standing
    }
}

impl Look {
    fn default_at(at: LaneTime) -> Self {
        Self { at, control_dropped: 0, coordination_sent: 0, coordination_dropped: 0 }
    }

    fn at(at: LaneTime, snapshot: &Snapshot) -> Self {
        let mut look = Self::default_at(at);
        for lane in &snapshot.lanes {
            let control = &lane.classes[Class::Control.index()];
            let coordination = &lane.classes[Class::Coordination.index()];
            // A message refused for want of a route or of time was a mistake of its sender, not a failure of the bus.
            let refused = |class: &crate::telemetry::snapshot::ClassSnapshot| {
                class.dropped[DropCause::NoRoute as usize] + class.dropped[DropCause::TtlExpired as usize]
            };
            look.control_dropped += control.dropped_total() - refused(control);
            look.coordination_dropped += coordination.dropped_total() - refused(coordination);
            look.coordination_sent += coordination.enqueued + coordination.coalesced + coordination.dropped_total();
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::telemetry::counters::LaneCounters;

    fn seconds(seconds: u64) -> LaneTime {
        LaneTime(seconds * 1_000_000)
    }

    fn lanes() -> Vec<Arc<LaneCounters>> {
        (0..2).map(|_| Arc::default()).collect()
    }

    #[test]
    fn a_control_ring_over_half_alarms_only_when_it_lasts() {
        let lanes = lanes();
        let mut alarms = Alarms::default();
        lanes[1].class(Class::Control).fullest_permille.set(501);
        assert_eq!(alarms.observe(seconds(0), &Snapshot::of(&lanes)), []);
        assert_eq!(alarms.observe(seconds(4), &Snapshot::of(&lanes)), []);
        let alarm = [Alarm::ControlCongested { lane: LaneIndex(1) }];
        assert_eq!(alarms.observe(seconds(5), &Snapshot::of(&lanes)), alarm);
        lanes[1].class(Class::Control).fullest_permille.set(500);
        assert_eq!(alarms.observe(seconds(6), &Snapshot::of(&lanes)), []);
        lanes[1].class(Class::Control).fullest_permille.set(900);
        assert_eq!(alarms.observe(seconds(7), &Snapshot::of(&lanes)), [], "it starts over");
    }

    #[test]
    fn any_control_drop_alarms_for_a_minute() {
        let lanes = lanes();
        let mut alarms = Alarms::default();
        assert_eq!(alarms.observe(seconds(0), &Snapshot::of(&lanes)), []);
        lanes[0].class(Class::Control).dropped[DropCause::LaneDown as usize].add(1);
        for second in [1, 30, 59] {
            assert_eq!(alarms.observe(seconds(second), &Snapshot::of(&lanes)), [Alarm::ControlDropped { messages: 1 }]);
        }
        assert_eq!(alarms.observe(seconds(122), &Snapshot::of(&lanes)), []);
    }

    #[test]
    fn coordination_drops_alarm_above_five_per_cent_of_a_minute() {
        let lanes = lanes();
        let mut alarms = Alarms::default();
        alarms.observe(seconds(0), &Snapshot::of(&lanes));
        let class = lanes[0].class(Class::Coordination);
        class.enqueued.add(950);
        class.dropped[DropCause::RingFull as usize].add(50);
        assert_eq!(alarms.observe(seconds(30), &Snapshot::of(&lanes)), [], "five per cent is allowed");
        class.dropped[DropCause::RingFull as usize].add(2);
        let alarm = [Alarm::CoordinationDropping { permille: 51 }];
        assert_eq!(alarms.observe(seconds(31), &Snapshot::of(&lanes)), alarm);
        class.enqueued.add(1000);
        assert_eq!(alarms.observe(seconds(32), &Snapshot::of(&lanes)), [], "of more messages it is a smaller share");
    }
}
