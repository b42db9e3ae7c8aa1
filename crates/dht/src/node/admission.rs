//! Admission: which requests of others are served, and what shows that their senders are where they seem to be.

use tessera_contracts::point::{ContentId, NodeId};

use super::context::Context;
use crate::abuse::{Abuse, Limited, Offence, Stranger, WRITE_COST};
use crate::addr::Addr;
use crate::identity::PublicKey;
use crate::seal::cookie::{Proofs, Scope};
use crate::time::Now;
use crate::wire::header::HEADER_BYTES;
use crate::wire::message::{CONTACT_BYTES, Cookie, Envelope, ErrorCode, Message, PREAMBLE_BYTES, Token};
use crate::wire::{CONTACTS_MAX, DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX, PROVIDER_PARTS_MAX, TAG_BYTES};

/// The largest payload of an ordinary reply: a little below the most, so that a relay can wrap it.
pub(super) const REPLY_PAYLOAD_MAX: usize = PAYLOAD_BYTES_MAX - 4;

const _: () = assert!(19 + crate::record::RECORD_BYTES_MAX <= REPLY_PAYLOAD_MAX);

/// Who asked, and what an answer to it needs.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) key: PublicKey,
    pub(super) id: NodeId,
    pub(super) addr: Addr,
    pub(super) correlation: u64,
    pub(super) flags: u8,
    /// What proves its address from now on: every answer carries it.
    pub(super) cookie: Cookie,
    pub(super) datagram_len: usize,
    /// Whether the address has echoed its cookie.
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
        let Self { key, addr, correlation, flags, datagram_len, proven, .. } = *self;
        ReplyTo { key, addr, correlation, flags, datagram_len, proven }
    }
}

/// Whom to answer later: a request that is being relayed, or that waits for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyTo {
    pub(super) key: PublicKey,
    pub(super) addr: Addr,
    correlation: u64,
    flags: u8,
    datagram_len: usize,
    proven: bool,
}

/// Limits on others, and proofs of where they are.
#[derive(Debug)]
pub(super) struct Admission {
    abuse: Abuse,
    proofs: Proofs,
}

impl Admission {
    pub(super) fn new(abuse: Abuse, proofs: Proofs) -> Self {
        Self { abuse, proofs }
    }

    pub(super) fn reserve_all(&mut self) {
        self.abuse.reserve_all();
    }

    pub(super) fn bytes(&self) -> (usize, usize) {
        self.abuse.bytes()
    }

    pub(super) fn set_lanes(&mut self, lanes: usize) {
        self.abuse.set_lanes(lanes);
    }

    /// Who sent a request, in a datagram of so many bytes.
    #[inline]
    pub(super) fn identify(
        &self,
        now: Now,
        (key, id, addr): (PublicKey, NodeId, Addr),
        request: &Envelope<'_>,
        datagram_len: usize,
    ) -> Asker {
        let (cookie, proven) = self.proofs.judge_cookie(&request.cookie, &key, &addr, now.unix_secs());
        let Envelope { correlation, flags, .. } = *request;
        Asker { key, id, addr, correlation, flags, cookie, datagram_len, proven }
    }

    /// Lets a request pass, or says when to ask again.
    #[inline]
    pub(super) fn admit(&mut self, cx: &mut Context<'_>, asker: &Asker, request: &Message<'_>) -> Result<(), Limited> {
        let cost = cost_of(request, asker.proven);
        let admitted = if asker.proven {
            self.abuse.admit(cx.now.mono_ms, &asker.key, asker.addr.prefix(), cost)
        } else {
            self.abuse.admit_unproven(cx.now.mono_ms, cost)
        };
        match admitted {
            Ok(()) => cx.counters.requests_served += 1,
            Err(_) => cx.counters.requests_limited += 1,
        }
        admitted
    }

    /// Whether an unknown key may cost us an agreement, or has to come again with a cookie.
    pub(super) fn admit_stranger(&mut self, now: Now, from: &Addr, sender: &PublicKey, cookie: &Cookie) -> Stranger {
        if self.is_quarantined(now, sender) {
            return Stranger::Refused;
        }
        if !self.proofs.cookie_holds(cookie, sender, from, now.unix_secs()) {
            return self.abuse.admit_unproven_stranger(now.mono_ms);
        }
        match self.abuse.admit_stranger(now.mono_ms, from.prefix()) {
            true => Stranger::Admitted,
            false => Stranger::Refused,
        }
    }

    /// The cookie for a peer at an address.
    pub(super) fn cookie(&self, now: Now, peer: &PublicKey, addr: &Addr) -> Cookie {
        self.proofs.cookie(peer, addr, now.unix_secs())
    }

    pub(super) fn is_quarantined(&self, now: Now, key: &PublicKey) -> bool {
        self.abuse.is_quarantined(now.mono_ms, key)
    }

    /// Scores an offence. Returns the peer's own score if it has just come into quarantine.
    pub(super) fn offence(&mut self, now: Now, key: &PublicKey, offence: Offence) -> Option<f64> {
        self.abuse.offence(now.mono_ms, key, offence)
    }

    /// Another lane has scored a peer.
    pub(super) fn hearsay(&mut self, now: Now, key: &PublicKey, score: f64) {
        self.abuse.hearsay(now.mono_ms, key, score);
    }

    /// A token with which the asker may write ids of a region around `id`.
    #[inline]
    pub(super) fn token(&self, now: Now, asker: &Asker, id: &ContentId, scope: Scope) -> Token {
        self.proofs.token(&asker.addr, &asker.id, id, scope, now.unix_secs())
    }

    pub(super) fn token_holds(&self, now: Now, asker: &Asker, id: &ContentId, token: &Token) -> bool {
        self.proofs.token_holds(token, &asker.addr, &asker.id, id, now.unix_secs())
    }

    /// Who asked a while ago.
    pub(super) fn asker(&self, now: Now, to: &ReplyTo, id: NodeId) -> Asker {
        let ReplyTo { key, addr, correlation, flags, datagram_len, proven } = *to;
        let cookie = self.proofs.cookie(&key, &addr, now.unix_secs());
        Asker { key, id, addr, correlation, flags, cookie, datagram_len, proven }
    }
}

/// What a request costs its sender.
#[inline]
fn cost_of(request: &Message<'_>, proven: bool) -> u32 {
    match request {
        Message::Store { .. } | Message::Announce { .. } | Message::CacheHint { .. } => WRITE_COST,
        // Each of its ids may cost a signature check and a lookup. A node that hands on an announcement hands on one.
        Message::Stem { announcement, .. } => WRITE_COST * announcement.ids().len().max(1) as u32,
        Message::GetProviders { parts_max, .. } if proven => u32::from(*parts_max).clamp(1, PROVIDER_PARTS_MAX as u32),
        _ => 1,
    }
}

pub(super) fn refusal<'a>(code: ErrorCode) -> Message<'a> {
    let retry_after_ms = if code == ErrorCode::Busy { 1000 } else { 0 };
    Message::Error { code, retry_after_ms }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{ANNOUNCED_BYTES, Announcement};

    #[test]
    fn a_request_costs_what_it_makes_us_do() {
        let id = ContentId::from_bytes([7; 32]);
        let providers = |parts_max| Message::GetProviders { id, page: 0, parts_max };
        assert_eq!(cost_of(&Message::Ping, true), 1);
        assert_eq!(cost_of(&Message::CacheHint { token: [0; 16], record: &[] }, true), WRITE_COST);
        assert_eq!(cost_of(&providers(0), true), 1);
        assert_eq!(cost_of(&providers(u8::MAX), true), PROVIDER_PARTS_MAX as u32);
        assert_eq!(cost_of(&providers(u8::MAX), false), 1, "an unproven address gets one datagram");
        let contact = crate::node::lone_lane::contact(1);
        for (ids, cost) in [(0, WRITE_COST), (1, WRITE_COST), (3, 3 * WRITE_COST)] {
            let list = alloc::vec![0; ids * ANNOUNCED_BYTES];
            let announcement = Announcement::over(contact, 0, 0, &list);
            assert_eq!(cost_of(&Message::Stem { hops_left: 1, announcement }, true), cost, "{ids} ids");
        }
    }
}
