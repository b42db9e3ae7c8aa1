//! What is inside archives and compressed files: zip, tar, 7z, gzip, bzip2, xz and zstd, one in another, within bounds; and the text of
//! office documents, which are zips of XML, and of the rows of sqlite databases.
//!
//! Members are handed out as streams, one after the other, so memory does not grow with them. A zip inside something else must
//! be read twice and is held in memory, up to a limit. Everything unpacked counts against one budget for the whole
//! outer file, so neither nesting nor overlapping members nor a high ratio can make a small file into endless work. What lies beyond
//! a bound, or cannot be unpacked, is told by name: it was not read, and the run cannot end as clean.
//!
//! Not here: encryption, zip64, and methods other than stored and deflated in a zip. They are told as unreadable.

mod markup;
mod seven_zip;
mod sqlite;
mod stream;
mod tar;
mod zip;

use std::cell::Cell;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};

use crate::source::item::UnreadableReason;

/// How much may come out of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Archives inside archives.
    pub depth_max: u32,
    /// Members, of all levels.
    pub members_max: u64,
    /// Bytes unpacked, of all levels.
    pub bytes_max: u64,
    /// Bytes unpacked for each byte of the file, once [`Self::RATIO_FROM`] bytes have come out.
    pub ratio_max: u64,
    /// Largest zip, 7z or database that is not a file of its own.
    pub nested_zip_bytes_max: u64,
    /// Largest window that a compressed stream may ask for.
    pub window_bytes_max: u64,
}

impl Limits {
    /// Small archives may have any ratio.
    pub const RATIO_FROM: u64 = 64 << 20;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth_max: 4,
            members_max: 100_000,
            bytes_max: 4 << 30,
            ratio_max: 250,
            nested_zip_bytes_max: 64 << 20,
            window_bytes_max: 64 << 20,
        }
    }
}

/// Takes what is inside.
pub trait Members {
    /// A member that is no archive itself. Not everything need be read. `Err` stops the walk: nothing more is wanted.
    fn member(&mut self, path: &[u8], content: &mut dyn Read) -> Result<(), Stop>;

    /// Something that could not be read.
    fn unreadable(&mut self, path: &[u8], reason: UnreadableReason);
}

/// Why a walk ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The taker of the members wants no more.
    Interrupted,
    /// The archive that is being read cannot be read further.
    Broken,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// What the first bytes of a file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `PK`.
    Zip,
    /// A single stream that is compressed, of whatever.
    Stream(Packing),
    /// `7z`.
    SevenZip,
    /// A database of sqlite.
    Sqlite,
    /// POSIX or GNU.
    Tar,
}

/// How a stream is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Gzip.
    Gzip,
    /// Bzip2.
    Bzip2,
    /// Xz.
    Xz,
    /// Zstandard.
    Zstd,
}

/// Enough to tell.
const HEAD_BYTES: usize = 512;

/// Which archive begins like this, if one does.
pub fn kind_of(head: &[u8]) -> Option<Kind> {
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        Some(Kind::Zip)
    } else if head.starts_with(b"\x1f\x8b\x08") {
        Some(Kind::Stream(Packing::Gzip))
    } else if head.starts_with(b"BZh") && head.get(4..10) == Some(b"1AY&SY") {
        Some(Kind::Stream(Packing::Bzip2))
    } else if head.starts_with(b"\xfd7zXZ\0") {
        Some(Kind::Stream(Packing::Xz))
    } else if head.starts_with(b"\x28\xb5\x2f\xfd") {
        Some(Kind::Stream(Packing::Zstd))
    } else if head.starts_with(b"7z\xbc\xaf\x27\x1c") {
        Some(Kind::SevenZip)
    } else if head.starts_with(sqlite::MAGIC) {
        Some(Kind::Sqlite)
    } else if head.get(257..262) == Some(b"ustar") {
        Some(Kind::Tar)
    } else {
        None
    }
}

/// A file that can be sought in.
pub trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// Walks through the archive in `file`, known as `path`. `Err` if the members' taker wanted no more.
pub fn walk(
    file: &mut dyn ReadSeek,
    kind: Kind,
    path: &[u8],
    limits: &Limits,
    members: &mut dyn Members,
) -> Result<(), Stop> {
    let Ok(len) = file.seek(SeekFrom::End(0)).and_then(|len| file.rewind().map(|()| len)) else {
        members.unreadable(path, UnreadableReason::Io);
        return Ok(());
    };
    let ratio_bytes = len.saturating_mul(limits.ratio_max).max(Limits::RATIO_FROM);
    let budget = Budget {
        bytes: Cell::new(limits.bytes_max.min(ratio_bytes)),
        members: Cell::new(limits.members_max),
        is_spent: Cell::new(false),
    };
    let mut walk = Walk { limits, budget: &budget, members };
    let walked = match kind {
        Kind::Zip => zip::walk(file, path, 1, &mut walk),
        Kind::Tar => tar::walk(&mut BufReader::new(file), path, 1, &mut walk),
        Kind::Stream(packing) => walk.stream(packing, &mut BufReader::new(file), path, 1),
        Kind::SevenZip => seven_zip::walk(file, path, 1, &mut walk),
        Kind::Sqlite => sqlite::walk(file, path, 1, &mut walk),
    };
    walk.told(path, walked)
}

/// How much may still come out.
struct Budget {
    bytes: Cell<u64>,
    members: Cell<u64>,
    is_spent: Cell<bool>,
}

impl Budget {
    fn spent(&self) -> io::Error {
        self.is_spent.set(true);
        io::Error::other("more than the limits for archives allow")
    }
}

struct Walk<'w> {
    limits: &'w Limits,
    budget: &'w Budget,
    members: &'w mut dyn Members,
}

impl Walk<'_> {
    /// One member: an archive itself, or something to be taken.
    fn member(&mut self, path: &[u8], content: &mut dyn Read, depth: u32) -> Result<(), Stop> {
        match self.budget.members.get().checked_sub(1) {
            Some(left) => self.budget.members.set(left),
            None => return Err(self.budget.spent().into()),
        }
        let mut counted = Counted { inner: content, budget: self.budget };
        let mut head = Vec::with_capacity(HEAD_BYTES);
        (&mut counted).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let kind = kind_of(&head);
        let mut whole = Cursor::new(head).chain(counted);
        match kind {
            None if markup::is_of_document(path) => self.members.member(path, &mut markup::Text::of(whole)),
            None => self.members.member(path, &mut whole),
            Some(_) if depth > self.limits.depth_max => {
                self.members.unreadable(path, UnreadableReason::ArchiveLimit);
                Ok(())
            }
            Some(Kind::Stream(packing)) => {
                let walked = self.stream(packing, &mut BufReader::new(whole), path, depth);
                self.told(path, walked)
            }
            Some(Kind::Tar) => {
                let walked = tar::walk(&mut whole, path, depth, self);
                self.told(path, walked)
            }
            Some(kind @ (Kind::Zip | Kind::SevenZip | Kind::Sqlite)) => {
                let mut bytes = Vec::new();
                let max = self.limits.nested_zip_bytes_max;
                (&mut whole).take(max + 1).read_to_end(&mut bytes)?;
                if bytes.len() as u64 > max {
                    self.members.unreadable(path, UnreadableReason::ArchiveLimit);
                    return Ok(());
                }
                let mut file = Cursor::new(bytes);
                let walked = match kind {
                    Kind::SevenZip => seven_zip::walk(&mut file, path, depth, self),
                    Kind::Sqlite => sqlite::walk(&mut file, path, depth, self),
                    _ => zip::walk(&mut file, path, depth, self),
                };
                self.told(path, walked)
            }
        }
    }

    fn stream(&mut self, packing: Packing, packed: &mut dyn io::BufRead, path: &[u8], depth: u32) -> Result<(), Stop> {
        let name = path.rsplit(|&byte| byte == b'/' || byte == b'!').next().unwrap_or_default();
        let inner = packing.name_inside(name);
        let mut unpacked = stream::unpacked(packing, packed, self.limits.window_bytes_max);
        let walked = self.member(&inside(path, &inner), &mut unpacked, depth + 1);
        // The checksum is at the end: what was not read of it must still be right.
        let walked = walked.and_then(|()| {
            io::copy(&mut Counted { inner: &mut unpacked, budget: self.budget }, &mut io::sink())?;
            Ok(())
        });
        if unpacked.asks_too_much() {
            self.members.unreadable(path, UnreadableReason::ArchiveLimit);
            return Ok(());
        }
        walked
    }

    /// Tells of an archive that could not be read to its end, and goes on with what is around it.
    fn told(&mut self, path: &[u8], walked: Result<(), Stop>) -> Result<(), Stop> {
        match walked {
            Err(Stop::Broken) if self.budget.is_spent.get() => {
                self.members.unreadable(path, UnreadableReason::ArchiveLimit);
                Ok(())
            }
            Err(Stop::Broken) => {
                self.members.unreadable(path, UnreadableReason::ArchiveDamaged);
                Ok(())
            }
            walked => walked,
        }
    }
}

/// The path of a member.
fn inside(archive: &[u8], member: &[u8]) -> Vec<u8> {
    [archive, b"!", member].concat()
}

/// Counts what is unpacked.
struct Counted<'c> {
    inner: &'c mut dyn Read,
    budget: &'c Budget,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.bytes.get();
        if left == 0 {
            return Err(self.budget.spent());
        }
        let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..len])?;
        self.budget.bytes.set(left - read as u64);
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    /// What came out.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Out {
        members: Vec<(String, usize)>,
        unreadable: Vec<(String, UnreadableReason)>,
    }

    impl Members for Out {
        fn member(&mut self, path: &[u8], content: &mut dyn Read) -> Result<(), Stop> {
            let mut bytes = Vec::new();
            let read = content.read_to_end(&mut bytes);
            self.members.push((String::from_utf8_lossy(path).into_owned(), bytes.len()));
            read.map(drop).map_err(Stop::from)
        }

        fn unreadable(&mut self, path: &[u8], reason: UnreadableReason) {
            self.unreadable.push((String::from_utf8_lossy(path).into_owned(), reason));
        }
    }

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn out_of(bytes: &[u8], limits: &Limits) -> Out {
        let mut out = Out::default();
        let kind = kind_of(bytes).unwrap();
        walk(&mut Cursor::new(bytes), kind, b"a", limits, &mut out).unwrap();
        out
    }

    fn names(out: &Out) -> Vec<&str> {
        out.members.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn archives_in_archives_are_opened_and_members_named_by_the_way_to_them() {
        let inner = zip::tests::zip(&[("deep.txt", b"deep"), ("dir/", b"")]);
        let tar = tar::tests::tar(&[("x/one.txt", b"one"), ("in.zip", &inner), ("two.gz", &gzip(b"two"))]);
        let out = out_of(&gzip(&tar), &Limits::default());
        assert_eq!(names(&out), ["a!content!x/one.txt", "a!content!in.zip!deep.txt", "a!content!two.gz!two"]);
        assert!(out.unreadable.is_empty(), "{:?}", out.unreadable);
    }

    #[test]
    fn each_bound_holds_and_what_lies_beyond_is_told() {
        let tar = tar::tests::tar(&[("one", &[b'1'; 600]), ("two", &[b'2'; 600]), ("three", &[b'3'; 600])]);
        let beyond = |limits: Limits, bytes: &[u8]| {
            let out = out_of(bytes, &limits);
            (out.members.len(), out.unreadable.first().map(|(_, reason)| *reason))
        };
        let limit = Some(UnreadableReason::ArchiveLimit);
        assert_eq!(beyond(Limits { members_max: 3, ..Limits::default() }, &tar), (3, None));
        assert_eq!(beyond(Limits { members_max: 2, ..Limits::default() }, &tar), (2, limit));
        assert_eq!(beyond(Limits { bytes_max: 1_000, ..Limits::default() }, &tar), (1, limit));
        let nested = gzip(&gzip(&gzip(b"x")));
        assert_eq!(beyond(Limits { depth_max: 3, ..Limits::default() }, &nested), (1, None));
        assert_eq!(beyond(Limits { depth_max: 2, ..Limits::default() }, &nested), (0, limit));
        let zipped = tar::tests::tar(&[("z", &zip::tests::zip(&[("m", b"m")]))]);
        assert_eq!(beyond(Limits { nested_zip_bytes_max: 10, ..Limits::default() }, &zipped), (0, limit));
        // Zeros pack a thousand to one.
        let bomb = gzip(&vec![0; (Limits::RATIO_FROM + (1 << 20)) as usize]);
        assert_eq!(beyond(Limits { ratio_max: 2, ..Limits::default() }, &bomb).1, limit);
        assert_eq!(beyond(Limits { ratio_max: 2_000, ..Limits::default() }, &bomb).1, None);
    }

    #[test]
    fn a_cut_or_damaged_archive_is_told_and_never_passed_over() {
        let tar = tar::tests::tar(&[("one", b"one"), ("two", b"two")]);
        for whole in [gzip(&tar), tar, zip::tests::zip(&[("one", b"one"), ("two", b"two")])] {
            for cut in (HEAD_BYTES.min(whole.len() / 2)..whole.len() - 1).step_by(7) {
                let out = out_of(&whole[..cut], &Limits::default());
                // A tar may end early and still be whole: after its last member come only zeros.
                let is_whole = out.members.len() == 2 && kind_of(&whole) == Some(Kind::Tar);
                assert!(is_whole || !out.unreadable.is_empty(), "cut at {cut}: {out:?}");
            }
        }
        let mut wrong = gzip(&[b'x'; 2_000]);
        let at = wrong.len() - 6;
        wrong[at] ^= 1;
        assert_eq!(out_of(&wrong, &Limits::default()).unreadable[0].1, UnreadableReason::ArchiveDamaged);
    }

    proptest! {
        #[test]
        fn any_bytes_end(mut bytes in prop::collection::vec(any::<u8>(), 512..3_000), kind in 0..3, flips in any::<[u16; 4]>()) {
            match kind {
                0 => bytes = tar::tests::tar(&[("one", &bytes), ("two", b"2")]),
                1 => bytes = zip::tests::zip(&[("one", &bytes), ("two", b"2")]),
                _ => bytes = gzip(&bytes),
            }
            for flip in flips {
                let at = 4 + usize::from(flip) % (bytes.len() - 4);
                bytes[at] ^= (flip >> 8) as u8 | 1;
            }
            if kind_of(&bytes).is_some() {
                let limits = Limits { bytes_max: 1 << 20, ..Limits::default() };
                prop_assert!(out_of(&bytes, &limits).members.len() < 10);
            }
        }
    }
}
