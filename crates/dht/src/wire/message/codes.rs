//! Capabilities of nodes, and error codes for requests.

use crate::wire::codec::{Malformed, Overflow, Reader, Writer};

/// Capabilities of the other side.
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

    pub(super) fn read(byte: u8) -> Result<Self, Malformed> {
        Self::ALL
            .into_iter()
            .find(|code| *code as u8 == byte)
            .ok_or(Malformed::UnknownValue { part: "error code", seen: byte })
    }
}

impl Capabilities {
    pub(super) fn write(&self, out: &mut Writer<'_>) -> Result<(), Overflow> {
        out.put(&[self.version_min, self.version_max])?;
        out.put(&self.datagram_bytes_max.to_le_bytes())?;
        out.put(&self.bits.to_le_bytes())
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            version_min: r.u8("oldest version")?,
            version_max: r.u8("newest version")?,
            datagram_bytes_max: r.u16("largest datagram")?,
            bits: r.u64("capabilities")?,
        })
    }
}
