//! Asking for others: a relay hides who asked.
//!
//! Only lookups are relayed, only so many at once, only for who has shown that it is where it seems to be, and a request to relay
//! is a full datagram: whoever makes us send one sends one.

use super::LaneNode;
use super::ask::{Purpose, ReplyTo};
use super::outbox::Outbox;
use super::serve::{Asker, refusal};
use crate::abuse::Offence;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::time::Now;
use crate::wire::message::{ErrorCode, Message, kind};
use crate::wire::{DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX};
use tessera_contracts::point::Point as _;

impl<C: Crypto> LaneNode<C> {
    pub(super) fn serve_relay(
        &mut self,
        now: Now,
        asker: &Asker,
        to: &Contact,
        inner: u8,
        payload: &[u8],
        out: &mut impl Outbox,
    ) {
        let readable = matches!(inner, kind::FIND_NODE | kind::FIND_VALUE | kind::GET_PROVIDERS);
        let message = Message::read_payload(inner, payload);
        let id = self.sealer.node_id(&to.key);
        let refused = match message {
            _ if !readable || self.config.relays_max == 0 => ErrorCode::Unsupported,
            // Else whoever sends from made-up addresses would have as many limits as it makes up.
            _ if !asker.proven => ErrorCode::CookieRequired,
            _ if self.relays >= self.config.relays_max => ErrorCode::Busy,
            // Our own request to the target may have to be a full datagram: whoever makes us send one sends one.
            _ if asker.datagram_len < DATAGRAM_BYTES_MAX => ErrorCode::Malformed,
            _ if id == self.own => ErrorCode::Unsupported,
            Err(_) => {
                self.offence(now, &asker.key, Offence::Malformed, out);
                ErrorCode::Malformed
            }
            Ok(mut message) => {
                // One datagram is handed back, so one is asked for.
                if let Message::GetProviders { parts_max, .. } = &mut message {
                    *parts_max = 1;
                }
                let about = match message {
                    Message::FindNode { target, .. } => target,
                    Message::FindValue { id, .. } | Message::GetProviders { id, .. } => *id.as_bytes(),
                    _ => [0; 32],
                };
                if self.request(now, *to, id, &about, &message, Purpose::Relay(asker.reply_to()), out) {
                    self.relays += 1;
                    return;
                }
                ErrorCode::Busy
            }
        };
        self.answer(now, asker, &refusal(refused), out);
    }

    /// The node we asked for somebody else has answered.
    pub(super) fn on_relayed_reply(&mut self, now: Now, asker: ReplyTo, message: &Message<'_>, out: &mut impl Outbox) {
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
}
