//! Packs: objects one after the other, each compressed, most of them as a delta to another one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flate2::{Decompress, FlushDecompress, Status};

use crate::index::PackIndex;
use crate::oid::Oid;
use crate::{Kind, ObjectError, plain_file};

/// Bytes read of a pack at a time.
const WINDOW_BYTES: usize = 16 << 10;
/// Bytes that surely hold the head of an entry: type, size, and an offset or name.
const HEAD_BYTES: usize = 64;
/// Room beyond the end of what is inflated: with it, the fast way goes on to the last byte.
const SLACK_BYTES: usize = 320;
/// Room that is made at a time, so that an object that lies about its length takes no more memory than it fills.
const ROOM_BYTES: usize = 256 << 10;
/// Bytes of a large object that are offered at a time.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// A pack and its index.
#[derive(Debug)]
pub(crate) struct Pack {
    file: File,
    path: PathBuf,
    pub(crate) index: PackIndex,
}

impl Pack {
    /// Opens the pack with this index.
    pub(crate) fn open(index: &Path, oid_len: usize) -> io::Result<Self> {
        let path = index.with_extension("pack");
        let file = plain_file::open(&path)?;
        let mut head = [0; 8];
        file.read_exact_at(&mut head, 0)?;
        if !matches!(&head, b"PACK\0\0\0\x02" | b"PACK\0\0\0\x03") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a pack is of an unknown version"));
        }
        Ok(Self { index: PackIndex::open(index, oid_len)?, file, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// How an entry holds its object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Held {
    Whole(Kind),
    /// As a delta to the entry at this offset of the same pack.
    DeltaTo(u64),
    /// As a delta to this object.
    DeltaToNamed(Oid),
}

/// The head of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) held: Held,
    /// Length of what is compressed: the object, or the delta.
    pub(crate) size: u64,
    /// Where that begins.
    pub(crate) data_at: u64,
}

/// Reads entries; the working memory of one thread.
pub(crate) struct PackReader {
    inflate: Decompress,
    window: Vec<u8>,
    /// Which pack the window shows, and from where.
    shows: Option<(usize, u64)>,
}

impl std::fmt::Debug for PackReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackReader({:?})", self.shows)
    }
}

/// How much of an object is inflated.
#[derive(Debug, Clone, Copy)]
enum Upto {
    /// All of it; it says that it is so long.
    End { size: usize },
    /// At least so much, if it has that.
    Len(usize),
}

impl PackReader {
    pub(crate) fn new() -> Self {
        Self { inflate: Decompress::new(true), window: Vec::new(), shows: None }
    }

    /// Bytes of a pack from `at` on: at least `wanted`, or all that are left.
    fn window(&mut self, number: usize, pack: &Pack, at: u64, wanted: usize) -> io::Result<&[u8]> {
        if let Some((shown, start)) = self.shows
            && shown == number
            && let Some(skip) = at.checked_sub(start).map(|skip| skip as usize)
            && skip.saturating_add(wanted) <= self.window.len()
        {
            return Ok(&self.window[skip..]);
        }
        self.shows = None;
        self.window.resize(WINDOW_BYTES, 0);
        let mut filled = 0;
        while filled < WINDOW_BYTES {
            match pack.file.read_at(&mut self.window[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.window.truncate(filled);
        self.shows = Some((number, at));
        Ok(&self.window)
    }

    /// Reads the head of the entry at `at`.
    pub(crate) fn entry(&mut self, number: usize, pack: &Pack, at: u64, oid_len: usize) -> Result<Entry, ObjectError> {
        const SHORT: ObjectError = ObjectError::Corrupt("an entry of a pack is cut off");
        let bytes = self.window(number, pack, at, HEAD_BYTES)?;
        let mut rest = bytes.iter();
        let mut next = || rest.next().copied().ok_or(SHORT);
        let first = next()?;
        let mut size = u64::from(first & 0x0f);
        let (mut byte, mut shift) = (first, 4);
        while byte & 0x80 != 0 {
            if shift > 57 {
                return Err(ObjectError::Corrupt("an entry of a pack has an absurd size"));
            }
            byte = next()?;
            size |= u64::from(byte & 0x7f) << shift;
            shift += 7;
        }
        let held = match first >> 4 & 7 {
            1 => Held::Whole(Kind::Commit),
            2 => Held::Whole(Kind::Tree),
            3 => Held::Whole(Kind::Blob),
            4 => Held::Whole(Kind::Tag),
            6 => {
                let mut byte = next()?;
                let mut back = u64::from(byte & 0x7f);
                while byte & 0x80 != 0 {
                    byte = next()?;
                    back = back.checked_add(1).and_then(|back| back.checked_mul(128)).ok_or(SHORT)?;
                    back |= u64::from(byte & 0x7f);
                }
                // Strictly before the entry itself, so that chains end.
                match at.checked_sub(back) {
                    Some(base) if back > 0 => Held::DeltaTo(base),
                    _ => return Err(ObjectError::Corrupt("a delta points out of its pack")),
                }
            }
            7 => {
                let name = rest.as_slice().get(..oid_len).ok_or(SHORT)?;
                let name = Oid::new(name).ok_or(SHORT)?;
                rest = rest.as_slice()[oid_len..].iter();
                Held::DeltaToNamed(name)
            }
            _ => return Err(ObjectError::Corrupt("an entry of a pack is of no known type")),
        };
        let head_len = bytes.len() - rest.as_slice().len();
        Ok(Entry { held, size, data_at: at + head_len as u64 })
    }

    /// Inflates what begins at `at` into `out`; it is `size` bytes long, which the caller finds bearable.
    pub(crate) fn inflate(
        &mut self,
        number: usize,
        pack: &Pack,
        at: u64,
        size: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ObjectError> {
        self.inflate_until(number, pack, at, Upto::End { size }, out)?;
        if out.len() == size { Ok(()) } else { Err(ObjectError::Corrupt("an object is not as long as its pack says")) }
    }

    /// Offers what begins at `at`, and is `size` bytes long, to `sink` in pieces, until it wants no more.
    pub(crate) fn pieces(
        &mut self,
        number: usize,
        pack: &Pack,
        mut at: u64,
        size: u64,
        sink: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), ObjectError> {
        let (mut piece, mut filled) = (vec![0; PIECE_BYTES], 0);
        self.inflate.reset(true);
        loop {
            let left = self.window(number, pack, at, 1)?.len();
            if left == 0 {
                return Err(ObjectError::Corrupt("a pack ends within an object"));
            }
            let skip = self.window.len() - left;
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(&self.window[skip..], &mut piece[filled..], FlushDecompress::None);
            let status = status.map_err(|_| ObjectError::Corrupt("an object cannot be inflated"))?;
            let (consumed, made) = (self.inflate.total_in() - before_in, self.inflate.total_out() - before_out);
            at += consumed;
            filled += made as usize;
            let is_end = status == Status::StreamEnd;
            if self.inflate.total_out() > size || (is_end && self.inflate.total_out() < size) {
                return Err(ObjectError::Corrupt("an object is not as long as its pack says"));
            }
            if (is_end || filled == piece.len()) && !sink(&piece[..std::mem::take(&mut filled)]) {
                return Ok(());
            }
            match (consumed, made) {
                _ if is_end => return Ok(()),
                (0, 0) => return Err(ObjectError::Corrupt("an object cannot be inflated")),
                _ => {}
            }
        }
    }

    /// Inflates the first bytes of what begins at `at`: at most `len_max`.
    pub(crate) fn inflate_head(
        &mut self,
        number: usize,
        pack: &Pack,
        at: u64,
        len_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ObjectError> {
        self.inflate_until(number, pack, at, Upto::Len(len_max), out)
    }

    fn inflate_until(
        &mut self,
        number: usize,
        pack: &Pack,
        mut at: u64,
        upto: Upto,
        out: &mut Vec<u8>,
    ) -> Result<(), ObjectError> {
        out.clear();
        let room_max = match upto {
            Upto::End { size } => size + SLACK_BYTES,
            Upto::Len(len) => len,
        };
        self.inflate.reset(true);
        loop {
            if out.len() == out.capacity().min(room_max) {
                let room = room_max.min((2 * out.len()).max(ROOM_BYTES));
                out.reserve_exact(room - out.len());
            }
            // Fills the window at the end of what it shows.
            let left = self.window(number, pack, at, 1)?.len();
            if left == 0 {
                return Err(ObjectError::Corrupt("a pack ends within an object"));
            }
            let skip = self.window.len() - left;
            let (before_in, before_out) = (self.inflate.total_in(), out.len());
            // `Finish` says that this is all the room there is: nothing is copied aside for a next call.
            let status = self.inflate.decompress_vec(&self.window[skip..], out, FlushDecompress::Finish);
            let status = status.map_err(|_| ObjectError::Corrupt("an object cannot be inflated"))?;
            let consumed = self.inflate.total_in() - before_in;
            at += consumed;
            match status {
                Status::StreamEnd => return Ok(()),
                _ if matches!(upto, Upto::Len(len) if out.len() >= len) => return Ok(()),
                _ if consumed == 0 && out.len() == before_out => {
                    return Err(ObjectError::Corrupt("an object is longer than its pack says"));
                }
                _ => {}
            }
        }
    }
}
