//! Datagrams: opened, sealed and sent; cookies given to strangers, and cookies of peers that ask for one first.

use alloc::boxed::Box;

use tessera_contracts::point::NodeId;

use super::admission::{Admission, Asker, refusal};
use super::context::{Context, Place};
use crate::abuse::Stranger;
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{AnyCrypto, PublicKey};
use crate::rng::LaneRng;
use crate::seal::cookie::NO_COOKIE;
use crate::seal::keys::NetworkKey;
use crate::seal::{OpenRefused, Opened, Sealer, Standing};
use crate::time::Now;
use crate::wire::header::{Challenge, HEADER_BYTES, Header};
use crate::wire::message::{Cookie, Envelope, ErrorCode, Message, NEGOTIATED_BYTES, PREAMBLE_BYTES, flag};
use crate::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX, TAG_BYTES};

/// The shortest body of a request: that of a NEGOTIATED. A peer that has moved takes its cookie for good and it is not; an answer that fits
/// tells it so, and silence would be taken for absence.
const QUESTION_BYTES_MIN: usize = PREAMBLE_BYTES + NEGOTIATED_BYTES;

/// First requests that may be answered with a challenge, remembered. The oldest is forgotten: its time runs out, and it is asked again as after
/// any silence.
const FIRST_REQUESTS_MAX: usize = 64;

pub(super) type LaneSealer = Sealer<AnyCrypto>;

/// A request that was sent without a cookie.
#[derive(Debug, Clone, Copy, Default)]
struct FirstRequest {
    counter: u64,
    tag: [u8; TAG_BYTES],
    correlation: u64,
}

/// Seals and opens the datagrams of a lane.
#[derive(Debug)]
pub(super) struct Link {
    sealer: LaneSealer,
    buffer: Box<[u8; DATAGRAM_BYTES_MAX]>,
    /// By the end of its counter.
    first_requests: Box<[FirstRequest; FIRST_REQUESTS_MAX]>,
}

impl Link {
    pub(super) fn new(place: &Place, crypto: AnyCrypto, network: NetworkKey, rng: &mut LaneRng, now: Now) -> Self {
        let sealer = Sealer::new(crypto, network, place.config.suite, &place.config.seal, rng, now);
        let first_requests = Box::new([FirstRequest::default(); FIRST_REQUESTS_MAX]);
        Self { sealer, buffer: Box::new([0; DATAGRAM_BYTES_MAX]), first_requests }
    }

    /// Opens a datagram in place. `None` if it is refused, which is counted. `admit_stranger` is asked before an agreement is computed for
    /// an unknown sender; one that it has challenged is sent the cookie that it gives.
    #[inline]
    pub(super) fn open<'d>(
        &mut self,
        cx: &mut Context<'_>,
        from: Addr,
        datagram: &'d mut [u8],
        admission: &mut Admission,
    ) -> Option<Opened<'d>> {
        let (now, mut challenged) = (cx.now, None);
        let opened = self.sealer.open(now, datagram, |sender, cookie| {
            let stranger = admission.admit_stranger(now, &from, sender, cookie);
            challenged = (stranger == Stranger::Challenged).then_some(*sender);
            stranger == Stranger::Admitted
        });
        match opened {
            // Said again for the borrow checker, which would hold the datagram for the other arm too.
            Ok(Opened { header, is_settled, .. }) => {
                let body_end = datagram.len() - TAG_BYTES;
                Some(Opened { header, body: &mut datagram[HEADER_BYTES..body_end], is_settled })
            }
            Err(refused) => {
                if let Some(sender) = challenged {
                    self.challenge(cx, from, datagram, admission.cookie(now, &sender, &from));
                }
                *match refused {
                    OpenRefused::Header(_) | OpenRefused::Echo => &mut cx.counters.refused_header,
                    OpenRefused::Period(_) => &mut cx.counters.refused_period,
                    OpenRefused::Replayed => &mut cx.counters.refused_replay,
                    OpenRefused::StrangerLimit => &mut cx.counters.refused_stranger,
                    OpenRefused::UnusableKey | OpenRefused::Forged => &mut cx.counters.refused_forged,
                } += 1;
                None
            }
        }
    }

    /// Sends a cookie in place of an answer. Nothing is computed for it but the cookie, and nothing is remembered.
    fn challenge(&mut self, cx: &mut Context<'_>, to: Addr, datagram: &[u8], cookie: Cookie) {
        let Ok(header) = Header::read(datagram) else { return };
        if let Some(challenge) = Challenge::to(&header, datagram, cx.place.own_key, cookie) {
            cx.counters.challenges_sent += 1;
            cx.transmit(to, &challenge.to_wire());
        }
    }

    /// Which request a challenge answers. It must name the tag of its datagram, which only a node that saw the datagram knows.
    pub(super) fn challenged(&self, challenge: &Challenge) -> Option<u64> {
        let sent = &self.first_requests[challenge.counter as usize % FIRST_REQUESTS_MAX];
        let is_it = (sent.counter, sent.tag) == (challenge.counter, challenge.tag)
            && sent.correlation != 0
            && challenge.incarnation == *self.sealer.incarnation();
        is_it.then_some(sent.correlation)
    }

    /// Remembers the stream of an opened datagram and the standing of its sender.
    pub(super) fn remember(&mut self, header: &Header, standing: Standing) {
        self.sealer.remember(header, standing);
    }

    /// Sends a request. False if it does not fit a datagram or the peer's key is unusable.
    pub(super) fn send(
        &mut self,
        cx: &mut Context<'_>,
        to: &Contact,
        slot: u8,
        correlation: u64,
        message: &Message<'_>,
    ) -> bool {
        let cookie = self.sealer.cookie_of(cx.now, &to.key);
        let mut flags = 0;
        if cx.place.config.client {
            flags |= flag::CLIENT;
        }
        if cx.place.config.any_slot {
            flags |= flag::ANY_SLOT;
        }
        let envelope = Envelope { flags, correlation, cookie, message: *message };
        let body = &mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX];
        let Ok(mut len) = envelope.write(body) else { return false };
        // The receiver answers no more bytes than it got until we have echoed its cookie; and a relay sends no more for us than we send it.
        let len_min = if cookie == NO_COOKIE || matches!(message, Message::Relay { .. }) {
            BODY_BYTES_MAX
        } else {
            QUESTION_BYTES_MIN
        };
        if len < len_min {
            body[len..len_min].fill(0);
            len = len_min;
        }
        self.sealer.set_reply_slot(cx.own_slot());
        let Ok(len) = self.sealer.seal(cx.now, &to.key, slot, &mut self.buffer[..], len) else { return false };
        if cookie == NO_COOKIE && correlation != 0 {
            self.expect_challenge(&to.key, len, correlation);
        }
        cx.transmit(to.addr, &self.buffer[..len]);
        true
    }

    /// A request that shows no cookie may be answered with one in clear, or be answered: by then strangers must not have displaced the
    /// agreement that opens the answer.
    fn expect_challenge(&mut self, to: &PublicKey, len: usize, correlation: u64) {
        self.sealer.expect_answer(to);
        if let (Ok(header), Some(tag)) = (Header::read(&self.buffer[..len]), self.buffer[..len].last_chunk()) {
            let at = header.counter as usize % FIRST_REQUESTS_MAX;
            self.first_requests[at] = FirstRequest { counter: header.counter, tag: *tag, correlation };
        }
    }

    /// Answers a request. An address that has not echoed its cookie gets no more bytes than came from it.
    pub(super) fn answer(&mut self, cx: &mut Context<'_>, asker: &Asker, message: &Message<'_>) {
        let (cookie, correlation) = (asker.cookie, asker.correlation);
        let flags = if cx.place.config.client { flag::CLIENT } else { 0 };
        debug_assert_ne!(cookie, NO_COOKIE);
        let body = &mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX];
        let mut write = |message| Envelope { flags, correlation, cookie, message }.write(body);
        let too_long = |len: &usize| !asker.proven && HEADER_BYTES + *len + TAG_BYTES > asker.datagram_len;
        let Ok(mut len) = write(*message) else { return };
        if too_long(&len) {
            // If not even a refusal fits: silence. A well-behaved stranger pads its first request.
            match write(refusal(ErrorCode::CookieRequired)) {
                Ok(short) if !too_long(&short) => len = short,
                _ => return,
            }
        }
        let slot = cx.reply_slot(asker.flags, correlation);
        if let Ok(len) = self.sealer.seal(cx.now, &asker.key, slot, &mut self.buffer[..], len) {
            if !asker.proven {
                let over = len.saturating_sub(asker.datagram_len) as u64;
                cx.counters.amplified_bytes = cx.counters.amplified_bytes.max(over);
            }
            cx.transmit(asker.addr, &self.buffer[..len]);
        }
    }

    /// A peer's node id, from memory if it is remembered.
    #[inline]
    pub(super) fn node_id(&self, key: &PublicKey) -> NodeId {
        self.sealer.node_id(key)
    }

    /// Whether a peer has given us its cookie for our address, and it is surely still good.
    pub(super) fn is_proven_to(&self, now: Now, key: &PublicKey) -> bool {
        self.sealer.cookie_of(now, key) != NO_COOKIE
    }

    /// Remembers the cookie a peer gave us. Says whether another one should have been good still: the peer sees us at another address.
    pub(super) fn keep_cookie(&mut self, now: Now, key: &PublicKey, cookie: Cookie) -> bool {
        self.sealer.keep_cookie(now, key, cookie)
    }

    pub(super) fn sealer(&self) -> &LaneSealer {
        &self.sealer
    }

    pub(super) fn reserve_all(&mut self) {
        self.sealer.reserve_all();
    }
}
