//! The payload of every kind of message: written field by field, read field by field, to its last byte.

use tessera_contracts::point::{ContentId, Point as _};

use super::{Announcement, Capabilities, Contacts, ErrorCode, Message, PROVIDER_BYTES, Providers, kind};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::seal::cookie::Scope;
use crate::wire::codec::{Malformed, Overflow, Reader, Writer};
use crate::wire::{CLOSER_CONTACTS_MAX, CONTACTS_MAX, PROVIDER_PARTS_MAX, PROVIDERS_PER_PART_MAX};

impl Message<'_> {
    /// Writes the payload, without preamble.
    pub fn write_payload(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            Self::Ping | Self::StemTaken | Self::Leaving => Ok(()),
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
            Self::Store { token, closer_max, record } => {
                out.put(token)?;
                out.put(&[*closer_max])?;
                write_sized(out, record)
            }
            Self::Stored { closer } => closer.write(out),
            Self::CacheHint { token, record } => {
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
            kind::STORE => Self::Store {
                token: *r.array("token")?,
                closer_max: r.u8("contacts wanted")?,
                record: read_sized(&mut r)?,
            },
            kind::STORED => Self::Stored { closer: Contacts::read(&mut r, CONTACTS_MAX)? },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::PublicKey;
    use crate::wire::message::{ANNOUNCED_BYTES, CONTACT_BYTES, Envelope, PREAMBLE_BYTES, capability, flag};
    use crate::wire::{ANNOUNCED_IDS_MAX, BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};
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
            Message::Store { token: [2; 16], closer_max: 16, record },
            Message::Stored { closer: contacts },
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
        let mut body = [0xee; BODY_BYTES_MAX];
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
            let len = u16::from_le_bytes([bytes[10], bytes[11]]) + 1;
            bytes[10..12].copy_from_slice(&len.to_le_bytes());
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
    fn a_part_beyond_the_last_or_of_more_than_there_may_be_is_refused() {
        let last = PROVIDER_PARTS_MAX as u8;
        for (part, parts, good) in [
            (0, 1, true),
            (0, 0, false),
            (1, 1, false),
            (last - 1, last, true),
            (last, last + 1, false),
            (0, 255, false),
        ] {
            let mut payload = [0; 26];
            payload[22..24].copy_from_slice(&[part, parts]);
            assert_eq!(Message::read_payload(kind::PROVIDERS, &payload).is_ok(), good, "{part} of {parts}");
        }
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
        /// An accepted payload is written again as the same bytes: one meaning, one form.
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
                let mut again = [0; BODY_BYTES_MAX];
                if let Ok(len) = envelope.write(&mut again) {
                    prop_assert_eq!(&again[..len], &bytes[..len]);
                }
            }
        }
    }
}
