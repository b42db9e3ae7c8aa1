//! The index of a pack: which objects are in it, and where.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::oid::Oid;
use crate::plain_file;

const MAGIC: &[u8; 8] = b"\xfftOc\0\0\0\x02";
const FANOUT_AT: u64 = 8;
const NAMES_AT: u64 = FANOUT_AT + 256 * 4;

/// An index of version 2, in memory: 24 bytes an object, or 36.
pub(crate) struct PackIndex {
    fanout: Vec<u32>,
    names: Vec<u8>,
    offsets: Vec<u8>,
    /// Offsets beyond two gigabytes.
    large: Vec<u8>,
    oid_len: usize,
}

impl PackIndex {
    /// Reads an index file.
    pub(crate) fn open(path: &Path, oid_len: usize) -> io::Result<Self> {
        let damaged = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let file = plain_file::open(path)?;
        let file_len = file.metadata()?.len();
        let part = |at: u64, len: u64| -> io::Result<Vec<u8>> {
            // No memory for a length that the file does not have.
            if at.checked_add(len).is_none_or(|end| end > file_len) {
                return Err(damaged("the index of a pack is too short"));
            }
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, at)?;
            Ok(bytes)
        };
        if part(0, 8)? != MAGIC {
            return Err(damaged("the index of a pack is of an unknown version"));
        }
        let fanout: Vec<u32> = part(FANOUT_AT, 256 * 4)?
            .chunks_exact(4)
            .map(|word| u32::from_be_bytes(word.try_into().expect("four bytes")))
            .collect();
        if !fanout.is_sorted() {
            return Err(damaged("the index of a pack is not in order"));
        }
        let count = u64::from(fanout[255]);
        let names = part(NAMES_AT, count * oid_len as u64)?;
        // Between names and offsets lie checksums, which the end of each compressed object repeats.
        let offsets_at = NAMES_AT + count * (oid_len as u64 + 4);
        let offsets = part(offsets_at, count * 4)?;
        let large_at = offsets_at + count * 4;
        let large = part(large_at, file_len.saturating_sub(large_at + 2 * oid_len as u64))?;
        Ok(Self { fanout, names, offsets, large, oid_len })
    }

    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.fanout[255] as usize
    }

    /// The name of the object with this number.
    pub(crate) fn oid(&self, number: usize) -> Oid {
        Oid::new(&self.names[number * self.oid_len..][..self.oid_len]).expect("names are as long as names are")
    }

    /// Where the object with this number begins in the pack; `None` if the index makes no sense there.
    pub(crate) fn offset(&self, number: usize) -> Option<u64> {
        let word = u32::from_be_bytes(self.offsets[number * 4..][..4].try_into().expect("four bytes"));
        if word >> 31 == 0 {
            return Some(u64::from(word));
        }
        let at = (word & 0x7fff_ffff) as usize * 8;
        Some(u64::from_be_bytes(self.large.get(at..at + 8)?.try_into().expect("eight bytes")))
    }

    /// Where the object begins in the pack, if it is in it.
    pub(crate) fn find(&self, oid: &Oid) -> Option<u64> {
        let name = oid.as_bytes();
        if name.len() != self.oid_len {
            return None;
        }
        let first = usize::from(name[0]);
        let mut low = if first == 0 { 0 } else { self.fanout[first - 1] as usize };
        let mut high = self.fanout[first] as usize;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.names[middle * self.oid_len..][..self.oid_len].cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.offset(middle),
            }
        }
        None
    }
}

impl std::fmt::Debug for PackIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackIndex({} objects)", self.len())
    }
}
