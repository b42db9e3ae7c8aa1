//! The operations of a handler: send, forward, log, set timers, draw random numbers. Everything is bounded and nothing blocks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use tessera_contracts::prefix_map::{LaneIndex, MapVersion, PrefixMap, Slot};
use tessera_stdx::{Rate, TimerHandle, TimingWheel, TokenBucket};

use crate::ack::AckTable;
use crate::arena::{Arena, BufferPool};
use crate::class::{Class, DropCause, DropReason, Enqueue, RingSizes};
use crate::config::{LaneConfig, MICROS_PER_SECOND, RateCap};
use crate::envelope::{Envelope, Flags, Kind, PAYLOAD_BYTES_MAX};
use crate::net::send_queue::{SendQueue, SendRefused};
use crate::ring::bulk::Frame;
use crate::ring::link::{Inlet, Link, Sent, link};
use crate::ring::park::Parker;
use crate::ring::pressure::Pressure;
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::trace::{TraceEvent, TraceWhat, Tracer};
use crate::time::LaneTime;
use crate::wakes::Wakes;
use crate::wal::queue::{Entry, LogSender};
use crate::wal::{Importance, LogRefused, Lsn};

/// How often a datagram may be passed from lane to lane: once by its slot byte, once more by a handler that knows better.
pub const DATAGRAM_HOPS_MAX: u8 = 2;

/// The world as one lane's handler sees it.
#[derive(Debug)]
pub struct Context {
    pub(crate) now: LaneTime,
    pub(crate) lane: LaneIndex,
    pub(crate) map: Arc<PrefixMap>,
    /// By slot, whether its state is on its way here.
    pub(crate) arrivals: Box<[Arrival; 256]>,
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// The parts of a link of the lane to itself, until the lane first sends itself a message: few ever do.
    pub(crate) own_way: Option<OwnWay>,
    /// The receiving end of that link, until the lane takes it.
    pub(crate) own_inlet: Option<Inlet>,
    pub(crate) timers: TimingWheel<Timer>,
    pub(crate) acks: AckTable,
    pub(crate) sends: SendQueue,
    pub(crate) wakes: Wakes,
    pub(crate) log: Option<LogSender>,
    pub(crate) counters: Arc<LaneCounters>,
    pub(crate) tracer: Tracer,
    caps: [Option<TokenBucket>; 3],
    ack_timeout: Duration,
    pub(crate) steer_offset: Option<u16>,
    /// Raised when the lane is given up: from then on nothing it does may leave the lane.
    pub(crate) fence: Arc<AtomicBool>,
    rng: ChaCha8Rng,
    /// Bytes that live until the next call of the handler.
    pub arena: Arena,
    /// The lane's own buffers, for data that lives longer.
    pub pool: BufferPool,
}

/// How far a slot has come that another lane hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is here, or owned by another lane.
    None,
    /// It is ours by this map, and not all of it has come.
    Awaited(MapVersion),
    /// All of it has come, by this map of its former owner's, which has yet to be told that it is safe.
    Whole(MapVersion),
}

/// See [`Context::own_way`].
#[derive(Debug)]
pub(crate) struct OwnWay {
    pub(crate) sizes: RingSizes,
    pub(crate) parker: Arc<Parker>,
    pub(crate) pressure: Arc<Pressure>,
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Handler(u64),
    Ack(u8),
}

/// The lane has as many timers as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimersFull;

impl core::fmt::Display for TimersFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the lane has `timers_max` timers already")
    }
}

impl std::error::Error for TimersFull {}

impl Context {
    pub(crate) fn new(
        lane: LaneIndex,
        config: &LaneConfig,
        map: Arc<PrefixMap>,
        seed: [u8; 32],
        now: LaneTime,
        counters: Arc<LaneCounters>,
    ) -> Self {
        let bucket = |cap: Option<RateCap>| {
            cap.map(|cap| {
                TokenBucket::full(Rate { tokens: cap.per_second, ticks: MICROS_PER_SECOND }, cap.burst, now.0)
            })
        };
        Self {
            now,
            lane,
            map,
            arrivals: Box::new([Arrival::None; 256]),
            links: Vec::new(),
            own_way: None,
            own_inlet: None,
            timers: TimingWheel::growing(config.timers_max, now.millis()),
            acks: AckTable::default(),
            sends: SendQueue::new(config.send_queue_max, config.datagram_bytes_max),
            wakes: Wakes::default(),
            log: None,
            counters,
            tracer: Tracer::off(),
            caps: [None, bucket(config.coordination_cap), bucket(config.hints_cap)],
            ack_timeout: config.ack_timeout,
            steer_offset: config.steer_offset,
            fence: Arc::default(),
            rng: ChaCha8Rng::from_seed(seed),
            arena: Arena::with_capacity(config.arena_bytes_max),
            pool: BufferPool::new(config.pool_buffers, config.datagram_bytes_max),
        }
    }

    /// Whether the lane was given up, because it stalled, and goes on as a ghost.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.load(Ordering::Relaxed)
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> LaneTime {
        self.now
    }

    /// The lane this handler runs on.
    #[must_use]
    pub fn lane(&self) -> LaneIndex {
        self.lane
    }

    /// Which lane owns which slot.
    #[must_use]
    pub fn map(&self) -> &PrefixMap {
        &self.map
    }

    /// The lane that owns `slot`.
    #[must_use]
    pub fn owner(&self, slot: Slot) -> LaneIndex {
        self.map.lane_of_slot(slot)
    }

    /// Whether this lane owns `slot`.
    #[must_use]
    pub fn owns(&self, slot: Slot) -> bool {
        self.owner(slot) == self.lane
    }

    /// Whether all of `slot`'s state is here. False while it is on its way from a former owner: a missing record may
    /// still come.
    #[must_use]
    pub fn is_settled(&self, slot: Slot) -> bool {
        !matches!(self.arrivals[usize::from(slot.0)], Arrival::Awaited(_))
    }

    /// A random number: unpredictable in a real runtime, repeatable in a simulated one.
    pub fn random_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Random bytes, as [`Context::random_u64`].
    pub fn fill_random(&mut self, bytes: &mut [u8]) {
        self.rng.fill_bytes(bytes);
    }

    /// Calls the handler back with `token` after `delay`, at a resolution of a millisecond and never early.
    pub fn set_timer(&mut self, delay: Duration, token: u64) -> Result<TimerHandle, TimersFull> {
        self.insert_timer(delay, Timer::Handler(token))
    }

    fn insert_timer(&mut self, delay: Duration, timer: Timer) -> Result<TimerHandle, TimersFull> {
        self.timers.insert(self.now.after(delay).millis_ceil(), timer).map_err(|_| {
            self.counters.timers_refused.add(1);
            TimersFull
        })
    }

    /// Stops a timer; false if it has fired or was stopped before.
    pub fn cancel_timer(&mut self, timer: TimerHandle) -> bool {
        self.timers.cancel(timer).is_some()
    }

    /// Wakes the caller that this call has answered: at once if it is the first in a while, else together with others when
    /// every lane of the thread has had its turn. The handler itself wakes a caller that must not wait for that.
    pub fn wake_caller(&mut self, waker: Waker) {
        self.wakes.push(waker);
    }

    /// Sends a datagram at the end of this call.
    pub fn send_datagram(&mut self, to: SocketAddr, datagram: &[u8]) -> Result<(), SendRefused> {
        let result = self.sends.push(to, datagram);
        self.count_send(result)
    }

    /// Sends a datagram that `write` puts straight into the buffer it is sent from; `write` says its length, zero for none.
    pub fn send_datagram_with(
        &mut self,
        to: SocketAddr,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), SendRefused> {
        let result = self.sends.push_with(to, write);
        self.count_send(result)
    }

    fn count_send(&self, result: Result<(), SendRefused>) -> Result<(), SendRefused> {
        if result.is_err() {
            self.counters.datagrams_out_dropped.add(1);
        }
        result
    }

    /// Passes a datagram on to the lane that owns `slot`, because it turned out to be about an id of that slot.
    pub fn forward_datagram(&mut self, slot: Slot, from: SocketAddr, bytes: &[u8], hops: u8) -> Enqueue {
        let owner = self.owner(slot);
        self.pass_on(owner, from, bytes, hops)
    }

    pub(crate) fn pass_on(&mut self, to: LaneIndex, from: SocketAddr, bytes: &[u8], hops: u8) -> Enqueue {
        let outcome = if self.is_fenced() {
            Enqueue::Dropped(DropReason::NoRoute)
        } else if hops >= DATAGRAM_HOPS_MAX || to == self.lane {
            Enqueue::Dropped(DropReason::TtlExpired)
        } else if let Some(link) = link_to(&mut self.links, to) {
            link.touch();
            match link.bulk.try_push(Frame::Datagram { from, hops: hops + 1 }, bytes) {
                true => Enqueue::Enqueued,
                false => Enqueue::Dropped(DropReason::Full),
            }
        } else {
            Enqueue::Dropped(DropReason::NoRoute)
        };
        match outcome {
            Enqueue::Dropped(_) => self.counters.misrouted_dropped.add(1),
            _ => self.counters.misrouted.add(1),
        }
        outcome
    }

    /// Sends a message. Fill in `envelope` with [`Envelope::to_lane`] or [`Envelope::to_slot`] and the fields that differ from their
    /// defaults; sender, receiver of a slot, map version, length and time stamp are set here.
    #[inline]
    pub fn send(&mut self, envelope: Envelope, payload: &[u8]) -> Enqueue {
        let Some(envelope) = self.address(envelope, payload) else {
            return self.drop_message(&envelope, DropCause::NoRoute);
        };
        if let Some(bucket) = &mut self.caps[envelope.class.index()]
            && bucket.take(self.now.0, 1).is_err()
        {
            return self.drop_message(&envelope, DropCause::RateCapped);
        }
        self.post(&envelope, payload)
    }

    /// Sends a message and asks for an acknowledgement: [`Notice::Acked`](crate::handler::Notice::Acked) when it was handled,
    /// [`Notice::AckGivenUp`](crate::handler::Notice::AckGivenUp) after as many tries as its time to live. Handlers see repeats.
    /// If too many acknowledgements are waited for, or no timer is left, it is dropped as [`DropReason::Full`] and not sent.
    ///
    /// # Panics
    /// If the correlation id is zero: nothing could be acknowledged by it.
    pub fn send_acked(&mut self, envelope: Envelope, payload: &[u8]) -> Enqueue {
        assert_ne!(envelope.correlation_id, 0, "an acknowledged message needs a correlation id");
        let envelope = Envelope { flags: envelope.flags.with(Flags::ACK_WANTED), ..envelope };
        let Some(envelope) = self.address(envelope, payload) else {
            return self.drop_message(&envelope, DropCause::NoRoute);
        };
        let Some(place) = self.acks.insert(envelope, payload) else {
            return self.drop_message(&envelope, DropCause::AcksFull);
        };
        // The timer first: a message without a retry timer must not go out as an acknowledged one.
        let Ok(timer) = self.insert_timer(self.ack_timeout, Timer::Ack(place)) else {
            self.acks.forget(place);
            return self.drop_message(&envelope, DropCause::AcksFull);
        };
        let sent = self.post(&envelope, payload);
        if sent.is_accepted() {
            self.acks.set_timer(place, Some(timer));
        } else {
            self.cancel_timer(timer);
            self.acks.forget(place);
        }
        sent
    }

    /// Whether one more acknowledgement can be waited for.
    #[must_use]
    pub fn can_await_ack(&self) -> bool {
        self.acks.has_room()
    }

    /// Sends the message at `place` once more, after its acknowledgement did not come.
    pub(crate) fn retry_acked(&mut self, place: u8, envelope: Envelope) {
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let len = usize::from(envelope.payload_len);
        payload[..len].copy_from_slice(self.acks.payload(place));
        // A lost retry is like a lost message: the next timeout asks again.
        if let Some(envelope) = self.address(envelope, &payload[..len]) {
            let _ = self.post(&envelope, &payload[..len]);
        }
        let timer = self.insert_timer(self.ack_timeout, Timer::Ack(place));
        self.acks.set_timer(place, Some(timer.expect("its last timer has just left the wheel, so there is room")));
    }

    /// Notes how long a message has waited, in microseconds.
    #[inline]
    pub(crate) fn note_taken(&self, envelope: &Envelope) -> u32 {
        let waited = self.now.stamp().wrapping_sub(envelope.queued_at);
        // A sender's clock read may be a moment after ours: that is no wait of 71 minutes.
        let waited = if waited > u32::MAX / 2 { 0 } else { waited };
        self.counters.class(envelope.class).latency.record(waited);
        waited
    }

    /// Tells the sender of `envelope` that it was handled.
    pub(crate) fn acknowledge(&mut self, envelope: &Envelope) {
        let ack = Envelope {
            correlation_id: envelope.correlation_id,
            ..Envelope::to_lane(envelope.src, Class::Control, Kind::ACK)
        };
        if let Some(ack) = self.address(ack, &[]) {
            let _ = self.post(&ack, &[]);
        }
    }

    /// Passes on a message for a slot that has moved: one hop less to live, and our view of the map.
    pub(crate) fn forward(&mut self, envelope: &Envelope, payload: &[u8]) -> Enqueue {
        if envelope.ttl <= 1 {
            return self.drop_message(envelope, DropCause::TtlExpired);
        }
        let forwarded = Envelope {
            ttl: envelope.ttl - 1,
            dst: self.owner(envelope.slot),
            map_version: self.map.version().0,
            ..*envelope
        };
        self.counters.forwarded.add(1);
        self.post(&forwarded, payload)
    }

    /// Completes the header; `None` if the message can go nowhere.
    #[inline]
    fn address(&self, mut envelope: Envelope, payload: &[u8]) -> Option<Envelope> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return None;
        }
        if envelope.flags.has(Flags::KEYED) {
            envelope.dst = self.owner(envelope.slot);
        }
        envelope.src = self.lane;
        envelope.map_version = self.map.version().0;
        envelope.queued_at = self.now.stamp();
        envelope.payload_len = payload.len() as u16;
        Some(envelope)
    }

    fn post(&mut self, envelope: &Envelope, payload: &[u8]) -> Enqueue {
        if envelope.ttl == 0 {
            return self.drop_message(envelope, DropCause::TtlExpired);
        }
        if self.is_fenced() {
            return self.drop_message(envelope, DropCause::NoRoute);
        }
        if envelope.dst == self.lane
            && let Some(own_way) = self.own_way.take()
        {
            self.link_to_itself(&own_way);
        }
        let Some(link) = link_to(&mut self.links, envelope.dst) else {
            return self.drop_message(envelope, DropCause::NoRoute);
        };
        let sent = link.send(envelope, payload);
        let counters = self.counters.class(envelope.class);
        match sent {
            Sent::Dropped(cause) => return self.drop_message(envelope, cause),
            Sent::Coalesced => counters.coalesced.add(1),
            Sent::Enqueued => counters.enqueued.add(1),
            Sent::Displaced => {
                counters.enqueued.add(1);
                counters.dropped[DropCause::Superseded as usize].add(1);
            }
        }
        self.counters.kind_sent.add(envelope.kind, 1);
        if sent == Sent::Coalesced { Enqueue::Coalesced } else { Enqueue::Enqueued }
    }

    #[cold]
    fn link_to_itself(&mut self, own_way: &OwnWay) {
        let (out, inlet) = link(self.lane, self.lane, &own_way.sizes, own_way.parker.clone(), own_way.pressure.clone());
        let index = usize::from(self.lane.0);
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        self.links[index] = Some(Box::new(out));
        self.own_inlet = Some(inlet);
    }

    #[cold]
    fn drop_message(&mut self, envelope: &Envelope, cause: DropCause) -> Enqueue {
        self.counters.dropped(envelope.class, envelope.kind, cause, 1);
        let (class, kind, dst) = (envelope.class, envelope.kind.get(), envelope.dst);
        self.trace(TraceWhat::Dropped { class, kind, dst, cause });
        Enqueue::Dropped(cause.reason())
    }

    /// Keeps a copy of a payload beyond the call it came with, in a buffer of the lane's pool, and counts it; `None` if all
    /// buffers are lent or the payload is longer than they are. Give it back to the pool after use.
    pub fn keep(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = self.pool.take()?;
        if payload.len() > buffer.capacity() {
            self.pool.give(buffer);
            return None;
        }
        buffer.extend_from_slice(payload);
        self.counters.payloads_kept.add(1);
        Some(buffer)
    }

    pub(crate) fn trace(&mut self, what: TraceWhat) {
        if !self.tracer.keep(TraceEvent { at: self.now, lane: self.lane, what }) {
            self.counters.traces_dropped.add(1);
        }
    }

    /// Logs a record of `slot`. The number it returns is safe once a [`Notice::Durable`](crate::handler::Notice::Durable)
    /// names it or a later one; answer a peer only then.
    pub fn log(&mut self, kind: u8, slot: Slot, payload: &[u8], importance: Importance) -> Result<Lsn, LogRefused> {
        let result = match &mut self.log {
            Some(log) => log.push(Entry::Record { kind, slot }, payload, importance),
            None => return Err(LogRefused::NoLog),
        };
        match result {
            Ok(_) => self.counters.log_records.add(1),
            Err(LogRefused::Lagging) if importance == Importance::Soft => self.counters.log_soft_dropped.add(1),
            Err(_) => self.counters.log_refused.add(1),
        }
        result
    }

    /// The last record that is as safe as the configured durability promises.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.log.as_ref().map_or(Lsn(0), |log| log.progress.durable())
    }
}

pub(crate) fn link_to(links: &mut [Option<Box<Link>>], lane: LaneIndex) -> Option<&mut Link> {
    links.get_mut(usize::from(lane.0))?.as_deref_mut()
}
