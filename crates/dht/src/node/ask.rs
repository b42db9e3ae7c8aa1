//! Requests in flight: sending them, matching replies, and noticing silence.

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_stdx::TimerHandle;

use super::command::{Answer, CommandId, Outcome};
use super::outbox::{Outbox, message_kind};
use super::stem::{Handed, Refusers};
use super::{LaneNode, steering_slot};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto, PublicKey};
use crate::routing::Placed;
use crate::seal::cookie::NO_COOKIE;
use crate::time::Now;
use crate::wire::header::HEADER_BYTES;
use crate::wire::message::{Envelope, ErrorCode, Message, NEGOTIATED_BYTES, PREAMBLE_BYTES, flag};
use crate::wire::{BODY_BYTES_MAX, PROVIDER_PARTS_MAX};

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    Request(u64),
    Operation { at: u16, generation: u32 },
    Tick,
}

/// Why a request was sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A step of a lookup; one that `stores` is the write itself.
    Lookup { at: u16, generation: u32, peer: NodeId, stores: bool },
    /// A write of an operation, to its `target`-th holder.
    Write { at: u16, generation: u32, target: u8, batch: u32, attempt: u8 },
    /// Is it there, and what can it do?
    Verify,
    /// It shall see that we are where our last request came from.
    Prove,
    /// Is it where it is known, or at the other address from which it asked?
    StillThere { or_at: Addr },
    /// A command wants to know.
    Ping(CommandId),
    /// On behalf of somebody else's request.
    Relay(ReplyTo),
    /// An announcement of ours was handed to a stem; `again` if to the same node as before, with the cookie it wanted. Others refused it.
    Stem { id: ContentId, again: bool, refusers: Refusers },
    /// Somebody else's announcement was handed on, under this number; `again` likewise.
    StemOn { number: u32, again: bool },
}

impl Purpose {
    /// Whether it counts among what we have in flight to a peer. What others have us ask does not: else they could keep us from asking
    /// somebody, by having it asked where it is not.
    fn is_our_own(&self) -> bool {
        !matches!(self, Self::Relay(_))
    }

    /// Whether it is acknowledged when the log of whom it is sent to has it.
    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Lookup { stores: true, .. })
    }

    /// Whether it may take the last requests there are. What belongs to an operation waited for its turn before it came here, as the
    /// operation's own work allows; all else but a command's ping is work that nobody waits for.
    fn may_use_all(&self) -> bool {
        matches!(self, Self::Lookup { .. } | Self::Write { .. } | Self::Ping(_))
    }
}

/// Whom to answer later: a request that is being relayed, or that waits for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyTo {
    pub(super) key: PublicKey,
    pub(super) addr: Addr,
    pub(super) correlation: u64,
    pub(super) flags: u8,
    /// Whether the address has echoed its cookie.
    pub(super) proven: bool,
    pub(super) datagram_len: usize,
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) to: Contact,
    pub(super) id: NodeId,
    pub(super) sent_ms: u64,
    pub(super) timer: TimerHandle,
    pub(super) purpose: Purpose,
    parts: Parts,
}

/// Which parts of an answer in parts have come.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Bit i: the i-th.
    seen: u8,
    /// Where what comes after each part starts.
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

/// The shortest body of a request: that of a NEGOTIATED. Whoever has moved takes its cookie for good and it is not; an answer that fits tells
/// it so, and silence would be taken for absence.
const QUESTION_BYTES_MIN: usize = PREAMBLE_BYTES + NEGOTIATED_BYTES;

/// Requests whose time is up and whose answers may yet come, remembered: so many, for so long. An answer that took longer than anybody ever
/// waits says only that: taken as it is, one would have every stranger waited for long.
pub(super) const LATE_MAX: usize = 64;
const LATE_MS_MAX: u64 = 5000;
const LATE_ROUND_TRIP_MS_MAX: u64 = 2 * TIMEOUT_MS_MAX;

/// A request that was not answered in time. If it is answered all the same, whoever was asked is there, and only farther off than was
/// thought: without that, a lane among near peers would never learn how far others are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    correlation: u64,
    to: Contact,
    id: NodeId,
    sent_ms: u64,
}

impl<C: Crypto> LaneNode<C> {
    /// Sends `message` about the point `about` to a peer. False if it cannot be sent now.
    pub(super) fn request(
        &mut self,
        now: Now,
        to: Contact,
        id: NodeId,
        about: &[u8; 32],
        message: &Message<'_>,
        purpose: Purpose,
        out: &mut impl Outbox,
    ) -> bool {
        let requests_max = if purpose.may_use_all() { self.requests.capacity() } else { self.unasked_requests_max() };
        if self.requests.len() >= requests_max || !to.addr.is_dialable() {
            return false;
        }
        let correlation = self.rng.u64() & !0xff | u64::from(self.home_slot.0);
        // A relay asks somebody else in turn: it is given the time of both.
        let legs = if matches!(message, Message::Relay { .. }) { 2 } else { 1 };
        let timeout = self.timeout_ms(&id, &purpose) * legs;
        let Ok(timer) = self.timers.insert(now.mono_ms + timeout, Timer::Request(correlation)) else { return false };
        let slot = if self.config.any_slot { self.rng.u64() as u8 } else { steering_slot(&id, about) };
        if !self.send_sealed(now, &to, slot, correlation, message, out) {
            self.timers.cancel(timer);
            return false;
        }
        self.counters.requests_sent += 1;
        self.requests
            .insert(correlation, Request { to, id, sent_ms: now.mono_ms, timer, purpose, parts: Parts::default() });
        if purpose.is_our_own() {
            *self.outstanding.get_or_insert_with(*id.as_bytes(), || 0) += 1;
        }
        if let Purpose::Lookup { at, .. } | Purpose::Write { at, .. } = purpose {
            self.note_sent(at, correlation);
        }
        true
    }

    /// Sends a request that nobody answers.
    pub(super) fn notify(
        &mut self,
        now: Now,
        to: Contact,
        id: &NodeId,
        about: &[u8; 32],
        message: &Message<'_>,
        out: &mut impl Outbox,
    ) {
        self.send_sealed(now, &to, steering_slot(id, about), 0, message, out);
    }

    fn send_sealed(
        &mut self,
        now: Now,
        to: &Contact,
        slot: u8,
        correlation: u64,
        message: &Message<'_>,
        out: &mut impl Outbox,
    ) -> bool {
        let cookie = self.sealer.cookie_of(now, &to.key);
        let mut flags = 0;
        if self.config.client {
            flags |= flag::CLIENT;
        }
        if self.config.any_slot {
            flags |= flag::ANY_SLOT;
        }
        let envelope = Envelope { flags, correlation, cookie, message: *message };
        let body = &mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX];
        let Ok(mut len) = envelope.write(body) else { return false };
        if cookie == NO_COOKIE || matches!(message, Message::Relay { .. }) {
            // They will answer no more bytes than we send until we have shown that we are where we seem to be; and a
            // relay sends no more for us than we send it.
            body[len..].fill(0);
            len = BODY_BYTES_MAX;
        } else if len < QUESTION_BYTES_MIN {
            body[len..QUESTION_BYTES_MIN].fill(0);
            len = QUESTION_BYTES_MIN;
        }
        match self.sealer.seal(now, &to.key, slot, &mut self.buffer[..], len) {
            Ok(len) => {
                self.transmit(to.addr, len, out);
                true
            }
            Err(_) => false,
        }
    }

    /// Sends the first `len` bytes of the buffer.
    pub(super) fn transmit(&mut self, to: Addr, len: usize, out: &mut impl Outbox) {
        self.counters.datagrams_out += 1;
        self.counters.bytes_out += len as u64;
        out.send(to, &self.buffer[..len]);
    }

    /// Takes a request out of flight.
    pub(super) fn settle(&mut self, correlation: u64) -> Option<Request> {
        let request = self.requests.remove(&correlation)?;
        self.timers.cancel(request.timer);
        if let Purpose::Lookup { at, generation, .. } | Purpose::Write { at, generation, .. } = request.purpose {
            self.note_settled(at, generation, correlation);
        }
        if request.purpose.is_our_own()
            && let Some(count) = self.outstanding.get(request.id.as_bytes())
        {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(request.id.as_bytes());
            }
        }
        Some(request)
    }

    /// Requests of our own in flight to one peer.
    pub(super) fn in_flight_to(&self, id: &NodeId) -> usize {
        self.outstanding.peek(id.as_bytes()).map_or(0, |count| usize::from(*count))
    }

    fn timeout_ms(&mut self, id: &NodeId, purpose: &Purpose) -> u64 {
        let peer = self.table.get(id);
        let known = peer.and_then(|peer| peer.round_trip.srtt_ms()).map(|ms| ms * 2);
        let timeout = if purpose.is_write() {
            // A disk may take far longer than the way to it, so nothing is made of how far the holder is but that it takes no less.
            let written = peer.and_then(|peer| peer.write_trip.srtt_ms()).map(|ms| ms * 2);
            let written = written.or(self.write_trip.slow_ms()).unwrap_or(TIMEOUT_MS_MAX);
            written.max(known.unwrap_or(0))
        } else {
            // A lookup goes on with somebody else if a stranger is slow. Whoever asks a stranger whether it is there wants to know.
            let like_others = if matches!(purpose, Purpose::Ping(_)) { None } else { self.round_trip.slow_ms() };
            known.or(like_others).unwrap_or(TIMEOUT_MS_MAX)
        };
        let timeout = timeout.clamp(TIMEOUT_MS_MIN, TIMEOUT_MS_MAX);
        timeout + self.rng.below(timeout / 8 + 1)
    }

    pub(super) fn on_reply(
        &mut self,
        now: Now,
        from: Addr,
        sender: PublicKey,
        envelope: &Envelope<'_>,
        out: &mut impl Outbox,
    ) {
        let expected = self.requests.peek(&envelope.correlation);
        let Some(request) = expected.copied().filter(|r| r.to.key == sender && r.to.addr == from) else {
            self.take_late(now, from, sender, envelope, out);
            return;
        };
        let mut whole = true;
        // Only who is asked for them itself, by a lookup, may answer in parts. To all else there is one answer, which is counted.
        let may_come_in_parts = matches!(request.purpose, Purpose::Lookup { peer, .. } if peer == request.id);
        if let Message::Providers { part, parts, next, .. } = envelope.message
            && may_come_in_parts
            && let Some(request) = self.requests.get(&envelope.correlation)
        {
            match request.parts.take(part, parts, next) {
                Some(all) => whole = all,
                None => return,
            }
        }
        if whole {
            self.settle(envelope.correlation);
        }
        self.last_answer_ms = now.mono_ms;
        let is_seen_elsewhere = self.sealer.keep_cookie(now, &sender, envelope.cookie);
        let rtt_ms = now.mono_ms.saturating_sub(request.sent_ms);
        self.hear_from(now, request.id, request.to, rtt_ms, envelope, out);
        match &envelope.message {
            Message::Pong { observed } => self.note_observed(&request, observed, out),
            Message::Negotiated { capabilities, observed } => {
                self.note_observed(&request, observed, out);
                if let Some(peer) = self.table.get_mut(&request.id) {
                    peer.capabilities = capabilities.bits;
                }
            }
            _ => {}
        }
        match request.purpose {
            Purpose::Lookup { at, generation, peer, .. } => {
                self.on_lookup_reply(now, at, generation, &peer, &request, &envelope.message, whole, out);
            }
            Purpose::Write { at, generation, target, batch, attempt } => {
                self.on_write_reply(now, at, generation, target, batch, attempt, &envelope.message, out);
            }
            Purpose::Ping(command) => {
                let observed = match &envelope.message {
                    Message::Pong { observed } => Some(*observed),
                    _ => None,
                };
                out.complete(command, Outcome::local(Answer::Pong { rtt_ms, observed }));
            }
            Purpose::Relay(asker) => self.on_relayed_reply(now, asker, &envelope.message, out),
            Purpose::Stem { id, again, refusers } => {
                self.on_stem_answer(now, &id, request.to, Handed::of(&envelope.message, again), refusers, out);
            }
            Purpose::StemOn { number, again } => {
                self.on_stem_handed_on(now, number, request.to, Handed::of(&envelope.message, again), out);
            }
            Purpose::Verify | Purpose::Prove | Purpose::StillThere { .. } => {}
        }
        // Once, whatever it says next: one that never has the same cookie for us would be asked without end.
        if is_seen_elsewhere && !matches!(request.purpose, Purpose::Prove) {
            self.request(now, request.to, request.id, request.id.as_bytes(), &Message::Ping, Purpose::Prove, out);
        }
    }

    /// A reply that nobody waits for: perhaps to a request whose time was up.
    fn take_late(&mut self, now: Now, from: Addr, sender: PublicKey, envelope: &Envelope<'_>, out: &mut impl Outbox) {
        self.forget_late(now);
        let is_it = |late: &Late| (late.correlation, late.to.key, late.to.addr) == (envelope.correlation, sender, from);
        let Some(late) = self.late.iter().position(is_it).and_then(|at| self.late.remove(at)) else {
            self.counters.replies_unexpected += 1;
            return;
        };
        let rtt_ms = now.mono_ms.saturating_sub(late.sent_ms).min(LATE_ROUND_TRIP_MS_MAX);
        self.last_answer_ms = now.mono_ms;
        self.sealer.keep_cookie(now, &sender, envelope.cookie);
        self.hear_from(now, late.id, late.to, rtt_ms, envelope, out);
    }

    /// Forgets those of whom no answer is expected any more.
    fn forget_late(&mut self, now: Now) {
        let is_over = |late: &mut Late| now.mono_ms.saturating_sub(late.sent_ms) > LATE_MS_MAX;
        while self.late.pop_back_if(is_over).is_some() {}
    }

    pub(super) fn on_request_timeout(&mut self, now: Now, correlation: u64, out: &mut impl Outbox) {
        let Some(request) = self.settle(correlation) else { return };
        if let (Purpose::Lookup { at, generation, peer, .. }, Some(next)) = (request.purpose, request.parts.gap()) {
            self.on_lookup_gap(now, at, generation, &peer, next, out);
            return;
        }
        self.counters.request_timeouts += 1;
        self.forget_late(now);
        self.late.truncate(LATE_MAX - 1);
        self.late.push_front(Late { correlation, to: request.to, id: request.id, sent_ms: request.sent_ms });
        self.note_silence(now, &request, out);
        match request.purpose {
            Purpose::Lookup { at, generation, peer, stores } => {
                self.on_lookup_timeout(now, at, generation, &peer, &request.id, stores, out);
            }
            Purpose::Write { at, generation, target, batch, attempt } => {
                self.on_write_timeout(now, at, generation, target, batch, attempt, out);
            }
            Purpose::Ping(command) => out.complete(command, Outcome::local(Answer::Silence)),
            Purpose::Relay(asker) => {
                self.relays -= 1;
                let refusal = Message::Error { code: ErrorCode::RelayFailed, retry_after_ms: 0 };
                self.reply_to(now, &asker, &refusal, out);
            }
            Purpose::Stem { id, refusers, .. } => {
                self.on_stem_answer(now, &id, request.to, Handed::Refused, refusers, out);
            }
            Purpose::StemOn { number, .. } => {
                self.on_stem_handed_on(now, number, request.to, Handed::Refused, out);
            }
            Purpose::Verify | Purpose::Prove => {}
            Purpose::StillThere { or_at } => {
                self.verify(now, Contact { addr: or_at, ..request.to }, request.id, out);
            }
        }
    }

    /// A peer did not answer. That says something about it only if it was asked where it is known to be: anybody can name it at an address
    /// where nobody is. Whom to ask for somebody else was that one's choice, and says nothing at all; nor does a relay's silence, which
    /// may be that of whom it asked.
    fn note_silence(&mut self, now: Now, request: &Request, out: &mut impl Outbox) {
        let known = self.table.get(&request.id).map(|peer| (peer.contact, peer.is_live()));
        let Some((known, was_live)) = known.filter(|(known, _)| known.addr == request.to.addr) else { return };
        let is_for_another = match request.purpose {
            Purpose::Relay(_) => true,
            Purpose::Lookup { peer, .. } => peer != request.id,
            _ => false,
        };
        if is_for_another || !self.table.silent(&request.id) {
            return;
        }
        if was_live {
            self.lose(now, known, request.id, out);
        } else {
            // A spare goes at its first silence, which may be one datagram that was lost. Other lanes may have it as a member: that is
            // not reason enough for them.
            self.remember_lost(now, known, request.id);
        }
    }

    /// An answer came, late or not: what it says about whoever was asked, whatever it was asked.
    fn hear_from(
        &mut self,
        now: Now,
        id: NodeId,
        contact: Contact,
        took_ms: u64,
        answer: &Envelope<'_>,
        out: &mut impl Outbox,
    ) {
        // A relay took as long as whom it asked, who may have been silent: that says nothing of how far it is itself.
        let is_of_another =
            matches!(answer.message, Message::Relayed { .. } | Message::Error { code: ErrorCode::RelayFailed, .. });
        // Who acknowledges a write has waited for its log. That says something of the way only as long as nothing else does.
        let is_of_log = matches!(answer.message, Message::Stored { .. } | Message::Announced { .. });
        let is_known = self.table.get(&id).is_some_and(|peer| peer.round_trip.srtt_ms().is_some());
        let says_how_far = !(is_of_another || is_of_log && is_known);
        let rtt_ms = says_how_far.then_some(took_ms);
        if is_of_log {
            self.write_trip.record(took_ms);
        } else if !is_of_another {
            self.round_trip.record(took_ms);
        }
        if answer.flags & flag::CLIENT == 0 && !self.abuse.is_quarantined(now.mono_ms, &contact.key) {
            // Where it was asked is what somebody said, and whoever hands datagrams on unopened can say so for any contact: it would be
            // known to us by that one alone, and gone when that one likes. As long as it is not silent where it is known, it stays there.
            if self.table.get(&id).is_some_and(|peer| peer.silences == 0 && peer.contact.addr != contact.addr) {
                self.introduce(now, contact, id, out);
                return;
            }
            self.note_answer(now, id, contact, rtt_ms, out);
            if is_of_log && let Some(peer) = self.table.get_mut(&id) {
                peer.write_trip.record(took_ms);
            }
        }
    }

    /// A peer answered: it deserves its place in the table, and the other lanes may hear of it.
    fn note_answer(&mut self, now: Now, id: NodeId, contact: Contact, rtt_ms: Option<u64>, out: &mut impl Outbox) {
        let placed = self.table.answered(now.mono_ms, id, contact, rtt_ms);
        let is_news = matches!(placed, Placed::Added | Placed::Replaced(_) | Placed::Moved);
        if is_news {
            self.log_contact(&contact, out);
        }
        // News go to all; the owner's pings keep the others' tables fresh too.
        if is_news || self.looks_after(&id) {
            let mut payload = [0; 54];
            payload[..50].copy_from_slice(&contact.to_wire());
            payload[50..].copy_from_slice(&rtt_ms.map_or(u32::MAX, |ms| ms as u32).to_le_bytes());
            self.tell_lanes(message_kind::CONTACT, id.prefix_u64(), &payload, out);
        }
        if let Placed::Replaced(Some(gone)) = placed {
            self.lose(now, gone, self.sealer.node_id(&gone.key), out);
        }
        if let Placed::Spare(Some(oldest)) = placed {
            let oldest_id = self.sealer.node_id(&oldest.key);
            if self.in_flight_to(&oldest_id) == 0 {
                self.request(now, oldest, oldest_id, oldest_id.as_bytes(), &Message::Ping, Purpose::Verify, out);
            }
        }
    }

    /// A peer says where it sees us.
    fn note_observed(&mut self, request: &Request, observed: &Addr, out: &mut impl Outbox) {
        if observed.is_dialable()
            && self.seen_at.say(&request.to, &request.id, *observed)
            && let Some(believed) = self.seen_at.believed()
        {
            // Every lane announces ids of its own, and not every lane has asked somebody who says.
            self.tell_lanes(message_kind::OBSERVED, 0, &believed.to_wire(), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_among, lane_of};
    use crate::wire::message::{Contacts, kind};
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    const LOOKUP: Purpose = Purpose::Lookup { at: 0, generation: 0, peer: NodeId::from_bytes([0; 32]), stores: false };

    fn known(lane: &mut LaneNode<Identity>, n: u8, rtt_ms: u64) -> NodeId {
        let contact = contact(n);
        lane.table.answered(T.mono_ms, contact.id(), contact, Some(rtt_ms));
        contact.id()
    }

    #[test]
    fn a_timeout_is_twice_the_round_trip_within_bounds_and_jittered() {
        let mut lane = lane();
        // The last value below each bound, the bound, and far beyond.
        for (n, rtt_ms, timeout) in
            [(10, 1, 50), (11, 24, 50), (12, 26, 52), (13, 299, 598), (14, 301, 600), (15, 9000, 600)]
        {
            let id = known(&mut lane, n, rtt_ms);
            let drawn: BTreeSet<_> = (0..200).map(|_| lane.timeout_ms(&id, &LOOKUP)).collect();
            let (least, most) = (*drawn.first().unwrap(), *drawn.last().unwrap());
            assert!(least >= timeout && most <= timeout + timeout / 8, "{rtt_ms} ms: {least} to {most}");
            assert!(drawn.len() > 3, "jitter keeps askers apart");
        }
    }

    const WRITE: Purpose = Purpose::Write { at: 0, generation: 0, target: 0, batch: 0, attempt: 1 };
    const STORE: Purpose = Purpose::Lookup { at: 0, generation: 0, peer: NodeId::from_bytes([0; 32]), stores: true };

    /// A peer answers so and takes so long.
    fn hear(lane: &mut LaneNode<Identity>, n: u8, took_ms: u64, message: Message<'_>) {
        let answer = Envelope { flags: 0, correlation: 0, cookie: NO_COOKIE, message };
        lane.hear_from(T, contact(n).id(), contact(n), took_ms, &answer, &mut Sent::default());
    }

    #[test]
    fn the_wait_for_a_holders_log_makes_its_writes_waited_for_and_not_its_lookups() {
        let acknowledged = [Message::Stored { closer: Contacts::over(&[]) }, Message::Announced { kept: 1 }];
        for message in acknowledged {
            let mut lane = lane();
            let id = known(&mut lane, 10, 10);
            (0..50).for_each(|_| hear(&mut lane, 11, 10, Message::Pong { observed: contact(1).addr }));
            let of_strangers = lane.round_trip;
            (0..50).for_each(|_| hear(&mut lane, 10, 200, message));
            let srtt_ms = |lane: &LaneNode<_>| lane.table.get(&id).and_then(|peer| peer.round_trip.srtt_ms());
            assert_eq!((srtt_ms(&lane), lane.round_trip), (Some(10), of_strangers), "{message:?}");
            assert!(lane.timeout_ms(&id, &LOOKUP) < 60);
            for purpose in [WRITE, STORE] {
                let timeout = lane.timeout_ms(&id, &purpose);
                assert!((400..=450).contains(&timeout), "{timeout}");
                // Another, who is as near, may have such a disk.
                let other = known(&mut lane, 12, 10);
                assert!(lane.timeout_ms(&other, &purpose) >= 200);
            }
            // A refusal waits for no log.
            hear(&mut lane, 10, 90, Message::Error { code: ErrorCode::Full, retry_after_ms: 0 });
            assert_eq!(srtt_ms(&lane), Some(20));
        }
    }

    #[test]
    fn who_is_known_by_its_writes_alone_is_as_far_as_they_took() {
        let mut lane = lane();
        hear(&mut lane, 10, 200, Message::Stored { closer: Contacts::over(&[]) });
        assert_eq!(lane.table.get(&contact(10).id()).and_then(|peer| peer.round_trip.srtt_ms()), Some(200));
    }

    #[test]
    fn a_write_is_given_the_most_time_before_any_was_acknowledged_and_never_less_than_a_question() {
        let mut lane = lane();
        let (near, far) = (known(&mut lane, 10, 1), known(&mut lane, 11, 250));
        assert!(lane.timeout_ms(&near, &WRITE) >= TIMEOUT_MS_MAX);
        (0..50).for_each(|_| hear(&mut lane, 10, 1, Message::Announced { kept: 1 }));
        assert!(lane.timeout_ms(&near, &WRITE) < 60);
        assert!(lane.timeout_ms(&far, &WRITE) >= 500);
    }

    #[test]
    fn of_an_unknown_peer_what_the_lane_has_seen_of_others_is_assumed_or_the_most() {
        let mut lane = lane();
        let stranger = Identity::from_seed(&[99; 32]).node_id();
        assert!(lane.timeout_ms(&stranger, &LOOKUP) >= TIMEOUT_MS_MAX);
        for _ in 0..50 {
            lane.round_trip.record(40);
        }
        let timeout = lane.timeout_ms(&stranger, &LOOKUP);
        assert!((40..TIMEOUT_MS_MAX / 2).contains(&timeout), "{timeout}");
        let ping = Purpose::Ping(CommandId(1));
        assert!(lane.timeout_ms(&stranger, &ping) >= TIMEOUT_MS_MAX, "a lookup has others to ask, and this has not");
    }

    #[test]
    fn who_answers_late_is_known_as_far_off_and_given_the_time_it_needs() {
        let (mut near, mut far) = (lane_of(1), lane_of(2));
        let (here, there) = (Addr::v4([10, 0, 0, 1], 1), Addr::v4([10, 0, 9, 1], 1));
        let contact = Contact { key: far.own_key, addr: there };
        (0..50).for_each(|_| near.round_trip.record(1));
        assert_eq!(near.reserve(), Some(0));
        let at = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        let mut out = Sent::default();
        assert!(near.request(T, contact, far.own, far.own.as_bytes(), &Message::Ping, LOOKUP, &mut out));
        let mut asked = out.0.pop().unwrap().1;
        let mut answers = Sent::default();
        far.on_datagram(at(100), here, &mut asked, 0, &mut answers);
        let mut answer = answers.0.swap_remove(0).1;
        near.on_time(at(190), &mut out);
        assert_eq!((near.counters.request_timeouts, near.late.len()), (1, 1));
        let mut again = answer.clone();
        near.on_datagram(at(200), there, &mut answer, 0, &mut out);
        assert_eq!(near.table.get(&far.own).and_then(|peer| peer.round_trip.srtt_ms()), Some(200));
        assert!(near.timeout_ms(&far.own, &LOOKUP) >= 400);
        assert_eq!((near.counters.replies_unexpected, near.late.len()), (0, 0));
        // Nobody is believed to be there twice for one question.
        near.on_datagram(at(201), there, &mut again, 0, &mut out);
        assert_eq!(near.counters.replies_unexpected + near.counters.refused_replay, 1);
    }

    #[test]
    fn nothing_is_sent_to_nobody_or_to_everybody_whoever_names_it() {
        for addr in
            [Addr::v4([224, 0, 0, 1], 1), Addr::v4([255; 4], 1), Addr::v4([0; 4], 1), Addr::v4([10, 0, 0, 1], 0)]
        {
            let (mut lane, mut sent) = (lane(), Sent::default());
            let to = Contact { addr, ..contact(10) };
            assert!(!lane.request(T, to, to.id(), &[0; 32], &Message::Ping, Purpose::Verify, &mut sent), "{addr}");
            assert_eq!((sent.0.len(), lane.requests.len()), (0, 0), "{addr}");
        }
    }

    #[test]
    fn an_answer_counts_only_from_the_key_and_the_address_that_were_asked() {
        let (here, there) = (Addr::v4([10, 0, 0, 1], 1), Addr::v4([10, 0, 9, 1], 1));
        // In time, and late.
        for ms in [10, 700] {
            for (by, from, counts) in
                [(2, there, true), (3, there, false), (2, Addr { port: 2, ..there }, false), (3, here, false)]
            {
                let (mut near, far, mut answerer) = (lane_of(1), lane_of(2), lane_of(by));
                let contact = Contact { key: far.own_key, addr: there };
                let (purpose, mut sent) = (Purpose::Verify, Sent::default());
                assert!(near.request(T, contact, far.own, far.own.as_bytes(), &Message::Ping, purpose, &mut sent));
                let correlation = *near.requests.iter().next().map(|(correlation, _)| correlation).unwrap();
                near.on_time(after(ms), &mut sent);
                let (asker, pong) = (Contact { key: near.own_key, addr: here }, Message::Pong { observed: here });
                let mut answer = Sent::default();
                answerer.send_sealed(T, &asker, correlation as u8, correlation, &pong, &mut answer);
                near.on_datagram(after(ms + 1), from, &mut answer.0[0].1, 0, &mut sent);
                let taken = near.table.len() == 1 && near.counters.replies_unexpected == 0;
                assert_eq!(taken, counts, "by {by} from {from} after {ms} ms");
                assert_eq!(near.table.is_empty(), !counts);
            }
        }
    }

    /// A lane has asked another one, and its time is up; then the answer that comes is handed to `judge`.
    fn late_answer(
        far: impl FnOnce(&mut LaneNode<Identity>),
        judge: impl FnOnce(&mut LaneNode<Identity>, NodeId, Addr, &mut [u8]),
    ) {
        let (mut near, mut peer) = (lane_of(1), lane_of(2));
        far(&mut peer);
        let (here, there) = (Addr::v4([10, 0, 0, 1], 1), Addr::v4([10, 0, 9, 1], 1));
        let contact = Contact { key: peer.own_key, addr: there };
        let mut out = Sent::default();
        assert!(near.request(T, contact, peer.own, peer.own.as_bytes(), &Message::Ping, Purpose::Verify, &mut out));
        let mut answers = Sent::default();
        peer.on_datagram(T, here, &mut out.0[0].1, 0, &mut answers);
        near.on_time(after(700), &mut Sent::default());
        assert_eq!(near.late.len(), 1);
        judge(&mut near, peer.own, there, &mut answers.0[0].1);
    }

    fn after(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    #[test]
    fn an_answer_that_took_very_long_makes_no_stranger_waited_for_for_long() {
        for (ms, taken) in [(LATE_MS_MAX, true), (LATE_MS_MAX + 1, false)] {
            late_answer(
                |_| {},
                |near, peer, there, answer| {
                    (0..50).for_each(|_| near.round_trip.record(10));
                    near.on_datagram(after(ms), there, answer, 0, &mut Sent::default());
                    assert_eq!(near.table.get(&peer).is_some(), taken);
                    assert_eq!((near.late.len(), near.counters.replies_unexpected), (0, u64::from(!taken)));
                    (0..10).for_each(|_| near.round_trip.record(10));
                    let timeout = near.timeout_ms(&contact(99).id(), &LOOKUP);
                    assert!(timeout < 500, "{timeout} ms after ten answers");
                },
            );
        }
    }

    #[test]
    fn a_late_answer_of_who_serves_nobody_makes_it_no_contact() {
        late_answer(
            |far| far.config.client = true,
            |near, peer, there, answer| {
                near.on_datagram(after(800), there, answer, 0, &mut Sent::default());
                assert!(near.table.get(&peer).is_none() && near.late.is_empty());
            },
        );
    }

    #[test]
    fn a_late_answer_of_one_in_quarantine_makes_it_no_contact() {
        late_answer(
            |_| {},
            |near, peer, there, answer| {
                let key = near.late[0].to.key;
                while !near.abuse.is_quarantined(after(60_000).mono_ms, &key) {
                    near.abuse.offence(T.mono_ms, &key, crate::abuse::Offence::InvalidRecord);
                }
                near.on_datagram(after(800), there, answer, 0, &mut Sent::default());
                assert!(near.table.get(&peer).is_none() && near.late.is_empty());
            },
        );
    }

    #[test]
    fn a_late_answer_from_another_address_is_none() {
        late_answer(
            |_| {},
            |near, peer, _, answer| {
                near.on_datagram(after(800), Addr::v4([10, 0, 9, 2], 1), answer, 0, &mut Sent::default());
                assert!(near.table.get(&peer).is_none());
                assert_eq!((near.late.len(), near.counters.replies_unexpected), (1, 1));
            },
        );
    }

    #[test]
    fn a_silent_member_that_gives_way_is_remembered_as_lost() {
        let mut lane = lane();
        let top = lane.own.as_bytes()[0] & 0x80;
        let mut far = (0..=255).map(contact).filter(|contact| contact.id().as_bytes()[0] & 0x80 != top);
        let members: Vec<Contact> = far.by_ref().take(lane.table.k()).collect();
        let newcomer = far.next().unwrap();
        for contact in &members {
            lane.note_answer(T, contact.id(), *contact, Some(10), &mut Sent::default());
        }
        for _ in 0..2 {
            assert!(!lane.table.silent(&members[3].id()), "there is nobody in its place yet");
        }
        lane.note_answer(T, newcomer.id(), newcomer, Some(10), &mut Sent::default());
        assert!(lane.table.get(&members[3].id()).is_none());
        assert_eq!(lane.lost.iter().map(|lost| lost.contact).collect::<Vec<_>>(), [members[3]]);
    }

    /// Contacts of the other half of the space than `lane` is in, which share one bucket.
    fn far_from(lane: &LaneNode<Identity>) -> impl Iterator<Item = Contact> + use<> {
        let top = lane.own.as_bytes()[0] & 0x80;
        (0..=255).map(contact).filter(move |contact| contact.id().as_bytes()[0] & 0x80 != top)
    }

    #[test]
    fn a_spare_of_one_lane_that_was_silent_once_keeps_its_place_in_another() {
        let (mut with_spare, mut with_member) = (lane_among(1, 0, 2), lane_among(1, 1, 2));
        // The lane that has it as a spare looks after it, and so is the one the others believe.
        let spare = far_from(&with_spare).find(|contact| with_spare.looks_after(&contact.id())).unwrap();
        let members = far_from(&with_spare).filter(|contact| *contact != spare).take(with_spare.table.k());
        for contact in members.chain([spare]) {
            with_spare.table.answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        with_member.table.answered(T.mono_ms, spare.id(), spare, Some(10));
        assert!(with_spare.table.iter_spares().any(|peer| peer.id == spare.id()));
        let mut out = Sent::default();
        with_spare.verify(after(10_000), spare, spare.id(), &mut out);
        with_spare.on_time(after(12_000), &mut out);
        assert_eq!(with_spare.counters.request_timeouts, 1);
        for (_, kind, payload) in out.1 {
            with_member.on_message(after(12_000), kind, &payload, &mut Sent::default());
        }
        assert!(with_member.table.get(&spare.id()).is_some_and(|peer| peer.is_live()), "one datagram was lost");
        assert!(with_spare.lost.iter().any(|lost| lost.contact == spare), "and here it is tried again");
    }

    #[test]
    fn a_contact_is_silent_only_where_it_is_known_to_be() {
        let mut lane = lane();
        let known = contact(10);
        lane.table.answered(T.mono_ms, known.id(), known, Some(10));
        for (addr, silences) in [(Addr::v4([203, 0, 113, 9], 9), 0), (known.addr, 1)] {
            lane.verify(T, Contact { addr, ..known }, known.id(), &mut Sent::default());
            lane.on_time(after(2000 * (u64::from(silences) + 1)), &mut Sent::default());
            assert_eq!(lane.counters.request_timeouts, u64::from(silences) + 1);
            assert_eq!(lane.table.get(&known.id()).map(|peer| peer.silences), Some(silences));
        }
    }

    #[test]
    fn a_relay_is_not_silent_when_who_it_asked_is() {
        let mut lane = lane();
        let (relay, target) = (contact(10), contact(11));
        lane.table.answered(T.mono_ms, relay.id(), relay, Some(10));
        assert_eq!(lane.reserve(), Some(0));
        let relayed = Message::Relay { to: target, kind: kind::FIND_NODE, payload: &[0; 33] };
        for (purpose, silences) in [
            (Purpose::Lookup { at: 0, generation: 0, peer: target.id(), stores: false }, 0),
            (Purpose::Lookup { at: 0, generation: 0, peer: relay.id(), stores: false }, 1),
        ] {
            assert!(lane.request(T, relay, relay.id(), &[0; 32], &relayed, purpose, &mut Sent::default()));
            lane.on_time(after(2000 * (u64::from(silences) + 1)), &mut Sent::default());
            assert_eq!(lane.table.get(&relay.id()).map(|peer| peer.silences), Some(silences));
        }
    }

    #[test]
    fn only_so_many_late_ones_are_remembered() {
        let mut near = lane_of(1);
        for n in 0..LATE_MAX as u8 + 9 {
            let contact = contact(n);
            near.request(T, contact, contact.id(), &[0; 32], &Message::Ping, Purpose::Verify, &mut Sent::default());
        }
        near.on_time(Now { mono_ms: T.mono_ms + 2000, ..T }, &mut Sent::default());
        assert_eq!(near.late.len(), LATE_MAX);
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
