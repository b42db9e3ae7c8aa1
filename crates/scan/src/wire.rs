//! Bytes of our own stored formats: fixed integers, and byte strings with their length before them.
//!
//! Everything is little-endian. Reading never trusts a length: each is checked against what is left.

/// Appends values to bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn fixed(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }

    /// A byte string of at most 4 GiB.
    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).expect("stored fields are bounded far below 4 GiB"));
        self.fixed(value);
    }

    pub(crate) fn optional(&mut self, value: Option<&[u8]>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.bytes(value);
        }
    }
}

/// Takes values off the front of bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.fixed(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*head))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*head))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn fixed(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()?;
        self.fixed(len as usize)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        core::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text in it is not UTF-8"))
    }

    pub(crate) fn optional(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            _ => Err(Malformed("a flag in it is neither 0 nor 1")),
        }
    }

    /// Refuses bytes after the last value.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("there are bytes after its end")) }
    }
}

/// Why stored bytes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_cut_bytes_are_refused() {
        let mut writer = Writer::default();
        writer.u8(7);
        writer.u32(70_000);
        writer.u64(1 << 40);
        writer.bytes(b"key");
        writer.optional(None);
        writer.optional(Some(b"x"));
        let read = |bytes: &[u8]| -> Result<(), Malformed> {
            let mut reader = Reader(bytes);
            assert_eq!((reader.u8()?, reader.u32()?, reader.u64()?), (7, 70_000, 1 << 40));
            assert_eq!(reader.bytes()?, b"key");
            assert_eq!((reader.optional()?, reader.optional()?), (None, Some(b"x".as_slice())));
            reader.end()
        };
        assert_eq!(read(&writer.0), Ok(()));
        for cut in 0..writer.0.len() {
            assert!(read(&writer.0[..cut]).is_err(), "cut at {cut}");
        }
        writer.u8(0);
        assert_eq!(read(&writer.0), Err(Malformed("there are bytes after its end")));
    }

    #[test]
    fn a_length_beyond_the_end_is_refused_without_allocating_for_it() {
        assert!(Reader(&[0xff, 0xff, 0xff, 0xff, 1]).bytes().is_err());
    }
}
