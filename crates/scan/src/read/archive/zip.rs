//! Zip: a directory at the end says where each member is.

use std::io::{self, Read, SeekFrom};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::{ReadSeek, Stop, Walk, inside};
use crate::source::item::UnreadableReason;

/// The record at the very end, and the longest comment after it.
const END_BYTES: u64 = 22;
const COMMENT_BYTES_MAX: u64 = 65_535;
/// Largest directory.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

pub(super) fn walk(file: &mut dyn ReadSeek, path: &[u8], depth: u32, walk: &mut Walk<'_>) -> Result<(), Stop> {
    let directory = directory(file)?;
    let mut rest = &directory[..];
    while let Some(entry) = Entry::take(&mut rest)? {
        let name = inside(path, entry.name);
        if entry.name.ends_with(b"/") {
            continue;
        }
        let is_readable = entry.flags & 1 == 0 && matches!(entry.method, STORED | DEFLATED);
        if !is_readable {
            walk.members.unreadable(&name, UnreadableReason::ArchiveDamaged);
            continue;
        }
        match member(file, &entry, &name, depth, walk) {
            // One bad member does not hide the others, unless there is no budget for them either.
            Err(Stop::Broken) if !walk.budget.is_spent.get() => {
                walk.members.unreadable(&name, UnreadableReason::ArchiveDamaged);
            }
            walked => walked?,
        }
    }
    Ok(())
}

fn member(
    file: &mut dyn ReadSeek,
    entry: &Entry<'_>,
    name: &[u8],
    depth: u32,
    walk: &mut Walk<'_>,
) -> Result<(), Stop> {
    file.seek(SeekFrom::Start(entry.offset))?;
    let mut header = [0; 30];
    file.read_exact(&mut header)?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(Stop::Broken);
    }
    let skipped = u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
    file.seek(SeekFrom::Current(skipped as i64))?;
    let packed = file.take(entry.packed_size);
    let mut content = Checked {
        inner: if entry.method == STORED {
            Unpacked::Stored(packed)
        } else {
            Unpacked::Deflated(DeflateDecoder::new(packed))
        },
        crc: Crc::new(),
    };
    walk.member(name, &mut content, depth + 1)?;
    // The rest of what was not taken, for its checksum.
    io::copy(&mut super::Counted { inner: &mut content, budget: walk.budget }, &mut io::sink())?;
    if content.crc.sum() == entry.crc { Ok(()) } else { Err(Stop::Broken) }
}

/// The bytes of the directory.
fn directory(file: &mut dyn ReadSeek) -> Result<Vec<u8>, Stop> {
    let len = file.seek(SeekFrom::End(0))?;
    let tail_len = len.min(END_BYTES + COMMENT_BYTES_MAX);
    file.seek(SeekFrom::Start(len - tail_len))?;
    let mut tail = Vec::new();
    file.take(tail_len).read_to_end(&mut tail)?;
    let end = memchr::memmem::rfind(&tail, b"PK\x05\x06").ok_or(Stop::Broken)?;
    let end = tail.get(end..end + END_BYTES as usize).ok_or(Stop::Broken)?;
    let (size, offset) = (u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)));
    let is_sane = size <= DIRECTORY_BYTES_MAX && offset + size <= len && offset != u64::from(u32::MAX);
    if !is_sane {
        return Err(Stop::Broken);
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut directory = vec![0; size as usize];
    file.read_exact(&mut directory)?;
    // It must account for as many members as the end says.
    let mut rest = &directory[..];
    let mut count = 0_u32;
    while Entry::take(&mut rest)?.is_some() {
        count += 1;
    }
    if count & 0xffff == u32::from(u16_at(end, 10)) { Ok(directory) } else { Err(Stop::Broken) }
}

struct Entry<'a> {
    flags: u16,
    method: u16,
    crc: u32,
    packed_size: u64,
    offset: u64,
    name: &'a [u8],
}

impl<'a> Entry<'a> {
    fn take(rest: &mut &'a [u8]) -> Result<Option<Self>, Stop> {
        if rest.is_empty() {
            return Ok(None);
        }
        let header = rest.get(..46).filter(|header| header.starts_with(b"PK\x01\x02")).ok_or(Stop::Broken)?;
        let lens = [28, 30, 32].map(|at| usize::from(u16_at(header, at)));
        let end = 46 + lens.iter().sum::<usize>();
        let entry = rest.get(..end).ok_or(Stop::Broken)?;
        *rest = &rest[end..];
        Ok(Some(Self {
            flags: u16_at(header, 8),
            method: u16_at(header, 10),
            crc: u32_at(header, 16),
            packed_size: u64::from(u32_at(header, 20)),
            offset: u64::from(u32_at(header, 42)),
            name: &entry[46..46 + lens[0]],
        }))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

enum Unpacked<R: Read> {
    Stored(R),
    Deflated(DeflateDecoder<R>),
}

/// Adds up what is read.
struct Checked<R: Read> {
    inner: Unpacked<R>,
    crc: Crc,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.inner {
            Unpacked::Stored(inner) => inner.read(buffer)?,
            Unpacked::Deflated(inner) => inner.read(buffer)?,
        };
        self.crc.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    /// A zip of these members, deflated.
    pub(in crate::read::archive) fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for (name, content) in members {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            let packed = encoder.finish().unwrap();
            let mut crc = Crc::new();
            crc.update(content);
            let mut common = vec![20, 0, 0, 0, DEFLATED as u8, 0, 0, 0, 0, 0];
            for number in [crc.sum(), packed.len() as u32, content.len() as u32] {
                common.extend_from_slice(&number.to_le_bytes());
            }
            common.extend_from_slice(&(name.len() as u16).to_le_bytes());
            common.extend_from_slice(&[0, 0]);
            directory.extend_from_slice(b"PK\x01\x02\x14\0");
            directory.extend_from_slice(&common);
            directory.extend_from_slice(&[0; 10]);
            directory.extend_from_slice(&(file.len() as u32).to_le_bytes());
            directory.extend_from_slice(name.as_bytes());
            file.extend_from_slice(b"PK\x03\x04");
            file.extend_from_slice(&common);
            file.extend_from_slice(name.as_bytes());
            file.extend_from_slice(&packed);
        }
        let offset = file.len() as u32;
        file.extend_from_slice(&directory);
        file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        let count = (members.len() as u16).to_le_bytes();
        file.extend_from_slice(&[count, count].concat());
        for number in [directory.len() as u32, offset] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        file.extend_from_slice(&[0, 0]);
        file
    }

    #[test]
    fn entries_of_a_directory_are_read_and_a_short_one_is_broken() {
        let bytes = zip(&[("one", b"1"), ("two", b"22")]);
        let directory = directory(&mut io::Cursor::new(bytes)).unwrap();
        let mut rest = &directory[..];
        assert_eq!(Entry::take(&mut rest).unwrap().unwrap().name, b"one");
        assert_eq!(Entry::take(&mut rest).unwrap().unwrap().name, b"two");
        assert!(Entry::take(&mut rest).unwrap().is_none());
        assert_eq!(Entry::take(&mut &directory[..20]).err(), Some(Stop::Broken));
    }
}
