//! The layout of the file: a header, the log, and behind them the tables.
//!
//! ```text
//! 0        header   magic 8 | format 4 | log bytes 4 | salt 8 | crc 4, zeros up to 4096
//! 4096     log      so many bytes as the header says
//! behind   tables   a redb database
//! ```
//!
//! Numbers are little-endian. The header is written once, when the file is made.

use std::io;
use std::sync::Arc;

use redb::StorageBackend;

/// The layout that is written.
pub(crate) const FORMAT: u32 = 4;

/// Where the log begins.
pub(crate) const HEADER_BYTES: u64 = 4096;

const MAGIC: [u8; 8] = *b"TESSRUNS";

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// How long the log may become.
    pub(crate) log_bytes: u32,
    /// An unguessable number, so that a user's bytes in a record cannot pass for an entry of the log.
    pub(crate) salt: u64,
}

/// The format that the first bytes of a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A file that this program reads.
    Ours(Header),
    /// A file of another format.
    Other(u32),
    /// A header that was damaged.
    Damaged,
    /// No header at all.
    None,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.log_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..28].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header of `storage`.
    pub(crate) fn find(storage: &dyn StorageBackend) -> io::Result<Found> {
        let mut bytes = [0; 28];
        let there = storage.len()?.min(bytes.len() as u64) as usize;
        storage.read(0, &mut bytes[..there])?;
        Ok(Self::decode(&bytes))
    }

    fn decode(bytes: &[u8; 28]) -> Found {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != MAGIC {
            return Found::None;
        }
        if u32_at(24) != crc32c::crc32c(&bytes[..24]) {
            return Found::Damaged;
        }
        let salt = u64::from(u32_at(16)) | u64::from(u32_at(20)) << 32;
        match u32_at(8) {
            FORMAT => Found::Ours(Self { log_bytes: u32_at(12), salt }),
            other => Found::Other(other),
        }
    }

    /// Where the tables begin.
    pub(crate) fn tables_at(self) -> u64 {
        HEADER_BYTES + u64::from(self.log_bytes)
    }
}

/// The part of a file from some place on, for the database that lies there. The maker of the storage has locked it.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) storage: Arc<dyn StorageBackend>,
    pub(crate) at: u64,
}

impl StorageBackend for Behind {
    fn len(&self) -> io::Result<u64> {
        Ok(self.storage.len()?.saturating_sub(self.at))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.storage.read(self.at + offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(self.at + len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.storage.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.storage.write(self.at + offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.storage.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_written_and_no_byte_of_it_may_change() {
        let header = Header { log_bytes: 1 << 20, salt: 0x0123_4567_89ab_cdef };
        let bytes: [u8; 28] = *header.encode().first_chunk().expect("long enough");
        assert_eq!(Header::decode(&bytes), Found::Ours(header));
        for at in 0..bytes.len() {
            let mut changed = bytes;
            changed[at] ^= 0x10;
            let expected = if at < 8 { Found::None } else { Found::Damaged };
            assert_eq!(Header::decode(&changed), expected, "byte {at}");
        }
    }

    #[test]
    fn a_header_of_another_format_is_told_by_its_number() {
        let mut bytes: [u8; 28] = *Header { log_bytes: 0, salt: 1 }.encode().first_chunk().expect("long enough");
        bytes[8] = 5;
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Found::Other(5));
    }
}
