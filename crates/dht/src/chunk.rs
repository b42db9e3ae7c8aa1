//! Values larger than a record: cut into immutable records under a tree of manifests.
//!
//! A manifest is itself the value of an immutable record: its level, the length of its content, and the ids of up to
//! [`FANOUT`] parts. At level zero the parts are pieces of the value, above they are manifests of the level below. Every part
//! but the last is full, so the shape follows from the length alone: [`Assembly`] knows what each part must look like
//! before it comes, and a wrong one is told at once. Names are hashes all the way up, so the root's id proves the
//! value.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use tessera_contracts::point::{ContentId, Point as _};

use crate::record::{ValueTooLong, immutable_record};
use crate::wire::VALUE_BYTES_MAX;
use crate::wire::codec::{Malformed, Reader};

/// Parts of one manifest.
pub const FANOUT: usize = (VALUE_BYTES_MAX - MANIFEST_HEAD_BYTES) / 32;

/// The largest value that is cut or assembled.
pub const CHUNKED_BYTES_MAX: u64 = 64 << 20;

const MANIFEST_HEAD_BYTES: usize = 16;
const MAGIC: &[u8; 4] = b"TsMf";
const LEVEL_MAX: u8 = 4;

/// A value cut into records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunked {
    /// Names the whole value.
    pub root: ContentId,
    /// All records, parts before the manifests that name them: stored in this order, no manifest names a missing part.
    pub records: Vec<Vec<u8>>,
}

/// Cuts `value` into records that live for `ttl_secs`.
///
/// # Errors
/// If the value is longer than [`CHUNKED_BYTES_MAX`].
pub fn cut(value: &[u8], ttl_secs: u32) -> Result<Chunked, ValueTooLong> {
    if value.len() as u64 > CHUNKED_BYTES_MAX {
        return Err(ValueTooLong { bytes: value.len() });
    }
    let mut records = Vec::new();
    let mut parts = Vec::new();
    // An empty value has one empty part.
    let pieces = value.chunks(VALUE_BYTES_MAX).chain(value.is_empty().then_some(value));
    for piece in pieces {
        records.push(immutable_record(piece, ttl_secs)?);
        parts.push((ContentId::of_immutable(piece), piece.len() as u64));
    }
    for level in 0..=LEVEL_MAX {
        let mut above = Vec::new();
        for group in parts.chunks(FANOUT) {
            let len = group.iter().map(|(_, len)| len).sum();
            let manifest = write_manifest(level, len, group.iter().map(|(id, _)| id));
            records.push(immutable_record(&manifest, ttl_secs)?);
            above.push((ContentId::of_immutable(&manifest), len));
        }
        if let [(root, _)] = above[..] {
            return Ok(Chunked { root, records });
        }
        parts = above;
    }
    Err(ValueTooLong { bytes: value.len() })
}

fn write_manifest<'a>(level: u8, len: u64, parts: impl Iterator<Item = &'a ContentId>) -> Vec<u8> {
    let mut out = Vec::with_capacity(VALUE_BYTES_MAX);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, level, 0, 0]);
    out.extend_from_slice(&len.to_le_bytes());
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
    out
}

/// The parts that `value` names, if it is a manifest.
#[must_use]
pub fn parts_of(value: &[u8]) -> Option<Vec<ContentId>> {
    let (.., parts) = read_manifest(value).ok()?;
    Some(parts.iter().map(|part| ContentId::from_bytes(*part)).collect())
}

/// Why a part does not belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartRefused {
    /// It was not asked for.
    Unwanted,
    /// It is no manifest.
    NoManifest(Malformed),
    /// It is a manifest or piece, but not of the shape its place needs.
    Misshapen,
    /// The whole is longer than [`CHUNKED_BYTES_MAX`].
    TooLong(u64),
}

impl fmt::Display for PartRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwanted => f.write_str("this part was not asked for"),
            Self::NoManifest(malformed) => write!(f, "no manifest: {malformed}"),
            Self::Misshapen => f.write_str("the part does not fit its place"),
            Self::TooLong(bytes) => write!(f, "{bytes} bytes are more than {CHUNKED_BYTES_MAX}"),
        }
    }
}

impl core::error::Error for PartRefused {}

/// The expected shape of a part before it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The root: its level and length are its own word, within bounds.
    Root,
    /// A manifest of this level for this stretch of the value.
    Manifest { level: u8, from: usize, len: u64 },
    /// A piece of the value.
    Piece { from: usize, len: usize },
}

/// Puts a value together from its parts, which may come in any order.
#[derive(Debug)]
pub struct Assembly {
    wanted: BTreeMap<ContentId, Vec<Place>>,
    value: Vec<u8>,
}

impl Assembly {
    /// Begins with nothing but the root's id.
    #[must_use]
    pub fn new(root: ContentId) -> Self {
        Self { wanted: BTreeMap::from([(root, alloc::vec![Place::Root])]), value: Vec::new() }
    }

    /// The ids still to be fetched.
    pub fn wanted(&self) -> impl ExactSizeIterator<Item = &ContentId> {
        self.wanted.keys()
    }

    /// Takes the value of the immutable record `id`.
    pub fn offer(&mut self, id: &ContentId, part: &[u8]) -> Result<(), PartRefused> {
        if ContentId::of_immutable(part) != *id {
            return Err(PartRefused::Unwanted);
        }
        let places = self.wanted.remove(id).ok_or(PartRefused::Unwanted)?;
        for place in places {
            match place {
                Place::Piece { from, len } => {
                    let stretch = self.value.get_mut(from..from + len).filter(|_| part.len() == len);
                    stretch.ok_or(PartRefused::Misshapen)?.copy_from_slice(part);
                }
                Place::Root => {
                    let (level, len, parts) = read_manifest(part)?;
                    self.value.resize(len as usize, 0);
                    self.want(level, 0, len, parts)?;
                }
                Place::Manifest { level, from, len } => {
                    let (said_level, said_len, parts) = read_manifest(part)?;
                    if (said_level, said_len) != (level, len) {
                        return Err(PartRefused::Misshapen);
                    }
                    self.want(level, from, len, parts)?;
                }
            }
        }
        Ok(())
    }

    /// The value, once nothing is wanted any more.
    #[must_use]
    pub fn finish(&self) -> Option<&[u8]> {
        self.wanted.is_empty().then_some(&self.value[..])
    }

    fn want(&mut self, level: u8, from: usize, len: u64, parts: &[[u8; 32]]) -> Result<(), PartRefused> {
        let span = span_of(level);
        if parts.len() as u64 != len.div_ceil(span).max(1) {
            return Err(PartRefused::Misshapen);
        }
        for (i, part) in parts.iter().enumerate() {
            let before = i as u64 * span;
            let (from, len) = (from + before as usize, span.min(len - before));
            let place = match level {
                0 => Place::Piece { from, len: len as usize },
                level => Place::Manifest { level: level - 1, from, len },
            };
            self.wanted.entry(ContentId::from_bytes(*part)).or_default().push(place);
        }
        Ok(())
    }
}

/// How much of the value one part of a manifest of `level` covers.
fn span_of(level: u8) -> u64 {
    (0..level).fold(VALUE_BYTES_MAX as u64, |span, _| span * FANOUT as u64)
}

fn read_manifest(bytes: &[u8]) -> Result<(u8, u64, &[[u8; 32]]), PartRefused> {
    let mut r = Reader::new(bytes);
    let (magic, version, level, reserved, len) =
        (|| Ok((*r.array::<4>("magic")?, r.u8("version")?, r.u8("level")?, r.u16("reserved")?, r.u64("length")?)))()
            .map_err(PartRefused::NoManifest)?;
    if magic != *MAGIC || version != 1 || reserved != 0 || level > LEVEL_MAX {
        return Err(PartRefused::NoManifest(Malformed::UnknownValue { part: "manifest", seen: version }));
    }
    if len > CHUNKED_BYTES_MAX {
        return Err(PartRefused::TooLong(len));
    }
    let rest = r.slice(r.left(), "parts").map_err(PartRefused::NoManifest)?;
    let (parts, odd) = rest.as_chunks();
    if odd.is_empty() && parts.len() <= FANOUT { Ok((level, len, parts)) } else { Err(PartRefused::Misshapen) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordView;
    use proptest::prelude::*;

    fn store(chunked: &Chunked) -> BTreeMap<ContentId, Vec<u8>> {
        let views = chunked.records.iter().map(|record| RecordView::read(record).unwrap());
        views.map(|view| (view.id(), view.value.to_vec())).collect()
    }

    fn assemble(root: ContentId, store: &BTreeMap<ContentId, Vec<u8>>) -> Result<Vec<u8>, PartRefused> {
        let mut assembly = Assembly::new(root);
        while assembly.finish().is_none() {
            let id = *assembly.wanted().last().unwrap();
            assembly.offer(&id, &store[&id])?;
        }
        Ok(assembly.finish().unwrap().to_vec())
    }

    #[test]
    fn lengths_at_every_edge_come_back_whole() {
        let edges = [0, 1, VALUE_BYTES_MAX, VALUE_BYTES_MAX * FANOUT, VALUE_BYTES_MAX * FANOUT * FANOUT];
        for len in edges.into_iter().flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1]) {
            let value: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let chunked = cut(&value, 60).unwrap();
            assert_eq!(assemble(chunked.root, &store(&chunked)).unwrap(), value, "{len} bytes");
        }
    }

    #[test]
    fn equal_pieces_are_stored_once_and_used_everywhere() {
        let value = alloc::vec![5; VALUE_BYTES_MAX * 40];
        let chunked = cut(&value, 60).unwrap();
        let store = store(&chunked);
        assert!(store.len() < 6, "{} records", store.len());
        assert_eq!(assemble(chunked.root, &store).unwrap(), value);
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let root = |len: u64, level: u8, parts: &[ContentId]| write_manifest(level, len, parts.iter());
        let piece = ContentId::of_immutable(b"piece");
        for (manifest, why) in [
            (root(5, 0, &[]), "no part"),
            (root(5, 0, &[piece, piece]), "a part too many"),
            (root(VALUE_BYTES_MAX as u64 + 1, 0, &[piece]), "a part too few"),
            (root(CHUNKED_BYTES_MAX + 1, 3, &[piece]), "too long"),
            (root(5, LEVEL_MAX + 1, &[piece]), "too deep"),
            (b"anything".to_vec(), "no manifest"),
        ] {
            let id = ContentId::of_immutable(&manifest);
            assert!(Assembly::new(id).offer(&id, &manifest).is_err(), "{why}");
        }
        let manifest = root(4, 0, &[piece]);
        let id = ContentId::of_immutable(&manifest);
        let mut assembly = Assembly::new(id);
        assembly.offer(&id, &manifest).unwrap();
        assert_eq!(assembly.offer(&piece, b"other"), Err(PartRefused::Unwanted), "not the part that was named");
        assert_eq!(assembly.offer(&piece, b"piece"), Err(PartRefused::Misshapen), "five bytes where four belong");
    }

    proptest! {
        #[test]
        fn any_value_comes_back_whole(value in prop::collection::vec(any::<u8>(), 0..5000)) {
            let chunked = cut(&value, 60).unwrap();
            prop_assert_eq!(assemble(chunked.root, &store(&chunked)).unwrap(), value);
        }

        #[test]
        fn no_manifest_makes_assembly_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), shaped: bool) {
            if shaped && bytes.len() >= 16 {
                bytes[..4].copy_from_slice(MAGIC);
                let level = bytes[5] % 6;
                bytes[4..8].copy_from_slice(&[1, level, 0, 0]);
                bytes[10..16].fill(0);
            }
            let id = ContentId::of_immutable(&bytes);
            let _ = Assembly::new(id).offer(&id, &bytes);
        }
    }
}
