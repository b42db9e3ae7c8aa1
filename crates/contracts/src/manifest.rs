//! The first shards of a run, and every way a list of them can be wrong.
//!
//! What a caller hands in is raw bytes; what comes out is a [`Manifest`], which can only be had through
//! [`validate_manifest`], so a backend that holds one need not check again. Roots are bounded and do not overlap. Gaps
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
    /// What the connector needs to know.
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
    /// What it covers.
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
        /// What is wrong.
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
        /// What is wrong.
        source: CursorError,
    },
    /// A cursor that does not lie in its shard.
    #[error("shard {shard} at index {index}: {source}")]
    CursorOutOfRange {
        /// Where it is.
        index: usize,
        /// Its id.
        shard: ShardId,
        /// What is wrong.
        source: CursorViolation,
    },
}
