//! Other nodes' requests, and how much each may be answered.
//!
//! Order of checks: quarantine, rate, then the request itself. The size of an answer is bounded by the size of the request
//! until the address has echoed its cookie; every answer carries a fresh one.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::ask::{Purpose, RelayedFor};
use super::outbox::{Importance, MessageClass, Outbox, message_kind};
use super::{LaneNode, log::log_kind};
use crate::abuse::{Offence, WRITE_COST};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto, PublicKey};
use crate::record::{RecordRefused, RecordView, TTL_SECS_MAX, check_provider};
use crate::seal::cookie::NO_COOKIE;
use crate::store::NotKept;
use crate::store::records::{Class, Keeping};
use crate::time::Now;
use crate::wire::header::HEADER_BYTES;
use crate::wire::message::{
    Announcement, CONTACT_BYTES, Capabilities, Contacts, Envelope, ErrorCode, Message, PREAMBLE_BYTES, PROVIDER_BYTES,
    Providers, SignedProvider, Token, capability, flag, kind,
};
use crate::wire::{
    ANNOUNCED_IDS_MAX, BODY_BYTES_MAX, CLOSER_CONTACTS_MAX, CONTACTS_MAX, DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX,
    PROVIDERS_PER_PAGE_MAX, TAG_BYTES, VERSION,
};

/// Contacts that a page of providers leaves room for.
const CONTACTS_BESIDE_PROVIDERS: usize = 4;

/// How many times the radius of K nodes away an id may lie before a write for it is refused, if enough others are nearer.
const TOO_FAR_FACTOR: usize = 8;

/// Who asked, and what an answer to it needs.
struct Asker {
    key: PublicKey,
    id: NodeId,
    addr: Addr,
    correlation: u64,
    flags: u8,
    /// The most payload bytes the answer may have.
    payload_max: usize,
    datagram_len: usize,
    proven: bool,
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
        let proven = self.proofs.cookie_holds(&envelope.cookie, &from, now.unix_secs());
        let reply_max = if proven { DATAGRAM_BYTES_MAX } else { datagram_len };
        let asker = Asker {
            key: sender,
            id: self.sealer.node_id(&sender),
            addr: from,
            correlation: envelope.correlation,
            flags: envelope.flags,
            payload_max: reply_max.saturating_sub(HEADER_BYTES + PREAMBLE_BYTES + TAG_BYTES).min(REPLY_PAYLOAD_MAX),
            datagram_len,
            proven,
        };
        let is_write = matches!(
            envelope.message,
            Message::Store { .. } | Message::Announce { .. } | Message::Stem { .. } | Message::CacheHint { .. }
        );
        let cost = if is_write { WRITE_COST } else { 1 };
        if let Err(retry_after_ms) = self.abuse.admit(now.mono_ms, &sender, from.prefix(), cost) {
            self.counters.requests_limited += 1;
            self.offence(now, &sender, Offence::Flood, out);
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
            Message::FindNode { target } => self.serve_find_node(now, &asker, target, out),
            Message::FindValue { id, sequence_min } => self.serve_find_value(now, &asker, id, *sequence_min, out),
            Message::Store { token, record } => {
                let result = self.serve_store(now, &asker, token, record, Class::Held, out);
                let reply = result.map_or_else(refusal, |()| Message::Stored);
                self.answer(now, &asker, &reply, out);
            }
            Message::CacheHint { token, record } => {
                // Never answered, so a failure is nobody's business.
                let _ = self.serve_store(now, &asker, token, record, Class::Cached, out);
            }
            Message::Leaving => {
                // It said so itself, under its own key: nobody has to wait for its silence.
                self.table.expel(&asker.id);
                self.tell_lanes(message_kind::LEFT, asker.id.prefix_u64(), asker.id.as_bytes(), out);
                return;
            }
            Message::Announce { token, announcement } => {
                let reply = if self.token_holds(now, &asker, token) {
                    let kept = self.keep_announced(now, &asker.key, announcement, out);
                    kept.map_or_else(refusal, |kept| Message::Announced { kept })
                } else {
                    self.offence(now, &sender, Offence::BadToken, out);
                    refusal(ErrorCode::BadToken)
                };
                self.answer(now, &asker, &reply, out);
            }
            Message::GetProviders { id, page } => self.serve_get_providers(now, &asker, id, *page, out),
            Message::Relay { to, kind, payload } => self.serve_relay(now, &asker, to, *kind, payload, out),
            Message::Stem { hops_left, announcement } => {
                let taken = self.take_stem(*hops_left, announcement);
                self.answer(now, &asker, &taken.map_or_else(refusal, |()| Message::StemTaken), out);
            }
            _ => {}
        }
        // A stranger that asks may be worth knowing: it is verified by whoever owns contacts like it. Not before it has
        // proved its address: our question would be longer than what came.
        if asker.proven && envelope.flags & flag::CLIENT == 0 && self.table.would_take(&asker.id, from.prefix()) {
            let contact = Contact { key: sender, addr: from };
            let owner = self.map.lane(&self.own, &asker.id);
            if owner == self.lane {
                self.verify(now, contact, asker.id, out);
            } else {
                let payload = contact.to_wire();
                let prefix = asker.id.prefix_u64();
                out.message(owner, MessageClass::Hint, message_kind::CANDIDATE, prefix, &payload);
            }
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

    fn serve_find_node(&mut self, now: Now, asker: &Asker, target: &[u8; 32], out: &mut impl Outbox) {
        let token = self.proofs.token(&asker.addr, &asker.id, now.unix_secs());
        let room = asker.payload_max.saturating_sub(17) / CONTACT_BYTES;
        let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
        let len = self.write_closest(target, room.min(CONTACTS_MAX), &asker.id, &mut list);
        self.answer(now, asker, &Message::Nodes { token, contacts: Contacts::over(&list[..len]) }, out);
    }

    fn serve_find_value(&mut self, now: Now, asker: &Asker, id: &ContentId, sequence_min: u64, out: &mut impl Outbox) {
        let token = self.proofs.token(&asker.addr, &asker.id, now.unix_secs());
        let mut copy = [0; crate::record::RECORD_BYTES_MAX];
        let mut record_len = 0;
        if let Some(kept) = self.records.get(id)
            && kept.expires_secs > now.unix_secs()
            && RecordView::read(kept.bytes).is_ok_and(|view| view.mutable.is_none() || view.sequence() >= sequence_min)
        {
            record_len = kept.bytes.len();
            copy[..record_len].copy_from_slice(kept.bytes);
        }
        if record_len > 0 && asker.payload_max < 19 + record_len {
            self.answer(now, asker, &refusal(ErrorCode::CookieRequired), out);
            return;
        }
        let room = asker.payload_max.saturating_sub(19 + record_len) / CONTACT_BYTES;
        let mut list = [0; CLOSER_CONTACTS_MAX * CONTACT_BYTES];
        let len = self.write_closest(id.as_bytes(), room.min(CLOSER_CONTACTS_MAX), &asker.id, &mut list);
        let record = (record_len > 0).then_some(&copy[..record_len]);
        self.answer(now, asker, &Message::Value { token, record, closer: Contacts::over(&list[..len]) }, out);
    }

    fn serve_get_providers(&mut self, now: Now, asker: &Asker, id: &ContentId, page: u32, out: &mut impl Outbox) {
        let token = self.proofs.token(&asker.addr, &asker.id, now.unix_secs());
        let total = self.providers.count(id);
        // The first page leaves room for contacts; the asker that comes for more has them.
        let beside = if page == 0 { CONTACTS_BESIDE_PROVIDERS * CONTACT_BYTES } else { 0 };
        let room = asker.payload_max.saturating_sub(24 + beside) / PROVIDER_BYTES;
        let mut list = [0; PROVIDERS_PER_PAGE_MAX * PROVIDER_BYTES];
        let mut count = 0;
        let on_page = self.providers.of(id).skip(page as usize).take(room.min(PROVIDERS_PER_PAGE_MAX));
        for (entry, provider) in list.as_chunks_mut::<PROVIDER_BYTES>().0.iter_mut().zip(on_page) {
            *entry = provider.to_wire();
            count += 1;
        }
        let next = page.saturating_add(count as u32);
        let next = if count > 0 && (next as usize) < total { next } else { 0 };
        let room = asker.payload_max.saturating_sub(24 + count * PROVIDER_BYTES) / CONTACT_BYTES;
        let mut closer = [0; CLOSER_CONTACTS_MAX * CONTACT_BYTES];
        let len = self.write_closest(id.as_bytes(), room.min(CLOSER_CONTACTS_MAX), &asker.id, &mut closer);
        let reply = Message::Providers {
            token,
            total: total as u16,
            next,
            providers: Providers::over(&list[..count * PROVIDER_BYTES]),
            closer: Contacts::over(&closer[..len]),
        };
        self.answer(now, asker, &reply, out);
    }

    /// Writes up to `count` live contacts nearest to `target`, leaving out the asker, and returns the bytes written.
    fn write_closest(&self, target: &[u8; 32], count: usize, asker: &NodeId, list: &mut [u8]) -> usize {
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

    fn token_holds(&self, now: Now, asker: &Asker, token: &Token) -> bool {
        self.proofs.token_holds(token, &asker.addr, &asker.id, now.unix_secs())
    }

    fn serve_store(
        &mut self,
        now: Now,
        asker: &Asker,
        token: &Token,
        record: &[u8],
        class: Class,
        out: &mut impl Outbox,
    ) -> Result<(), ErrorCode> {
        if self.config.client {
            return Err(ErrorCode::Unsupported);
        }
        if !self.token_holds(now, asker, token) {
            self.offence(now, &asker.key, Offence::BadToken, out);
            return Err(ErrorCode::BadToken);
        }
        let Ok(view) = RecordView::read(record) else {
            self.counters.records_invalid += 1;
            self.offence(now, &asker.key, Offence::InvalidRecord, out);
            return Err(ErrorCode::Invalid);
        };
        let id = view.id();
        if class == Class::Held && self.is_too_far(&id) {
            return Err(ErrorCode::TooFar);
        }
        // A signature is the dearest check: what is old or known is told apart first.
        match self.records.judge_sequence(&id, &view) {
            Ok(Keeping::AlreadyHeld) => return Ok(()),
            Ok(Keeping::Changed) => {}
            // Only a second value that the owner really signed is an equivocation.
            Err(NotKept::Equivocation) => {
                let signed = view.check(&id, self.sealer.crypto(), self.sealer.network(), now.unix_secs()).is_ok();
                let offence = if signed { Offence::Equivocation } else { Offence::InvalidRecord };
                self.offence(now, &asker.key, offence, out);
                return Err(if signed { ErrorCode::Equivocation } else { ErrorCode::Invalid });
            }
            Err(NotKept::Stale { .. }) => return Err(ErrorCode::StaleSequence),
            Err(NotKept::GiverFull | NotKept::Full) => return Err(ErrorCode::Full),
        }
        match view.check(&id, self.sealer.crypto(), self.sealer.network(), now.unix_secs()) {
            Ok(()) => {}
            // Clocks disagree, and lifetimes end on the way: no offence.
            Err(RecordRefused::Expired | RecordRefused::NotYetIssued) => return Err(ErrorCode::Invalid),
            Err(_) => {
                self.counters.records_invalid += 1;
                self.offence(now, &asker.key, Offence::InvalidRecord, out);
                return Err(ErrorCode::Invalid);
            }
        }
        let ttl_max = if class == Class::Cached { self.config.cache_ttl_secs } else { TTL_SECS_MAX };
        match self.records.keep(now, &id, &view, class, ttl_max, asker.key, &mut self.rng) {
            Ok(_) => {
                if class == Class::Held {
                    self.counters.records_stored += 1;
                    self.log_record(now, &id, &view, asker.key, out);
                }
                Ok(())
            }
            Err(_) => Err(ErrorCode::Full),
        }
    }

    /// Keeps the valid ones of announced ids, here or at the lanes that own them. Bit i: the i-th was kept.
    fn keep_announced(
        &mut self,
        now: Now,
        asker: &PublicKey,
        announcement: &Announcement<'_>,
        out: &mut impl Outbox,
    ) -> Result<u16, ErrorCode> {
        if self.config.client {
            return Err(ErrorCode::Unsupported);
        }
        if !announcement.provider.addr.is_dialable() {
            return Err(ErrorCode::Invalid);
        }
        let mut kept = 0;
        for (i, (id, signature)) in announcement.ids().enumerate().take(ANNOUNCED_IDS_MAX) {
            let provider = SignedProvider {
                provider: announcement.provider,
                issued_secs: announcement.issued_secs,
                ttl_secs: announcement.ttl_secs,
                signature: *signature,
            };
            if self.providers.holds_newer(&id, &provider) {
                kept |= 1 << i;
                continue;
            }
            if self.is_too_far(&id) {
                continue;
            }
            match check_provider(&provider, &id, self.sealer.crypto(), self.sealer.network(), now.unix_secs()) {
                Ok(()) => {}
                Err(RecordRefused::Expired | RecordRefused::NotYetIssued) => continue,
                Err(_) => {
                    self.counters.records_invalid += 1;
                    self.offence(now, asker, Offence::InvalidRecord, out);
                    return Err(ErrorCode::Invalid);
                }
            }
            if self.keep_provider(now, &id, &provider, out) {
                kept |= 1 << i;
            }
        }
        Ok(kept)
    }

    /// Keeps a verified provider at the lane that owns its id.
    pub(super) fn keep_provider(
        &mut self,
        now: Now,
        id: &ContentId,
        provider: &SignedProvider,
        out: &mut impl Outbox,
    ) -> bool {
        let mut entry = [0; 32 + PROVIDER_BYTES];
        entry[..32].copy_from_slice(id.as_bytes());
        entry[32..].copy_from_slice(&provider.to_wire());
        let slot = self.map.slot(&self.own, id);
        let owner = self.map.lane_of_slot(slot);
        if owner != self.lane {
            out.message(owner, MessageClass::Coordination, message_kind::PROVIDERS, id.prefix_u64(), &entry);
            return true;
        }
        let kept = self.providers.keep(now, id, provider, &mut self.rng).is_ok();
        if kept {
            self.counters.providers_stored += 1;
            out.log(log_kind::PROVIDER, slot, &entry, Importance::Hard);
        }
        kept
    }

    /// Whether so many are nearer to `id` that nobody would look for it here.
    fn is_too_far(&self, id: &ContentId) -> bool {
        let k = self.config.lookup.k;
        let own = self.own.distance_to(id);
        if own <= self.radius_of(k * TOO_FAR_FACTOR) {
            return false;
        }
        let closest = self.table.closest(id, k, |peer| peer.id.distance_to(id) < own);
        self.table.peers_of(&closest).len() == k
    }

    fn serve_relay(&mut self, now: Now, asker: &Asker, to: &Contact, inner: u8, payload: &[u8], out: &mut impl Outbox) {
        let readable = matches!(inner, kind::FIND_NODE | kind::FIND_VALUE | kind::GET_PROVIDERS);
        let message = Message::read_payload(inner, payload);
        let id = self.sealer.node_id(&to.key);
        let refused = match message {
            _ if !readable || self.config.relays_max == 0 => ErrorCode::Unsupported,
            _ if self.relays >= self.config.relays_max => ErrorCode::Busy,
            // Our own request to the target may have to be a full datagram: whoever makes us send one sends one.
            _ if asker.datagram_len < DATAGRAM_BYTES_MAX => ErrorCode::Malformed,
            _ if id == self.own => ErrorCode::Unsupported,
            Err(_) => {
                self.offence(now, &asker.key, Offence::Malformed, out);
                ErrorCode::Malformed
            }
            Ok(message) => {
                let about = match message {
                    Message::FindNode { target } => target,
                    Message::FindValue { id, .. } | Message::GetProviders { id, .. } => *id.as_bytes(),
                    _ => [0; 32],
                };
                let relayed =
                    RelayedFor { key: asker.key, addr: asker.addr, correlation: asker.correlation, flags: asker.flags };
                if self.request(now, *to, id, &about, &message, Purpose::Relay(relayed), out) {
                    self.relays += 1;
                    return;
                }
                ErrorCode::Busy
            }
        };
        self.answer(now, asker, &refusal(refused), out);
    }

    /// The node we asked for somebody else has answered.
    pub(super) fn on_relayed_reply(
        &mut self,
        now: Now,
        asker: RelayedFor,
        message: &Message<'_>,
        out: &mut impl Outbox,
    ) {
        self.relays -= 1;
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let mut writer = crate::wire::codec::Writer::new(&mut payload);
        let reply = match message.write_payload(&mut writer) {
            Ok(()) => {
                let len = writer.len();
                Message::Relayed { kind: message.kind(), payload: &payload[..len] }
            }
            Err(_) => refusal(ErrorCode::RelayFailed),
        };
        self.reply_to(now, &asker, &reply, out);
    }

    /// Answers a request that came a while ago.
    pub(super) fn reply_to(&mut self, now: Now, to: &RelayedFor, message: &Message<'_>, out: &mut impl Outbox) {
        let asker = Asker {
            key: to.key,
            id: self.sealer.node_id(&to.key),
            addr: to.addr,
            correlation: to.correlation,
            flags: to.flags,
            payload_max: PAYLOAD_BYTES_MAX,
            datagram_len: DATAGRAM_BYTES_MAX,
            proven: true,
        };
        self.answer(now, &asker, message, out);
    }

    fn answer(&mut self, now: Now, asker: &Asker, message: &Message<'_>, out: &mut impl Outbox) {
        let cookie = self.proofs.cookie(&asker.addr, now.unix_secs());
        let flags = if self.config.client { flag::CLIENT } else { 0 };
        debug_assert_ne!(cookie, NO_COOKIE);
        let envelope = Envelope { flags, correlation: asker.correlation, cookie, message: *message };
        let Ok(len) = envelope.write(&mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]) else { return };
        let whole = HEADER_BYTES + len + TAG_BYTES;
        if !asker.proven && whole > asker.datagram_len {
            // Not even a refusal fits: silence. A well-behaved stranger pads its first request.
            return;
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

fn refusal<'a>(code: ErrorCode) -> Message<'a> {
    let retry_after_ms = if code == ErrorCode::Busy { 1000 } else { 0 };
    Message::Error { code, retry_after_ms }
}
