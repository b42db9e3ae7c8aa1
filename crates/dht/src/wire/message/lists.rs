//! Lists inside messages, read in place: contacts, signed providers, announced ids.

use tessera_contracts::point::ContentId;

use super::{ANNOUNCED_BYTES, CONTACT_BYTES, PROVIDER_BYTES};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{PublicKey, Signature};
use crate::wire::ANNOUNCED_IDS_MAX;
use crate::wire::codec::{Malformed, Overflow, Reader, Writer};

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

    pub(super) fn read(r: &mut Reader<'a>, max: usize) -> Result<Self, Malformed> {
        let count = r.count(max, "contacts")?;
        r.slice(count * CONTACT_BYTES, "contacts").map(Self)
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        out.put(&[self.len() as u8])?;
        out.put(self.0)
    }
}

/// A page of signed providers, in place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Providers<'a>(pub(super) &'a [u8]);

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

    /// The ids, each with its provider's signature.
    pub fn providers(&self) -> impl Iterator<Item = (ContentId, SignedProvider)> + 'a {
        let Self { provider, issued_secs, ttl_secs, .. } = *self;
        self.ids()
            .map(move |(id, signature)| (id, SignedProvider { provider, issued_secs, ttl_secs, signature: *signature }))
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        out.put(&self.provider.to_wire())?;
        out.put(&self.issued_secs.to_le_bytes())?;
        out.put(&self.ttl_secs.to_le_bytes())?;
        out.put(&[(self.ids.len() / ANNOUNCED_BYTES) as u8])?;
        out.put(self.ids)
    }

    pub(super) fn read(r: &mut Reader<'a>) -> Result<Self, Malformed> {
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
