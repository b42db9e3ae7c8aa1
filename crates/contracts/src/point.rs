//! Points of XOR space: node ids, content ids, and how far apart they are.
//!
//! Both ids are 256-bit hashes, so distances between them mean something and are spread evenly. Two ids are two types,
//! because a value is stored *under* a content id *at* node ids, and mixing them up would compile otherwise.

use core::fmt;
use core::str::FromStr;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::domain;
use crate::hex::{self, ParseHexError};
use crate::seen_text::SeenText;

/// Anything with a place in XOR space.
pub trait Point {
    /// The 256 bits, most significant byte first.
    fn as_bytes(&self) -> &[u8; 32];

    /// How far `other` is from here.
    fn distance_to(&self, other: &impl Point) -> Distance {
        let (here, there) = (words(self.as_bytes()), words(other.as_bytes()));
        Distance(core::array::from_fn(|word| here[word] ^ there[word]))
    }

    /// The first 64 bits: enough to sort or coalesce by, not to identify.
    fn prefix_u64(&self) -> u64 {
        words(self.as_bytes())[0]
    }
}

macro_rules! point {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The id with these bytes, most significant first.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
        }

        impl Point for $name {
            fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                hex::write(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParsePointError;

            fn from_str(text: &str) -> Result<Self, ParsePointError> {
                hex::parse(text).map(Self).map_err(|source| ParsePointError {
                    point: $word,
                    text: SeenText::of(text),
                    source,
                })
            }
        }

        impl CanonicalBytes for $name {
            fn write_canonical(&self, sink: &mut impl CanonicalSink) {
                sink.fixed(&self.0);
            }
        }
    };
}

point! {
    /// The name of a node: a hash of its public key, so no node can pick a place or take another's.
    NodeId, "node id"
}

point! {
    /// The name of a stored record.
    ContentId, "content id"
}

impl NodeId {
    /// The id of the node with this Ed25519 public key.
    pub fn of_public_key(public_key: &[u8; 32]) -> Self {
        Self(domain::NODE_ID_V1.hash(public_key))
    }
}

impl ContentId {
    /// The id of an immutable value: a reader with the value can check the id.
    pub fn of_immutable(value: &[u8]) -> Self {
        Self(domain::IMMUTABLE_ID_V1.hash(value))
    }

    /// The id of the mutable record that the owner of this Ed25519 public key keeps under `salt`.
    pub fn of_mutable(owner: &[u8; 32], salt: &[u8]) -> Self {
        let mut hasher = domain::MUTABLE_ID_V1.hasher();
        hasher.fixed(owner);
        hasher.bytes(salt);
        Self(hasher.finish())
    }
}

/// The XOR of two points, as a number: smaller is nearer, zero is the same point.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Distance([u64; 4]);

impl Distance {
    /// From a point to itself.
    pub const ZERO: Self = Self([0; 4]);

    /// No two points are farther apart.
    pub const MAX: Self = Self([u64::MAX; 4]);

    /// How many leading bits the two points share: 0 to 256.
    pub fn leading_zeros(self) -> u32 {
        let mut zeros = 0;
        for word in self.0 {
            zeros += word.leading_zeros();
            if word != 0 {
                break;
            }
        }
        zeros
    }

    /// Bit `index`, counted from the most significant; `None` past the last.
    pub fn bit(self, index: u32) -> Option<bool> {
        let word = self.0.get((index / 64) as usize)?;
        Some(word >> (63 - index % 64) & 1 == 1)
    }

    /// The first `bits` bits as a number; everything past 64 counts as 64.
    pub fn prefix(self, bits: u32) -> u64 {
        match bits {
            0 => 0,
            1..64 => self.0[0] >> (64 - bits),
            _ => self.0[0],
        }
    }

    /// The bytes, most significant first.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(&self.to_bytes(), f)
    }
}

impl fmt::Debug for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Distance({self})")
    }
}

/// 256 bits as four numbers, the most significant first.
fn words(bytes: &[u8; 32]) -> [u64; 4] {
    core::array::from_fn(|word| u64::from_be_bytes(core::array::from_fn(|byte| bytes[word * 8 + byte])))
}

/// Why a text is not a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a {point}: {text}: {source}")]
pub struct ParsePointError {
    point: &'static str,
    text: SeenText,
    source: ParseHexError,
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn id(first: u8, last: u8) -> ContentId {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (first, last);
        ContentId::from_bytes(bytes)
    }

    #[test]
    fn distance_is_a_number_with_the_first_byte_most_significant() {
        let here = id(0, 0);
        assert_eq!(here.distance_to(&here), Distance::ZERO);
        assert!(here.distance_to(&id(0, 255)) < here.distance_to(&id(1, 0)));
        assert!(here.distance_to(&id(1, 0)) < Distance::MAX);
        assert_eq!(here.distance_to(&id(0x80, 1)).to_bytes(), *id(0x80, 1).as_bytes());
    }

    #[test]
    fn distance_is_symmetric_between_kinds_of_points() {
        let node = NodeId::of_public_key(&[7; 32]);
        let content = ContentId::of_immutable(b"value");
        assert_eq!(node.distance_to(&content), content.distance_to(&node));
    }

    #[test]
    fn leading_zeros_run_from_0_to_256() {
        let here = id(0, 0);
        assert_eq!(here.distance_to(&id(0x80, 0)).leading_zeros(), 0);
        assert_eq!(here.distance_to(&id(0x01, 0xff)).leading_zeros(), 7);
        assert_eq!(here.distance_to(&id(0, 1)).leading_zeros(), 255);
        assert_eq!(Distance::ZERO.leading_zeros(), 256);
    }

    #[test]
    fn bits_and_prefixes_count_from_the_top() {
        let distance = id(0, 0).distance_to(&id(0b1010_0000, 1));
        assert_eq!((distance.bit(0), distance.bit(1), distance.bit(255)), (Some(true), Some(false), Some(true)));
        assert_eq!(distance.bit(256), None);
        assert_eq!((distance.prefix(0), distance.prefix(3), distance.prefix(8)), (0, 0b101, 0b1010_0000));
        assert_eq!(distance.prefix(64), 0b1010_0000 << 56);
        assert_eq!(distance.prefix(200), distance.prefix(64));
    }

    #[test]
    fn points_print_as_they_parse() {
        let node = NodeId::of_public_key(&[1; 32]);
        assert_eq!(node.to_string().parse(), Ok(node));
        assert_eq!(
            "xy".parse::<ContentId>().unwrap_err().to_string(),
            "not a content id: \"xy\": expected 64 hex digits, got 2 characters"
        );
    }

    #[test]
    fn salt_and_owner_both_name_a_mutable_record() {
        let base = ContentId::of_mutable(&[1; 32], b"a");
        assert_ne!(base, ContentId::of_mutable(&[1; 32], b"b"));
        assert_ne!(base, ContentId::of_mutable(&[2; 32], b"a"));
    }
}
