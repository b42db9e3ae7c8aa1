//! The key schedule: from two static keys and a network name to the key of one stream of datagrams.
//!
//! ```text
//! root(pair)   = BLAKE3-derive(SEALING_KEY, X25519 secret, network key, lower public key, higher public key)
//! key(stream)  = BLAKE3-keyed(root, sender's public key, period, incarnation, suite)
//! nonce        = counter of the sender's lane in this incarnation, never reset
//! ```
//!
//! **Why a nonce never repeats under a key.** A lane draws 128 random bits, its incarnation, each time it starts, and
//! they are part of the key. So two lanes, or two starts of one lane, never share a key; a restart or a clock that steps
//! back may bring back the period but not the incarnation. Within one incarnation a single counter numbers every datagram
//! to all peers in all periods, and is never reset; forgetting a peer and meeting it again continues the same
//! count. The sender's public key gives the two directions different keys. What remains is that two incarnations
//! collide by chance (2^-128 a pair), or that a running process is copied together with its memory: an operator who clones
//! a running machine must restart the node in the clone.

use core::fmt;

use ring::aead;
use tessera_contracts::canonical::CanonicalSink as _;
use tessera_contracts::domain::{NETWORK_KEY_V1, SEALING_KEY_V1};
use zeroize::Zeroizing;

use crate::identity::{PublicKey, SharedSecret};
use crate::wire::TAG_BYTES;
use crate::wire::header::{Header, Suite};

/// How long one key period lasts.
pub const PERIOD_SECS: u64 = 600;

/// The key of a network, mixed into everything, so that networks of different names cannot understand each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NetworkKey([u8; 32]);

impl NetworkKey {
    /// The key of the network called `name`.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        Self(NETWORK_KEY_V1.hash(name.as_bytes()))
    }

    /// The key's bytes. Not secret: they follow from the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network:{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// The period in which `unix_secs` lies.
#[must_use]
pub fn period_at(unix_secs: u64) -> u32 {
    (unix_secs / PERIOD_SECS) as u32
}

/// Whether a datagram of `period` is accepted at `unix_secs`: the current period, and the neighbour whose edge is less
/// than half a period away. That is always exactly two, so clocks may disagree by five minutes either way.
#[must_use]
pub fn period_accepted(period: u32, unix_secs: u64) -> bool {
    let current = period_at(unix_secs);
    let neighbour =
        if unix_secs % PERIOD_SECS < PERIOD_SECS / 2 { current.checked_sub(1) } else { current.checked_add(1) };
    period == current || Some(period) == neighbour
}

/// The secret of a pair of nodes in one network; the root of all their stream keys.
#[derive(Clone)]
pub struct PairRoot(Zeroizing<[u8; 32]>);

impl PairRoot {
    /// Derives the root. Symmetric in the two keys.
    #[must_use]
    pub fn derive(secret: &SharedSecret, network: &NetworkKey, one: &PublicKey, other: &PublicKey) -> Self {
        let (low, high) = if one <= other { (one, other) } else { (other, one) };
        let mut hasher = SEALING_KEY_V1.hasher();
        hasher.fixed(secret.as_bytes());
        hasher.fixed(network.as_bytes());
        hasher.fixed(&low.0);
        hasher.fixed(&high.0);
        Self(Zeroizing::new(hasher.finish()))
    }

    /// The key of the stream that `header` names.
    #[must_use]
    pub fn stream_key(&self, header: &Header) -> StreamKey {
        // 53 bytes: one block.
        let mut material = [0; 53];
        material[..32].copy_from_slice(&header.sender.0);
        material[32..36].copy_from_slice(&header.period.to_le_bytes());
        material[36..52].copy_from_slice(&header.incarnation);
        material[52] = header.suite as u8;
        let key = Zeroizing::new(*blake3::keyed_hash(&self.0, &material).as_bytes());
        let algorithm = match header.suite {
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = aead::UnboundKey::new(algorithm, &key[..]).expect("both ciphers take 32-byte keys");
        StreamKey(aead::LessSafeKey::new(key))
    }
}

impl fmt::Debug for PairRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairRoot(32 bytes)")
    }
}

/// An expanded AEAD key.
#[derive(Clone)]
pub struct StreamKey(aead::LessSafeKey);

impl StreamKey {
    /// Encrypts `body` in place and returns the tag.
    ///
    /// # Panics
    /// Never: bodies are far below the ciphers' limit of 64 GiB.
    #[must_use]
    pub fn seal(&self, counter: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(counter), aead::Aad::from(header), body)
            .expect("a datagram is far below the cipher's limit");
        let mut out = [0; TAG_BYTES];
        out.copy_from_slice(tag.as_ref());
        out
    }

    /// Decrypts `sealed` (body and tag) in place; `None` if it is not authentic.
    pub fn open<'a>(&self, counter: u64, header: &[u8], sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        self.0.open_in_place(nonce(counter), aead::Aad::from(header), sealed).ok()
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamKey")
    }
}

fn nonce(counter: u64) -> aead::Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    aead::Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn exactly_two_periods_are_accepted_at_any_time() {
        for second in [0, 299, 300, 599, 600, 123_456_789] {
            let current = period_at(second);
            let accepted = (current.saturating_sub(3)..current + 3).filter(|p| period_accepted(*p, second)).count();
            assert_eq!(accepted, if second < 300 { 1 } else { 2 }, "at {second}: the first has no predecessor");
        }
        assert!(period_accepted(1, 2 * PERIOD_SECS + 299));
        assert!(!period_accepted(1, 2 * PERIOD_SECS + 300));
        assert!(!period_accepted(2, PERIOD_SECS + 299));
        assert!(period_accepted(2, PERIOD_SECS + 300));
    }

    #[test]
    fn every_input_of_the_schedule_changes_the_key() {
        let secret = SharedSecret::new([1; 32]);
        let (a, b) = (PublicKey([2; 32]), PublicKey([3; 32]));
        let header = Header {
            slot: 0,
            reply_slot: 0,
            suite: Suite::ChaCha20Poly1305,
            period: 9,
            counter: 0,
            incarnation: [4; 16],
            sender: a,
        };
        let one = NetworkKey::of_name("one");
        let root = PairRoot::derive(&secret, &one, &a, &b);
        assert_eq!(*root.0, *PairRoot::derive(&secret, &one, &b, &a).0, "symmetric");
        let changed = [
            (PairRoot::derive(&secret, &NetworkKey::of_name("two"), &a, &b), header),
            (PairRoot::derive(&SharedSecret::new([9; 32]), &one, &a, &b), header),
            (PairRoot::derive(&secret, &one, &a, &PublicKey([8; 32])), header),
            (root.clone(), Header { sender: b, ..header }),
            (root.clone(), Header { period: 10, ..header }),
            (root.clone(), Header { incarnation: [5; 16], ..header }),
            (root.clone(), Header { suite: Suite::Aes256Gcm, ..header }),
            (root, header),
        ];
        let tags: BTreeSet<_> = changed.iter().map(|(root, h)| root.stream_key(h).seal(0, &[], &mut [7; 32])).collect();
        assert_eq!(tags.len(), changed.len());
    }
}
