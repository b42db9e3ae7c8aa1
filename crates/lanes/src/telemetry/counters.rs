//! The counters of one lane. The lane writes; any thread reads.
//!
//! Adding is a load and a store, not a locked instruction: there is one writer. A reader may see two counters of one event
//! a moment apart, which no rate or percentile minds.
//!
//! A lane that is restarted goes on from a copy: its predecessor, if it stalled and comes back, then writes to numbers that
//! no thread reads, and there is still one writer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_contracts::prefix_map::{MapVersion, Slot};

use crate::class::{Class, DropCause};
use crate::envelope::Kind;
use crate::telemetry::histogram::Histogram;

/// A number with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`; only the owner may.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value; only the owner may.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Raises the value to `value` if it is lower; only the owner may.
    pub fn raise(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for Counter {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.get()))
    }
}

/// The slots that are on their way to a lane, and since which map. They outlive the lane: a lane that died while slots arrived is sent them again, and its
/// successor must not take them for its own before they have come. They take their memory with the first hand-over.
#[derive(Clone, Debug, Default)]
pub struct ArrivingSlots(OnceLock<Box<[Counter; 256]>>);

impl ArrivingSlots {
    /// Notes since which map `slot` is awaited; only the owner may.
    pub(crate) fn set(&self, slot: Slot, since: Option<MapVersion>) {
        if since.is_some() || self.0.get().is_some() {
            let slots = self.0.get_or_init(|| Box::new([const { Counter(AtomicU64::new(0)) }; 256]));
            slots[usize::from(slot.0)].set(since.map_or(0, |since| u64::from(since.0) + 1));
        }
    }

    /// Since which map `slot` is awaited.
    pub(crate) fn get(&self, slot: Slot) -> Option<MapVersion> {
        let noted = self.0.get()?[usize::from(slot.0)].get();
        Some(MapVersion(u16::try_from(noted.checked_sub(1)?).ok()?))
    }
}

/// A number for each kind of message, with one writer. They take their memory with the first message: a lane that is alone sends
/// none.
#[derive(Clone, Debug, Default)]
pub struct KindCounters(OnceLock<Box<[Counter; 256]>>);

impl KindCounters {
    /// Adds `n` to the number of `kind`; only the owner may.
    pub fn add(&self, kind: Kind, n: u64) {
        let counters = self.0.get_or_init(|| Box::new([const { Counter(AtomicU64::new(0)) }; 256]));
        counters[usize::from(kind.get())].add(n);
    }

    /// The number of the kind with this code.
    #[must_use]
    pub fn get(&self, code: u8) -> u64 {
        self.0.get().map_or(0, |counters| counters[usize::from(code)].get())
    }
}

/// A lane's counters of one class. Sending counts at the producer, draining and depth at the consumer.
#[derive(Clone, Debug, Default)]
pub struct ClassCounters {
    /// Messages this lane sent that were accepted as they are.
    pub enqueued: Counter,
    /// Messages this lane sent that another already said, or now says.
    pub coalesced: Counter,
    /// Messages this lane sent, or held for another, that were dropped, by cause.
    pub dropped: [Counter; DropCause::ALL.len()],
    /// Messages this lane took from its rings.
    pub drained: Counter,
    /// Messages waiting for this lane at its last turn.
    pub depth: Counter,
    /// The most that ever waited.
    pub depth_high_water: Counter,
    /// How full the fullest single ring to this lane was at its last turn, in thousandths.
    pub fullest_permille: Counter,
    /// Microseconds from send to handling.
    pub latency: Histogram,
}

/// The counters of one lane, over all its incarnations.
#[derive(Clone, Debug, Default)]
pub struct LaneCounters {
    /// Per class, by [`Class::index`].
    pub classes: [ClassCounters; 3],
    /// Messages sent, by kind.
    pub kind_sent: KindCounters,
    /// Messages dropped, by kind.
    pub kind_dropped: KindCounters,
    /// Payloads copied to be kept beyond the call they came with.
    pub payloads_kept: Counter,
    /// Datagrams taken from the socket.
    pub datagrams_in: Counter,
    /// Datagrams given to the socket.
    pub datagrams_out: Counter,
    /// Datagrams not sent: the queue was full or the kernel refused.
    pub datagrams_out_dropped: Counter,
    /// Calls that receive a batch.
    pub receive_calls: Counter,
    /// Calls that send a batch.
    pub send_calls: Counter,
    /// Datagrams of other lanes that this lane got and passed on.
    pub misrouted: Counter,
    /// Datagrams of other lanes that found no room in the bulk ring, or had been passed on too often.
    pub misrouted_dropped: Counter,
    /// Messages passed on because their slot had moved.
    pub forwarded: Counter,
    /// Commands handled.
    pub commands: Counter,
    /// Timers that fired.
    pub timers_fired: Counter,
    /// Timers refused because the wheel was full.
    pub timers_refused: Counter,
    /// Microseconds in which the lane had something to do.
    pub busy_micros: Counter,
    /// Turns of the loop.
    pub turns: Counter,
    /// Times the lane went to sleep.
    pub sleeps: Counter,
    /// Sleeping lanes this lane woke.
    pub wakes: Counter,
    /// Acknowledgements that came.
    pub acks_taken: Counter,
    /// Acknowledgements that never came.
    pub acks_given_up: Counter,
    /// Records accepted by the log.
    pub log_records: Counter,
    /// Soft records dropped because the writer lags.
    pub log_soft_dropped: Counter,
    /// Hard records refused because the log's ring was full or the log had failed.
    pub log_refused: Counter,
    /// Records known durable.
    pub log_durable: Counter,
    /// Times the log's writer synced since the lane was last started, as far as the lane has looked.
    pub log_syncs: Counter,
    /// Slots being handed to other lanes.
    pub handoffs_pending: Counter,
    /// Slots that are on their way to this lane.
    pub arriving: ArrivingSlots,
    /// The last order of the supervisor that the lane has carried out: its acknowledgement.
    pub orders_done: Counter,
    /// The version of the map the lane works by.
    pub map_version: Counter,
    /// How often the lane was started.
    pub incarnations: Counter,
    /// Trace events lost because the reader lags.
    pub traces_dropped: Counter,
}

impl LaneCounters {
    /// The counters of `class`.
    #[must_use]
    pub fn class(&self, class: Class) -> &ClassCounters {
        &self.classes[class.index()]
    }

    pub(crate) fn dropped(&self, class: Class, kind: Kind, cause: DropCause, n: u64) {
        self.class(class).dropped[cause as usize].add(n);
        self.kind_dropped.add(kind, n);
    }
}
