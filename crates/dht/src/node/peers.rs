//! Exchanges with other nodes: requests and their replies, requests of others, and conclusions about their senders.
//!
//! Here meet the components that every exchange needs: the link seals it, requests match and time it, admission judges it, membership
//! learns from it. The purpose of an answer is not decided here: [`Peers::on_reply`] and [`Peers::on_timeout`] return it.

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_contracts::prefix_map::Slot;

use super::admission::{Admission, Asker, ReplyTo};
use super::context::{Context, Place};
use super::link::{LaneSealer, Link};
use super::membership::{Membership, Sighting};
use super::outbox::{MessageClass, message_kind};
use super::requests::{Matched, Purpose, Request, Requests, Timer};
use super::steering::steering_slot;
use crate::abuse::{LimitOf, Limited, Offence};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::PublicKey;
use crate::routing::Peer;
use crate::seal::cookie::Scope;
use crate::seal::{Opened, Standing};
use crate::wire::header::{Challenge, Header, slot_of};
use crate::wire::message::{CONTACT_BYTES, Capabilities, Envelope, ErrorCode, Message, Token, capability, flag};
use crate::wire::{DATAGRAM_BYTES_MAX, VERSION};

/// How many times the radius of K nodes away an id may lie before a write for it is refused, if enough others are nearer.
const TOO_FAR_FACTOR: usize = 8;

/// Pings of one tick.
const PINGS_PER_TICK: usize = 8;

/// Lost contacts tried in one tick.
pub(super) const LOST_PER_TICK: usize = 8;

/// A request that is to be sent.
pub(super) struct Question<'m> {
    pub(super) to: Contact,
    pub(super) id: NodeId,
    /// The point that it is about, which steers it at the receiver.
    pub(super) about: &'m [u8; 32],
    pub(super) message: Message<'m>,
    pub(super) purpose: Purpose,
}

impl<'m> Question<'m> {
    /// About the receiver itself.
    pub(super) fn to(to: Contact, id: &'m NodeId, message: Message<'m>, purpose: Purpose) -> Self {
        Self { to, id: *id, about: id.as_bytes(), message, purpose }
    }
}

/// The content of an opened datagram.
pub(super) enum Incoming<'d> {
    Message(Received<'d>),
    /// A cookie to ask again with: the request that it answers is no longer in flight.
    Challenge {
        request: Request,
        correlation: u64,
    },
}

/// A datagram that was opened and belongs to this lane.
pub(super) struct Received<'d> {
    pub(super) from: Addr,
    pub(super) header: Header,
    pub(super) envelope: Envelope<'d>,
    pub(super) len: usize,
    /// Whether its stream is remembered as a proven peer's.
    is_settled: bool,
}

/// An answer to a request.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) request: Request,
    /// Whether no other part of it is expected.
    pub(super) whole: bool,
    pub(super) took_ms: u64,
    /// The peer sees us at another address than before.
    pub(super) is_seen_elsewhere: bool,
}

/// Exchanges with other nodes.
#[derive(Debug)]
pub(super) struct Peers {
    link: Link,
    requests: Requests,
    admission: Admission,
    members: Membership,
}

impl Peers {
    pub(super) fn new(link: Link, requests: Requests, admission: Admission, members: Membership) -> Self {
        Self { link, requests, admission, members }
    }

    pub(super) fn reserve_all(&mut self) {
        self.link.reserve_all();
        self.members.reserve_all();
        self.admission.reserve_all();
        self.requests.reserve_all();
    }

    pub(super) fn set_lanes(&mut self, lanes: usize) {
        self.admission.set_lanes(lanes);
    }

    pub(super) fn members(&self) -> &Membership {
        &self.members
    }

    pub(super) fn members_mut(&mut self) -> &mut Membership {
        &mut self.members
    }

    pub(super) fn requests(&self) -> &Requests {
        &self.requests
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(super) fn sealer(&self) -> &LaneSealer {
        self.link.sealer()
    }

    pub(super) fn node_id(&self, key: &PublicKey) -> NodeId {
        self.link.node_id(key)
    }

    #[inline]
    pub(super) fn is_quarantined(&self, cx: &Context<'_>, key: &PublicKey) -> bool {
        self.admission.is_quarantined(cx.now, key)
    }

    /// Opens a datagram. `None` if it is refused, or if another lane is to have it. Of a sender that is new here nothing is remembered yet but its
    /// agreement: [`Peers::admit`] and [`Peers::on_reply`] do that.
    #[inline]
    pub(super) fn receive<'d>(
        &mut self,
        cx: &mut Context<'_>,
        from: Addr,
        datagram: &'d mut [u8],
        hops: u8,
    ) -> Option<Incoming<'d>> {
        let len = datagram.len();
        cx.counters.datagrams_in += 1;
        cx.counters.bytes_in += len as u64;
        let Some(slot) = slot_of(datagram).map(Slot) else {
            cx.counters.refused_header += 1;
            return None;
        };
        // The byte is a hint: it chooses the lane that looks first, once.
        if hops == 0 && !cx.place.owns_slot(slot) {
            cx.forward(slot, from, datagram, 1);
            return None;
        }
        if let Some(challenge) = Challenge::read(datagram) {
            return self.on_challenge(cx, from, &challenge);
        }
        // Opening is in place, and a datagram that then turns out to belong to another lane must be handed on sealed.
        let sealed = (hops < 2 && cx.place.lanes() > 1).then(|| {
            let mut sealed = [0; DATAGRAM_BYTES_MAX];
            let kept = len.min(DATAGRAM_BYTES_MAX);
            sealed[..kept].copy_from_slice(&datagram[..kept]);
            sealed
        });
        let Opened { header, body, is_settled } = self.link.open(cx, from, datagram, &mut self.admission)?;
        let Ok(envelope) = Envelope::read(body) else {
            cx.counters.malformed += 1;
            if !self.is_quarantined(cx, &header.sender) {
                self.offence(cx, &header.sender, Offence::Malformed);
                // Played again it must not count again.
                self.link.remember(&header, Standing::Unproven);
            }
            return None;
        };
        // Asked only where there are others: the id of a record is its hash.
        if let Some(sealed) = &sealed
            && let Some(owner) = cx.place.owner_slot(&envelope)
            && !cx.place.owns_slot(owner)
        {
            cx.forward(owner, from, &sealed[..len], 2);
            return None;
        }
        Some(Incoming::Message(Received { from, header, envelope, len, is_settled }))
    }

    /// A node has many strangers and wants to see a cookie first: here it is. The challenge is not sealed, so nothing else is made of it.
    fn on_challenge<'d>(&mut self, cx: &mut Context<'_>, from: Addr, challenge: &Challenge) -> Option<Incoming<'d>> {
        let correlation = self.link.challenged(challenge)?;
        let request = self.requests.take_challenged(cx, from, challenge.sender, correlation)?;
        cx.counters.challenges_taken += 1;
        self.link.keep_cookie(cx.now, &challenge.sender, challenge.cookie);
        Some(Incoming::Challenge { request, correlation })
    }

    /// Sends a request. Returns its correlation id, or `None` if it cannot be sent now.
    pub(super) fn ask(&mut self, cx: &mut Context<'_>, question: Question<'_>) -> Option<u64> {
        let Question { to, id, about, message, purpose } = question;
        if !self.requests.has_room_for(&purpose) || !self.members.may_dial(cx.place, &to, &id) {
            return None;
        }
        let correlation = cx.correlation();
        // A relay asks another node in turn: it is given the time of both.
        let legs = if matches!(message, Message::Relay { .. }) { 2 } else { 1 };
        let timeout = self.requests.timeout_ms(cx.rng, self.members.table().get(&id), &purpose) * legs;
        let timer = cx.timers.wheel.insert(cx.now.mono_ms + timeout, Timer::Request(correlation)).ok()?;
        let slot = cx.request_slot(&id, about);
        if !self.link.send(cx, &to, slot, correlation, &message) {
            cx.timers.wheel.cancel(timer);
            return None;
        }
        cx.counters.requests_sent += 1;
        self.requests.sent(cx.now, correlation, (to, id), purpose, timer);
        Some(correlation)
    }

    /// Sends a request to which there is no answer.
    pub(super) fn notify(
        &mut self,
        cx: &mut Context<'_>,
        to: &Contact,
        id: &NodeId,
        about: &[u8; 32],
        message: &Message<'_>,
    ) {
        self.link.send(cx, to, steering_slot(id, about), 0, message);
    }

    #[inline]
    pub(super) fn answer(&mut self, cx: &mut Context<'_>, asker: &Asker, message: &Message<'_>) {
        self.link.answer(cx, asker, message);
    }

    /// Answers a request that came a while ago.
    pub(super) fn reply_to(&mut self, cx: &mut Context<'_>, to: &ReplyTo, message: &Message<'_>) {
        let asker = self.asker(cx, to);
        self.link.answer(cx, &asker, message);
    }

    /// The sender of an earlier request.
    pub(super) fn asker(&self, cx: &Context<'_>, to: &ReplyTo) -> Asker {
        self.admission.asker(cx.now, to, self.link.node_id(&to.key))
    }

    /// Takes a request out of flight that nothing waits for any more.
    pub(super) fn cancel(&mut self, cx: &mut Context<'_>, correlation: u64) {
        self.requests.settle(cx, correlation);
    }

    /// The sender of a request. `None` if it is in quarantine.
    #[inline]
    pub(super) fn identify(&mut self, cx: &mut Context<'_>, received: &Received<'_>) -> Option<Asker> {
        let Received { from, header: Header { sender, .. }, envelope, len, .. } = received;
        self.members.note_request(cx.now);
        if self.is_quarantined(cx, sender) {
            cx.counters.requests_quarantined += 1;
            return None;
        }
        let id = self.link.node_id(sender);
        Some(self.admission.identify(cx.now, (*sender, id, *from), envelope, *len))
    }

    /// Whether a request is served. If its sender has asked too much, it has been answered. A served request does not pass again.
    #[inline]
    pub(super) fn admit(&mut self, cx: &mut Context<'_>, asker: &Asker, received: &Received<'_>) -> bool {
        let Err(Limited { retry_after_ms, limit }) = self.admission.admit(cx, asker, &received.envelope.message) else {
            if !received.is_settled {
                let standing = if asker.proven { Standing::Proven(asker.addr.prefix()) } else { Standing::Unproven };
                self.link.remember(&received.header, standing);
            }
            return true;
        };
        let code = match limit {
            LimitOf::Unproven => ErrorCode::CookieRequired,
            LimitOf::Peer | LimitOf::Prefix => ErrorCode::RateLimited,
        };
        if limit == LimitOf::Peer {
            self.offence(cx, &asker.key, Offence::Flood);
        }
        self.link.answer(cx, asker, &Message::Error { code, retry_after_ms });
        false
    }

    /// A stranger that asks may be worth knowing, and a peer that asks from elsewhere may have moved. Not before it has proved its
    /// address: our question would be longer than its datagram.
    #[inline]
    pub(super) fn meet_asker(&mut self, cx: &mut Context<'_>, asker: &Asker) {
        if asker.proven && asker.flags & flag::CLIENT == 0 && self.members.is_news(&asker.id, &asker.addr) {
            self.introduce(cx, Contact { key: asker.key, addr: asker.addr }, asker.id);
        }
    }

    /// A peer says that it leaves, under its own key: its silence need not be waited for. Only where it is known to be, and if it can receive there:
    /// a good-bye that was recorded, and is played again from anywhere, says nothing.
    pub(super) fn left(&mut self, cx: &mut Context<'_>, asker: &Asker) {
        let is_there = asker.proven && self.members.is_at(&asker.id, &asker.addr);
        if is_there || !cx.place.config.defences.leaving_from_proven {
            self.members.expel(&asker.id);
            cx.tell_lanes(MessageClass::Hint, message_kind::LEFT, asker.id.prefix_u64(), asker.id.as_bytes());
        }
    }

    /// Finds the request that a reply is to, and learns about its sender.
    pub(super) fn on_reply(&mut self, cx: &mut Context<'_>, received: &Received<'_>) -> Option<Answered> {
        let Received { from, header: Header { sender, .. }, envelope, .. } = received;
        let matched = self.requests.match_reply(cx, *from, *sender, envelope);
        // It answers from where it was asked: that shows its address.
        if !received.is_settled && matches!(matched, Matched::Answer { .. } | Matched::Late { .. }) {
            self.link.remember(&received.header, Standing::Proven(from.prefix()));
        }
        let (request, whole) = match matched {
            Matched::Answer { request, whole } => (request, whole),
            Matched::Repeated => return None,
            Matched::Late { to, id, took_ms } => {
                self.members.note_reply(cx.now);
                self.link.keep_cookie(cx.now, sender, envelope.cookie);
                self.hear_from(cx, id, to, took_ms, envelope);
                return None;
            }
            Matched::Unexpected => {
                cx.counters.replies_unexpected += 1;
                return None;
            }
        };
        self.members.note_reply(cx.now);
        let is_seen_elsewhere = self.link.keep_cookie(cx.now, sender, envelope.cookie);
        let took_ms = cx.now.mono_ms.saturating_sub(request.sent_ms);
        self.hear_from(cx, request.id, request.to, took_ms, envelope);
        if let Message::Pong { observed } | Message::Negotiated { observed, .. } = envelope.message {
            self.members.note_observed(cx, &request.to, &request.id, observed);
        }
        if let Message::Negotiated { capabilities, .. } = envelope.message {
            self.members.note_capabilities(&request.id, capabilities.bits);
        }
        Some(Answered { request, whole, took_ms, is_seen_elsewhere })
    }

    /// Shows a peer that sees us elsewhere that we are there. Only once: a peer that always changes its cookie would
    /// be asked without end.
    pub(super) fn prove(&mut self, cx: &mut Context<'_>, answered: &Answered) {
        let Answered { request: Request { to, id, purpose, .. }, is_seen_elsewhere, .. } = answered;
        if *is_seen_elsewhere && !matches!(purpose, Purpose::Prove) {
            self.ask(cx, Question::to(*to, id, Message::Ping, Purpose::Prove));
        }
    }

    /// The time of a request is up. Returns the request; one of which a part was answered says nothing about its peer.
    pub(super) fn on_timeout(&mut self, cx: &mut Context<'_>, correlation: u64) -> Option<Request> {
        let request = self.requests.settle(cx, correlation)?;
        if request.gap().is_none() {
            cx.counters.request_timeouts += 1;
            self.requests.expect_late(cx.now, correlation, &request);
            // Whom to ask for another node was that one's choice, and says nothing; nor does a relay's silence, which may be that of the
            // node it asked.
            if !request.purpose.is_for_another(&request.id) {
                self.members.silent(cx, request.id, request.to.addr);
            }
        }
        Some(request)
    }

    /// Learns about the peer that was asked from its answer, late or not.
    fn hear_from(&mut self, cx: &mut Context<'_>, id: NodeId, contact: Contact, took_ms: u64, answer: &Envelope<'_>) {
        // A relay took as long as the node it asked, which may have been silent: that says nothing of how far it is itself.
        let is_of_another =
            matches!(answer.message, Message::Relayed { .. } | Message::Error { code: ErrorCode::RelayFailed, .. });
        // A peer that acknowledges a write has waited for its log. That says something of the way only as long as nothing else does.
        let is_of_log = matches!(answer.message, Message::Stored { .. } | Message::Announced { .. });
        let is_known = || self.members.table().get(&id).is_some_and(|peer| peer.round_trip.srtt_ms().is_some());
        let says_how_far = !(is_of_another || is_of_log && is_known());
        if !is_of_another {
            self.requests.learn(took_ms, is_of_log);
        }
        if answer.flags & flag::CLIENT != 0 || self.is_quarantined(cx, &contact.key) {
            return;
        }
        // Another node named the address. A node that hands datagrams on unopened can do so for any contact: we would reach the contact
        // through that node alone, and lose it when that node likes. As long as it is not silent at its known address, that one stays.
        if self.members.answers_elsewhere(&id, &contact.addr) {
            self.introduce(cx, contact, id);
            return;
        }
        self.note_answer(cx, id, contact, says_how_far.then_some(took_ms));
        if is_of_log {
            self.members.note_write(&id, took_ms);
        }
    }

    fn note_answer(&mut self, cx: &mut Context<'_>, id: NodeId, contact: Contact, rtt_ms: Option<u64>) {
        if let Some(oldest) = self.members.answered(cx, id, contact, rtt_ms) {
            let oldest_id = self.link.node_id(&oldest.key);
            if self.requests.in_flight_to(&oldest_id) == 0 {
                self.ask(cx, Question::to(oldest, &oldest_id, Message::Ping, Purpose::Verify));
            }
        }
    }

    /// A peer misbehaved.
    pub(super) fn offence(&mut self, cx: &mut Context<'_>, key: &PublicKey, offence: Offence) {
        if let Some(score) = self.admission.offence(cx.now, key, offence) {
            let id = self.link.node_id(key);
            self.members.expel(&id);
            let mut payload = [0; 40];
            payload[..32].copy_from_slice(&key.0);
            payload[32..].copy_from_slice(&score.to_le_bytes());
            cx.tell_lanes(MessageClass::Control, message_kind::SCORE, id.prefix_u64(), &payload);
        }
    }

    /// A peer asks or answers where it is not known: for the lane that looks after contacts like it to look into.
    fn introduce(&mut self, cx: &mut Context<'_>, contact: Contact, id: NodeId) {
        if cx.place.looks_after(&id) {
            self.meet(cx, contact, id);
        } else {
            cx.tell_owner(&id, MessageClass::Hint, message_kind::CANDIDATE, &contact.to_wire());
        }
    }

    fn meet(&mut self, cx: &mut Context<'_>, contact: Contact, id: NodeId) {
        match self.members.sighted(cx.now, &contact, &id) {
            Sighting::Verify => self.verify(cx, contact, id),
            Sighting::StillThere(known) if self.requests.in_flight_to(&id) == 0 => {
                let purpose = Purpose::StillThere { or_at: contact.addr };
                self.ask(cx, Question::to(known, &id, Message::Ping, purpose));
            }
            _ => {}
        }
    }

    /// Asks a peer for a sign of life and its capabilities.
    pub(super) fn verify(&mut self, cx: &mut Context<'_>, contact: Contact, id: NodeId) {
        if self.requests.in_flight_to(&id) == 0 && id != cx.place.own && !self.is_quarantined(cx, &contact.key) {
            let message = Message::Negotiate(capabilities(cx.place));
            self.ask(cx, Question::to(contact, &id, message, Purpose::Verify));
        }
    }

    /// Asks peers for their capabilities that have not announced them and have no request in flight.
    pub(super) fn verify_unknown(&mut self, cx: &mut Context<'_>, count: usize) {
        let has_not_said = |peer: &&Peer| peer.capabilities == 0 && self.requests.in_flight_to(&peer.id) == 0;
        let unasked = self.members.table().iter_live().filter(has_not_said);
        let asked: alloc::vec::Vec<_> = unasked.take(count).map(|peer| (peer.contact, peer.id)).collect();
        for (contact, id) in asked {
            self.verify(cx, contact, id);
        }
    }

    /// Pings contacts that have been quiet for long.
    pub(super) fn ping_idle(&mut self, cx: &mut Context<'_>) {
        for _ in 0..PINGS_PER_TICK {
            let stalest = self.members.stalest(cx, |id| self.requests.in_flight_to(id) == 0);
            let Some(&Peer { contact, id, capabilities, .. }) = stalest else { return };
            if capabilities != 0 {
                self.ask(cx, Question::to(contact, &id, Message::Ping, Purpose::Verify));
            } else {
                self.verify(cx, contact, id);
            }
        }
    }

    /// Asks contacts to join by, if the table has run dry. Says whether it has.
    pub(super) fn join_if_alone(&mut self, cx: &mut Context<'_>) -> bool {
        let is_alone = self.members.table().live_len() == 0;
        if is_alone {
            for contact in self.members.join_round(cx) {
                self.verify(cx, contact, self.link.node_id(&contact.key));
            }
        }
        is_alone
    }

    /// Tries lost contacts that are due, a few a tick.
    pub(super) fn try_lost(&mut self, cx: &mut Context<'_>) {
        let mut tried = 0;
        for _ in 0..self.members.lost_len() {
            if let Some((contact, id)) = self.members.next_lost(cx, tried < LOST_PER_TICK) {
                tried += 1;
                self.verify(cx, contact, id);
            }
        }
    }

    /// Tries a configured seed that is not in the table, now and then.
    pub(super) fn try_seed(&mut self, cx: &mut Context<'_>) {
        if let Some((contact, id)) = self.members.seed_to_try(cx) {
            self.verify(cx, contact, id);
        }
    }

    /// Tells the peers that this lane looks after that the node is about to stop.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) {
        let live = self.members.table().iter_live().filter(|peer| cx.place.looks_after(&peer.id));
        let told: alloc::vec::Vec<_> = live.map(|peer| (peer.contact, peer.id)).collect();
        for (contact, id) in told {
            self.notify(cx, &contact, &id, id.as_bytes(), &Message::Leaving);
        }
    }

    /// Another lane says something about a peer, or about where others see this node.
    pub(super) fn on_lane_message(&mut self, cx: &mut Context<'_>, kind: u8, payload: &[u8]) {
        let contact = payload.first_chunk::<CONTACT_BYTES>().map(Contact::from_wire);
        let contact = contact.map(|contact| (contact, self.link.node_id(&contact.key)));
        match (kind, contact) {
            (message_kind::CONTACT, Some((contact, id))) => {
                let rtt_ms = payload[CONTACT_BYTES..].first_chunk().map(|rtt| u32::from_le_bytes(*rtt));
                if !self.is_quarantined(cx, &contact.key) {
                    let rtt_ms = rtt_ms.filter(|rtt| *rtt != u32::MAX).map(u64::from);
                    self.members.answered_elsewhere(cx, id, contact, rtt_ms);
                }
            }
            (message_kind::CANDIDATE, Some((contact, id))) => self.meet(cx, contact, id),
            (message_kind::SILENT, Some((contact, id))) if self.members.silent_elsewhere(cx, contact, id) => {
                self.verify(cx, contact, id);
            }
            (message_kind::LEFT, _) => {
                if let Some(id) = payload.first_chunk() {
                    self.members.expel(&NodeId::from_bytes(*id));
                }
            }
            (message_kind::OBSERVED, _) => {
                if let Some(addr) = payload.first_chunk() {
                    self.members.believe_observed(Addr::from_wire(addr));
                }
            }
            (message_kind::SCORE, _) => {
                let Some((key, rest)) = payload.split_first_chunk() else { return };
                if let Some(score) = rest.first_chunk() {
                    let key = PublicKey(*key);
                    self.admission.hearsay(cx.now, &key, f64::from_le_bytes(*score));
                    // Its answers are not noted any more: it would be pinged all the time, before all others.
                    if self.is_quarantined(cx, &key) {
                        self.members.expel(&self.link.node_id(&key));
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a candidate of a lookup may be asked now.
    pub(super) fn may_ask(&self, cx: &Context<'_>, id: &NodeId, key: &PublicKey) -> bool {
        self.requests.in_flight_to(id) < cx.place.config.requests_per_peer_max && !self.is_quarantined(cx, key)
    }

    /// A random one of the live peers that `fits`; better one to which our address is proven.
    pub(super) fn pick(&self, cx: &mut Context<'_>, fits: impl Fn(&Peer) -> bool) -> Option<Contact> {
        let fitting = || self.members.table().iter_live().filter(|peer| fits(peer));
        let now = cx.now;
        let knows_us = |peer: &&Peer| self.link.is_proven_to(now, &peer.contact.key);
        let knowing = fitting().filter(knows_us).count() as u64;
        if knowing > 0 {
            let pick = cx.rng.below(knowing) as usize;
            return fitting().filter(knows_us).nth(pick).map(|peer| peer.contact);
        }
        let pick = cx.rng.below(fitting().count() as u64) as usize;
        fitting().nth(pick).map(|peer| peer.contact)
    }

    /// Whether so many nodes are nearer to `id` that no lookup would ask here.
    pub(super) fn is_too_far(&self, cx: &Context<'_>, id: &ContentId) -> bool {
        let (k, table) = (cx.place.config.lookup.k, self.members.table());
        let own = cx.place.own.distance_to(id);
        if own <= self.members.radius_of(cx, k * TOO_FAR_FACTOR) {
            return false;
        }
        let closest = table.closest(id, k, |peer| peer.id.distance_to(id) < own);
        table.peers_of(&closest).len() == k
    }

    /// A token for the region that was asked for, but for no more than this node can be a holder in.
    #[inline]
    pub(super) fn region_token(&self, cx: &Context<'_>, asker: &Asker, target: &[u8; 32], scope: Scope) -> Token {
        let scope = if scope == Scope::EXACT {
            scope
        } else {
            let radius = self.members.radius_of(cx, cx.place.config.lookup.k * TOO_FAR_FACTOR);
            scope.max(Scope::region(radius.leading_zeros()))
        };
        self.admission.token(cx.now, asker, &ContentId::from_bytes(*target), scope)
    }
}

/// This node's capabilities.
pub(super) fn capabilities(place: &Place) -> Capabilities {
    let mut bits = capability::AES_256_GCM | capability::CHACHA20_POLY1305 | capability::STEMS;
    if !place.config.client {
        bits |= capability::STORES;
    }
    if place.config.relays_max > 0 {
        bits |= capability::RELAYS;
    }
    Capabilities { version_min: VERSION, version_max: VERSION, datagram_bytes_max: DATAGRAM_BYTES_MAX as u16, bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::node::LaneNode;
    use crate::node::command::CommandId;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_among, lane_of};
    use crate::node::operations::OperationId;
    use crate::node::requests::{LATE_MAX, LATE_MS_MAX, TIMEOUT_MS_MAX};
    use crate::node::router::Router;
    use crate::seal::cookie::NO_COOKIE;
    use crate::time::Now;
    use crate::wire::message::{Contacts, kind};
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    /// Views for tests of other components.
    impl Peers {
        pub(crate) fn admission_mut(&mut self) -> &mut Admission {
            &mut self.admission
        }

        pub(crate) fn link_mut(&mut self) -> &mut Link {
            &mut self.link
        }
    }

    const OPERATION: OperationId = OperationId::none();

    fn timeout_ms(lane: &Router, cx: &mut Context<'_>, id: &NodeId, purpose: &Purpose) -> u64 {
        lane.peers.requests.timeout_ms(cx.rng, lane.peers.members.table().get(id), purpose)
    }

    const LOOKUP: Purpose = Purpose::Lookup { operation: OPERATION, peer: NodeId::from_bytes([0; 32]), stores: false };

    fn known(lane: &mut LaneNode, n: u8, rtt_ms: u64) -> NodeId {
        let contact = contact(n);
        lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(rtt_ms));
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
            let drawn: BTreeSet<_> =
                (0..200).map(|_| lane.act(T, |lane, cx| timeout_ms(lane, cx, &id, &LOOKUP))).collect();
            let (least, most) = (*drawn.first().unwrap(), *drawn.last().unwrap());
            assert!(least >= timeout && most <= timeout + timeout / 8, "{rtt_ms} ms: {least} to {most}");
            assert!(drawn.len() > 3, "jitter keeps askers apart");
        }
    }

    const WRITE: Purpose = Purpose::Write { operation: OPERATION, holder: 0, batch: 0, attempt: 1 };
    const STORE: Purpose = Purpose::Lookup { operation: OPERATION, peer: NodeId::from_bytes([0; 32]), stores: true };

    /// A peer answers so and takes so long.
    fn hear(lane: &mut LaneNode, n: u8, took_ms: u64, message: Message<'_>) {
        let answer = Envelope { flags: 0, correlation: 0, cookie: NO_COOKIE, message };
        lane.act(T, |lane, cx| lane.peers.hear_from(cx, contact(n).id(), contact(n), took_ms, &answer));
    }

    #[test]
    fn the_wait_for_a_holders_log_makes_its_writes_waited_for_and_not_its_lookups() {
        let acknowledged = [Message::Stored { closer: Contacts::over(&[]) }, Message::Announced { kept: 1 }];
        for message in acknowledged {
            let mut lane = lane();
            let id = known(&mut lane, 10, 10);
            (0..50).for_each(|_| hear(&mut lane, 11, 10, Message::Pong { observed: contact(1).addr }));
            let of_strangers = *lane.router.peers.requests.round_trip();
            (0..50).for_each(|_| hear(&mut lane, 10, 200, message));
            let srtt_ms = |lane: &LaneNode| lane.table().get(&id).and_then(|peer| peer.round_trip.srtt_ms());
            assert_eq!(
                (srtt_ms(&lane), *lane.router.peers.requests.round_trip()),
                (Some(10), of_strangers),
                "{message:?}"
            );
            assert!(lane.act(T, |lane, cx| timeout_ms(lane, cx, &id, &LOOKUP)) < 60);
            for purpose in [WRITE, STORE] {
                let timeout = lane.act(T, |lane, cx| timeout_ms(lane, cx, &id, &purpose));
                assert!((400..=450).contains(&timeout), "{timeout}");
                // Another, equally near peer may have such a disk.
                let other = known(&mut lane, 12, 10);
                assert!(lane.act(T, |lane, cx| timeout_ms(lane, cx, &other, &purpose)) >= 200);
            }
            // A refusal waits for no log.
            hear(&mut lane, 10, 90, Message::Error { code: ErrorCode::Full, retry_after_ms: 0 });
            assert_eq!(srtt_ms(&lane), Some(20));
        }
    }

    #[test]
    fn a_peer_known_by_its_writes_alone_has_their_round_trip() {
        let mut lane = lane();
        hear(&mut lane, 10, 200, Message::Stored { closer: Contacts::over(&[]) });
        assert_eq!(lane.table().get(&contact(10).id()).and_then(|peer| peer.round_trip.srtt_ms()), Some(200));
    }

    #[test]
    fn a_write_is_given_the_most_time_before_any_was_acknowledged_and_never_less_than_a_question() {
        let mut lane = lane();
        let (near, far) = (known(&mut lane, 10, 1), known(&mut lane, 11, 250));
        assert!(lane.act(T, |lane, cx| timeout_ms(lane, cx, &near, &WRITE)) >= TIMEOUT_MS_MAX);
        (0..50).for_each(|_| hear(&mut lane, 10, 1, Message::Announced { kept: 1 }));
        assert!(lane.act(T, |lane, cx| timeout_ms(lane, cx, &near, &WRITE)) < 60);
        assert!(lane.act(T, |lane, cx| timeout_ms(lane, cx, &far, &WRITE)) >= 500);
    }

    #[test]
    fn of_an_unknown_peer_what_the_lane_has_seen_of_others_is_assumed_or_the_most() {
        let mut lane = lane();
        let stranger = Identity::from_seed(&[99; 32]).node_id();
        assert!(lane.act(T, |lane, cx| timeout_ms(lane, cx, &stranger, &LOOKUP)) >= TIMEOUT_MS_MAX);
        for _ in 0..50 {
            lane.router.peers.requests.round_trip().record(40);
        }
        let timeout = lane.act(T, |lane, cx| timeout_ms(lane, cx, &stranger, &LOOKUP));
        assert!((40..TIMEOUT_MS_MAX / 2).contains(&timeout), "{timeout}");
        let ping = Purpose::Ping(CommandId(1));
        assert!(
            lane.act(T, |lane, cx| timeout_ms(lane, cx, &stranger, &ping)) >= TIMEOUT_MS_MAX,
            "a lookup has others to ask, and this has not"
        );
    }

    #[test]
    fn a_peer_that_answers_late_is_given_the_time_it_needs() {
        let (mut near, mut far) = (lane_of(1), lane_of(2));
        let (here, there) = (Addr::v4([10, 0, 0, 1], 1), Addr::v4([10, 0, 9, 1], 1));
        let contact = Contact { key: far.place.own_key, addr: there };
        (0..50).for_each(|_| near.router.peers.requests.round_trip().record(1));
        let at = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        let mut out = Sent::default();
        assert!(near.with(T, &mut out, |lane, cx| lane.request(
            cx,
            contact,
            far.place.own,
            far.place.own.as_bytes(),
            &Message::Ping,
            LOOKUP
        )));
        let mut asked = out.0.pop().unwrap().1;
        let mut answers = Sent::default();
        far.on_datagram(at(100), here, &mut asked, 0, &mut answers);
        let mut answer = answers.0.swap_remove(0).1;
        near.on_time(at(190), &mut out);
        assert_eq!((near.counters.request_timeouts, near.router.peers.requests.late().len()), (1, 1));
        let mut again = answer.clone();
        near.on_datagram(at(200), there, &mut answer, 0, &mut out);
        assert_eq!(near.table().get(&far.place.own).and_then(|peer| peer.round_trip.srtt_ms()), Some(200));
        assert!(near.act(T, |lane, cx| timeout_ms(lane, cx, &far.place.own, &LOOKUP)) >= 400);
        assert_eq!((near.counters.replies_unexpected, near.router.peers.requests.late().len()), (0, 0));
        // One request is answered once.
        near.on_datagram(at(201), there, &mut again, 0, &mut out);
        assert_eq!(near.counters.replies_unexpected + near.counters.refused_replay, 1);
    }

    #[test]
    fn nothing_is_sent_to_unspecified_or_broadcast_addresses_that_a_peer_names() {
        for addr in
            [Addr::v4([224, 0, 0, 1], 1), Addr::v4([255; 4], 1), Addr::v4([0; 4], 1), Addr::v4([10, 0, 0, 1], 0)]
        {
            let (mut lane, mut sent) = (lane(), Sent::default());
            let to = Contact { addr, ..contact(10) };
            assert!(
                !lane.with(T, &mut sent, |lane, cx| lane.request(
                    cx,
                    to,
                    to.id(),
                    &[0; 32],
                    &Message::Ping,
                    Purpose::Verify
                )),
                "{addr}"
            );
            assert_eq!((sent.0.len(), lane.router.peers.requests().len()), (0, 0), "{addr}");
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
                let contact = Contact { key: far.place.own_key, addr: there };
                let (purpose, mut sent) = (Purpose::Verify, Sent::default());
                assert!(near.with(T, &mut sent, |lane, cx| lane.request(
                    cx,
                    contact,
                    far.place.own,
                    far.place.own.as_bytes(),
                    &Message::Ping,
                    purpose
                )));
                let correlation = near.router.peers.requests.first().0;
                near.on_time(after(ms), &mut sent);
                let (asker, pong) = (Contact { key: near.place.own_key, addr: here }, Message::Pong { observed: here });
                let mut answer = Sent::default();
                answerer.with(T, &mut answer, |lane, cx| {
                    lane.peers.link.send(cx, &asker, correlation as u8, correlation, &pong)
                });
                near.on_datagram(after(ms + 1), from, &mut answer.0[0].1, 0, &mut sent);
                let taken = near.table().len() == 1 && near.counters.replies_unexpected == 0;
                assert_eq!(taken, counts, "by {by} from {from} after {ms} ms");
                assert_eq!(near.table().is_empty(), !counts);
            }
        }
    }

    /// A lane has asked another one, and its time is up; then the answer that comes is handed to `judge`.
    fn late_answer(far: impl FnOnce(&mut LaneNode), judge: impl FnOnce(&mut LaneNode, NodeId, Addr, &mut [u8])) {
        let (mut near, mut peer) = (lane_of(1), lane_of(2));
        far(&mut peer);
        let (here, there) = (Addr::v4([10, 0, 0, 1], 1), Addr::v4([10, 0, 9, 1], 1));
        let contact = Contact { key: peer.place.own_key, addr: there };
        let mut out = Sent::default();
        assert!(near.with(T, &mut out, |lane, cx| lane.request(
            cx,
            contact,
            peer.place.own,
            peer.place.own.as_bytes(),
            &Message::Ping,
            Purpose::Verify
        )));
        let mut answers = Sent::default();
        peer.on_datagram(T, here, &mut out.0[0].1, 0, &mut answers);
        near.on_time(after(700), &mut Sent::default());
        assert_eq!(near.router.peers.requests.late().len(), 1);
        judge(&mut near, peer.place.own, there, &mut answers.0[0].1);
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
                    (0..50).for_each(|_| near.router.peers.requests.round_trip().record(10));
                    near.on_datagram(after(ms), there, answer, 0, &mut Sent::default());
                    assert_eq!(near.table().get(&peer).is_some(), taken);
                    assert_eq!(
                        (near.router.peers.requests.late().len(), near.counters.replies_unexpected),
                        (0, u64::from(!taken))
                    );
                    (0..10).for_each(|_| near.router.peers.requests.round_trip().record(10));
                    let timeout = near.act(T, |lane, cx| timeout_ms(lane, cx, &contact(99).id(), &LOOKUP));
                    assert!(timeout < 500, "{timeout} ms after ten answers");
                },
            );
        }
    }

    #[test]
    fn a_late_answer_of_a_client_makes_it_no_contact() {
        late_answer(
            |far| far.place.config.client = true,
            |near, peer, there, answer| {
                near.on_datagram(after(800), there, answer, 0, &mut Sent::default());
                assert!(near.table().get(&peer).is_none() && near.router.peers.requests.late().is_empty());
            },
        );
    }

    #[test]
    fn a_late_answer_of_one_in_quarantine_makes_it_no_contact() {
        late_answer(
            |_| {},
            |near, peer, there, answer| {
                let key = near.router.peers.requests.late()[0].key;
                while !near.router.peers.admission().is_quarantined(after(60_000), &key) {
                    near.router.peers.admission_mut().offence(T, &key, crate::abuse::Offence::InvalidRecord);
                }
                near.on_datagram(after(800), there, answer, 0, &mut Sent::default());
                assert!(near.table().get(&peer).is_none() && near.router.peers.requests.late().is_empty());
            },
        );
    }

    #[test]
    fn a_late_answer_from_another_address_is_none() {
        late_answer(
            |_| {},
            |near, peer, _, answer| {
                near.on_datagram(after(800), Addr::v4([10, 0, 9, 2], 1), answer, 0, &mut Sent::default());
                assert!(near.table().get(&peer).is_none());
                assert_eq!((near.router.peers.requests.late().len(), near.counters.replies_unexpected), (1, 1));
            },
        );
    }

    #[test]
    fn a_silent_member_that_gives_way_is_remembered_as_lost() {
        let mut lane = lane();
        let top = lane.place.own.as_bytes()[0] & 0x80;
        let mut far = (0..=255).map(contact).filter(|contact| contact.id().as_bytes()[0] & 0x80 != top);
        let members: Vec<Contact> = far.by_ref().take(lane.table().k()).collect();
        let newcomer = far.next().unwrap();
        for contact in &members {
            lane.act(T, |lane, cx| lane.peers.note_answer(cx, contact.id(), *contact, Some(10)));
        }
        for _ in 0..2 {
            assert!(!lane.table_mut().silent(&members[3].id()), "no peer has its place yet");
        }
        lane.act(T, |lane, cx| lane.peers.note_answer(cx, newcomer.id(), newcomer, Some(10)));
        assert!(lane.table().get(&members[3].id()).is_none());
        assert_eq!(lane.router.peers.members.lost_contacts(), [members[3]]);
    }

    /// Contacts of the other half of the space than `lane` is in, which share one bucket.
    fn far_from(lane: &LaneNode) -> impl Iterator<Item = Contact> + use<> {
        let top = lane.place.own.as_bytes()[0] & 0x80;
        (0..=255).map(contact).filter(move |contact| contact.id().as_bytes()[0] & 0x80 != top)
    }

    #[test]
    fn a_spare_of_one_lane_that_was_silent_once_keeps_its_place_in_another() {
        let (mut with_spare, mut with_member) = (lane_among(1, 0, 2), lane_among(1, 1, 2));
        // The lane that has it as a spare looks after it, and so is the one the others believe.
        let spare = far_from(&with_spare).find(|contact| with_spare.place.looks_after(&contact.id())).unwrap();
        let members = far_from(&with_spare).filter(|contact| *contact != spare).take(with_spare.table().k());
        for contact in members.chain([spare]) {
            with_spare.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        with_member.table_mut().answered(T.mono_ms, spare.id(), spare, Some(10));
        assert!(with_spare.table().iter_spares().any(|peer| peer.id == spare.id()));
        let mut out = Sent::default();
        with_spare.with(after(10_000), &mut out, |lane, cx| lane.peers.verify(cx, spare, spare.id()));
        with_spare.on_time(after(12_000), &mut out);
        assert_eq!(with_spare.counters.request_timeouts, 1);
        for (_, kind, payload) in out.1 {
            with_member.on_message(after(12_000), kind, &payload, &mut Sent::default());
        }
        assert!(with_member.table().get(&spare.id()).is_some_and(|peer| peer.is_live()), "one datagram was lost");
        assert!(with_spare.router.peers.members.lost_contacts().contains(&spare), "and here it is tried again");
    }

    #[test]
    fn a_contact_is_silent_only_where_it_is_known_to_be() {
        let mut lane = lane();
        let known = contact(10);
        lane.table_mut().answered(T.mono_ms, known.id(), known, Some(10));
        for (addr, silences) in [(Addr::v4([203, 0, 113, 9], 9), 0), (known.addr, 1)] {
            lane.act(T, |lane, cx| lane.peers.verify(cx, Contact { addr, ..known }, known.id()));
            lane.on_time(after(2000 * (u64::from(silences) + 1)), &mut Sent::default());
            assert_eq!(lane.counters.request_timeouts, u64::from(silences) + 1);
            assert_eq!(lane.table().get(&known.id()).map(|peer| peer.silences), Some(silences));
        }
    }

    #[test]
    fn a_relay_is_not_silent_when_its_target_is() {
        let mut lane = lane();
        let (relay, target) = (contact(10), contact(11));
        lane.table_mut().answered(T.mono_ms, relay.id(), relay, Some(10));
        let relayed = Message::Relay { to: target, kind: kind::FIND_NODE, payload: &[0; 33] };
        for (purpose, silences) in [
            (Purpose::Lookup { operation: OPERATION, peer: target.id(), stores: false }, 0),
            (Purpose::Lookup { operation: OPERATION, peer: relay.id(), stores: false }, 1),
        ] {
            assert!(lane.act(T, |lane, cx| lane.request(cx, relay, relay.id(), &[0; 32], &relayed, purpose)));
            lane.on_time(after(2000 * (u64::from(silences) + 1)), &mut Sent::default());
            assert_eq!(lane.table().get(&relay.id()).map(|peer| peer.silences), Some(silences));
        }
    }

    #[test]
    fn only_so_many_late_ones_are_remembered() {
        let mut near = lane_of(1);
        for n in 0..LATE_MAX as u8 + 9 {
            let contact = contact(n);
            near.act(T, |lane, cx| lane.request(cx, contact, contact.id(), &[0; 32], &Message::Ping, Purpose::Verify));
        }
        near.on_time(Now { mono_ms: T.mono_ms + 2000, ..T }, &mut Sent::default());
        assert_eq!(near.router.peers.requests.late().len(), LATE_MAX);
    }

    const ELSEWHERE: Addr = Addr::v4([10, 0, 99, 1], 1);

    /// Where a lane asks when a contact it knows asks from elsewhere, `ms` after it last answered.
    fn asked_at(ms: u64, is_silent: bool) -> Vec<Addr> {
        let (mut lane, known) = (lane(), contact(10));
        lane.table_mut().answered(T.mono_ms, known.id(), known, Some(10));
        if is_silent {
            lane.table_mut().silent(&known.id());
        }
        let now = Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        let mut out = Sent::default();
        for _ in 0..2 {
            lane.with(now, &mut out, |lane, cx| lane.peers.meet(cx, Contact { addr: ELSEWHERE, ..known }, known.id()));
            lane.with(now, &mut out, |lane, cx| lane.peers.meet(cx, known, known.id()));
        }
        out.0.into_iter().map(|(to, _)| to).collect()
    }

    #[test]
    fn a_contact_that_asks_from_elsewhere_is_asked_once_where_it_is_known_unless_it_just_answered_there() {
        assert_eq!(asked_at(crate::node::membership::STILL_THERE_MS - 1, false), []);
        assert_eq!(asked_at(crate::node::membership::STILL_THERE_MS, false), [contact(10).addr]);
    }

    #[test]
    fn pings_may_be_put_off_for_ever() {
        let (mut lane, known) = (lane(), contact(10));
        lane.place.config.ping_idle_ms = u64::MAX;
        lane.table_mut().answered(T.mono_ms, known.id(), known, Some(10));
        let mut out = Sent::default();
        lane.with(T, &mut out, |lane, cx| lane.peers.ping_idle(cx));
        assert!(out.0.is_empty());
    }

    #[test]
    fn a_silent_contact_that_asks_from_elsewhere_is_asked_there_at_once() {
        assert_eq!(asked_at(0, true), [ELSEWHERE]);
    }

    #[test]
    fn a_peer_quarantined_on_another_lanes_word_is_not_in_the_table() {
        let (mut lane, known) = (lane(), contact(10));
        lane.table_mut().answered(T.mono_ms, known.id(), known, Some(10));
        lane.act(T, |lane, cx| lane.peers.offence(cx, &known.key, Offence::InvalidRecord));
        lane.act(T, |lane, cx| lane.peers.offence(cx, &known.key, Offence::Malformed));
        assert!(lane.table().get(&known.id()).is_some(), "that alone is not enough");
        let mut payload = [0; 40];
        payload[..32].copy_from_slice(&known.key.0);
        payload[32..].copy_from_slice(&10.0_f64.to_le_bytes());
        lane.on_message(T, message_kind::SCORE, &payload, &mut Sent::default());
        assert!(lane.router.peers.admission().is_quarantined(T, &known.key));
        assert!(lane.table().get(&known.id()).is_none());
    }
}
