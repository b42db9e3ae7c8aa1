//! Names of objects: 20 bytes, or 32 in newer repositories.

use std::hash::{Hash, Hasher};

/// Longest name.
const LEN_MAX: usize = 32;

/// The name of an object, by value: millions of them are kept in tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Oid {
    bytes: [u8; LEN_MAX],
    len: u8,
}

impl Oid {
    /// The name with these bytes, if names are that long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if !matches!(bytes.len(), 20 | LEN_MAX) {
            return None;
        }
        let mut oid = Self { bytes: [0; LEN_MAX], len: bytes.len() as u8 };
        oid.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(oid)
    }

    /// Reads hex digits.
    pub fn from_hex(hex: &[u8]) -> Option<Self> {
        Self::new(&parse_oid(hex)?)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Hash for Oid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A name is a hash already; the table's own seed keeps chosen names from meeting in one place.
        let (head, rest) = self.bytes.split_at(8);
        state.write_u64(u64::from_le_bytes(head.try_into().expect("eight bytes")));
        state.write_u64(u64::from_le_bytes(rest[..8].try_into().expect("eight bytes")));
    }
}

impl std::fmt::Debug for Oid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex_oid(self.as_bytes()))
    }
}

/// Reads hex digits of an object id: 20 or 32 bytes.
pub fn parse_oid(hex: &[u8]) -> Option<Box<[u8]>> {
    if hex.len() != 40 && hex.len() != 64 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    hex.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Hex digits of an object id.
pub fn hex_oid(oid: &[u8]) -> String {
    use std::fmt::Write;
    oid.iter().fold(String::with_capacity(oid.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_ids_have_forty_or_sixty_four_digits() {
        assert_eq!(parse_oid(&[b'a'; 40]), Some(vec![0xaa; 20].into()));
        assert_eq!(parse_oid(&[b'0'; 64]).map(|oid| hex_oid(&oid)), Some("0".repeat(64)));
        assert_eq!((parse_oid(&[b'a'; 39]), parse_oid(&[b'g'; 40])), (None, None));
    }
}
