//! Types for bytes that must not reach a log: customers' keys, tokens, secrets.
//!
//! `Debug` shows a length, and there is no `Display` and no serialisation. An error or event that carries one of these
//! can then derive `Debug` like any other.

use alloc::boxed::Box;
use core::fmt;

/// Borrowed bytes to be shown by length only: the way other types print their fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Redacted<'a>(pub &'a [u8]);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

/// The key an event is about, if it has one.
#[derive(Clone, PartialEq, Eq)]
pub struct RedactedKey(Option<Box<[u8]>>);

impl RedactedKey {
    /// Holds a copy of `key`.
    pub fn new(key: Option<&[u8]>) -> Self {
        Self(key.map(Box::from))
    }

    /// The bytes, for code that must compare or store them.
    pub fn expose(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

impl fmt::Debug for RedactedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_deref().map(Redacted).fmt(f)
    }
}

/// Owned secret bytes: a credential, a found secret, key material of any length.
///
/// Not `PartialEq`: comparing secrets is the business of code that knows whether timing matters.
#[derive(Clone)]
pub struct SecretBytes(Box<[u8]>);

impl SecretBytes {
    /// Takes over `bytes`.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, where they are really needed.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Redacted(&self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn debug_shows_lengths_and_no_bytes() {
        assert_eq!(format!("{:?}", Redacted(b"hunter2")), "<7 bytes>");
        assert_eq!(format!("{:?}", RedactedKey::new(Some(b"customer/key/15"))), "Some(<15 bytes>)");
        assert_eq!(format!("{:?}", RedactedKey::new(None)), "None");
        assert_eq!(format!("{:?}", SecretBytes::new(*b"hunter2")), "<7 bytes>");
    }

    #[test]
    fn redacted_bytes_are_there_on_request() {
        assert_eq!(RedactedKey::new(Some(b"k")).expose(), Some(b"k".as_slice()));
        assert_eq!(SecretBytes::new(*b"s").expose(), b"s");
    }
}
