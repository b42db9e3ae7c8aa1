//! The wire format: fixed layouts, read in place, little-endian throughout. `docs/WIRE.md` draws the boxes.
//!
//! [`header`] is the clear part of a datagram, [`message`] the sealed part, [`codec`] the bounded reader and
//! writer both lean on. Nothing here allocates, and every length is checked once, before the bytes are used.
//! Not here: whether a datagram is authentic (`seal`), and whether a record is valid (`record`).

pub mod codec;
pub mod header;
pub mod message;

/// The wire version this code speaks.
pub const VERSION: u8 = 1;

/// The largest datagram sent or accepted: it crosses any path without fragmentation.
pub const DATAGRAM_BYTES_MAX: usize = 1200;

/// Bytes of the authentication tag at the end of a datagram.
pub const TAG_BYTES: usize = 16;

/// The largest sealed body.
pub const BODY_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - header::HEADER_BYTES - TAG_BYTES;

/// The largest payload after the preamble.
pub const PAYLOAD_BYTES_MAX: usize = BODY_BYTES_MAX - message::PREAMBLE_BYTES;

/// The smallest datagram that can be anything at all.
pub const DATAGRAM_BYTES_MIN: usize = header::HEADER_BYTES + message::PREAMBLE_BYTES + TAG_BYTES;

/// Contacts in one FIND_NODE reply.
pub const CONTACTS_MAX: usize = 16;

/// Closer contacts beside a value or a page of providers.
pub const CLOSER_CONTACTS_MAX: usize = 8;

/// Providers in one page. A page is longer than a datagram: it comes in parts.
pub const PROVIDERS_PER_PAGE_MAX: usize = 32;

/// Providers in one part of a page: a signed provider is 126 bytes, so a datagram decides.
pub const PROVIDERS_PER_PART_MAX: usize = 8;

/// Parts of one page. The first leaves room for contacts, so a full page has one more than the division says.
pub const PROVIDER_PARTS_MAX: usize = PROVIDERS_PER_PAGE_MAX / PROVIDERS_PER_PART_MAX + 1;

/// Content ids in one ANNOUNCE.
pub const ANNOUNCED_IDS_MAX: usize = 10;

/// The largest value of a single record; larger ones are chunked under a manifest.
pub const VALUE_BYTES_MAX: usize = 896;

const _: () = {
    use crate::record::RECORD_HEAD_BYTES_MAX;
    use message::{CONTACT_BYTES, PROVIDER_BYTES};
    // Every full message fits one datagram: token + length + the largest record + the contact count.
    assert!(16 + 2 + RECORD_HEAD_BYTES_MAX + VALUE_BYTES_MAX < PAYLOAD_BYTES_MAX);
    assert!(16 + 1 + CONTACTS_MAX * CONTACT_BYTES <= PAYLOAD_BYTES_MAX);
    assert!(message::PROVIDERS_HEAD_BYTES + PROVIDERS_PER_PART_MAX * PROVIDER_BYTES < PAYLOAD_BYTES_MAX);
    assert!(message::ANNOUNCE_HEAD_BYTES + 16 + ANNOUNCED_IDS_MAX * message::ANNOUNCED_BYTES <= PAYLOAD_BYTES_MAX);
};
