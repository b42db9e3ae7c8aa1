//! The sealed part of a datagram: a preamble, one message, and padding.
//!
//! A request has an odd kind, its reply the even one above it. Lists are views over the datagram; their entries are
//! read when asked for. Records travel as opaque bytes here and are judged in `record`.

mod codes;
mod lists;
mod payload;

use tessera_contracts::point::ContentId;

use super::PAYLOAD_BYTES_MAX;
use super::codec::{Malformed, Overflow, Reader, Writer};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::seal::cookie::Scope;

pub use codes::{Capabilities, ErrorCode, capability};
pub use lists::{Announcement, Contacts, Providers, SignedProvider};

/// Bytes before the payload: cookie, kind, flags, payload length, correlation id.
pub const PREAMBLE_BYTES: usize = 20;

/// Bytes of a cookie, with which a body begins. They are authentic but in clear: a node checks a stranger's before it computes anything.
pub const COOKIE_BYTES: usize = size_of::<Cookie>();

/// The bytes of a NEGOTIATED: two versions, the largest datagram, bits, and the asker's address.
pub const NEGOTIATED_BYTES: usize = 1 + 1 + 2 + 8 + Addr::WIRE_BYTES;

/// A contact: public key, then address.
pub const CONTACT_BYTES: usize = 32 + Addr::WIRE_BYTES;

/// A signed provider: contact, issue time, lifetime, signature.
pub const PROVIDER_BYTES: usize = CONTACT_BYTES + 8 + 4 + 64;

/// One content id of an announcement, with the provider's signature for it.
pub const ANNOUNCED_BYTES: usize = 32 + 64;

/// The bytes of an announcement before its ids: provider, issue time, lifetime, count.
pub const ANNOUNCE_HEAD_BYTES: usize = CONTACT_BYTES + 8 + 4 + 1;

/// The bytes of a part of a page of providers beside its lists: token, total, next, part, parts, and two counts.
pub const PROVIDERS_HEAD_BYTES: usize = 16 + 2 + 4 + 1 + 1 + 1 + 1;

/// Proves that a peer was reachable at an address: eight bytes of a keyed hash, zero for "none".
pub type Cookie = [u8; 8];

/// Allows a write: sixteen bytes of a keyed hash.
pub type Token = [u8; 16];

/// Bits of the preamble's flags.
pub mod flag {
    /// The sender does not serve others (it is behind a one-way path or about to leave): do not put it into a routing table.
    pub const CLIENT: u8 = 1;
    /// Send the reply to a random slot: the asker would rather forward it between its lanes than show which lane asked.
    pub const ANY_SLOT: u8 = 2;
    /// All bits that have a meaning.
    pub const KNOWN: u8 = CLIENT | ANY_SLOT;
}

/// A message and the fields that travel with every message.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// Bits of [`flag`].
    pub flags: u8,
    /// Chosen by the asker, repeated by the reply. The low byte is the asker's home slot, the rest is random.
    pub correlation: u64,
    /// In a request: the receiver's cookie for us, as last heard. In a reply: the cookie for the asker and its address.
    pub cookie: Cookie,
    /// The message.
    pub message: Message<'a>,
}

/// All messages.
#[derive(Debug, Clone, Copy)]
pub enum Message<'a> {
    /// Are you there?
    Ping,
    /// Yes, and this is the address I see you at.
    Pong {
        /// The asker's address as seen here.
        observed: Addr,
    },
    /// The sender's capabilities, and a question for the receiver's.
    Negotiate(Capabilities),
    /// The replier's capabilities.
    Negotiated {
        /// The replier's capabilities.
        capabilities: Capabilities,
        /// The asker's address as seen here.
        observed: Addr,
    },
    /// Whom do you know nearest to `target`?
    FindNode {
        /// A point in id space.
        target: [u8; 32],
        /// The scope wanted for the token in the reply, seen from the target.
        scope: Scope,
    },
    /// The nearest known, nearest first.
    Nodes {
        /// Allows a write to this node.
        token: Token,
        /// At most [`CONTACTS_MAX`](super::CONTACTS_MAX).
        contacts: Contacts<'a>,
    },
    /// Do you hold this record?
    FindValue {
        /// Its content id.
        id: ContentId,
        /// Do not send a mutable record with a sequence below it; the asker already has it.
        sequence_min: u64,
    },
    /// The record, if held, and closer contacts.
    Value {
        /// Allows a write to this node.
        token: Token,
        /// The record's bytes, if held.
        record: Option<&'a [u8]>,
        /// As many closer contacts as fit, at most [`CLOSER_CONTACTS_MAX`](super::CLOSER_CONTACTS_MAX).
        closer: Contacts<'a>,
    },
    /// Keep this record.
    Store {
        /// From a recent reply of this node.
        token: Token,
        /// How many contacts near the record's id the answer should name; none if the asker knows them.
        closer_max: u8,
        /// The record's bytes.
        record: &'a [u8],
    },
    /// Kept.
    Stored {
        /// As many as were asked for, at most [`CONTACTS_MAX`](super::CONTACTS_MAX), nearest first.
        closer: Contacts<'a>,
    },
    /// These ids are provided by that node.
    Announce {
        /// From a recent reply of this node.
        token: Token,
        /// The statement.
        announcement: Announcement<'a>,
    },
    /// Which of the ids were kept.
    Announced {
        /// Bit i: the i-th id was kept.
        kept: u16,
    },
    /// Asks for the providers of this id.
    GetProviders {
        /// The content id.
        id: ContentId,
        /// Zero for the first page, then `next` of the page before.
        page: u32,
        /// How many datagrams the answer may have; one, unless the address has echoed its cookie.
        parts_max: u8,
    },
    /// A page of providers, and closer contacts.
    Providers {
        /// Allows a write to this node.
        token: Token,
        /// How many providers are held in all.
        total: u16,
        /// Where the next part starts; zero if there is none.
        next: u32,
        /// Which part of the page this is, from zero.
        part: u8,
        /// How many parts the page has.
        parts: u8,
        /// The part.
        providers: Providers<'a>,
        /// As many closer contacts as fit, at most [`CLOSER_CONTACTS_MAX`](super::CLOSER_CONTACTS_MAX).
        closer: Contacts<'a>,
    },
    /// Ask `to` this for me, as if it were your own question.
    Relay {
        /// The node to ask.
        to: Contact,
        /// Kind of the inner request: FIND_NODE, FIND_VALUE or GET_PROVIDERS.
        kind: u8,
        /// Payload of the inner request.
        payload: &'a [u8],
    },
    /// The relayed reply.
    Relayed {
        /// Kind of the inner reply.
        kind: u8,
        /// Payload of the inner reply.
        payload: &'a [u8],
    },
    /// Announce this for its provider; not necessarily by yourself.
    Stem {
        /// How many more nodes may hand it on before one must spread it.
        hops_left: u8,
        /// The statement.
        announcement: Announcement<'a>,
    },
    /// Taken.
    StemTaken,
    /// You may want to keep this for a while; it was asked for near you. Never answered.
    CacheHint {
        /// From a recent reply of this node.
        token: Token,
        /// The record's bytes.
        record: &'a [u8],
    },
    /// I am about to stop: do not wait for me. Never answered.
    Leaving,
    /// No.
    Error {
        /// Why not.
        code: ErrorCode,
        /// Ask again after this; zero for "no use".
        retry_after_ms: u32,
    },
}

/// Kind bytes.
pub mod kind {
    #![allow(missing_docs)]
    pub const PING: u8 = 1;
    pub const PONG: u8 = 2;
    pub const NEGOTIATE: u8 = 3;
    pub const NEGOTIATED: u8 = 4;
    pub const FIND_NODE: u8 = 5;
    pub const NODES: u8 = 6;
    pub const FIND_VALUE: u8 = 7;
    pub const VALUE: u8 = 8;
    pub const STORE: u8 = 9;
    pub const STORED: u8 = 10;
    pub const ANNOUNCE: u8 = 11;
    pub const ANNOUNCED: u8 = 12;
    pub const GET_PROVIDERS: u8 = 13;
    pub const PROVIDERS: u8 = 14;
    pub const RELAY: u8 = 15;
    pub const RELAYED: u8 = 16;
    pub const STEM: u8 = 17;
    pub const STEM_TAKEN: u8 = 18;
    pub const CACHE_HINT: u8 = 251;
    pub const LEAVING: u8 = 253;
    pub const ERROR: u8 = 255;
}

impl Message<'_> {
    /// The kind byte.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Ping => kind::PING,
            Self::Pong { .. } => kind::PONG,
            Self::Negotiate(_) => kind::NEGOTIATE,
            Self::Negotiated { .. } => kind::NEGOTIATED,
            Self::FindNode { .. } => kind::FIND_NODE,
            Self::Nodes { .. } => kind::NODES,
            Self::FindValue { .. } => kind::FIND_VALUE,
            Self::Value { .. } => kind::VALUE,
            Self::Store { .. } => kind::STORE,
            Self::Stored { .. } => kind::STORED,
            Self::Announce { .. } => kind::ANNOUNCE,
            Self::Announced { .. } => kind::ANNOUNCED,
            Self::GetProviders { .. } => kind::GET_PROVIDERS,
            Self::Providers { .. } => kind::PROVIDERS,
            Self::Relay { .. } => kind::RELAY,
            Self::Relayed { .. } => kind::RELAYED,
            Self::Stem { .. } => kind::STEM,
            Self::StemTaken => kind::STEM_TAKEN,
            Self::CacheHint { .. } => kind::CACHE_HINT,
            Self::Leaving => kind::LEAVING,
            Self::Error { .. } => kind::ERROR,
        }
    }

    /// Whether this answers something.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        let kind = self.kind();
        kind == kind::ERROR || (kind < kind::CACHE_HINT && kind.is_multiple_of(2))
    }
}

impl<'a> Envelope<'a> {
    /// Writes preamble and payload to the front of `body` and returns their length.
    pub fn write(&self, body: &mut [u8]) -> Result<usize, Overflow> {
        let (preamble, payload) = body.split_first_chunk_mut::<PREAMBLE_BYTES>().ok_or(Overflow)?;
        let room = payload.len().min(PAYLOAD_BYTES_MAX);
        let mut out = Writer::new(&mut payload[..room]);
        self.message.write_payload(&mut out)?;
        let len = out.len();
        write_preamble(preamble, self.message.kind(), self.flags, len, self.correlation, &self.cookie);
        Ok(PREAMBLE_BYTES + len)
    }

    /// Reads an opened body. Bytes after the payload are padding.
    pub fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let cookie = *r.array("cookie")?;
        let kind = r.u8("kind")?;
        let flags = r.u8("flags")?;
        let len = usize::from(r.u16("payload length")?);
        let correlation = r.u64("correlation id")?;
        let payload = r.slice(len, "payload")?;
        if flags & !flag::KNOWN != 0 {
            return Err(Malformed::Reserved { part: "flags" });
        }
        Ok(Self { flags, correlation, cookie, message: Message::read_payload(kind, payload)? })
    }
}

/// Writes a preamble for a payload of `len` bytes that is already in place behind it.
pub fn write_preamble(
    out: &mut [u8; PREAMBLE_BYTES],
    kind: u8,
    flags: u8,
    len: usize,
    correlation: u64,
    cookie: &Cookie,
) {
    out[..8].copy_from_slice(cookie);
    out[8] = kind;
    out[9] = flags;
    out[10..12].copy_from_slice(&(len as u16).to_le_bytes());
    out[12..20].copy_from_slice(&correlation.to_le_bytes());
}
