//! The clear header: the slot by which the kernel steers, and the name of the key that seals the datagram.
//!
//! All of it is authenticated as associated data. Nothing in it is trusted before the seal has opened, except that the
//! slot byte may choose which lane looks first. The cookie behind it is clear too, so that it can be checked before a key agreement is computed
//! for a stranger; without a good one, a stranger may be answered with a [`Challenge`].

use super::codec::Malformed;
use super::message::{COOKIE_BYTES, Cookie};
use super::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, TAG_BYTES, VERSION};
use crate::identity::PublicKey;

/// Bytes before the body.
pub const HEADER_BYTES: usize = 64;

/// Bytes that are sent in clear: the header, and the cookie with which the body begins.
pub const CLEAR_BYTES: usize = HEADER_BYTES + COOKIE_BYTES;

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
    /// The slot at which the sender's lane is to be told a cookie by a node that cannot yet open its datagram.
    pub reply_slot: u8,
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
        let (&[version, slot, suite, reply_slot], rest) = datagram.split_first_chunk().expect("length checked above");
        if version != VERSION {
            return Err(Malformed::UnknownValue { part: "version", seen: version });
        }
        // Value 2 is a challenge, which is no sealed datagram. Higher ones are kept for ephemeral session keys and later uses.
        let suite = match suite {
            0 => Suite::Aes256Gcm,
            1 => Suite::ChaCha20Poly1305,
            seen => return Err(Malformed::UnknownValue { part: "suite", seen }),
        };
        let (period, rest) = rest.split_first_chunk().expect("length checked above");
        let (counter, rest) = rest.split_first_chunk().expect("length checked above");
        let (incarnation, rest) = rest.split_first_chunk().expect("length checked above");
        let (sender, _) = rest.split_first_chunk().expect("length checked above");
        Ok(Self {
            slot,
            reply_slot,
            suite,
            period: u32::from_le_bytes(*period),
            counter: u64::from_le_bytes(*counter),
            incarnation: *incarnation,
            sender: PublicKey(*sender),
        })
    }

    /// Writes the header to the front of a datagram.
    pub fn write(&self, out: &mut [u8; HEADER_BYTES]) {
        out[..4].copy_from_slice(&[VERSION, self.slot, self.suite as u8, self.reply_slot]);
        out[4..8].copy_from_slice(&self.period.to_le_bytes());
        out[8..16].copy_from_slice(&self.counter.to_le_bytes());
        out[16..32].copy_from_slice(&self.incarnation);
        out[32..64].copy_from_slice(&self.sender.0);
    }
}

/// The suite byte of a challenge.
const CHALLENGE: u8 = 2;

/// Bytes of a challenge: as many as the shortest datagram has, so that it is never longer than the datagram it answers.
pub const CHALLENGE_BYTES: usize = DATAGRAM_BYTES_MIN;

/// The reply to a stranger when strangers are many: a cookie to ask again with. It is not sealed, and it
/// costs its sender one keyed hash. The tag shows that it answers a datagram that its sender has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// The steering byte: the reply slot of the datagram that is answered.
    pub slot: u8,
    /// The number of that datagram.
    pub counter: u64,
    /// The incarnation of the lane that sent it.
    pub incarnation: [u8; 16],
    /// The node that answers.
    pub sender: PublicKey,
    /// Its cookie for the address and the key that it answers.
    pub cookie: Cookie,
    /// The tag of the datagram that is answered.
    pub tag: [u8; TAG_BYTES],
}

impl Challenge {
    /// The challenge that answers a datagram with this header.
    #[must_use]
    pub fn to(header: &Header, datagram: &[u8], sender: PublicKey, cookie: Cookie) -> Option<Self> {
        let Header { reply_slot: slot, counter, incarnation, .. } = *header;
        Some(Self { slot, counter, incarnation, sender, cookie, tag: *datagram.last_chunk()? })
    }

    /// Reads a challenge; `None` if the datagram is none.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let datagram: &[u8; CHALLENGE_BYTES] = datagram.try_into().ok()?;
        let (&[version, slot, suite, reserved], rest) = datagram.split_first_chunk()?;
        let (unused, rest) = rest.split_first_chunk::<4>()?;
        let (counter, rest) = rest.split_first_chunk()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (sender, rest) = rest.split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        let (tag, rest) = rest.split_first_chunk()?;
        let is_plain = reserved == 0 && *unused == [0; 4] && rest.iter().all(|byte| *byte == 0);
        ((version, suite, is_plain) == (VERSION, CHALLENGE, true)).then_some(Self {
            slot,
            counter: u64::from_le_bytes(*counter),
            incarnation: *incarnation,
            sender: PublicKey(*sender),
            cookie: *cookie,
            tag: *tag,
        })
    }

    /// The datagram.
    #[must_use]
    pub fn to_wire(&self) -> [u8; CHALLENGE_BYTES] {
        let mut out = [0; CHALLENGE_BYTES];
        out[..4].copy_from_slice(&[VERSION, self.slot, CHALLENGE, 0]);
        out[8..16].copy_from_slice(&self.counter.to_le_bytes());
        out[16..32].copy_from_slice(&self.incarnation);
        out[32..64].copy_from_slice(&self.sender.0);
        out[64..72].copy_from_slice(&self.cookie);
        out[72..88].copy_from_slice(&self.tag);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram() -> [u8; DATAGRAM_BYTES_MIN] {
        let header = Header {
            slot: 7,
            reply_slot: 11,
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
    fn a_challenge_round_trips_and_is_read_as_nothing_else() {
        let header = Header::read(&datagram()).unwrap();
        let challenge = Challenge::to(&header, &datagram(), PublicKey([6; 32]), [3; 8]).unwrap();
        let bytes = challenge.to_wire();
        assert_eq!(Challenge::read(&bytes), Some(challenge));
        assert_eq!(
            (slot_of(&bytes), bytes.len()),
            (Some(11), DATAGRAM_BYTES_MIN),
            "to the lane that asked, and no longer"
        );
        assert!(Header::read(&bytes).is_err());
        assert_eq!(Challenge::read(&datagram()), None);
        for at in [0, 2, 3, 5, 88, 99] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Challenge::read(&other), None, "byte {at}");
        }
        assert_eq!(Challenge::read(&bytes[1..]), None);
    }

    #[test]
    fn every_foreign_version_and_suite_is_refused() {
        for (at, value) in [(0, 0), (0, 2), (2, 2), (2, 4)] {
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
