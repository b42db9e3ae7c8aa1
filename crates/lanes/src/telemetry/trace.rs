//! A lane's trace: one event in N, and every drop, over a ring to the thread that writes traces.
//!
//! The ring is the buffer and the message at once. A reader that lags loses events and never slows a lane.

use rtrb::{Consumer, Producer, RingBuffer};
use tessera_contracts::prefix_map::LaneIndex;

use crate::class::{Class, DropCause};
use crate::time::LaneTime;

/// The event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceWhat {
    /// A datagram was handled; its length.
    Datagram {
        /// Bytes of payload.
        bytes: u32,
    },
    /// A message was handled.
    Message {
        /// Its class.
        class: Class,
        /// Its kind.
        kind: u8,
        /// Its sender.
        src: LaneIndex,
        /// Microseconds it waited.
        waited: u32,
    },
    /// A message was dropped. Never sampled away.
    Dropped {
        /// Its class.
        class: Class,
        /// Its kind.
        kind: u8,
        /// Its receiver.
        dst: LaneIndex,
        /// Why.
        cause: DropCause,
    },
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// When, by the lane's clock.
    pub at: LaneTime,
    /// On which lane.
    pub lane: LaneIndex,
    /// What.
    pub what: TraceWhat,
}

/// A lane's end of its trace.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// Every how many events one is kept; zero keeps only drops.
    every: u32,
    countdown: u32,
    ring: Option<Producer<TraceEvent>>,
}

impl Tracer {
    pub(crate) fn off() -> Self {
        Self { every: 0, countdown: 0, ring: None }
    }

    pub(crate) fn new(every: u32, events_max: usize) -> (Self, Consumer<TraceEvent>) {
        let (producer, consumer) = RingBuffer::new(events_max.max(1));
        (Self { every, countdown: every, ring: Some(producer) }, consumer)
    }

    /// Whether the next ordinary event is to be kept. Counts it.
    pub(crate) fn samples(&mut self) -> bool {
        if self.every == 0 || self.ring.is_none() {
            return false;
        }
        self.countdown -= 1;
        if self.countdown == 0 {
            self.countdown = self.every;
            return true;
        }
        false
    }

    /// Keeps an event; false if the reader lags.
    pub(crate) fn keep(&mut self, event: TraceEvent) -> bool {
        self.ring.as_mut().is_none_or(|ring| ring.push(event).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_is_sampled_and_a_lagging_reader_loses_events() {
        let (mut tracer, mut reader) = Tracer::new(10, 2);
        assert_eq!((0..100).filter(|_| tracer.samples()).count(), 10);
        let event = TraceEvent { at: LaneTime(1), lane: LaneIndex(0), what: TraceWhat::Datagram { bytes: 9 } };
        assert!(tracer.keep(event) && tracer.keep(event) && !tracer.keep(event));
        assert_eq!(reader.pop(), Ok(event));
        assert!(tracer.keep(event));
        assert!(!Tracer::off().samples() && Tracer::off().keep(event));
    }
}
