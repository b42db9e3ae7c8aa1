//! The keys that a tree was planned with, in order, in a file beside the findings.
//!
//! A worker compares what it meets with what was planned, and so can name a path that is gone. The file is read in blocks
//! and never held: a plan of a million paths takes a worker as much memory as one of a hundred.
//!
//! ```text
//! file   = magic "TSRPATH1", blocks, index, count u64, start of the index u64, number of blocks u64
//! block  = entries; a key shares nothing with the one before the block
//! entry  = bytes shared with the key before u16, length of the rest u16, the rest
//! index  = for each block: where it begins u64
//! ```
//!
//! Integers are little-endian. The file is named by its own hash.

use std::io;
use std::ops::Bound;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::coverage::Coverage;
use crate::files::{AppendFile, Folder, ReadFile, staging_name};

const MAGIC: &[u8; 8] = b"TSRPATH1";
const FOOTER_BYTES: u64 = 24;
/// Keys of a block.
const BLOCK_KEYS: u32 = 64;
/// Bytes that are written or read at a time.
const BUFFER_BYTES: usize = 1 << 16;

/// Writes planned keys, which rise.
pub struct PathsWriter<'f, F: Folder + ?Sized> {
    folder: &'f F,
    staging: String,
    out: Box<dyn AppendFile>,
    buffer: Vec<u8>,
    hasher: Box<Xxh3>,
    len: u64,
    last: Vec<u8>,
    blocks: Vec<u64>,
    /// Keys of the last block.
    in_block: u32,
    coverage: Coverage,
}

impl<'f, F: Folder + ?Sized> PathsWriter<'f, F> {
    /// Begins a file in `folder`.
    pub fn create(folder: &'f F) -> io::Result<Self> {
        let staging = staging_name("paths");
        let out = folder.create(&staging)?;
        let mut writer = Self {
            folder,
            staging,
            out,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            hasher: Box::default(),
            len: 0,
            last: Vec::new(),
            blocks: Vec::new(),
            in_block: BLOCK_KEYS,
            coverage: Coverage::default(),
        };
        writer.put(MAGIC)?;
        Ok(writer)
    }

    /// Adds a key above all before.
    pub fn push(&mut self, key: &[u8]) -> io::Result<()> {
        debug_assert!(self.coverage.planned == 0 || key > self.last.as_slice(), "keys of a source rise");
        if self.in_block == BLOCK_KEYS {
            self.blocks.push(self.len);
            self.in_block = 0;
            self.last.clear();
        }
        let shared = self.last.iter().zip(key).take_while(|(a, b)| a == b).count();
        let rest = &key[shared..];
        let length =
            |bytes: usize| u16::try_from(bytes).map_err(|_| io::Error::other("a key is longer than keys can be"));
        let (shared_bytes, rest_bytes) = (length(shared)?.to_le_bytes(), length(rest.len())?.to_le_bytes());
        self.put(&[shared_bytes, rest_bytes].concat())?;
        self.put(rest)?;
        self.last.truncate(shared);
        self.last.extend_from_slice(rest);
        self.in_block += 1;
        self.coverage.pass(key);
        Ok(())
    }

    /// Makes the file durable; its name, and what it covers.
    pub fn finish(mut self) -> io::Result<([u8; 16], Coverage)> {
        let index_at = self.len;
        for block in std::mem::take(&mut self.blocks) {
            self.put(&block.to_le_bytes())?;
        }
        let blocks = (self.len - index_at) / 8;
        for number in [self.coverage.planned, index_at, blocks] {
            self.put(&number.to_le_bytes())?;
        }
        let name = self.hasher.digest128().to_be_bytes();
        self.out.append(&self.buffer)?;
        self.out.sync()?;
        self.folder.rename(&self.staging, &file_name(&name))?;
        self.folder.sync()?;
        Ok((name, self.coverage))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.out.append(&self.buffer)?;
            self.buffer.clear();
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }
}

impl<F: Folder + ?Sized> Drop for PathsWriter<'_, F> {
    fn drop(&mut self) {
        // There is none any more once it has its name.
        let _ = self.folder.remove(&self.staging);
    }
}

impl<F: Folder + ?Sized> std::fmt::Debug for PathsWriter<'_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathsWriter").field("coverage", &self.coverage).finish_non_exhaustive()
    }
}

fn file_name(name: &[u8; 16]) -> String {
    format!("{:032x}.paths", u128::from_be_bytes(*name))
}

/// Planned keys that are written down.
#[derive(Debug)]
pub struct PlannedPaths {
    file: Box<dyn ReadFile>,
    /// Where blocks begin, and where the last one ends.
    blocks: Vec<u64>,
    count: u64,
}

impl PlannedPaths {
    /// Opens the file with this name, if it is whole.
    pub fn open(folder: &(impl Folder + ?Sized), name: &[u8; 16]) -> io::Result<Self> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the list of planned paths is damaged");
        let file = folder.open(&file_name(name))?;
        let len = file.byte_len()?;
        let (mut hasher, mut buffer, mut at) = (Xxh3::new(), vec![0; BUFFER_BYTES.min(len as usize)], 0);
        while at < len {
            let part = buffer.len().min((len - at) as usize);
            file.read_exact_at(&mut buffer[..part], at)?;
            hasher.update(&buffer[..part]);
            at += part as u64;
        }
        if hasher.digest128().to_be_bytes() != *name || len < MAGIC.len() as u64 + FOOTER_BYTES {
            return Err(damaged());
        }
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, 0)?;
        let mut footer = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut footer, len - FOOTER_BYTES)?;
        let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("eight bytes"));
        let (count, index_at, blocks) = (number(0), number(8), number(16));
        let fits = blocks.checked_mul(8).and_then(|bytes| bytes.checked_add(index_at));
        if magic != *MAGIC || fits != Some(len - FOOTER_BYTES) {
            return Err(damaged());
        }
        let mut index = vec![0; usize::try_from(blocks * 8).map_err(|_| damaged())?];
        file.read_exact_at(&mut index, index_at)?;
        let mut blocks: Vec<u64> =
            index.chunks_exact(8).map(|at| u64::from_le_bytes(at.try_into().expect("eight bytes"))).collect();
        blocks.push(index_at);
        if !blocks.is_sorted() || blocks[0] < MAGIC.len() as u64 {
            return Err(damaged());
        }
        Ok(Self { file, blocks, count })
    }

    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn block(&self, number: usize) -> io::Result<Vec<u8>> {
        let (from, to) = (self.blocks[number], self.blocks[number + 1]);
        // Blocks were checked to rise, and hold few keys of bounded length.
        let mut bytes = vec![0; (to - from) as usize];
        self.file.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    }

    fn first_key(&self, number: usize) -> io::Result<Vec<u8>> {
        let block = self.block(number)?;
        let (mut key, mut rest) = (Vec::new(), block.as_slice());
        next_key(&mut key, &mut rest)?;
        Ok(key)
    }
}

/// Takes an entry off the front of a block.
fn next_key(key: &mut Vec<u8>, block: &mut &[u8]) -> io::Result<()> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a block of planned paths makes no sense");
    let (lengths, rest) = block.split_first_chunk::<4>().ok_or_else(damaged)?;
    let shared = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
    let added = usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
    let (suffix, rest) = rest.split_at_checked(added).ok_or_else(damaged)?;
    if shared > key.len() {
        return Err(damaged());
    }
    key.truncate(shared);
    key.extend_from_slice(suffix);
    *block = rest;
    Ok(())
}

/// A place among planned keys.
#[derive(Debug)]
pub struct PathsCursor {
    paths: Arc<PlannedPaths>,
    /// The block after the one that is held.
    next_block: usize,
    block: Vec<u8>,
    /// How far the block was read.
    at: usize,
    key: Vec<u8>,
    /// Whether `key` is the next one.
    is_held: bool,
}

impl PathsCursor {
    /// Before the first key that `low` admits.
    pub fn new(paths: Arc<PlannedPaths>, low: Bound<&[u8]>) -> io::Result<Self> {
        let is_below = |key: &[u8]| match low {
            Bound::Unbounded => false,
            Bound::Included(low) => key < low,
            Bound::Excluded(low) => key <= low,
        };
        // The last block that begins below; what is wanted is in it or right behind it.
        let (mut from, mut to) = (0, paths.blocks.len() - 1);
        while from < to {
            let middle = usize::midpoint(from, to);
            if is_below(&paths.first_key(middle)?) { from = middle + 1 } else { to = middle }
        }
        let next_block = from.saturating_sub(1);
        let mut cursor = Self { paths, next_block, block: Vec::new(), at: 0, key: Vec::new(), is_held: false };
        while cursor.peek()?.is_some_and(is_below) {
            cursor.advance();
        }
        Ok(cursor)
    }

    /// The next key.
    pub fn peek(&mut self) -> io::Result<Option<&[u8]>> {
        while !self.is_held {
            if self.at == self.block.len() {
                if self.next_block + 1 >= self.paths.blocks.len() {
                    return Ok(None);
                }
                self.block = self.paths.block(self.next_block)?;
                self.next_block += 1;
                (self.at, self.key) = (0, Vec::new());
                continue;
            }
            let mut rest = &self.block[self.at..];
            next_key(&mut self.key, &mut rest)?;
            self.at = self.block.len() - rest.len();
            self.is_held = true;
        }
        Ok(Some(&self.key))
    }

    /// Goes on behind the key that was looked at.
    pub fn advance(&mut self) {
        self.is_held = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::path::Path;

    use super::*;

    fn written(dir: &Path, keys: &[Vec<u8>]) -> [u8; 16] {
        let mut writer = PathsWriter::create(dir).unwrap();
        for key in keys {
            writer.push(key).unwrap();
        }
        let (name, coverage) = writer.finish().unwrap();
        assert_eq!(coverage.planned, keys.len() as u64);
        name
    }

    fn read(paths: &Arc<PlannedPaths>, low: Bound<&[u8]>) -> Vec<Vec<u8>> {
        let mut cursor = PathsCursor::new(Arc::clone(paths), low).unwrap();
        let mut keys = Vec::new();
        while let Some(key) = cursor.peek().unwrap() {
            keys.push(key.to_vec());
            cursor.advance();
        }
        keys
    }

    #[test]
    fn an_empty_plan_is_a_file_too_and_nothing_else_is_left_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        drop(PathsWriter::create(dir.path()).unwrap());
        let name = written(dir.path(), &[]);
        let paths = Arc::new(PlannedPaths::open(dir.path(), &name).unwrap());
        assert!(paths.is_empty() && read(&paths, Bound::Unbounded).is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_cut_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let keys: Vec<Vec<u8>> = (0..200_u8).map(|key| vec![7, key]).collect();
        let name = written(dir.path(), &keys);
        let path = dir.path().join(file_name(&name));
        let bytes = std::fs::read(&path).unwrap();
        for at in [0, 9, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert!(PlannedPaths::open(dir.path(), &name).is_err(), "byte {at}");
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert!(PlannedPaths::open(dir.path(), &name).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn keys_come_back_in_order_from_anywhere(
            keys in prop::collection::btree_set(prop::collection::vec(0_u8..4, 0..9), 0..300),
            low in prop::collection::vec(0_u8..4, 0..9),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            let name = written(dir.path(), &keys);
            let paths = Arc::new(PlannedPaths::open(dir.path(), &name).unwrap());
            prop_assert_eq!(&read(&paths, Bound::Unbounded), &keys);
            let from: Vec<_> = keys.iter().filter(|key| **key >= low).cloned().collect();
            prop_assert_eq!(read(&paths, Bound::Included(&low)), from);
            let above: Vec<_> = keys.iter().filter(|key| **key > low).cloned().collect();
            prop_assert_eq!(read(&paths, Bound::Excluded(&low)), above);
        }
    }
}
