//! Other nodes' requests: reads, and how much each may be answered. Writes go on in `keep`, relayed requests in `relay`.
//!
//! Order of checks: quarantine, rate, then the request itself. The size of an answer is bounded by the size of the request
//! until the address has echoed its cookie; every answer carries a fresh one. An answer that would be longer is not cut short, since
//! nobody could tell it from one that has no more to say: the asker is told to ask again with its cookie.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::ReplyTo;
use super::keep::TOO_FAR_FACTOR;
use super::outbox::{Outbox, message_kind};
use crate::abuse::{Limited, Offence, WRITE_COST};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto, PublicKey};
use crate::record::RecordView;
use crate::seal::cookie::{NO_COOKIE, Scope};
use crate::time::Now;
use crate::wire::header::HEADER_BYTES;
use crate::wire::message::{
    CONTACT_BYTES, Capabilities, Contacts, Cookie, Envelope, ErrorCode, Message, PREAMBLE_BYTES, PROVIDER_BYTES,
    PROVIDERS_HEAD_BYTES, Providers, Token, capability, flag,
};
use crate::wire::{
    BODY_BYTES_MAX, CLOSER_CONTACTS_MAX, CONTACTS_MAX, DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX, PROVIDER_PARTS_MAX,
    PROVIDERS_PER_PAGE_MAX, PROVIDERS_PER_PART_MAX, TAG_BYTES, VERSION,
};

/// Contacts that a page of providers leaves room for.
const CONTACTS_BESIDE_PROVIDERS: usize = 4;

/// Who asked, and what an answer to it needs.
pub(super) struct Asker {
    pub(super) key: PublicKey,
    pub(super) id: NodeId,
    pub(super) addr: Addr,
    pub(super) correlation: u64,
    flags: u8,
    /// What proves its address from now on: every answer carries it.
    cookie: Cookie,
    pub(super) datagram_len: usize,
    pub(super) proven: bool,
}

impl Asker {
    /// How many contacts an answer may name beside `taken` bytes of other things, if it shall not be refused for its length.
    pub(super) fn contacts_max(&self, taken: usize) -> usize {
        let reply_max = if self.proven { DATAGRAM_BYTES_MAX } else { self.datagram_len };
        let payload_max = reply_max.saturating_sub(HEADER_BYTES + PREAMBLE_BYTES + TAG_BYTES).min(REPLY_PAYLOAD_MAX);
        (payload_max.saturating_sub(taken) / CONTACT_BYTES).min(CONTACTS_MAX)
    }

    /// What a later answer needs.
    pub(super) fn reply_to(&self) -> ReplyTo {
        ReplyTo {
            key: self.key,
            addr: self.addr,
            correlation: self.correlation,
            flags: self.flags,
            proven: self.proven,
            datagram_len: self.datagram_len,
        }
    }
}

impl<C: Crypto> LaneNode<C> {
    pub(super) fn on_request(
        &mut self,
        now: Now,
        from: Addr,
        sender: PublicKey,
        envelope: &Envelope<'_>,
        datagram_len: usize,
        out: &mut impl Outbox,
    ) {
        if self.abuse.is_quarantined(now.mono_ms, &sender) {
            self.counters.requests_quarantined += 1;
            return;
        }
        let (cookie, proven) = self.proofs.judge_cookie(&envelope.cookie, &from, now.unix_secs());
        let asker = Asker {
            key: sender,
            id: self.sealer.node_id(&sender),
            addr: from,
            correlation: envelope.correlation,
            flags: envelope.flags,
            cookie,
            datagram_len,
            proven,
        };
        let cost = match envelope.message {
            Message::Store { .. } | Message::Announce { .. } | Message::CacheHint { .. } => WRITE_COST,
            // Each of its ids may cost a signature check and a lookup. Whoever hands on an announcement hands on one.
            Message::Stem { announcement, .. } => WRITE_COST * announcement.ids().len().max(1) as u32,
            Message::GetProviders { parts_max, .. } if proven => {
                u32::from(parts_max).clamp(1, PROVIDER_PARTS_MAX as u32)
            }
            _ => 1,
        };
        if let Err(Limited { retry_after_ms, by_peer }) = self.abuse.admit(now.mono_ms, &sender, from.prefix(), cost) {
            self.counters.requests_limited += 1;
            if by_peer {
                self.offence(now, &sender, Offence::Flood, out);
            }
            self.answer(now, &asker, &Message::Error { code: ErrorCode::RateLimited, retry_after_ms }, out);
            return;
        }
        self.counters.requests_served += 1;
        match &envelope.message {
            Message::Ping => self.answer(now, &asker, &Message::Pong { observed: from }, out),
            Message::Negotiate(_) => {
                let capabilities = self.capabilities();
                self.answer(now, &asker, &Message::Negotiated { capabilities, observed: from }, out);
            }
            Message::FindNode { target, scope } => self.serve_find_node(now, &asker, target, *scope, out),
            Message::FindValue { id, sequence_min } => self.serve_find_value(now, &asker, id, *sequence_min, out),
            Message::Store { token, closer_max, record } => {
                self.serve_store(now, &asker, token, *closer_max, record, out);
            }
            Message::CacheHint { token, record } => self.serve_cache_hint(now, &asker, token, record, out),
            Message::Leaving => {
                // It said so itself, under its own key: nobody has to wait for its silence.
                self.table.expel(&asker.id);
                self.tell_lanes(message_kind::LEFT, asker.id.prefix_u64(), asker.id.as_bytes(), out);
                return;
            }
            Message::Announce { token, announcement } => self.serve_announce(now, &asker, token, announcement, out),
            Message::GetProviders { id, page, parts_max } => {
                self.serve_get_providers(now, &asker, id, *page, *parts_max, out);
            }
            Message::Relay { to, kind, payload } => self.serve_relay(now, &asker, to, *kind, payload, out),
            Message::Stem { hops_left, announcement } => {
                // No token goes with it, and its signatures will be checked: not for an address that may be made up.
                let taken = match asker.proven {
                    true => self.take_stem(*hops_left, announcement),
                    false => Err(ErrorCode::CookieRequired),
                };
                self.answer(now, &asker, &taken.map_or_else(refusal, |()| Message::StemTaken), out);
            }
            _ => {}
        }
        // A stranger that asks may be worth knowing, and whoever asks from elsewhere may have moved. Not before it has proved its
        // address: our question would be longer than what came.
        if asker.proven && envelope.flags & flag::CLIENT == 0 && self.is_news(&asker.id, &from) {
            self.introduce(now, Contact { key: sender, addr: from }, asker.id, out);
        }
    }

    fn is_news(&self, id: &NodeId, addr: &Addr) -> bool {
        match self.table.get(id) {
            None => self.table.would_take(id, addr.prefix()),
            Some(peer) => peer.contact.addr != *addr,
        }
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        let mut bits = capability::AES_256_GCM | capability::CHACHA20_POLY1305 | capability::STEMS;
        if !self.config.client {
            bits |= capability::STORES;
        }
        if self.config.relays_max > 0 {
            bits |= capability::RELAYS;
        }
        Capabilities { version_min: VERSION, version_max: VERSION, datagram_bytes_max: DATAGRAM_BYTES_MAX as u16, bits }
    }

    fn serve_find_node(&mut self, now: Now, asker: &Asker, target: &[u8; 32], scope: Scope, out: &mut impl Outbox) {
        let token = self.region_token(now, asker, target, scope);
        let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
        let len = self.write_closest(target, CONTACTS_MAX, &asker.id, &mut list);
        self.answer(now, asker, &Message::Nodes { token, contacts: Contacts::over(&list[..len]) }, out);
    }

    fn serve_find_value(&mut self, now: Now, asker: &Asker, id: &ContentId, sequence_min: u64, out: &mut impl Outbox) {
        let token = self.proofs.token(&asker.addr, &asker.id, id, Scope::EXACT, now.unix_secs());
        let mut copy = [0; crate::record::RECORD_BYTES_MAX];
        let mut record_len = 0;
        if let Some(here) = self.record_for_others(now, id)
            && RecordView::read(here).is_ok_and(|view| view.mutable.is_none() || view.sequence() >= sequence_min)
        {
            record_len = here.len();
            copy[..record_len].copy_from_slice(here);
        }
        let room = (REPLY_PAYLOAD_MAX - 19 - record_len) / CONTACT_BYTES;
        let mut list = [0; CLOSER_CONTACTS_MAX * CONTACT_BYTES];
        let len = self.write_closest(id.as_bytes(), room.min(CLOSER_CONTACTS_MAX), &asker.id, &mut list);
        let record = (record_len > 0).then_some(&copy[..record_len]);
        self.answer(now, asker, &Message::Value { token, record, closer: Contacts::over(&list[..len]) }, out);
    }

    /// A page of providers, in as many datagrams as it takes and may take: one for who has not echoed its cookie.
    fn serve_get_providers(
        &mut self,
        now: Now,
        asker: &Asker,
        id: &ContentId,
        page: u32,
        parts_max: u8,
        out: &mut impl Outbox,
    ) {
        let token = self.proofs.token(&asker.addr, &asker.id, id, Scope::EXACT, now.unix_secs());
        let total = self.providers.count(id);
        let fit = |beside: usize| {
            let room = (REPLY_PAYLOAD_MAX - PROVIDERS_HEAD_BYTES - beside) / PROVIDER_BYTES;
            room.min(PROVIDERS_PER_PART_MAX)
        };
        // The first page leaves room for contacts; the asker that comes for more has them.
        let in_first = fit(if page == 0 { CONTACTS_BESIDE_PROVIDERS * CONTACT_BYTES } else { 0 });
        let left = total.saturating_sub(page as usize).min(PROVIDERS_PER_PAGE_MAX);
        let later = left.saturating_sub(in_first).div_ceil(PROVIDERS_PER_PART_MAX);
        let parts_max = if asker.proven { usize::from(parts_max).clamp(1, PROVIDER_PARTS_MAX) } else { 1 };
        let parts = (1 + later).min(parts_max);
        let mut start = page as usize;
        for part in 0..parts {
            let room = if part == 0 { in_first } else { PROVIDERS_PER_PART_MAX };
            let room = room.min(page as usize + left - start.min(page as usize + left));
            let mut list = [0; PROVIDERS_PER_PART_MAX * PROVIDER_BYTES];
            let mut count = 0;
            let on_part = self.providers.of(id).skip(start).take(room);
            for (entry, provider) in list.as_chunks_mut::<PROVIDER_BYTES>().0.iter_mut().zip(on_part) {
                *entry = provider.to_wire();
                count += 1;
            }
            start += count;
            let mut closer = [0; CLOSER_CONTACTS_MAX * CONTACT_BYTES];
            let mut closer_len = 0;
            if part == 0 {
                let room = REPLY_PAYLOAD_MAX - PROVIDERS_HEAD_BYTES - count * PROVIDER_BYTES;
                let room = (room / CONTACT_BYTES).min(CLOSER_CONTACTS_MAX);
                closer_len = self.write_closest(id.as_bytes(), room, &asker.id, &mut closer);
            }
            let reply = Message::Providers {
                token,
                total: total as u16,
                next: if count > 0 && start < total { start as u32 } else { 0 },
                part: part as u8,
                parts: parts as u8,
                providers: Providers::over(&list[..count * PROVIDER_BYTES]),
                closer: Contacts::over(&closer[..closer_len]),
            };
            self.answer(now, asker, &reply, out);
        }
    }

    /// A token for the region that was asked for, but for no more than this node can be a holder in.
    fn region_token(&self, now: Now, asker: &Asker, target: &[u8; 32], scope: Scope) -> Token {
        let scope = if scope == Scope::EXACT {
            scope
        } else {
            let radius = self.radius_of(self.config.lookup.k * TOO_FAR_FACTOR);
            scope.max(Scope::region(radius.leading_zeros()))
        };
        self.proofs.token(&asker.addr, &asker.id, &ContentId::from_bytes(*target), scope, now.unix_secs())
    }

    /// Writes up to `count` live contacts nearest to `target`, leaving out the asker, and returns the bytes written.
    pub(super) fn write_closest(&self, target: &[u8; 32], count: usize, asker: &NodeId, list: &mut [u8]) -> usize {
        if count == 0 {
            return 0;
        }
        let target = ContentId::from_bytes(*target);
        let closest = self.table.closest(&target, count, |peer| peer.silences == 0 && peer.id != *asker);
        let mut written = 0;
        for (entry, peer) in list.as_chunks_mut::<CONTACT_BYTES>().0.iter_mut().zip(self.table.peers_of(&closest)) {
            *entry = peer.contact.to_wire();
            written += CONTACT_BYTES;
        }
        written
    }

    /// Answers a request that came a while ago.
    pub(super) fn reply_to(&mut self, now: Now, to: &ReplyTo, message: &Message<'_>, out: &mut impl Outbox) {
        self.answer(now, &self.asker(now, to), message, out);
    }

    /// Who asked a while ago.
    pub(super) fn asker(&self, now: Now, to: &ReplyTo) -> Asker {
        Asker {
            key: to.key,
            id: self.sealer.node_id(&to.key),
            addr: to.addr,
            correlation: to.correlation,
            flags: to.flags,
            cookie: self.proofs.cookie(&to.addr, now.unix_secs()),
            datagram_len: to.datagram_len,
            proven: to.proven,
        }
    }

    pub(super) fn answer(&mut self, now: Now, asker: &Asker, message: &Message<'_>, out: &mut impl Outbox) {
        let cookie = asker.cookie;
        let flags = if self.config.client { flag::CLIENT } else { 0 };
        debug_assert_ne!(cookie, NO_COOKIE);
        let body = &mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX];
        let mut write = |message| Envelope { flags, correlation: asker.correlation, cookie, message }.write(body);
        let too_long = |len: &usize| !asker.proven && HEADER_BYTES + *len + TAG_BYTES > asker.datagram_len;
        let Ok(mut len) = write(*message) else { return };
        if too_long(&len) {
            // If not even a refusal fits: silence. A well-behaved stranger pads its first request.
            match write(refusal(ErrorCode::CookieRequired)) {
                Ok(short) if !too_long(&short) => len = short,
                _ => return,
            }
        }
        let slot = if asker.flags & flag::ANY_SLOT != 0 { self.rng.u64() as u8 } else { asker.correlation as u8 };
        if let Ok(len) = self.sealer.seal(now, &asker.key, slot, &mut self.buffer[..], len) {
            if !asker.proven {
                let over = len.saturating_sub(asker.datagram_len) as u64;
                self.counters.amplified_bytes = self.counters.amplified_bytes.max(over);
            }
            self.transmit(asker.addr, len, out);
        }
    }
}

/// The largest payload of an ordinary reply: a little below the most, so that a relay can wrap it.
const REPLY_PAYLOAD_MAX: usize = PAYLOAD_BYTES_MAX - 4;

const _: () = assert!(19 + crate::record::RECORD_BYTES_MAX <= REPLY_PAYLOAD_MAX);

pub(super) fn refusal<'a>(code: ErrorCode) -> Message<'a> {
    let retry_after_ms = if code == ErrorCode::Busy { 1000 } else { 0 };
    Message::Error { code, retry_after_ms }
}
