//! A segment under way: what was done since the last safe point. Nothing of it counts before it is committed.

use std::io;
use std::ops::Bound;

use tessera_contracts::source_family::{SourceError, SourceErrorClass};
use tessera_contracts::{FenceEpoch, ShardId};

use super::record::{NOTES_MAX, Note, Segment, Span};
use super::{FindingsSink, SinkError};
use crate::findings::occurrence::Occurrence;
use crate::findings::tally::Tally;
use crate::plan::key;
use crate::plan::ledger::Ledger;
use crate::run::label::RunKey;
use crate::source::item::{Item, UnreadableReason};

/// A segment under way, and where it goes.
pub struct Draft {
    sink: Box<dyn FindingsSink + Send>,
    target: u32,
    /// What became of its items.
    pub tally: Tally,
    notes: Vec<Note>,
    ledger: Ledger,
}

impl Draft {
    /// Nothing yet, for `sink`.
    pub fn new(sink: Box<dyn FindingsSink + Send>) -> Self {
        Self { sink, target: 0, tally: Tally::default(), notes: Vec::new(), ledger: Ledger::default() }
    }

    /// Which creation of which run it belongs to.
    pub fn key(&self) -> RunKey {
        self.sink.key()
    }

    /// A worker was granted a shard, to go on after `cursor`.
    pub fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        self.sink.begin(shard, fence, cursor)
    }

    /// Begins a segment of items of a target, which are held against `ledger`.
    pub fn open(&mut self, target: u32, ledger: Ledger) {
        (self.target, self.ledger) = (target, ledger);
        (self.tally, self.notes) = (Tally::default(), Vec::new());
    }

    /// A finding in the item that is read.
    pub fn found(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.sink.add(occurrence)
    }

    /// Names something that cannot be read; counts are elsewhere.
    pub fn note(&mut self, path: Vec<u8>, reason: UnreadableReason) {
        note(&mut self.notes, Note { target: self.target, path, reason });
    }

    /// Planned items that were not met.
    pub fn missing(&self) -> u64 {
        self.tally.unreadable.get(&UnreadableReason::PlannedNotRead).copied().unwrap_or(0)
    }

    /// Holds `item`, which is done, against the plan.
    pub fn met(&mut self, item: &Item) -> Result<(), SourceError> {
        self.planned(|ledger, missing| ledger.met(item, missing))
    }

    /// Everything up to `bound` was met that is there.
    pub fn pass(&mut self, bound: Bound<&[u8]>) -> Result<(), SourceError> {
        self.planned(|ledger, missing| ledger.pass(bound, missing))
    }

    fn planned(
        &mut self,
        look: impl FnOnce(&mut Ledger, &mut dyn FnMut(&[u8])) -> io::Result<()>,
    ) -> Result<(), SourceError> {
        let Self { target, tally, notes, ledger, .. } = self;
        let looked = look(ledger, &mut |key| {
            let reason = UnreadableReason::PlannedNotRead;
            tally.add_unreadable(reason, 1);
            let rest = key::split(key).map(|(_, rest)| rest).unwrap_or_default();
            note(notes, Note { target: *target, path: key::display_path(rest), reason });
        });
        looked.map_err(|error| plan_failed(&error))
    }

    /// Makes it durable as the segment of `span`, and begins the next one behind it.
    pub fn commit(&mut self, span: Span, pass: u32) -> Result<(), SinkError> {
        self.sink.commit(&Segment {
            span,
            target: self.target,
            pass,
            entry: self.ledger.take(),
            tally: std::mem::take(&mut self.tally),
            notes: std::mem::take(&mut self.notes),
        })
    }

    /// Forgets it.
    pub fn abandon(&mut self) {
        self.sink.abandon();
        self.open(self.target, Ledger::default());
    }
}

fn note(notes: &mut Vec<Note>, note: Note) {
    // Others are examples, but what kills a scanner is always named.
    if notes.len() >= NOTES_MAX && note.reason == UnreadableReason::Poison {
        notes.pop();
    }
    if notes.len() < NOTES_MAX {
        notes.push(note);
    }
}

/// A plan that cannot be read now.
pub(crate) fn plan_failed(error: &io::Error) -> SourceError {
    SourceError::new(SourceErrorClass::Transient, format!("cannot read the list of planned paths: {error}"))
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("target", &self.target).field("tally", &self.tally).finish_non_exhaustive()
    }
}
