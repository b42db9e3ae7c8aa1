//! The entries of an index file, versions 2 to 4 (`gitformat-index(5)`).

use super::IndexError;
use super::bitmap::Bitmap;

/// Bytes of an entry before the name of its object.
const STAT_BYTES: usize = 40;
/// Where the mode lies among them.
const MODE_AT: usize = 24;
/// The mode of an entry that stands for a whole directory.
const MODE_DIR: u32 = 0o040_000;
/// The mode of an entry where another repository lies.
const MODE_SUBMODULE: u32 = 0o160_000;
/// Flag of an entry that has more flags.
const EXTENDED: u16 = 0x4000;
/// The further flags that git knows: added by intent, and left out of the working tree. Git refuses an index with any other.
const EXTENDED_KNOWN: u16 = 0x6000;
/// The part of the flags that holds the length of the path; paths as long as this or longer are told by their end alone.
const PATH_LEN: u16 = 0x0fff;
/// Longest path of an entry.
const PATH_BYTES_MAX: usize = 1 << 16;

/// An index file.
#[derive(Debug)]
pub(super) struct IndexFile<'a> {
    version: u32,
    /// How many entries it has.
    pub(super) count: u32,
    oid_len: usize,
    /// All after the header and before the checksum.
    body: &'a [u8],
}

/// One tracked path.
#[derive(Debug)]
pub(super) struct Entry<'e> {
    /// The path with `/`; empty if the entry replaces one of the shared index.
    pub(super) path: &'e [u8],
    /// Whether it stands for all that lies in a directory.
    pub(super) is_whole_dir: bool,
    /// Whether another repository lies there.
    pub(super) is_submodule: bool,
}

/// What a split index builds on.
#[derive(Debug)]
pub(super) struct Base<'a> {
    /// The name of the shared index.
    pub(super) oid: &'a [u8],
    /// Which of its entries are gone.
    pub(super) removed: Bitmap<'a>,
}

impl<'a> IndexFile<'a> {
    /// Reads the header.
    pub(super) fn parse(bytes: &'a [u8], oid_len: usize) -> Result<Self, IndexError> {
        let header = bytes.split_first_chunk::<12>().filter(|(header, _)| header.starts_with(b"DIRC"));
        let (header, rest) = header.ok_or(IndexError::Malformed("it does not begin as an index does"))?;
        let version = be32(&header[4..]);
        if !(2..=4).contains(&version) {
            return Err(IndexError::Malformed("its version is none of 2, 3 and 4"));
        }
        let body_len = rest.len().checked_sub(oid_len).ok_or(CUT)?;
        Ok(Self { version, count: be32(&header[8..]), oid_len, body: &rest[..body_len] })
    }

    /// Visits all entries in order. Returns what the index builds on, if it is a split one.
    pub(super) fn for_each(
        &self,
        mut visit: impl FnMut(Entry<'_>) -> Result<(), IndexError>,
    ) -> Result<Option<Base<'a>>, IndexError> {
        let (mut rest, mut path) = (self.body, Vec::new());
        for _ in 0..self.count {
            let entry = rest;
            let mode = be32(entry.get(MODE_AT..STAT_BYTES).ok_or(CUT)?);
            let flags_at = STAT_BYTES + self.oid_len;
            let flags = be16(entry.get(flags_at..).ok_or(CUT)?)?;
            rest = &entry[flags_at + 2..];
            if flags & EXTENDED != 0 {
                // Only version 3 may have them, and 4: anything else is damage, which would shift the path by two bytes.
                if self.version == 2 || be16(rest)? & !EXTENDED_KNOWN != 0 {
                    return Err(IndexError::Malformed("an entry has flags that are not known"));
                }
                rest = &rest[2..];
            }
            if self.version == 4 {
                let dropped = take_varint(&mut rest)?;
                path.truncate(path.len().checked_sub(dropped).ok_or(IndexError::Malformed("a path is too short"))?);
            } else {
                path.clear();
            }
            let len = memchr::memchr(0, rest).ok_or(CUT)?;
            path.extend_from_slice(&rest[..len]);
            if path.len() > PATH_BYTES_MAX {
                return Err(IndexError::Malformed("a path is too long"));
            }
            let told = flags & PATH_LEN;
            if told < PATH_LEN && usize::from(told) != path.len() {
                return Err(IndexError::Malformed("a path is not as long as its entry says"));
            }
            let name_end = entry.len() - rest.len() + len;
            // From version 4 on a path ends with one zero; before, entries are padded to a multiple of eight bytes.
            let end = if self.version == 4 { name_end + 1 } else { (name_end + 8) & !7 };
            rest = entry.get(end..).ok_or(CUT)?;
            visit(Entry { path: &path, is_whole_dir: mode == MODE_DIR, is_submodule: mode == MODE_SUBMODULE })?;
        }
        self.base(rest)
    }

    /// Goes through the extensions.
    fn base(&self, mut rest: &'a [u8]) -> Result<Option<Base<'a>>, IndexError> {
        let mut base = None;
        while !rest.is_empty() {
            let (header, content) = rest.split_first_chunk::<8>().ok_or(CUT)?;
            let (mut content, after) = content.split_at_checked(be32(&header[4..]) as usize).ok_or(CUT)?;
            rest = after;
            match &header[..4] {
                b"link" => {
                    let (oid, bitmaps) = content.split_at_checked(self.oid_len).ok_or(CUT)?;
                    content = bitmaps;
                    // Without bitmaps, or with a name of zeros, it builds on nothing.
                    if !content.is_empty() && oid.iter().any(|&byte| byte != 0) {
                        base = Some(Base { oid, removed: Bitmap::take(&mut content)? });
                    }
                }
                b"sdir" => {}
                // Extensions in capitals may be passed over; the others change what the entries mean.
                name if name[0].is_ascii_uppercase() => {}
                _ => return Err(IndexError::Malformed("it needs an extension that is not known")),
            }
        }
        Ok(base)
    }
}

const CUT: IndexError = IndexError::Malformed("it is cut short");

fn be16(bytes: &[u8]) -> Result<u16, IndexError> {
    bytes.first_chunk().map(|bytes| u16::from_be_bytes(*bytes)).ok_or(CUT)
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

/// Git's numbers of variable length: seven bits a byte, and one is added before each further byte.
fn take_varint(bytes: &mut &[u8]) -> Result<usize, IndexError> {
    let mut value = 0_usize;
    for (at, &byte) in bytes.iter().enumerate().take(4) {
        value = value << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Ok(value);
        }
        value += 1;
    }
    Err(CUT)
}
