//! The first shards of a run, and every way a list of them can be wrong.
//!
//! A caller hands in raw bytes and gets a [`Manifest`], which only [`validate_manifest`] makes,
//! so a backend that holds one need not check again. Roots are bounded and do not overlap. Gaps
//! are allowed: a planner may know that nothing lives there.
//!
//! Checks run in a fixed order over the whole list, cheapest first, and each failure names the shard it is about.

use alloc::vec::Vec;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::cursor::{self, CursorError, CursorUpdate, CursorViolation};
use crate::ids::ShardId;
use crate::limits::MAX_INITIAL_SHARDS;
use crate::redact::Redacted;
use crate::shard_spec::{Edge, ShardSpecRef, SpecError};

/// One root shard as its planner describes it; nothing in it is checked yet.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct InitialShardInput<'a> {
    /// Its id: not zero, bit 63 clear, unique in the run.
    pub shard: ShardId,
    /// First key; not empty.
    pub start: &'a [u8],
    /// First key above; not empty.
    pub end: &'a [u8],
    /// The connector's metadata.
    pub metadata: &'a [u8],
    /// Where to resume, if part of it was processed elsewhere.
    pub last_key: Option<&'a [u8]>,
    /// The connector's resume state at `last_key`.
    pub token: Option<&'a [u8]>,
}

impl<'a> InitialShardInput<'a> {
    /// A shard over `[start, end)`, from its beginning and without metadata.
    pub const fn new(shard: ShardId, start: &'a [u8], end: &'a [u8]) -> Self {
        Self { shard, start, end, metadata: &[], last_key: None, token: None }
    }

    fn spec(&self) -> Result<ShardSpecRef<'a>, SpecError> {
        ShardSpecRef::new(self.start, self.end, self.metadata)
    }

    fn cursor(&self) -> Result<CursorUpdate<'a>, CursorError> {
        CursorUpdate::new(self.last_key, self.token)
    }
}

impl core::fmt::Debug for InitialShardInput<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("InitialShardInput")
            .field("shard", &self.shard)
            .field("start", &Redacted(self.start))
            .field("end", &Redacted(self.end))
            .field("metadata", &Redacted(self.metadata))
            .field("last_key", &self.last_key.map(Redacted))
            .field("token", &self.token.map(Redacted))
            .finish()
    }
}

/// A checked root shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialShard<'a> {
    /// Its id.
    pub shard: ShardId,
    /// Its range and metadata.
    pub spec: ShardSpecRef<'a>,
    /// Where it resumes.
    pub cursor: CursorUpdate<'a>,
}

impl CanonicalBytes for InitialShard<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.shard.write_canonical(sink);
        self.spec.write_canonical(sink);
        self.cursor.write_canonical(sink);
    }
}

/// Root shards that passed every check, in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest<'a> {
    shards: Vec<InitialShard<'a>>,
}

impl<'a> Manifest<'a> {
    /// The shards, by start key. A list in another order gives the same manifest.
    pub fn shards(&self) -> &[InitialShard<'a>] {
        &self.shards
    }
}

impl CanonicalBytes for Manifest<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.sequence(self.shards.iter());
    }
}

/// Checks the root shards of a run; `O(n log n)`.
pub fn validate_manifest<'a>(inputs: &[InitialShardInput<'a>]) -> Result<Manifest<'a>, ManifestError> {
    if inputs.len() > MAX_INITIAL_SHARDS {
        return Err(ManifestError::TooManyShards { count: inputs.len(), max: MAX_INITIAL_SHARDS });
    }
    if inputs.is_empty() {
        return Err(ManifestError::NoShards);
    }
    check_ids(inputs)?;
    for (index, input) in inputs.iter().enumerate() {
        let edge = if input.start.is_empty() { Some(Edge::Start) } else { input.end.is_empty().then_some(Edge::End) };
        if let Some(edge) = edge {
            return Err(ManifestError::Unbounded { index, shard: input.shard, edge });
        }
    }
    let mut specs = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        let spec = input.spec().map_err(|source| ManifestError::Spec { index, shard: input.shard, source })?;
        specs.push((spec, index));
    }
    specs.sort_unstable_by_key(|(spec, index)| (spec.start(), *index));
    for pair in specs.windows(2) {
        let ((first, first_index), (second, second_index)) = (pair[0], pair[1]);
        if first.range().overlaps(second.range()) {
            let (first, second) = (inputs[first_index].shard, inputs[second_index].shard);
            return Err(ManifestError::Overlap { first_index, first, second_index, second });
        }
    }
    let mut cursors = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        let cursor = input.cursor().map_err(|source| ManifestError::Cursor { index, shard: input.shard, source })?;
        cursors.push(cursor);
    }
    let mut shards = Vec::with_capacity(inputs.len());
    for (spec, index) in specs {
        let (shard, cursor) = (inputs[index].shard, cursors[index]);
        cursor::check_in_range(spec.range(), cursor.last_key()).map_err(|source| ManifestError::CursorOutOfRange {
            index,
            shard,
            source,
        })?;
        shards.push(InitialShard { shard, spec, cursor });
    }
    Ok(Manifest { shards })
}

fn check_ids(inputs: &[InitialShardInput<'_>]) -> Result<(), ManifestError> {
    for (index, input) in inputs.iter().enumerate() {
        if input.shard.is_unassigned() {
            return Err(ManifestError::UnassignedId { index });
        }
        if input.shard.is_derived() {
            return Err(ManifestError::DerivedId { index, shard: input.shard });
        }
    }
    let mut ids: Vec<_> = inputs.iter().map(|input| input.shard).zip(0..).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(ManifestError::DuplicateId { shard: pair[0].0, first_index: pair[0].1, index: pair[1].1 }),
        None => Ok(()),
    }
}

/// Why a list of root shards is refused. `index` counts from 0 in the caller's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// More shards than one registration takes.
    #[error("{count} shards, over the limit of {max} in one registration")]
    TooManyShards {
        /// Shards seen.
        count: usize,
        /// Shards allowed.
        max: usize,
    },
    /// An empty list.
    #[error("no shards; a run needs at least one")]
    NoShards,
    /// An id of zero.
    #[error("shard at index {index} has id 0, which means unassigned")]
    UnassignedId {
        /// Where it is.
        index: usize,
    },
    /// An id from the half that splits derive.
    #[error("shard {shard} at index {index} has bit 63 set; those ids are reserved for shards made by splits")]
    DerivedId {
        /// Where it is.
        index: usize,
        /// Its id.
        shard: ShardId,
    },
    /// The same id twice.
    #[error("shard {shard} is listed twice, at index {first_index} and at index {index}")]
    DuplicateId {
        /// The id.
        shard: ShardId,
        /// Where it is first.
        first_index: usize,
        /// Where it is again.
        index: usize,
    },
    /// A range without one of its ends.
    #[error("shard {shard} at index {index} has no {edge}; root shards are bounded on both sides")]
    Unbounded {
        /// Where it is.
        index: usize,
        /// Its id.
        shard: ShardId,
        /// The end that is missing.
        edge: Edge,
    },
    /// A range or metadata that breaks its own rules.
    #[error("shard {shard} at index {index}: {source}")]
    Spec {
        /// Where it is.
        index: usize,
        /// Its id.
        shard: ShardId,
        /// The defect.
        source: SpecError,
    },
    /// Two ranges with a key in common.
    #[error("shard {second} at index {second_index} starts before shard {first} at index {first_index} ends")]
    Overlap {
        /// Where the lower range is.
        first_index: usize,
        /// Its id.
        first: ShardId,
        /// Where the upper range is.
        second_index: usize,
        /// Its id.
        second: ShardId,
    },
    /// A cursor that breaks its own rules.
    #[error("shard {shard} at index {index}: {source}")]
    Cursor {
        /// Where it is.
        index: usize,
        /// Its id.
        shard: ShardId,
        /// The defect.
        source: CursorError,
    },
    /// A cursor that does not lie in its shard.
    #[error("shard {shard} at index {index}: {source}")]
    CursorOutOfRange {
        /// Where it is.
        index: usize,
        /// Its id.
        shard: ShardId,
        /// The defect.
        source: CursorViolation,
    },
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::{MAX_KEY_SIZE, MAX_METADATA_SIZE};

    fn shard<'a>(id: u64, start: &'a [u8], end: &'a [u8]) -> InitialShardInput<'a> {
        InitialShardInput::new(ShardId::new(id), start, end)
    }

    fn refused(inputs: &[InitialShardInput<'_>]) -> ManifestError {
        validate_manifest(inputs).unwrap_err()
    }

    #[test]
    fn shards_come_out_in_key_order_and_gaps_are_allowed() {
        let inputs = [shard(2, b"m", b"z"), shard(1, b"a", b"c")];
        let manifest = validate_manifest(&inputs).unwrap();
        assert_eq!(manifest.shards().iter().map(|shard| shard.shard.get()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(manifest, validate_manifest(&[inputs[1], inputs[0]]).unwrap());
    }

    #[test]
    fn a_cursor_and_metadata_come_through() {
        let input =
            InitialShardInput { metadata: b"repo", last_key: Some(b"b"), token: Some(b"t"), ..shard(1, b"a", b"c") };
        let manifest = validate_manifest(&[input]).unwrap();
        let [only] = manifest.shards() else { panic!("one shard") };
        assert_eq!(only.spec, ShardSpecRef::new(b"a", b"c", b"repo").unwrap());
        assert_eq!(only.cursor, CursorUpdate::new(Some(b"b"), Some(b"t")).unwrap());
    }

    #[test]
    fn no_shards_and_too_many_are_refused() {
        assert_eq!(refused(&[]), ManifestError::NoShards);
        let keys: Vec<[u8; 2]> = (0..=10_001_u16).map(u16::to_be_bytes).collect();
        let inputs: Vec<_> = (1..=10_001).map(|id| shard(id as u64, &keys[id - 1], &keys[id])).collect();
        assert!(validate_manifest(&inputs[..MAX_INITIAL_SHARDS]).is_ok());
        assert_eq!(refused(&inputs), ManifestError::TooManyShards { count: 10_001, max: 10_000 });
    }

    #[test]
    fn ids_that_are_no_root_names_are_refused() {
        assert_eq!(refused(&[shard(0, b"a", b"b")]), ManifestError::UnassignedId { index: 0 });
        let derived = ShardId::new(1 << 63);
        assert_eq!(
            refused(&[shard(1, b"a", b"b"), shard(1 << 63, b"b", b"c")]),
            ManifestError::DerivedId { index: 1, shard: derived }
        );
        assert!(validate_manifest(&[shard((1 << 63) - 1, b"a", b"b")]).is_ok());
        let twice = [shard(7, b"a", b"b"), shard(1, b"b", b"c"), shard(7, b"c", b"d")];
        assert_eq!(refused(&twice), ManifestError::DuplicateId { shard: ShardId::new(7), first_index: 0, index: 2 });
    }

    #[test]
    fn ranges_without_an_end_are_refused() {
        let (index, id) = (0, ShardId::new(1));
        assert_eq!(refused(&[shard(1, b"", b"b")]), ManifestError::Unbounded { index, shard: id, edge: Edge::Start });
        assert_eq!(refused(&[shard(1, b"a", b"")]), ManifestError::Unbounded { index, shard: id, edge: Edge::End });
    }

    #[test]
    fn specs_that_break_their_own_rules_name_the_shard() {
        let long = vec![b'k'; MAX_KEY_SIZE + 1];
        let metadata = vec![0; MAX_METADATA_SIZE + 1];
        let cases = [
            (shard(9, b"b", b"a"), SpecError::InvertedRange { start_len: 1, end_len: 1 }),
            (shard(9, b"a", b"a"), SpecError::EmptyRange { len: 1 }),
            (shard(9, &long, b"z"), SpecError::KeyTooLong { edge: Edge::Start, len: 4097, max: 4096 }),
            (shard(9, b"a", &long), SpecError::KeyTooLong { edge: Edge::End, len: 4097, max: 4096 }),
            (
                InitialShardInput { metadata: &metadata, ..shard(9, b"a", b"b") },
                SpecError::MetadataTooLong { len: 16385, max: 16384 },
            ),
        ];
        for (input, source) in cases {
            let expected = ManifestError::Spec { index: 1, shard: ShardId::new(9), source };
            assert_eq!(refused(&[shard(1, b"A", b"B"), input]), expected);
        }
    }

    #[test]
    fn touching_ranges_pass_and_overlapping_ones_are_both_named() {
        assert!(validate_manifest(&[shard(1, b"a", b"b"), shard(2, b"b", b"c")]).is_ok());
        let expected =
            ManifestError::Overlap { first_index: 1, first: ShardId::new(2), second_index: 0, second: ShardId::new(1) };
        assert_eq!(refused(&[shard(1, b"b", b"c"), shard(2, b"a", b"b\0")]), expected);
        // A range inside another, with an innocent one sorted before.
        assert!(matches!(
            refused(&[shard(3, b"A", b"B"), shard(1, b"a", b"z"), shard(2, b"m", b"n")]),
            ManifestError::Overlap { first_index: 1, second_index: 2, .. }
        ));
    }

    #[test]
    fn cursors_that_do_not_belong_are_refused() {
        let with = |last_key, token| InitialShardInput { last_key, token, ..shard(1, b"b", b"d") };
        let (index, id) = (0, ShardId::new(1));
        for (input, source) in
            [(with(Some(b""), None), CursorError::EmptyKey), (with(None, Some(b"t")), CursorError::TokenWithoutKey)]
        {
            assert_eq!(refused(&[input]), ManifestError::Cursor { index, shard: id, source });
        }
        for (key, source) in
            [(b"a", CursorViolation::BelowRange { len: 1 }), (b"d", CursorViolation::AboveRange { len: 1 })]
        {
            let expected = ManifestError::CursorOutOfRange { index, shard: id, source };
            assert_eq!(refused(&[with(Some(key), None)]), expected);
        }
        assert!(validate_manifest(&[with(Some(b"b"), None)]).is_ok());
    }

    #[test]
    fn errors_and_debug_name_shards_and_show_no_keys() {
        let input = shard(0xab, b"customer-2", b"customer-1");
        assert_eq!(
            refused(&[input]).to_string(),
            "shard 00000000000000ab at index 0: range is inverted: its start (10 bytes) sorts after its end (10 bytes) \
             in lexicographic order"
        );
        assert!(!format!("{input:?}").contains("customer") && !format!("{:?}", refused(&[input])).contains("customer"));
    }

    proptest! {
        /// Against the plain definition: every shard well formed, no id twice, no two ranges with a key in common.
        #[test]
        fn a_manifest_is_accepted_exactly_if_every_rule_holds(
            shards in prop::collection::vec((0_u64..12, 0_u8..12, 0_u8..12, prop::option::of(0_u8..12)), 0..6),
        ) {
            // Letter 0 stands for the empty key.
            let keys: Vec<Vec<u8>> = (0..12_u8).map(|letter| if letter == 0 { vec![] } else { vec![letter] }).collect();
            let key = |letter: u8| keys[usize::from(letter)].as_slice();
            let inputs: Vec<_> = shards
                .iter()
                .map(|&(id, start, end, last_key)| {
                    // Id 11 plays a derived one.
                    let id = if id == 11 { 1 << 63 } else { id };
                    InitialShardInput { last_key: last_key.map(key), ..shard(id, key(start), key(end)) }
                })
                .collect();
            let well_formed = |&(id, start, end, last_key): &(u64, u8, u8, Option<u8>)| {
                id != 0 && id != 11 && start != 0 && start < end && last_key.is_none_or(|key| start <= key && key < end)
            };
            let apart = |a: &(u64, u8, u8, Option<u8>), b: &(u64, u8, u8, Option<u8>)| {
                a.0 != b.0 && (1..12).all(|key| !((a.1..a.2).contains(&key) && (b.1..b.2).contains(&key)))
            };
            let mut pairs = shards.iter().enumerate().flat_map(|(i, a)| shards[i + 1..].iter().map(move |b| (a, b)));
            let expected = !shards.is_empty() && shards.iter().all(well_formed) && pairs.all(|(a, b)| apart(a, b));
            prop_assert_eq!(validate_manifest(&inputs).is_ok(), expected);
        }
    }
}
