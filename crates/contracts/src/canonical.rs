//! One byte form for everything that is hashed.
//!
//! Two values that differ must never give the same bytes, or one operation could pass for another. So every field has
//! a fixed width (little-endian) or its length in front, an option starts with a tag byte 0 or 1, and a sequence with
//! its count. Names of operations and kinds are *tags*: one length byte, then the text.

use alloc::vec::Vec;

/// A value with exactly one byte form.
pub trait CanonicalBytes {
    /// Writes the form to `sink`.
    fn write_canonical(&self, sink: &mut impl CanonicalSink);
}

/// Where canonical bytes go: a hasher, or a buffer in tests and vectors.
pub trait CanonicalSink {
    /// Appends bytes whose number is fixed by their place in the form. Everything else here is built on this.
    fn fixed(&mut self, bytes: &[u8]);

    /// One byte.
    fn u8(&mut self, value: u8) {
        self.fixed(&[value]);
    }

    /// Four bytes, little-endian.
    fn u32(&mut self, value: u32) {
        self.fixed(&value.to_le_bytes());
    }

    /// Eight bytes, little-endian.
    fn u64(&mut self, value: u64) {
        self.fixed(&value.to_le_bytes());
    }

    /// A length of eight bytes, then the bytes.
    fn bytes(&mut self, value: &[u8]) {
        self.u64(value.len() as u64);
        self.fixed(value);
    }

    /// A name known at compile time: one length byte, then the text.
    ///
    /// # Panics
    ///
    /// If the tag is longer than 255 bytes, which only a mistake in our own source could make it.
    fn tag(&mut self, tag: &'static str) {
        let len = u8::try_from(tag.len()).expect("tags are short names in the source");
        self.u8(len);
        self.fixed(tag.as_bytes());
    }

    /// `0`, or `1` and the bytes with their length.
    fn optional_bytes(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.u8(0),
            Some(bytes) => {
                self.u8(1);
                self.bytes(bytes);
            }
        }
    }

    /// A count of eight bytes, then each value.
    fn sequence<'a, T: CanonicalBytes + 'a>(&mut self, values: impl ExactSizeIterator<Item = &'a T>)
    where
        Self: Sized,
    {
        self.u64(values.len() as u64);
        values.for_each(|value| value.write_canonical(self));
    }
}

impl CanonicalSink for Vec<u8> {
    fn fixed(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<T: CanonicalBytes + ?Sized> CanonicalBytes for &T {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        (*self).write_canonical(sink);
    }
}

impl<T: CanonicalBytes> CanonicalBytes for Option<T> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        match self {
            None => sink.u8(0),
            Some(value) => {
                sink.u8(1);
                value.write_canonical(sink);
            }
        }
    }
}

impl CanonicalBytes for u8 {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.u8(*self);
    }
}

impl CanonicalBytes for u32 {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.u32(*self);
    }
}

impl CanonicalBytes for u64 {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.u64(*self);
    }
}

impl CanonicalBytes for [u8] {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.bytes(self);
    }
}

impl CanonicalBytes for str {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.bytes(self.as_bytes());
    }
}

impl<A: CanonicalBytes, B: CanonicalBytes> CanonicalBytes for (A, B) {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.0.write_canonical(sink);
        self.1.write_canonical(sink);
    }
}

impl<A: CanonicalBytes, B: CanonicalBytes, C: CanonicalBytes> CanonicalBytes for (A, B, C) {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.0.write_canonical(sink);
        self.1.write_canonical(sink);
        self.2.write_canonical(sink);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn form(value: &(impl CanonicalBytes + ?Sized)) -> Vec<u8> {
        let mut bytes = Vec::new();
        (&value).write_canonical(&mut bytes);
        bytes
    }

    #[test]
    fn numbers_are_little_endian_and_fixed_width() {
        assert_eq!(form(&0x01_u8), [1]);
        assert_eq!(form(&0x0102_u32), [2, 1, 0, 0]);
        assert_eq!(form(&0x0102_u64), [2, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn bytes_carry_their_length_so_that_neighbours_cannot_trade_places() {
        assert_eq!(form(b"ab".as_slice()), [2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
        assert_ne!(form(&(b"ab".as_slice(), b"c".as_slice())), form(&(b"a".as_slice(), b"bc".as_slice())));
    }

    #[test]
    fn options_are_tagged_so_that_none_differs_from_empty() {
        assert_eq!(form(&None::<u8>), [0]);
        assert_eq!(form(&Some(7_u8)), [1, 7]);
        let mut none = vec![];
        none.optional_bytes(None);
        let mut empty = vec![];
        empty.optional_bytes(Some(b""));
        assert_eq!(none, [0]);
        assert_eq!(empty, [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn tags_and_sequences_carry_their_length() {
        let mut bytes = vec![];
        bytes.tag("park");
        bytes.sequence([1_u8, 2].iter());
        assert_eq!(bytes, [4, b'p', b'a', b'r', b'k', 2, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
