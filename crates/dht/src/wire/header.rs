//! The clear header: what the kernel steers by, and what names the key a datagram is sealed under.
//!
//! All of it is authenticated as associated data. Nothing in it is trusted before the seal has opened, except that the
//! slot byte may choose which lane looks first.

use super::codec::Malformed;
use super::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, VERSION};
use crate::identity::PublicKey;

/// Bytes before the sealed body.
pub const HEADER_BYTES: usize = 64;

/// Where the steering byte lies: the generated BPF program loads this offset of the UDP payload.
pub const SLOT_OFFSET: usize = 1;

/// The cipher of a datagram. The sender chooses, every node can open both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    /// AES-256-GCM: the faster one where the processor has AES instructions.
    Aes256Gcm = 0,
    /// ChaCha20-Poly1305: the faster one where it has not.
    ChaCha20Poly1305 = 1,
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The steering byte.
    pub slot: u8,
    /// The cipher.
    pub suite: Suite,
    /// The ten-minute period whose key seals the body.
    pub period: u32,
    /// Number of this datagram among all that the sender's lane sent in this incarnation: the nonce.
    pub counter: u64,
    /// Drawn at random when the sender's lane started.
    pub incarnation: [u8; 16],
    /// The sender.
    pub sender: PublicKey,
}

/// The slot byte of a datagram, or `None` if it is too short to have one worth steering by.
#[must_use]
pub fn slot_of(datagram: &[u8]) -> Option<u8> {
    if datagram.len() < DATAGRAM_BYTES_MIN { None } else { datagram.get(SLOT_OFFSET).copied() }
}

impl Header {
    /// Reads the header of a whole datagram, whose length it also judges.
    pub fn read(datagram: &[u8]) -> Result<Self, Malformed> {
        if datagram.len() < DATAGRAM_BYTES_MIN {
            return Err(Malformed::Short { part: "datagram", needed: DATAGRAM_BYTES_MIN, left: datagram.len() });
        }
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(Malformed::TooMany { part: "datagram", seen: datagram.len(), max: DATAGRAM_BYTES_MAX });
        }
        let (&[version, slot, suite, reserved], rest) = datagram.split_first_chunk().expect("length checked above");
        if version != VERSION {
            return Err(Malformed::UnknownValue { part: "version", seen: version });
        }
        // Bits 2 and 3 are kept for ephemeral session keys, the rest for whatever comes after: zero until then.
        let suite = match suite {
            0 => Suite::Aes256Gcm,
            1 => Suite::ChaCha20Poly1305,
            seen => return Err(Malformed::UnknownValue { part: "suite", seen }),
        };
        if reserved != 0 {
            return Err(Malformed::Reserved { part: "header" });
        }
        let (period, rest) = rest.split_first_chunk().expect("length checked above");
        let (counter, rest) = rest.split_first_chunk().expect("length checked above");
        let (incarnation, rest) = rest.split_first_chunk().expect("length checked above");
        let (sender, _) = rest.split_first_chunk().expect("length checked above");
        Ok(Self {
            slot,
            suite,
            period: u32::from_le_bytes(*period),
            counter: u64::from_le_bytes(*counter),
            incarnation: *incarnation,
            sender: PublicKey(*sender),
        })
    }

    /// Writes the header to the front of a datagram.
    pub fn write(&self, out: &mut [u8; HEADER_BYTES]) {
        out[..4].copy_from_slice(&[VERSION, self.slot, self.suite as u8, 0]);
        out[4..8].copy_from_slice(&self.period.to_le_bytes());
        out[8..16].copy_from_slice(&self.counter.to_le_bytes());
        out[16..32].copy_from_slice(&self.incarnation);
        out[32..64].copy_from_slice(&self.sender.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram() -> [u8; DATAGRAM_BYTES_MIN] {
        let header = Header {
            slot: 7,
            suite: Suite::ChaCha20Poly1305,
            period: 0x0102_0304,
            counter: 0x1112_1314_1516_1718,
            incarnation: [9; 16],
            sender: PublicKey([5; 32]),
        };
        let mut bytes = [0; DATAGRAM_BYTES_MIN];
        header.write(bytes.first_chunk_mut().unwrap());
        assert_eq!(Header::read(&bytes), Ok(header));
        bytes
    }

    #[test]
    fn header_round_trips_and_keeps_the_slot_at_its_offset() {
        assert_eq!(slot_of(&datagram()), Some(7));
        assert_eq!(slot_of(&datagram()[1..]), None);
    }

    #[test]
    fn every_foreign_version_suite_and_reserved_bit_is_refused() {
        for (at, value) in [(0, 0), (0, 2), (2, 2), (2, 4), (3, 1)] {
            let mut bytes = datagram();
            bytes[at] = value;
            assert!(Header::read(&bytes).is_err(), "byte {at} = {value}");
        }
    }

    #[test]
    fn lengths_are_judged_at_their_edges() {
        assert!(Header::read(&datagram()[1..]).is_err());
        let mut long = [0; DATAGRAM_BYTES_MAX + 1];
        long[..DATAGRAM_BYTES_MIN].copy_from_slice(&datagram());
        assert!(Header::read(&long[..DATAGRAM_BYTES_MAX]).is_ok());
        assert!(Header::read(&long).is_err());
    }
}
