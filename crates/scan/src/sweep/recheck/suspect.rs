//! Segments that may be out of date, with the keys they answer for.

use std::collections::BTreeMap;
use std::ops::Bound;

use tessera_contracts::{CursorSemantics, CursorUpdate, RestoredShardState, RunId, ShardId, ShardSpecRef, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardSummary};

use crate::error::ScanError;
use crate::findings::record::Segment;
use crate::run::conclude::for_each_shard;

/// Most segments that are compared in one walk.
const BATCH_MAX: usize = 256;

/// A segment that may be out of date.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    pub(crate) segment: Segment,
    /// The range of its shard.
    start: Vec<u8>,
    end: Vec<u8>,
    /// Whether it answers for everything up to the end of the shard: what was added there belongs to no other segment.
    is_last: bool,
}

impl Suspect {
    /// A segment of a shard with this range.
    #[cfg(test)]
    pub(super) fn of_shard(segment: Segment, (start, end): (&[u8], &[u8]), is_last: bool) -> Self {
        Self { segment, start: start.to_vec(), end: end.to_vec(), is_last }
    }

    /// Whether a key belongs to it, if it lies behind the segment's beginning.
    pub(crate) fn reaches(&self, key: &[u8]) -> bool {
        match self.bound() {
            Bound::Included(to) => key <= to,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        }
    }

    /// Where it ends.
    pub(crate) fn bound(&self) -> Bound<&[u8]> {
        match &self.segment.span.to {
            Some(to) if !self.is_last => Bound::Included(to),
            // Without an item and not the last it covers nothing.
            None if !self.is_last => Bound::Excluded(&self.start),
            _ => Bound::Excluded(&self.end),
        }
    }

    /// Where planned keys begin that it answers for.
    pub(crate) fn low(&self) -> Bound<&[u8]> {
        match &self.segment.span.from {
            Some(from) => Bound::Excluded(from),
            None => Bound::Included(&self.start),
        }
    }

    /// A shard that begins where the segment does.
    pub(crate) fn state(&self) -> Result<RestoredShardState, ScanError> {
        let damaged =
            || ScanError::Coordinator("findings name keys outside of their shard; begin anew with --fresh".into());
        let spec = ShardSpecRef::new(&self.start, &self.end, b"").map_err(|_| damaged())?;
        let cursor = CursorUpdate::new(self.segment.span.from.as_deref(), None).map_err(|_| damaged())?;
        RestoredShardState::new(spec, cursor, CursorSemantics::Completed).map_err(|_| damaged())
    }
}

/// The segments that `is_wanted`, with the ranges of their shards, in the order of their keys.
pub(crate) fn spans_of<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    segments: Vec<Segment>,
    is_wanted: impl Fn(&Segment) -> bool,
) -> Result<Vec<Suspect>, ScanError> {
    if !segments.iter().any(&is_wanted) {
        return Ok(Vec::new());
    }
    let mut shards: BTreeMap<ShardId, ShardSummary> = BTreeMap::new();
    for_each_shard(backend, tenant, run, &ShardFilter::all(), |_, shard| {
        shards.insert(shard.shard, shard.clone());
        Ok(())
    })?;
    let mut suspects = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        let Some(shard) = shards.get(&segment.span.shard).filter(|_| is_wanted(segment)) else { continue };
        let is_end = segments.get(at + 1).is_none_or(|next| next.span.shard != segment.span.shard);
        suspects.push(Suspect {
            segment: segment.clone(),
            start: shard.start.expose().unwrap_or_default().to_vec(),
            end: shard.end.expose().unwrap_or_default().to_vec(),
            is_last: is_end && shard.status == ShardStatus::Done,
        });
    }
    suspects.sort_by(|a, b| (&a.start, &a.segment.span.from).cmp(&(&b.start, &b.segment.span.from)));
    Ok(suspects)
}

/// Suspects that follow each other without a gap, in pieces that one walk compares.
pub(crate) fn batches(suspects: &[Suspect]) -> impl Iterator<Item = &[Suspect]> {
    let joins = |a: &Suspect, b: &Suspect| {
        let (a, b) = (&a.segment.span, &b.segment.span);
        a.shard == b.shard && a.to == b.from
    };
    suspects.chunk_by(joins).flat_map(|joined| joined.chunks(BATCH_MAX))
}
