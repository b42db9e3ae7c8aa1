//! What a seal protects: a preamble, one message, and padding.
//!
//! A request has an odd kind, its reply the even one above it. Lists are views over the datagram; their entries are
//! read when asked for. Records travel as opaque bytes here and are judged in `record`.

use tessera_contracts::point::{ContentId, Point as _};

use super::codec::{Malformed, Overflow, Reader, Writer};
use super::{
    ANNOUNCED_IDS_MAX, CLOSER_CONTACTS_MAX, CONTACTS_MAX, PAYLOAD_BYTES_MAX, PROVIDER_PARTS_MAX, PROVIDERS_PER_PART_MAX,
};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{PublicKey, Signature};
use crate::seal::cookie::Scope;

/// Bytes before the payload: kind, flags, payload length, correlation id, cookie.
pub const PREAMBLE_BYTES: usize = 20;

/// A contact: public key, then address.
pub const CONTACT_BYTES: usize = 32 + Addr::WIRE_BYTES;

/// A signed provider: contact, issue time, lifetime, signature.
pub const PROVIDER_BYTES: usize = CONTACT_BYTES + 8 + 4 + 64;

/// One content id of an announcement, with the provider's signature for it.
pub const ANNOUNCED_BYTES: usize = 32 + 64;

/// What an announcement says once for all its ids: provider, issue time, lifetime, count.
pub const ANNOUNCE_HEAD_BYTES: usize = CONTACT_BYTES + 8 + 4 + 1;

/// What a part of a page of providers says beside its lists: token, total, next, part, parts, and two counts.
pub const PROVIDERS_HEAD_BYTES: usize = 16 + 2 + 4 + 1 + 1 + 1 + 1;

/// Proves that an address was reachable: eight bytes of a keyed hash, zero for "none".
pub type Cookie = [u8; 8];

/// Allows a write: sixteen bytes of a keyed hash.
pub type Token = [u8; 16];

/// Bits of the preamble's flags.
pub mod flag {
    /// The sender serves nobody (it is behind a one-way path or about to leave): do not put it into a routing table.
    pub const CLIENT: u8 = 1;
    /// Send the reply to a random slot: the asker would rather forward it between its lanes than show which lane asked.
    pub const ANY_SLOT: u8 = 2;
    /// All bits that have a meaning.
    pub const KNOWN: u8 = CLIENT | ANY_SLOT;
}

/// What the other side can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The oldest wire version understood.
    pub version_min: u8,
    /// The newest wire version understood.
    pub version_max: u8,
    /// The largest datagram taken.
    pub datagram_bytes_max: u16,
    /// Bits of [`capability`].
    pub bits: u64,
}

/// Bits of [`Capabilities::bits`]. Unknown bits are ignored: a newer peer may have more.
pub mod capability {
    /// Opens AES-256-GCM.
    pub const AES_256_GCM: u64 = 1;
    /// Opens ChaCha20-Poly1305.
    pub const CHACHA20_POLY1305: u64 = 2;
    /// Stores records and providers for others.
    pub const STORES: u64 = 4;
    /// Relays requests for others.
    pub const RELAYS: u64 = 8;
    /// Takes stems of announcements and spreads them.
    pub const STEMS: u64 = 16;
}

/// Why a request was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ErrorCode {
    /// Overloaded: ask again after the time given.
    Busy = 1,
    /// You ask too often: ask again after the time given.
    RateLimited = 2,
    /// The request was sealed well and shaped badly.
    Malformed = 3,
    /// The kind, or an option of it, is not served here.
    Unsupported = 4,
    /// The write token is missing, expired, or another address's: ask for a fresh one.
    BadToken = 5,
    /// The id is too far from this node: others are closer, ask them.
    TooFar = 6,
    /// The record or a signature does not hold.
    Invalid = 7,
    /// A record with a higher sequence number is held.
    StaleSequence = 8,
    /// A record with the same sequence number and another value is held.
    Equivocation = 9,
    /// The store, or your share of it, is full.
    Full = 10,
    /// Too much for an unproven address: the answer is too large, or the work too dear. Ask again with the cookie.
    CookieRequired = 11,
    /// The relayed request got no answer.
    RelayFailed = 12,
}

impl ErrorCode {
    /// All codes.
    pub const ALL: [Self; 12] = [
        Self::Busy,
        Self::RateLimited,
        Self::Malformed,
        Self::Unsupported,
        Self::BadToken,
        Self::TooFar,
        Self::Invalid,
        Self::StaleSequence,
        Self::Equivocation,
        Self::Full,
        Self::CookieRequired,
        Self::RelayFailed,
    ];

    fn read(byte: u8) -> Result<Self, Malformed> {
        Self::ALL
            .into_iter()
            .find(|code| *code as u8 == byte)
            .ok_or(Malformed::UnknownValue { part: "error code", seen: byte })
    }
}

/// A message and what travels with every message.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// Bits of [`flag`].
    pub flags: u8,
    /// Chosen by the asker, repeated by the reply. The low byte is the asker's home slot, the rest is random.
    pub correlation: u64,
    /// In a request: the receiver's cookie for us, as last heard. In a reply: the cookie for the asker's address.
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
    /// This is what I can do; what can you do?
    Negotiate(Capabilities),
    /// This is what I can do.
    Negotiated {
        /// What the replier can do.
        capabilities: Capabilities,
        /// The asker's address as seen here.
        observed: Addr,
    },
    /// Whom do you know nearest to `target`?
    FindNode {
        /// A point in id space.
        target: [u8; 32],
        /// What the token in the reply should be good for, seen from the target.
        scope: Scope,
    },
    /// The nearest known, nearest first.
    Nodes {
        /// Allows a write to this node.
        token: Token,
        /// At most [`CONTACTS_MAX`].
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
        /// As many closer contacts as fit, at most [`CLOSER_CONTACTS_MAX`].
        closer: Contacts<'a>,
    },
    /// Keep this record.
    Store {
        /// From a recent reply of this node.
        token: Token,
        /// The record's bytes.
        record: &'a [u8],
    },
    /// Kept.
    Stored,
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
    /// Who provides this id?
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
        /// Where what comes after this part starts; zero if nothing does.
        next: u32,
        /// Which part of the page this is, from zero.
        part: u8,
        /// How many parts the page has.
        parts: u8,
        /// The part.
        providers: Providers<'a>,
        /// As many closer contacts as fit, at most [`CLOSER_CONTACTS_MAX`].
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
    /// What it said.
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
            Self::Stored => kind::STORED,
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

    /// Writes the payload, without preamble.
    pub fn write_payload(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            Self::Ping | Self::Stored | Self::StemTaken | Self::Leaving => Ok(()),
            Self::Pong { observed } => out.put(&observed.to_wire()),
            Self::Negotiate(capabilities) => capabilities.write(out),
            Self::Negotiated { capabilities, observed } => {
                capabilities.write(out)?;
                out.put(&observed.to_wire())
            }
            Self::FindNode { target, scope } => {
                out.put(target)?;
                out.put(&[scope.to_wire()])
            }
            Self::Nodes { token, contacts } => {
                out.put(token)?;
                contacts.write(out)
            }
            Self::FindValue { id, sequence_min } => {
                out.put(id.as_bytes())?;
                out.put(&sequence_min.to_le_bytes())
            }
            Self::Value { token, record, closer } => {
                out.put(token)?;
                write_sized(out, record.unwrap_or_default())?;
                closer.write(out)
            }
            Self::Store { token, record } | Self::CacheHint { token, record } => {
                out.put(token)?;
                write_sized(out, record)
            }
            Self::Announce { token, announcement } => {
                out.put(token)?;
                announcement.write(out)
            }
            Self::Announced { kept } => out.put(&kept.to_le_bytes()),
            Self::GetProviders { id, page, parts_max } => {
                out.put(id.as_bytes())?;
                out.put(&page.to_le_bytes())?;
                out.put(&[*parts_max])
            }
            Self::Providers { token, total, next, part, parts, providers, closer } => {
                out.put(token)?;
                out.put(&total.to_le_bytes())?;
                out.put(&next.to_le_bytes())?;
                out.put(&[*part, *parts, providers.len() as u8])?;
                out.put(providers.0)?;
                closer.write(out)
            }
            Self::Relay { to, kind, payload } => {
                out.put(&to.to_wire())?;
                out.put(&[*kind])?;
                out.put(payload)
            }
            Self::Relayed { kind, payload } => {
                out.put(&[*kind])?;
                out.put(payload)
            }
            Self::Stem { hops_left, announcement } => {
                out.put(&[*hops_left])?;
                announcement.write(out)
            }
            Self::Error { code, retry_after_ms } => {
                out.put(&[*code as u8])?;
                out.put(&retry_after_ms.to_le_bytes())
            }
        }
    }
}

impl<'a> Message<'a> {
    /// Reads the payload of a message of `kind`; all of it.
    pub fn read_payload(kind: u8, payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(payload);
        let message = match kind {
            kind::PING => Self::Ping,
            kind::PONG => Self::Pong { observed: Addr::from_wire(r.array("observed address")?) },
            kind::NEGOTIATE => Self::Negotiate(Capabilities::read(&mut r)?),
            kind::NEGOTIATED => Self::Negotiated {
                capabilities: Capabilities::read(&mut r)?,
                observed: Addr::from_wire(r.array("observed address")?),
            },
            kind::FIND_NODE => {
                Self::FindNode { target: *r.array("target")?, scope: Scope::from_wire(r.u8("scope of the token")?) }
            }
            kind::NODES => Self::Nodes { token: *r.array("token")?, contacts: Contacts::read(&mut r, CONTACTS_MAX)? },
            kind::FIND_VALUE => Self::FindValue { id: read_id(&mut r)?, sequence_min: r.u64("least sequence")? },
            kind::VALUE => {
                let token = *r.array("token")?;
                let record = read_sized(&mut r)?;
                let closer = Contacts::read(&mut r, CLOSER_CONTACTS_MAX)?;
                Self::Value { token, record: (!record.is_empty()).then_some(record), closer }
            }
            kind::STORE => Self::Store { token: *r.array("token")?, record: read_sized(&mut r)? },
            kind::STORED => Self::Stored,
            kind::ANNOUNCE => Self::Announce { token: *r.array("token")?, announcement: Announcement::read(&mut r)? },
            kind::ANNOUNCED => Self::Announced { kept: r.u16("kept ids")? },
            kind::GET_PROVIDERS => {
                Self::GetProviders { id: read_id(&mut r)?, page: r.u32("page")?, parts_max: r.u8("most parts")? }
            }
            kind::PROVIDERS => {
                let token = *r.array("token")?;
                let total = r.u16("total of providers")?;
                let next = r.u32("next page")?;
                let (part, parts) = (r.u8("part")?, r.u8("parts")?);
                if usize::from(parts) > PROVIDER_PARTS_MAX || part >= parts {
                    return Err(Malformed::TooMany { part: "part", seen: part.into(), max: PROVIDER_PARTS_MAX });
                }
                let count = r.count(PROVIDERS_PER_PART_MAX, "providers")?;
                let providers = Providers(r.slice(count * PROVIDER_BYTES, "providers")?);
                let closer = Contacts::read(&mut r, CLOSER_CONTACTS_MAX)?;
                Self::Providers { token, total, next, part, parts, providers, closer }
            }
            kind::RELAY => {
                let to = Contact::from_wire(r.array("relay target")?);
                let kind = r.u8("relayed kind")?;
                Self::Relay { to, kind, payload: r.slice(r.left(), "relayed request")? }
            }
            kind::RELAYED => {
                let kind = r.u8("relayed kind")?;
                Self::Relayed { kind, payload: r.slice(r.left(), "relayed reply")? }
            }
            kind::STEM => Self::Stem { hops_left: r.u8("hops left")?, announcement: Announcement::read(&mut r)? },
            kind::STEM_TAKEN => Self::StemTaken,
            kind::LEAVING => Self::Leaving,
            kind::CACHE_HINT => Self::CacheHint { token: *r.array("token")?, record: read_sized(&mut r)? },
            kind::ERROR => {
                Self::Error { code: ErrorCode::read(r.u8("error code")?)?, retry_after_ms: r.u32("retry after")? }
            }
            unknown => return Err(Malformed::UnknownKind(unknown)),
        };
        r.end()?;
        Ok(message)
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
        let kind = r.u8("kind")?;
        let flags = r.u8("flags")?;
        let len = usize::from(r.u16("payload length")?);
        let correlation = r.u64("correlation id")?;
        let cookie = *r.array("cookie")?;
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
    out[0] = kind;
    out[1] = flags;
    out[2..4].copy_from_slice(&(len as u16).to_le_bytes());
    out[4..12].copy_from_slice(&correlation.to_le_bytes());
    out[12..20].copy_from_slice(cookie);
}

impl Capabilities {
    fn write(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        out.put(&[self.version_min, self.version_max])?;
        out.put(&self.datagram_bytes_max.to_le_bytes())?;
        out.put(&self.bits.to_le_bytes())
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            version_min: r.u8("oldest version")?,
            version_max: r.u8("newest version")?,
            datagram_bytes_max: r.u16("largest datagram")?,
            bits: r.u64("capabilities")?,
        })
    }
}

fn read_id(r: &mut Reader<'_>) -> Result<ContentId, Malformed> {
    r.array("content id").map(|bytes| ContentId::from_bytes(*bytes))
}

fn write_sized(out: &mut Writer<'_>, bytes: &[u8]) -> Result<(), Overflow> {
    out.put(&u16::try_from(bytes.len()).map_err(|_| Overflow)?.to_le_bytes())?;
    out.put(bytes)
}

fn read_sized<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let len = r.u16("record length")?;
    r.slice(usize::from(len), "record")
}

/// A list of contacts, in place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contacts<'a>(&'a [u8]);

impl<'a> Contacts<'a> {
    /// A list of whole entries written by [`Contact::to_wire`]; an incomplete last entry is left out.
    #[must_use]
    pub fn over(bytes: &'a [u8]) -> Self {
        Self(&bytes[..bytes.len() - bytes.len() % CONTACT_BYTES])
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len() / CONTACT_BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The contacts, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Contact> + 'a {
        self.0.as_chunks::<CONTACT_BYTES>().0.iter().map(Contact::from_wire)
    }

    fn read(r: &mut Reader<'a>, max: usize) -> Result<Self, Malformed> {
        let count = r.count(max, "contacts")?;
        r.slice(count * CONTACT_BYTES, "contacts").map(Self)
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        out.put(&[self.len() as u8])?;
        out.put(self.0)
    }
}

/// A page of signed providers, in place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Providers<'a>(&'a [u8]);

/// One signed provider of some content id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedProvider {
    /// Who provides, and where.
    pub provider: Contact,
    /// Seconds since 1970 when the provider said so.
    pub issued_secs: u64,
    /// For how long it holds.
    pub ttl_secs: u32,
    /// The provider's signature.
    pub signature: Signature,
}

impl SignedProvider {
    /// The wire form.
    #[must_use]
    pub fn to_wire(&self) -> [u8; PROVIDER_BYTES] {
        let mut out = [0; PROVIDER_BYTES];
        out[..CONTACT_BYTES].copy_from_slice(&self.provider.to_wire());
        out[CONTACT_BYTES..][..8].copy_from_slice(&self.issued_secs.to_le_bytes());
        out[CONTACT_BYTES + 8..][..4].copy_from_slice(&self.ttl_secs.to_le_bytes());
        out[CONTACT_BYTES + 12..].copy_from_slice(&self.signature);
        out
    }

    /// Reads the wire form.
    #[must_use]
    pub fn from_wire(bytes: &[u8; PROVIDER_BYTES]) -> Self {
        let (provider, rest) = bytes.split_first_chunk().expect("a contact is a part of it");
        let (issued, rest) = rest.split_first_chunk().expect("eight bytes of it");
        let (ttl, signature) = rest.split_first_chunk().expect("four bytes of it");
        Self {
            provider: Contact::from_wire(provider),
            issued_secs: u64::from_le_bytes(*issued),
            ttl_secs: u32::from_le_bytes(*ttl),
            signature: signature.try_into().expect("the rest is the signature"),
        }
    }
}

impl<'a> Providers<'a> {
    /// A page of whole entries; an incomplete last entry is left out.
    #[must_use]
    pub fn over(bytes: &'a [u8]) -> Self {
        Self(&bytes[..bytes.len() - bytes.len() % PROVIDER_BYTES])
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len() / PROVIDER_BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The providers, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SignedProvider> + 'a {
        self.0.as_chunks::<PROVIDER_BYTES>().0.iter().map(SignedProvider::from_wire)
    }
}

/// A provider's statement about several content ids, each signed by itself so that each can be served alone.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// Who provides, and where.
    pub provider: Contact,
    /// Seconds since 1970 when the provider said so.
    pub issued_secs: u64,
    /// For how long it holds.
    pub ttl_secs: u32,
    ids: &'a [u8],
}

impl<'a> Announcement<'a> {
    /// A statement over whole entries (content id, signature); an incomplete last entry is left out.
    #[must_use]
    pub fn over(provider: Contact, issued_secs: u64, ttl_secs: u32, ids: &'a [u8]) -> Self {
        Self { provider, issued_secs, ttl_secs, ids: &ids[..ids.len() - ids.len() % ANNOUNCED_BYTES] }
    }

    /// The ids and their signatures.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = (ContentId, &'a Signature)> + 'a {
        self.ids.as_chunks::<ANNOUNCED_BYTES>().0.iter().map(|entry| {
            let (id, signature) = entry.split_first_chunk().expect("an id is a part of it");
            (ContentId::from_bytes(*id), signature.try_into().expect("the rest is the signature"))
        })
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        out.put(&self.provider.to_wire())?;
        out.put(&self.issued_secs.to_le_bytes())?;
        out.put(&self.ttl_secs.to_le_bytes())?;
        out.put(&[(self.ids.len() / ANNOUNCED_BYTES) as u8])?;
        out.put(self.ids)
    }

    fn read(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let provider = Contact::from_wire(r.array("provider")?);
        let issued_secs = r.u64("issue time")?;
        let ttl_secs = r.u32("lifetime")?;
        let count = r.count(ANNOUNCED_IDS_MAX, "announced ids")?;
        Ok(Self { provider, issued_secs, ttl_secs, ids: r.slice(count * ANNOUNCED_BYTES, "announced ids")? })
    }
}

impl Contact {
    /// The wire form.
    #[must_use]
    pub fn to_wire(&self) -> [u8; CONTACT_BYTES] {
        let mut out = [0; CONTACT_BYTES];
        out[..32].copy_from_slice(&self.key.0);
        out[32..].copy_from_slice(&self.addr.to_wire());
        out
    }

    /// Reads the wire form.
    #[must_use]
    pub fn from_wire(bytes: &[u8; CONTACT_BYTES]) -> Self {
        let (key, addr) = bytes.split_first_chunk().expect("a key is a part of it");
        Self { key: PublicKey(*key), addr: Addr::from_wire(addr.try_into().expect("the rest is the address")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// One message of every kind, as full as it may be where `full`.
    pub(crate) fn samples<'a>(lists: &'a [u8], full: bool) -> Vec<Message<'a>> {
        let contact = Contact { key: PublicKey([7; 32]), addr: Addr::v4([192, 0, 2, 1], 4000) };
        let capabilities =
            Capabilities { version_min: 1, version_max: 1, datagram_bytes_max: 1200, bits: capability::STORES };
        let id = ContentId::from_bytes([3; 32]);
        let take = |entry: usize, max: usize| &lists[..if full { entry * max } else { 0 }];
        let contacts = Contacts::over(take(CONTACT_BYTES, CONTACTS_MAX));
        let providers = Providers::over(take(PROVIDER_BYTES, PROVIDERS_PER_PART_MAX));
        let announcement = Announcement::over(contact, 99, 86_400, take(ANNOUNCED_BYTES, ANNOUNCED_IDS_MAX));
        let record = &lists[..if full { 1048 } else { 4 }];
        alloc::vec![
            Message::Ping,
            Message::Pong { observed: contact.addr },
            Message::Negotiate(capabilities),
            Message::Negotiated { capabilities, observed: contact.addr },
            Message::FindNode { target: [1; 32], scope: Scope::region(9) },
            Message::Nodes { token: [2; 16], contacts },
            Message::FindValue { id, sequence_min: 5 },
            Message::Value { token: [2; 16], record: Some(record), closer: Contacts::default() },
            Message::Value { token: [2; 16], record: None, closer: Contacts::over(take(CONTACT_BYTES, 8)) },
            Message::Store { token: [2; 16], record },
            Message::Stored,
            Message::Announce { token: [2; 16], announcement },
            Message::Announced { kept: 0x3ff },
            Message::GetProviders { id, page: 8, parts_max: 5 },
            Message::Providers {
                token: [2; 16],
                total: 9,
                next: 8,
                part: 1,
                parts: 2,
                providers,
                closer: Contacts::default()
            },
            Message::Relay { to: contact, kind: kind::FIND_NODE, payload: &[1; 32] },
            Message::Relayed { kind: kind::NODES, payload: &[1; 17] },
            Message::Stem { hops_left: 3, announcement },
            Message::StemTaken,
            Message::CacheHint { token: [2; 16], record },
            Message::Leaving,
            Message::Error { code: ErrorCode::RateLimited, retry_after_ms: 1500 },
        ]
    }

    fn written(message: Message<'_>) -> Vec<u8> {
        let envelope = Envelope { flags: flag::CLIENT, correlation: 0x0102_0304_0506_0708, cookie: [4; 8], message };
        let mut body = [0xee; super::super::BODY_BYTES_MAX];
        let len = envelope.write(&mut body).unwrap_or_else(|_| panic!("{message:?} fits a datagram"));
        body[..len].to_vec()
    }

    #[test]
    fn every_kind_round_trips_empty_and_full() {
        let lists: Vec<u8> = (0..=255).cycle().take(1200).collect();
        for full in [false, true] {
            for message in samples(&lists, full) {
                let bytes = written(message);
                let read = Envelope::read(&bytes).unwrap();
                assert_eq!((read.flags, read.correlation, read.cookie), (1, 0x0102_0304_0506_0708, [4; 8]));
                assert_eq!(format!("{:?}", read.message), format!("{message:?}"));
                assert_eq!(written(read.message), bytes);
            }
        }
    }

    #[test]
    fn every_truncation_is_refused_and_padding_is_not() {
        let lists = [9; 1200];
        for message in samples(&lists, false) {
            let mut bytes = written(message);
            for len in 0..bytes.len() {
                assert!(Envelope::read(&bytes[..len]).is_err(), "{message:?} cut to {len}");
            }
            bytes.extend([0; 50]);
            assert!(Envelope::read(&bytes).is_ok(), "{message:?} padded");
        }
    }

    #[test]
    fn a_byte_too_many_inside_the_payload_is_refused() {
        for message in samples(&[9; 1200], false) {
            if matches!(message, Message::Relay { .. } | Message::Relayed { .. }) {
                continue; // Their payload is opaque to its end.
            }
            let mut bytes = written(message);
            bytes.push(0);
            let len = u16::from_le_bytes([bytes[2], bytes[3]]) + 1;
            bytes[2..4].copy_from_slice(&len.to_le_bytes());
            assert_eq!(Envelope::read(&bytes).unwrap_err(), Malformed::Trailing { bytes: 1 }, "{message:?}");
        }
    }

    #[test]
    fn the_first_entry_too_many_is_refused() {
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        payload[16] = CONTACTS_MAX as u8 + 1;
        let len = 17 + (CONTACTS_MAX + 1) * CONTACT_BYTES;
        assert_eq!(
            Message::read_payload(kind::NODES, &payload[..len]).unwrap_err(),
            Malformed::TooMany { part: "contacts", seen: 17, max: 16 }
        );
    }

    #[test]
    fn replies_are_told_from_requests() {
        for message in samples(&[9; 1200], false) {
            let reply = !matches!(
                message,
                Message::Ping
                    | Message::Negotiate(_)
                    | Message::FindNode { .. }
                    | Message::FindValue { .. }
                    | Message::Store { .. }
                    | Message::Announce { .. }
                    | Message::GetProviders { .. }
                    | Message::Relay { .. }
                    | Message::Stem { .. }
                    | Message::CacheHint { .. }
                    | Message::Leaving
            );
            assert_eq!(message.is_reply(), reply, "{message:?}");
        }
    }

    proptest! {
        /// Whatever is accepted says exactly the same when written again: one meaning, one form.
        #[test]
        fn arbitrary_bytes_are_refused_or_canonical(mut bytes in prop::collection::vec(any::<u8>(), 0..1200), kind in 0..20_u8, exact: bool) {
            if let Some(first) = bytes.first_mut() { *first = kind; }
            if bytes.len() >= PREAMBLE_BYTES {
                bytes[1] &= 3;
                if exact {
                    let len = (bytes.len() - PREAMBLE_BYTES) as u16;
                    bytes[2..4].copy_from_slice(&len.to_le_bytes());
                }
            }
            if let Ok(envelope) = Envelope::read(&bytes) {
                let mut again = [0; super::super::BODY_BYTES_MAX];
                if let Ok(len) = envelope.write(&mut again) {
                    prop_assert_eq!(&again[..len], &bytes[..len]);
                }
            }
        }
    }
}
