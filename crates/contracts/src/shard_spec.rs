//! The extent of a shard: a half-open range of keys, and its connector's metadata.
//!
//! Keys are byte strings in plain lexicographic order. A range is `[start, end)`; an empty start means "from the first
//! key", an empty end "to the last". The types here hold only valid ranges: start below end, nothing over its limit.
//! So code that has one never checks again. Borrowed views come first; the owned form is for values that outlive a call.

use alloc::boxed::Box;
use core::fmt;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::limits::{MAX_KEY_SIZE, MAX_METADATA_SIZE};
use crate::redact::Redacted;

/// A half-open range of keys that contains at least one point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyRange<'a> {
    start: &'a [u8],
    end: &'a [u8],
}

impl<'a> KeyRange<'a> {
    /// Every key.
    pub const ALL: KeyRange<'static> = KeyRange { start: &[], end: &[] };

    /// The range `[start, end)`, if it is one.
    pub fn new(start: &'a [u8], end: &'a [u8]) -> Result<Self, SpecError> {
        for (edge, key) in [(Edge::Start, start), (Edge::End, end)] {
            if key.len() > MAX_KEY_SIZE {
                return Err(SpecError::KeyTooLong { edge, len: key.len(), max: MAX_KEY_SIZE });
            }
        }
        if !end.is_empty() && start >= end {
            return Err(if start == end {
                SpecError::EmptyRange { len: start.len() }
            } else {
                SpecError::InvertedRange { start_len: start.len(), end_len: end.len() }
            });
        }
        Ok(Self { start, end })
    }

    /// A range that was valid when it was stored.
    pub(crate) fn stored(start: &'a [u8], end: &'a [u8]) -> Self {
        debug_assert!(Self::new(start, end).is_ok(), "only valid ranges are stored");
        Self { start, end }
    }

    /// The first key that may be in the range; empty if there is no lower bound.
    pub const fn start(self) -> &'a [u8] {
        self.start
    }

    /// The first key above the range; empty if there is no upper bound.
    pub const fn end(self) -> &'a [u8] {
        self.end
    }

    /// Whether there is a lower bound.
    pub const fn has_start(self) -> bool {
        !self.start.is_empty()
    }

    /// Whether there is an upper bound.
    pub const fn has_end(self) -> bool {
        !self.end.is_empty()
    }

    /// Whether `key` is not below the range.
    pub fn reaches_down_to(self, key: &[u8]) -> bool {
        self.start <= key
    }

    /// Whether `key` is not above the range.
    pub fn reaches_up_to(self, key: &[u8]) -> bool {
        self.end.is_empty() || key < self.end
    }

    /// Whether `key` is in the range.
    pub fn contains(self, key: &[u8]) -> bool {
        self.reaches_down_to(key) && self.reaches_up_to(key)
    }

    /// Whether every key of `other` is in this range.
    pub fn contains_range(self, other: KeyRange<'_>) -> bool {
        self.start <= other.start && (self.end.is_empty() || (!other.end.is_empty() && other.end <= self.end))
    }

    /// Whether some key is in both ranges.
    pub fn overlaps(self, other: KeyRange<'_>) -> bool {
        other.reaches_up_to(self.start) && self.reaches_up_to(other.start)
    }
}

impl fmt::Debug for KeyRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRange").field("start", &Redacted(self.start)).field("end", &Redacted(self.end)).finish()
    }
}

impl CanonicalBytes for KeyRange<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.bytes(self.start);
        sink.bytes(self.end);
    }
}

/// A range and its connector's metadata, borrowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShardSpecRef<'a> {
    range: KeyRange<'a>,
    metadata: &'a [u8],
}

impl<'a> ShardSpecRef<'a> {
    /// The spec of `[start, end)` with `metadata`, if it is one.
    pub fn new(start: &'a [u8], end: &'a [u8], metadata: &'a [u8]) -> Result<Self, SpecError> {
        Self::of_range(KeyRange::new(start, end)?, metadata)
    }

    /// The spec of a range with `metadata`.
    pub fn of_range(range: KeyRange<'a>, metadata: &'a [u8]) -> Result<Self, SpecError> {
        if metadata.len() > MAX_METADATA_SIZE {
            return Err(SpecError::MetadataTooLong { len: metadata.len(), max: MAX_METADATA_SIZE });
        }
        Ok(Self { range, metadata })
    }

    /// A spec that was valid when it was stored.
    pub(crate) fn stored(range: KeyRange<'a>, metadata: &'a [u8]) -> Self {
        debug_assert!(Self::of_range(range, metadata).is_ok(), "only valid specs are stored");
        Self { range, metadata }
    }

    /// The same metadata over another range.
    pub const fn with_range(self, range: KeyRange<'a>) -> Self {
        Self { range, metadata: self.metadata }
    }

    /// The keys it covers.
    pub const fn range(self) -> KeyRange<'a> {
        self.range
    }

    /// The first key that may be covered; empty if there is no lower bound.
    pub const fn start(self) -> &'a [u8] {
        self.range.start
    }

    /// The first key above; empty if there is no upper bound.
    pub const fn end(self) -> &'a [u8] {
        self.range.end
    }

    /// What the connector wrote; opaque here.
    pub const fn metadata(self) -> &'a [u8] {
        self.metadata
    }

    /// Whether `key` is covered.
    pub fn contains(self, key: &[u8]) -> bool {
        self.range.contains(key)
    }

    /// A copy that owns its bytes.
    pub fn to_owned(self) -> ShardSpec {
        ShardSpec { start: self.start().into(), end: self.end().into(), metadata: self.metadata.into() }
    }
}

impl fmt::Debug for ShardSpecRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardSpec")
            .field("start", &Redacted(self.start()))
            .field("end", &Redacted(self.end()))
            .field("metadata", &Redacted(self.metadata))
            .finish()
    }
}

impl CanonicalBytes for ShardSpecRef<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.range.write_canonical(sink);
        sink.bytes(self.metadata);
    }
}

/// A range and its connector's metadata.
#[derive(Clone, PartialEq, Eq)]
pub struct ShardSpec {
    start: Box<[u8]>,
    end: Box<[u8]>,
    metadata: Box<[u8]>,
}

impl ShardSpec {
    /// The spec of `[start, end)` with `metadata`, if it is one.
    pub fn new(start: &[u8], end: &[u8], metadata: &[u8]) -> Result<Self, SpecError> {
        ShardSpecRef::new(start, end, metadata).map(ShardSpecRef::to_owned)
    }

    /// The borrowed form, which all rules work on.
    pub fn view(&self) -> ShardSpecRef<'_> {
        ShardSpecRef { range: self.range(), metadata: &self.metadata }
    }

    /// The keys it covers.
    pub fn range(&self) -> KeyRange<'_> {
        KeyRange { start: &self.start, end: &self.end }
    }

    /// The first key that may be covered; empty if there is no lower bound.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// The first key above; empty if there is no upper bound.
    pub fn end(&self) -> &[u8] {
        &self.end
    }

    /// What the connector wrote; opaque here.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }
}

impl fmt::Debug for ShardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl CanonicalBytes for ShardSpec {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.view().write_canonical(sink);
    }
}

/// When an advanced cursor counts as progress. Fixed per run; the rules for cursors are the same under both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum CursorSemantics {
    /// All work up to the cursor is done and its results are durable.
    #[default]
    Completed = 0,
    /// All work up to the cursor is durably handed on, though perhaps not done.
    Dispatched = 1,
}

// Stored numbers: changing one would change the meaning of records already written.
const _: () = assert!(CursorSemantics::Completed as u8 == 0);
const _: () = assert!(CursorSemantics::Dispatched as u8 == 1);

impl CursorSemantics {
    /// The semantics with this stored number.
    pub const fn from_stored(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Completed),
            1 => Some(Self::Dispatched),
            _ => None,
        }
    }
}

impl CanonicalBytes for CursorSemantics {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.u8(*self as u8);
    }
}

/// Which end of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The first key in the range.
    Start,
    /// The first key above the range.
    End,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::End => "end",
        })
    }
}

/// Why bytes do not make a shard spec. Keys are shown by length: they belong to a customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A range edge is over the key limit.
    #[error("range {edge} is {len} bytes, over the limit of {max} for a key")]
    KeyTooLong {
        /// Which edge.
        edge: Edge,
        /// Bytes seen.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Start and end are the same key.
    #[error("range is empty: start and end are the same key of {len} bytes; end is exclusive")]
    EmptyRange {
        /// Length of both.
        len: usize,
    },
    /// The start lies above the end.
    #[error(
        "range is inverted: its start ({start_len} bytes) sorts after its end ({end_len} bytes) in lexicographic order"
    )]
    InvertedRange {
        /// Length of the start.
        start_len: usize,
        /// Length of the end.
        end_len: usize,
    },
    /// The metadata is over its limit.
    #[error("metadata is {len} bytes, over the limit of {max}")]
    MetadataTooLong {
        /// Bytes seen.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    fn range<'a>(start: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
        KeyRange::new(start, end).unwrap()
    }

    #[test]
    fn start_is_in_and_end_is_out() {
        let range = range(b"b", b"d");
        assert!(!range.contains(b"a\xff"));
        assert!(range.contains(b"b"));
        assert!(range.contains(b"c\xff\xff"));
        assert!(!range.contains(b"d"));
    }

    #[test]
    fn empty_edges_are_unbounded() {
        assert!(KeyRange::ALL.contains(b"") && KeyRange::ALL.contains(&[0xff; 64]));
        assert!(range(b"", b"b").contains(b"") && !range(b"", b"b").contains(b"b"));
        assert!(range(b"b", b"").contains(&[0xff; 64]) && !range(b"b", b"").contains(b"a"));
    }

    #[test]
    fn a_prefix_sorts_before_its_extensions() {
        assert!(range(b"a", b"a\0").contains(b"a"));
        assert!(!range(b"a", b"a\0").contains(b"a\0"));
    }

    #[test]
    fn ranges_that_contain_nothing_are_refused() {
        assert_eq!(KeyRange::new(b"a", b"a"), Err(SpecError::EmptyRange { len: 1 }));
        assert_eq!(KeyRange::new(b"ab", b"a"), Err(SpecError::InvertedRange { start_len: 2, end_len: 1 }));
    }

    #[test]
    fn the_longest_key_passes_and_one_more_byte_does_not() {
        let longest = vec![b'k'; MAX_KEY_SIZE];
        let over = vec![b'k'; MAX_KEY_SIZE + 1];
        assert!(KeyRange::new(&longest, b"").is_ok() && KeyRange::new(b"", &longest).is_ok());
        for (start, end, edge) in [(over.as_slice(), b"".as_slice(), Edge::Start), (b"", &over, Edge::End)] {
            assert_eq!(KeyRange::new(start, end), Err(SpecError::KeyTooLong { edge, len: 4097, max: 4096 }));
        }
    }

    #[test]
    fn the_longest_metadata_passes_and_one_more_byte_does_not() {
        assert!(ShardSpec::new(b"", b"", &vec![0; MAX_METADATA_SIZE]).is_ok());
        let refused = ShardSpec::new(b"", b"", &vec![0; MAX_METADATA_SIZE + 1]).unwrap_err();
        assert_eq!(refused.to_string(), "metadata is 16385 bytes, over the limit of 16384");
    }

    #[test]
    fn containment_and_overlap_respect_open_ends() {
        assert!(KeyRange::ALL.contains_range(range(b"a", b"b")));
        assert!(!range(b"a", b"b").contains_range(range(b"a", b"")));
        assert!(!range(b"a", b"b").contains_range(range(b"", b"b")));
        assert!(range(b"a", b"c").overlaps(range(b"b", b"")));
        assert!(!range(b"a", b"b").overlaps(range(b"b", b"c")) && !range(b"b", b"c").overlaps(range(b"a", b"b")));
    }

    #[test]
    fn debug_shows_no_key_bytes() {
        let spec = ShardSpec::new(b"customer-a", b"customer-b", b"token").unwrap();
        assert_eq!(format!("{spec:?}"), "ShardSpec { start: <10 bytes>, end: <10 bytes>, metadata: <5 bytes> }");
        assert_eq!(format!("{:?}", spec.range()), "KeyRange { start: <10 bytes>, end: <10 bytes> }");
    }

    #[test]
    fn stored_numbers_of_semantics_round_trip_and_others_are_refused() {
        for semantics in [CursorSemantics::Completed, CursorSemantics::Dispatched] {
            assert_eq!(CursorSemantics::from_stored(semantics as u8), Some(semantics));
        }
        assert_eq!(CursorSemantics::from_stored(2), None);
    }
}
