//! Requests in flight: which reply belongs to which, how long each is waited for, and how long peers take.

use alloc::collections::VecDeque;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_stdx::TimerHandle;

use super::admission::ReplyTo;
use super::command::CommandId;
use super::config::NodeConfig;
use super::context::Context;
use super::operations::OperationId;
use super::republishing::Refusers;
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::PublicKey;
use crate::keyed_lru::{KeyedLru, sum};
use crate::rng::LaneRng;
use crate::routing::{Peer, RoundTrip};
use crate::time::Now;
use crate::wire::PROVIDER_PARTS_MAX;
use crate::wire::message::{Envelope, Message};

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    Request(u64),
    Operation(OperationId),
    Tick,
}

/// Why a request was sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A step of a lookup; with `stores` it is the write itself.
    Lookup { operation: OperationId, peer: NodeId, stores: bool },
    /// A write of an operation to one of its holders.
    Write { operation: OperationId, holder: u8, batch: u32, attempt: u8 },
    /// A sign of life and the peer's capabilities.
    Verify,
    /// It shall see that we are where our last request came from.
    Prove,
    /// Is it where it is known, or at the other address from which it asked?
    StillThere { or_at: Addr },
    /// A command wants to know.
    Ping(CommandId),
    /// On behalf of another node's request.
    Relay(ReplyTo),
    /// An announcement of ours was handed to a stem; the attempt with that node, and the nodes that refused it before.
    Stem { id: ContentId, attempt: u8, refusers: Refusers },
    /// Another node's announcement was handed on, under this number; the attempt with that node.
    StemOn { number: u32, attempt: u8 },
}

impl Purpose {
    /// Whether it counts among what we have in flight to a peer. Requests on behalf of others do not: else they could keep us from asking
    /// a peer, by having it asked where it is not.
    fn is_our_own(&self) -> bool {
        !matches!(self, Self::Relay(_))
    }

    /// Whether it is acknowledged when the receiver's log has it.
    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Lookup { stores: true, .. })
    }

    /// Whether it may take the last requests there are. An operation's requests waited for their turn before they came here, as the
    /// operation's own work allows; all else but a command's ping is work that no command waits for.
    fn may_use_all(&self) -> bool {
        matches!(self, Self::Lookup { .. } | Self::Write { .. } | Self::Ping(_))
    }

    /// Whether the silence, or the answer, may be that of another node than the one asked.
    pub(super) fn is_for_another(&self, asked: &NodeId) -> bool {
        match self {
            Self::Relay(_) => true,
            Self::Lookup { peer, .. } => peer != asked,
            _ => false,
        }
    }
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) to: Contact,
    pub(super) id: NodeId,
    pub(super) sent_ms: u64,
    pub(super) purpose: Purpose,
    timer: TimerHandle,
    parts: Parts,
}

impl Request {
    /// Where an answer in parts that did not come whole goes on, if a part of it came.
    pub(super) fn gap(&self) -> Option<u32> {
        self.parts.gap()
    }
}

/// Which parts of an answer in parts have come.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Bit i: the i-th.
    seen: u8,
    /// Where the successor of each part starts.
    nexts: [u32; PROVIDER_PARTS_MAX],
}

impl Parts {
    /// Notes a part. `None` if it came before; else whether all are there now.
    fn take(&mut self, part: u8, parts: u8, next: u32) -> Option<bool> {
        let bit = 1 << part;
        if self.seen & bit != 0 {
            return None;
        }
        self.seen |= bit;
        self.nexts[usize::from(part)] = next;
        Some(self.seen.count_ones() == u32::from(parts))
    }

    /// Where the first gap starts, if the parts before it came.
    fn gap(&self) -> Option<u32> {
        self.nexts[..self.seen.trailing_ones() as usize].last().copied()
    }
}

/// Bounds on how long a reply is waited for.
const TIMEOUT_MS_MIN: u64 = 50;
pub(super) const TIMEOUT_MS_MAX: u64 = 600;

/// Requests for which room is reserved: a few lookups' worth.
const FIRST_REQUESTS: usize = 64;

/// Requests whose time is up and whose answers may yet come, remembered: so many, for so long. An answer that took longer than any request
/// is waited for says only that: taken as it is, one would have every stranger waited for long.
pub(super) const LATE_MAX: usize = 64;
pub(super) const LATE_MS_MAX: u64 = 5000;
const LATE_ROUND_TRIP_MS_MAX: u64 = 2 * TIMEOUT_MS_MAX;

/// A request that was not answered in time. If it is answered all the same, the peer is there, and only farther off than was thought:
/// without that, a lane among near peers would never learn how far others are.
#[derive(Debug, Clone, Copy)]
struct Late {
    correlation: u64,
    to: Contact,
    id: NodeId,
    sent_ms: u64,
}

/// The request that a reply answers.
#[derive(Debug)]
pub(super) enum Matched {
    /// A request in flight. If the reply is `whole`, the request is no longer in flight.
    Answer { request: Request, whole: bool },
    /// A part of an answer that came before.
    Repeated,
    /// A request whose time was up: its receiver, and how long the answer took.
    Late { to: Contact, id: NodeId, took_ms: u64 },
    /// No request that is remembered.
    Unexpected,
}

/// The requests of a lane that are in flight.
#[derive(Debug)]
pub(super) struct Requests {
    in_flight: KeyedLru<u64, Request>,
    /// Requests of our own in flight by peer; as many entries as requests at most.
    by_peer: KeyedLru<[u8; 32], u16>,
    /// The newest in front.
    late: VecDeque<Late>,
    /// The lane's idea of a round trip, for peers it does not know.
    round_trip: RoundTrip,
    /// The same of writes, which are acknowledged when the holder's log has them.
    write_trip: RoundTrip,
}

impl Requests {
    pub(super) fn new(config: &NodeConfig, rng: &mut LaneRng) -> Self {
        Self {
            in_flight: KeyedLru::with_room(FIRST_REQUESTS, config.requests_max, rng.u64()),
            by_peer: KeyedLru::with_room(FIRST_REQUESTS, config.requests_max, rng.u64()),
            late: VecDeque::new(),
            round_trip: RoundTrip::default(),
            write_trip: RoundTrip::default(),
        }
    }

    pub(super) fn reserve_all(&mut self) {
        self.in_flight.reserve_all();
        self.by_peer.reserve_all();
        super::reserve_queue(&mut self.late, LATE_MAX);
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Bytes in use, and the most that ever will be.
    pub(super) fn bytes(&self) -> (usize, usize) {
        sum([self.in_flight.bytes(), self.by_peer.bytes()])
    }

    /// Whether another request may be sent. Work that no command waits for leaves a quarter of all requests to commands.
    pub(super) fn has_room(&self, is_commanded: bool) -> bool {
        let most = self.in_flight.capacity();
        self.in_flight.len() < if is_commanded { most } else { most - most / 4 }
    }

    /// Whether a request for this purpose may be sent.
    pub(super) fn has_room_for(&self, purpose: &Purpose) -> bool {
        self.has_room(purpose.may_use_all())
    }

    /// Requests of our own in flight to one peer.
    pub(super) fn in_flight_to(&self, id: &NodeId) -> usize {
        self.by_peer.peek(id.as_bytes()).map_or(0, |count| usize::from(*count))
    }

    /// How long a reply is waited for: twice the peer's usual time, within bounds and jittered.
    pub(super) fn timeout_ms(&self, rng: &mut LaneRng, peer: Option<&Peer>, purpose: &Purpose) -> u64 {
        let known = peer.and_then(|peer| peer.round_trip.srtt_ms()).map(|ms| ms * 2);
        let timeout = if purpose.is_write() {
            // A disk may take far longer than the way to it, so nothing is made of how far the holder is but that it takes no less.
            let written = peer.and_then(|peer| peer.write_trip.srtt_ms()).map(|ms| ms * 2);
            let written = written.or(self.write_trip.slow_ms()).unwrap_or(TIMEOUT_MS_MAX);
            written.max(known.unwrap_or(0))
        } else {
            // A lookup goes on with another candidate if a stranger is slow. A ping has no other to ask.
            let like_others = if matches!(purpose, Purpose::Ping(_)) { None } else { self.round_trip.slow_ms() };
            known.or(like_others).unwrap_or(TIMEOUT_MS_MAX)
        };
        let timeout = timeout.clamp(TIMEOUT_MS_MIN, TIMEOUT_MS_MAX);
        timeout + rng.below(timeout / 8 + 1)
    }

    /// Takes note of a request that was sent.
    pub(super) fn sent(
        &mut self,
        now: Now,
        correlation: u64,
        (to, id): (Contact, NodeId),
        purpose: Purpose,
        timer: TimerHandle,
    ) {
        let request = Request { to, id, sent_ms: now.mono_ms, purpose, timer, parts: Parts::default() };
        self.in_flight.insert(correlation, request);
        if purpose.is_our_own() {
            *self.by_peer.get_or_insert_with(*id.as_bytes(), || 0) += 1;
        }
    }

    /// Takes a request out of flight.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>, correlation: u64) -> Option<Request> {
        let request = self.in_flight.remove(&correlation)?;
        cx.timers.wheel.cancel(request.timer);
        if request.purpose.is_our_own()
            && let Some(count) = self.by_peer.get(request.id.as_bytes())
        {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(request.id.as_bytes());
            }
        }
        Some(request)
    }

    /// Takes a request out of flight that is to be sent again with a cookie. Only the key and the address that were asked can say so.
    pub(super) fn take_challenged(
        &mut self,
        cx: &mut Context<'_>,
        from: Addr,
        sender: PublicKey,
        correlation: u64,
    ) -> Option<Request> {
        let request = self.in_flight.peek(&correlation)?;
        if (request.to.key, request.to.addr) != (sender, from) {
            return None;
        }
        self.settle(cx, correlation)
    }

    /// Finds the request that a reply is to. It counts only from the key and the address that were asked.
    pub(super) fn match_reply(
        &mut self,
        cx: &mut Context<'_>,
        from: Addr,
        sender: PublicKey,
        reply: &Envelope<'_>,
    ) -> Matched {
        let expected = self.in_flight.peek(&reply.correlation);
        let Some(request) = expected.copied().filter(|r| r.to.key == sender && r.to.addr == from) else {
            return self.match_late(cx.now, from, sender, reply.correlation);
        };
        let mut whole = true;
        // Only a peer that a lookup asks directly may answer in parts. To all else there is one answer, which is counted.
        if let Message::Providers { part, parts, next, .. } = reply.message
            && matches!(request.purpose, Purpose::Lookup { peer, .. } if peer == request.id)
            && let Some(request) = self.in_flight.get(&reply.correlation)
        {
            match request.parts.take(part, parts, next) {
                Some(all) => whole = all,
                None => return Matched::Repeated,
            }
        }
        if whole {
            self.settle(cx, reply.correlation);
        }
        Matched::Answer { request, whole }
    }

    fn match_late(&mut self, now: Now, from: Addr, sender: PublicKey, correlation: u64) -> Matched {
        self.forget_late(now);
        let is_it = |late: &Late| (late.correlation, late.to.key, late.to.addr) == (correlation, sender, from);
        match self.late.iter().position(is_it).and_then(|at| self.late.remove(at)) {
            Some(Late { to, id, sent_ms, .. }) => {
                let took_ms = now.mono_ms.saturating_sub(sent_ms).min(LATE_ROUND_TRIP_MS_MAX);
                Matched::Late { to, id, took_ms }
            }
            None => Matched::Unexpected,
        }
    }

    /// The time of a request is up: its answer may come late.
    pub(super) fn expect_late(&mut self, now: Now, correlation: u64, request: &Request) {
        self.forget_late(now);
        self.late.truncate(LATE_MAX - 1);
        let Request { to, id, sent_ms, .. } = *request;
        self.late.push_front(Late { correlation, to, id, sent_ms });
    }

    /// Forgets requests of which no answer is expected any more.
    fn forget_late(&mut self, now: Now) {
        let is_over = |late: &mut Late| now.mono_ms.saturating_sub(late.sent_ms) > LATE_MS_MAX;
        while self.late.pop_back_if(is_over).is_some() {}
    }

    /// Learns from an answer how long strangers take: to answer, or to make a write safe.
    pub(super) fn learn(&mut self, took_ms: u64, is_of_log: bool) {
        if is_of_log {
            self.write_trip.record(took_ms);
        } else {
            self.round_trip.record(took_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views for tests of other components.
    impl Requests {
        pub(crate) fn round_trip(&mut self) -> &mut RoundTrip {
            &mut self.round_trip
        }

        pub(crate) fn late(&self) -> alloc::vec::Vec<Contact> {
            self.late.iter().map(|late| late.to).collect()
        }

        pub(crate) fn first(&self) -> (u64, Request) {
            self.in_flight
                .iter()
                .next()
                .map(|(correlation, request)| (*correlation, *request))
                .expect("one is in flight")
        }
    }

    #[test]
    fn parts_are_taken_once_and_a_gap_is_where_the_first_missing_one_starts() {
        let mut parts = Parts::default();
        assert_eq!(parts.gap(), None);
        assert_eq!(parts.take(2, 3, 22), Some(false));
        assert_eq!(parts.gap(), None, "the first is missing");
        assert_eq!(parts.take(0, 3, 6), Some(false));
        assert_eq!(parts.take(0, 3, 6), None);
        assert_eq!(parts.gap(), Some(6));
        assert_eq!(parts.take(1, 3, 14), Some(true));
        assert_eq!(parts.gap(), Some(22));
    }
}
