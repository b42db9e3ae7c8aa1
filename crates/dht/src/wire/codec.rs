//! A reader and a writer that cannot leave their buffer.

use core::fmt;

/// Why bytes are not a message. Names the part, so that a log line is enough to find the sender's mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// `part` needs more bytes than there are.
    Short {
        /// The part being read.
        part: &'static str,
        /// Bytes it needs.
        needed: usize,
        /// Bytes left.
        left: usize,
    },
    /// Bytes are left after the message has ended.
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A count or length is above its bound.
    TooMany {
        /// The part being counted.
        part: &'static str,
        /// The number seen.
        seen: usize,
        /// The largest allowed.
        max: usize,
    },
    /// An undefined kind byte.
    UnknownKind(u8),
    /// An undefined error code, record type or similar.
    UnknownValue {
        /// The field.
        part: &'static str,
        /// The value seen.
        seen: u8,
    },
    /// Bits that must be zero are not.
    Reserved {
        /// The field.
        part: &'static str,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { part, needed, left } => write!(f, "{part} needs {needed} bytes, {left} are left"),
            Self::Trailing { bytes } => write!(f, "{bytes} bytes follow the end of the message"),
            Self::TooMany { part, seen, max } => write!(f, "{part} is {seen}, at most {max} allowed"),
            Self::UnknownKind(kind) => write!(f, "message kind {kind} is unknown"),
            Self::UnknownValue { part, seen } => write!(f, "{part} {seen} is unknown"),
            Self::Reserved { part } => write!(f, "reserved bits of {part} are set"),
        }
    }
}

impl core::error::Error for Malformed {}

/// Reads a slice from the front.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// The next `len` bytes.
    pub fn slice(&mut self, len: usize, part: &'static str) -> Result<&'a [u8], Malformed> {
        let (head, tail) =
            self.0.split_at_checked(len).ok_or(Malformed::Short { part, needed: len, left: self.0.len() })?;
        self.0 = tail;
        Ok(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, part: &'static str) -> Result<&'a [u8; N], Malformed> {
        let (head, tail) =
            self.0.split_first_chunk().ok_or(Malformed::Short { part, needed: N, left: self.0.len() })?;
        self.0 = tail;
        Ok(head)
    }

    /// One byte.
    pub fn u8(&mut self, part: &'static str) -> Result<u8, Malformed> {
        self.array::<1>(part).map(|[byte]| *byte)
    }

    /// Two bytes.
    pub fn u16(&mut self, part: &'static str) -> Result<u16, Malformed> {
        self.array(part).map(|bytes| u16::from_le_bytes(*bytes))
    }

    /// Four bytes.
    pub fn u32(&mut self, part: &'static str) -> Result<u32, Malformed> {
        self.array(part).map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// Eight bytes.
    pub fn u64(&mut self, part: &'static str) -> Result<u64, Malformed> {
        self.array(part).map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// A byte that counts, at most `max`.
    pub fn count(&mut self, max: usize, part: &'static str) -> Result<usize, Malformed> {
        let seen = usize::from(self.u8(part)?);
        if seen > max { Err(Malformed::TooMany { part, seen, max }) } else { Ok(seen) }
    }

    /// Ends the reading: nothing may be left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing { bytes: self.0.len() }) }
    }
}

/// The message does not fit the space it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overflow;

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message is larger than the space it was given")
    }
}

impl core::error::Error for Overflow {}

/// Writes a slice from the front.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Writes into `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: 0 }
    }

    /// Bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer.len() - self.len
    }

    /// Writes `bytes`.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Overflow> {
        self.buffer.get_mut(self.len..self.len + bytes.len()).ok_or(Overflow)?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Overwrites one byte written earlier: a count that is known only at the end.
    pub fn patch(&mut self, at: usize, byte: u8) {
        self.buffer[..self.len][at] = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_names_the_part_that_is_short() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u16("first"), Ok(0x0201));
        assert_eq!(reader.u16("second"), Err(Malformed::Short { part: "second", needed: 2, left: 1 }));
        assert_eq!(reader.end(), Err(Malformed::Trailing { bytes: 1 }));
    }

    #[test]
    fn writer_refuses_the_first_byte_too_many() {
        let mut buffer = [0; 3];
        let mut writer = Writer::new(&mut buffer);
        assert_eq!(writer.put(&[1, 2, 3]), Ok(()));
        assert_eq!(writer.put(&[4]), Err(Overflow));
        assert_eq!((writer.len(), writer.room()), (3, 0));
    }
}
