//! Records: values stored under a content id, and when they are valid.
//!
//! An *immutable* record is its value; the id is the hash, so it needs no signature. A *mutable* record is signed by its
//! owner; the id is the hash of owner and salt, and a higher sequence number replaces a lower one. A tombstone is a
//! mutable record without a value: it occupies the sequence number until it expires, so that older versions cannot come
//! back. A *provider* record says that a node offers the content of an id; it is signed by that node and kept apart.
//!
//! Lifetimes of signed records count from their issue time, which is signed too: only the owner can prolong one.
//! Checks run from cheap to dear: shape, times, hash, and the signature last.

use alloc::vec::Vec;
use core::fmt;

use tessera_contracts::canonical::CanonicalSink as _;
use tessera_contracts::domain::{MUTABLE_SIGNATURE_V1, PROVIDER_SIGNATURE_V1};
use tessera_contracts::point::{ContentId, Point as _};

use crate::addr::Addr;
use crate::identity::{Crypto, PublicKey, Signature};
use crate::seal::keys::NetworkKey;
use crate::wire::VALUE_BYTES_MAX;
use crate::wire::codec::{Malformed, Reader};
use crate::wire::message::SignedProvider;

/// Bytes before the value of an immutable record.
pub const IMMUTABLE_HEAD_BYTES: usize = 8;

/// Bytes before the value of a mutable record, the larger of the two.
pub const RECORD_HEAD_BYTES_MAX: usize = IMMUTABLE_HEAD_BYTES + 32 + 32 + 8 + 8 + 64;

/// The largest whole record.
pub const RECORD_BYTES_MAX: usize = RECORD_HEAD_BYTES_MAX + VALUE_BYTES_MAX;

/// The longest lifetime of any record or provider: two days.
pub const TTL_SECS_MAX: u32 = 2 * 24 * 3600;

/// The default lifetime: one day.
pub const TTL_SECS_DEFAULT: u32 = 24 * 3600;

/// How far in the future an issue time may lie: clocks disagree.
pub const ISSUED_AHEAD_SECS_MAX: u64 = 900;

const TYPE_IMMUTABLE: u8 = 1;
const TYPE_MUTABLE: u8 = 2;
const FLAG_TOMBSTONE: u8 = 1;

/// Why a well-shaped record is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordRefused {
    /// The lifetime is zero or longer than [`TTL_SECS_MAX`].
    Lifetime(u32),
    /// Its lifetime is over.
    Expired,
    /// It was issued in the future.
    NotYetIssued,
    /// The signature does not hold.
    Signature,
    /// It belongs to another id than the one it was given for.
    OtherId,
}

impl fmt::Display for RecordRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lifetime(secs) => write!(f, "lifetime of {secs} s is not between 1 and {TTL_SECS_MAX} s"),
            Self::Expired => f.write_str("expired"),
            Self::NotYetIssued => f.write_str("issued in the future: compare the clocks"),
            Self::Signature => f.write_str("the signature does not hold"),
            Self::OtherId => f.write_str("belongs to another id"),
        }
    }
}

impl core::error::Error for RecordRefused {}

/// A record, read in place. Shaped well; not yet valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// The record as it travels and is stored.
    pub bytes: &'a [u8],
    /// How long it holds: from now for an immutable record, from its issue for a mutable one.
    pub ttl_secs: u32,
    /// The value; empty for a tombstone.
    pub value: &'a [u8],
    /// The further fields of a mutable record.
    pub mutable: Option<MutableView<'a>>,
}

/// The parts of a mutable record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MutableView<'a> {
    /// Whose it is.
    pub owner: PublicKey,
    /// Which of the owner's it is.
    pub salt: &'a [u8; 32],
    /// Its sequence number.
    pub sequence: u64,
    /// Seconds since 1970 when it was signed.
    pub issued_secs: u64,
    /// Whether it says that there is no value any more.
    pub tombstone: bool,
    signature: &'a Signature,
}

impl<'a> RecordView<'a> {
    /// Reads the shape of `bytes`; all of them.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let kind = r.u8("record type")?;
        let flags = r.u8("record flags")?;
        let len = usize::from(r.u16("value length")?);
        let ttl_secs = r.u32("lifetime")?;
        if len > VALUE_BYTES_MAX {
            return Err(Malformed::TooMany { part: "value length", seen: len, max: VALUE_BYTES_MAX });
        }
        let known_flags = if kind == TYPE_MUTABLE { FLAG_TOMBSTONE } else { 0 };
        if flags & !known_flags != 0 {
            return Err(Malformed::Reserved { part: "record flags" });
        }
        let mutable = match kind {
            TYPE_IMMUTABLE => None,
            TYPE_MUTABLE => Some(MutableView {
                owner: PublicKey(*r.array("owner")?),
                salt: r.array("salt")?,
                sequence: r.u64("sequence")?,
                issued_secs: r.u64("issue time")?,
                tombstone: flags & FLAG_TOMBSTONE != 0,
                signature: r.array("signature")?,
            }),
            seen => return Err(Malformed::UnknownValue { part: "record type", seen }),
        };
        let value = r.slice(len, "value")?;
        r.end()?;
        if mutable.is_some_and(|m| m.tombstone) && !value.is_empty() {
            return Err(Malformed::TooMany { part: "value of a tombstone", seen: value.len(), max: 0 });
        }
        Ok(Self { bytes, ttl_secs, value, mutable })
    }

    /// The content id this record belongs to.
    #[must_use]
    pub fn id(&self) -> ContentId {
        match &self.mutable {
            None => ContentId::of_immutable(self.value),
            Some(mutable) => mutable_id(&mutable.owner, mutable.salt),
        }
    }

    /// The sequence number; zero for an immutable record.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.mutable.map_or(0, |mutable| mutable.sequence)
    }

    /// When it expires, if it is kept from `now_secs` on.
    #[must_use]
    pub fn expires_secs(&self, now_secs: u64) -> u64 {
        self.mutable.map_or(now_secs, |mutable| mutable.issued_secs).saturating_add(u64::from(self.ttl_secs))
    }

    /// Judges everything but the signature: the cheap checks.
    pub fn check_times(&self, now_secs: u64) -> Result<(), RecordRefused> {
        check_times(self.ttl_secs, self.mutable.map_or(now_secs, |mutable| mutable.issued_secs), now_secs)
    }

    /// Judges the whole record as an answer or a store for `id`.
    pub fn check(
        &self,
        id: &ContentId,
        crypto: &impl Crypto,
        network: &NetworkKey,
        now_secs: u64,
    ) -> Result<(), RecordRefused> {
        self.check_times(now_secs)?;
        if self.id() != *id {
            return Err(RecordRefused::OtherId);
        }
        self.check_under_own_id(crypto, network, now_secs)
    }

    /// The same for a caller that has just computed its id: to hash the value again would tell nothing new.
    pub fn check_under_own_id(
        &self,
        crypto: &impl Crypto,
        network: &NetworkKey,
        now_secs: u64,
    ) -> Result<(), RecordRefused> {
        self.check_times(now_secs)?;
        let Some(mutable) = &self.mutable else { return Ok(()) };
        let message = mutable_message(network, mutable, self.ttl_secs, self.value);
        if crypto.verify(&mutable.owner, &message, mutable.signature) { Ok(()) } else { Err(RecordRefused::Signature) }
    }
}

/// The content id of an owner's mutable record.
#[must_use]
pub fn mutable_id(owner: &PublicKey, salt: &[u8; 32]) -> ContentId {
    ContentId::of_mutable(&owner.0, salt)
}

/// Writes an immutable record.
///
/// # Errors
/// If the value is longer than [`VALUE_BYTES_MAX`]: cut it with `chunk`.
pub fn immutable_record(value: &[u8], ttl_secs: u32) -> Result<Vec<u8>, ValueTooLong> {
    let mut bytes = head(TYPE_IMMUTABLE, 0, value, ttl_secs)?;
    bytes.extend_from_slice(value);
    Ok(bytes)
}

/// A copy of a record for others to hold as long as it would have been held here, `left_secs` from now; `None` if that is
/// over. An immutable record says how long it is to be held from now on, so the copy says less; a signed one says until when.
#[must_use]
pub fn with_lifetime_left(record: &[u8], left_secs: u64) -> Option<Vec<u8>> {
    let view = RecordView::read(record).ok().filter(|_| left_secs > 0)?;
    let mut copy = record.to_vec();
    if view.mutable.is_none() {
        let left = u32::try_from(left_secs).unwrap_or(u32::MAX).min(view.ttl_secs);
        copy[4..IMMUTABLE_HEAD_BYTES].copy_from_slice(&left.to_le_bytes());
    }
    Some(copy)
}

/// An owner's fields of a mutable record.
#[derive(Debug, Clone, Copy)]
pub struct MutableDraft<'a> {
    /// Which of the owner's records it is.
    pub salt: [u8; 32],
    /// Higher than that of the record it replaces.
    pub sequence: u64,
    /// Seconds since 1970.
    pub issued_secs: u64,
    /// How long it holds from then.
    pub ttl_secs: u32,
    /// The value, or `None` for a tombstone.
    pub value: Option<&'a [u8]>,
}

/// Signs and writes a mutable record.
///
/// # Errors
/// If the value is longer than [`VALUE_BYTES_MAX`].
pub fn mutable_record(
    draft: &MutableDraft<'_>,
    crypto: &impl Crypto,
    network: &NetworkKey,
) -> Result<Vec<u8>, ValueTooLong> {
    let value = draft.value.unwrap_or_default();
    let tombstone = draft.value.is_none();
    let mut bytes = head(TYPE_MUTABLE, u8::from(tombstone) * FLAG_TOMBSTONE, value, draft.ttl_secs)?;
    let unsigned = MutableView {
        owner: crypto.public_key(),
        salt: &draft.salt,
        sequence: draft.sequence,
        issued_secs: draft.issued_secs,
        tombstone,
        signature: &[0; 64],
    };
    let signature = crypto.sign(&mutable_message(network, &unsigned, draft.ttl_secs, value));
    bytes.extend_from_slice(&unsigned.owner.0);
    bytes.extend_from_slice(&draft.salt);
    bytes.extend_from_slice(&draft.sequence.to_le_bytes());
    bytes.extend_from_slice(&draft.issued_secs.to_le_bytes());
    bytes.extend_from_slice(&signature);
    bytes.extend_from_slice(value);
    Ok(bytes)
}

/// The value does not fit one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueTooLong {
    /// Its length.
    pub bytes: usize,
}

impl fmt::Display for ValueTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of {} bytes does not fit one record of {VALUE_BYTES_MAX}: store it in chunks", self.bytes)
    }
}

impl core::error::Error for ValueTooLong {}

fn head(kind: u8, flags: u8, value: &[u8], ttl_secs: u32) -> Result<Vec<u8>, ValueTooLong> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(ValueTooLong { bytes: value.len() });
    }
    let mut bytes = Vec::with_capacity(RECORD_HEAD_BYTES_MAX + value.len());
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&ttl_secs.to_le_bytes());
    Ok(bytes)
}

/// A signed message is always the 32-byte hash of its fields in its own domain.
fn mutable_message(network: &NetworkKey, mutable: &MutableView<'_>, ttl_secs: u32, value: &[u8]) -> [u8; 32] {
    let mut hasher = MUTABLE_SIGNATURE_V1.hasher();
    hasher.fixed(network.as_bytes());
    hasher.fixed(mutable.salt);
    hasher.u64(mutable.sequence);
    hasher.u64(mutable.issued_secs);
    hasher.u32(ttl_secs);
    hasher.u8(u8::from(mutable.tombstone));
    hasher.bytes(value);
    hasher.finish()
}

fn provider_message(network: &NetworkKey, id: &ContentId, addr: &Addr, issued_secs: u64, ttl_secs: u32) -> [u8; 32] {
    let mut hasher = PROVIDER_SIGNATURE_V1.hasher();
    hasher.fixed(network.as_bytes());
    hasher.fixed(id.as_bytes());
    hasher.fixed(&addr.to_wire());
    hasher.u64(issued_secs);
    hasher.u32(ttl_secs);
    hasher.finish()
}

/// Signs that this node provides `id` at `addr`.
pub fn sign_provider(
    crypto: &impl Crypto,
    network: &NetworkKey,
    id: &ContentId,
    addr: &Addr,
    issued_secs: u64,
    ttl_secs: u32,
) -> Signature {
    crypto.sign(&provider_message(network, id, addr, issued_secs, ttl_secs))
}

/// Judges everything about a provider but its signature.
pub fn check_provider_times(provider: &SignedProvider, now_secs: u64) -> Result<(), RecordRefused> {
    check_times(provider.ttl_secs, provider.issued_secs, now_secs)
}

/// Judges a provider of `id`, from the cheap to the dear.
pub fn check_provider(
    provider: &SignedProvider,
    id: &ContentId,
    crypto: &impl Crypto,
    network: &NetworkKey,
    now_secs: u64,
) -> Result<(), RecordRefused> {
    check_provider_times(provider, now_secs)?;
    let SignedProvider { provider: contact, issued_secs, ttl_secs, signature } = provider;
    let message = provider_message(network, id, &contact.addr, *issued_secs, *ttl_secs);
    if crypto.verify(&contact.key, &message, signature) { Ok(()) } else { Err(RecordRefused::Signature) }
}

fn check_times(ttl_secs: u32, issued_secs: u64, now_secs: u64) -> Result<(), RecordRefused> {
    if ttl_secs == 0 || ttl_secs > TTL_SECS_MAX {
        return Err(RecordRefused::Lifetime(ttl_secs));
    }
    if issued_secs > now_secs.saturating_add(ISSUED_AHEAD_SECS_MAX) {
        return Err(RecordRefused::NotYetIssued);
    }
    if issued_secs.saturating_add(u64::from(ttl_secs)) <= now_secs {
        return Err(RecordRefused::Expired);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_for_others_never_lives_longer() {
        let record = immutable_record(b"value", 100).unwrap();
        for (left, expected) in [(1, 1), (99, 99), (101, 100)] {
            let copy = with_lifetime_left(&record, left).unwrap();
            let view = RecordView::read(&copy).unwrap();
            assert_eq!((view.ttl_secs, view.id()), (expected, RecordView::read(&record).unwrap().id()));
        }
        assert_eq!(with_lifetime_left(&record, 0), None);
    }
    use crate::contact::Contact;
    use crate::identity::Identity;

    const NOW: u64 = 1_000_000;

    fn network() -> NetworkKey {
        NetworkKey::of_name("net")
    }

    fn draft(value: Option<&[u8]>) -> MutableDraft<'_> {
        MutableDraft { salt: [5; 32], sequence: 7, issued_secs: NOW, ttl_secs: 100, value }
    }

    fn owner() -> Identity {
        Identity::from_seed(&[1; 32])
    }

    fn check(bytes: &[u8], now: u64) -> Result<(), RecordRefused> {
        let view = RecordView::read(bytes).unwrap();
        view.check(&view.id(), &Identity::from_seed(&[2; 32]), &network(), now)
    }

    #[test]
    fn an_immutable_record_is_named_by_its_value() {
        let bytes = immutable_record(b"value", 60).unwrap();
        let view = RecordView::read(&bytes).unwrap();
        assert_eq!(view.id(), ContentId::of_immutable(b"value"));
        assert_eq!(check(&bytes, NOW), Ok(()));
        let other = ContentId::of_immutable(b"other");
        assert_eq!(view.check(&other, &owner(), &network(), NOW), Err(RecordRefused::OtherId));
    }

    #[test]
    fn a_mutable_record_holds_for_every_reader_until_it_expires() {
        let bytes = mutable_record(&draft(Some(b"value")), &owner(), &network()).unwrap();
        let view = RecordView::read(&bytes).unwrap();
        assert_eq!((view.value, view.sequence(), view.expires_secs(0)), (&b"value"[..], 7, NOW + 100));
        assert_eq!(check(&bytes, NOW + 99), Ok(()));
        assert_eq!(check(&bytes, NOW + 100), Err(RecordRefused::Expired));
        assert_eq!(check(&bytes, NOW - ISSUED_AHEAD_SECS_MAX), Ok(()));
        assert_eq!(check(&bytes, NOW - ISSUED_AHEAD_SECS_MAX - 1), Err(RecordRefused::NotYetIssued));
    }

    #[test]
    fn no_byte_of_a_signed_record_can_be_changed() {
        let bytes = mutable_record(&draft(Some(b"value")), &owner(), &network()).unwrap();
        let id = RecordView::read(&bytes).unwrap().id();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let accepted = RecordView::read(&changed)
                .is_ok_and(|view| view.check(&id, &Identity::from_seed(&[2; 32]), &network(), NOW).is_ok());
            assert!(!accepted, "byte {at}");
        }
    }

    #[test]
    fn a_record_of_another_network_is_refused() {
        let bytes = mutable_record(&draft(Some(b"value")), &owner(), &NetworkKey::of_name("other")).unwrap();
        assert_eq!(check(&bytes, NOW), Err(RecordRefused::Signature));
    }

    #[test]
    fn a_tombstone_has_no_value_and_an_empty_value_is_no_tombstone() {
        let tombstone = mutable_record(&draft(None), &owner(), &network()).unwrap();
        let empty = mutable_record(&draft(Some(b"")), &owner(), &network()).unwrap();
        assert!(RecordView::read(&tombstone).unwrap().mutable.unwrap().tombstone);
        assert!(!RecordView::read(&empty).unwrap().mutable.unwrap().tombstone);
        assert_eq!((check(&tombstone, NOW), check(&empty, NOW)), (Ok(()), Ok(())));
    }

    #[test]
    fn lengths_and_lifetimes_are_judged_at_their_edges() {
        assert!(immutable_record(&[0; VALUE_BYTES_MAX], 1).is_ok());
        assert_eq!(immutable_record(&[0; VALUE_BYTES_MAX + 1], 1), Err(ValueTooLong { bytes: VALUE_BYTES_MAX + 1 }));
        for (ttl, good) in [(0, false), (1, true), (TTL_SECS_MAX, true), (TTL_SECS_MAX + 1, false)] {
            assert_eq!(check(&immutable_record(b"v", ttl).unwrap(), NOW).is_ok(), good, "{ttl}");
        }
    }

    #[test]
    fn every_truncation_and_extension_is_malformed() {
        for mut bytes in [
            immutable_record(b"value", 60).unwrap(),
            mutable_record(&draft(Some(b"value")), &owner(), &network()).unwrap(),
        ] {
            for len in 0..bytes.len() {
                assert!(RecordView::read(&bytes[..len]).is_err());
            }
            bytes.push(0);
            assert!(RecordView::read(&bytes).is_err());
        }
    }

    #[test]
    fn a_provider_holds_for_its_id_address_and_time_only() {
        let (id, other) = (ContentId::from_bytes([1; 32]), ContentId::from_bytes([2; 32]));
        let addr = Addr::v4([192, 0, 2, 1], 9);
        let provider = SignedProvider {
            provider: Contact { key: owner().public_key(), addr },
            issued_secs: NOW,
            ttl_secs: 100,
            signature: sign_provider(&owner(), &network(), &id, &addr, NOW, 100),
        };
        let reader = Identity::from_seed(&[2; 32]);
        let judge = |p: &SignedProvider, id, now| check_provider(p, id, &reader, &network(), now);
        assert_eq!(judge(&provider, &id, NOW), Ok(()));
        assert_eq!(judge(&provider, &other, NOW), Err(RecordRefused::Signature));
        assert_eq!(judge(&provider, &id, NOW + 100), Err(RecordRefused::Expired));
        let moved = Contact { addr: Addr { port: 10, ..addr }, ..provider.provider };
        assert_eq!(judge(&SignedProvider { provider: moved, ..provider }, &id, NOW), Err(RecordRefused::Signature));
        assert_eq!(judge(&SignedProvider { ttl_secs: 101, ..provider }, &id, NOW), Err(RecordRefused::Signature));
    }
}
