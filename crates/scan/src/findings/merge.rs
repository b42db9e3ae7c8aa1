//! The one reading of a folder of findings files.
//!
//! For each shard, an owner's segments count up to the cursor with which the next owner began. What lies beyond was not
//! checkpointed, and the next owner did it again. So did the next owner with the end of the shard, which moves no cursor. Files may
//! come in any order and may end in a torn record; the result is the same as if every item had been scanned once.
//!
//! A command that goes on with an interrupted run compares segments with what is there now, and reads again what changed. A
//! segment that was read again stands in the place of the one with the same span, with its findings and without those
//! of the one before; the latest pass counts.
//!
//! Segments that count must join: each begins where the one before it ended. A gap means that records were lost after they
//! had been made durable, and the keys in it are not known to be clean; it is reported, never passed over.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tessera_contracts::{FenceEpoch, ShardId};

use super::file::SUFFIX;
use super::record::{Compared, FileDamage, Note, Record, Records, Segment, Span};
use crate::files::{self, Folder};
use crate::findings::occurrence::Occurrence;
use crate::findings::tally::Tally;
use crate::plan::coverage::Coverage;
use crate::run::label::RunKey;
use crate::source::item::UnreadableReason;

/// What a folder says.
#[derive(Debug, Default)]
pub struct Merged {
    /// What became of all items.
    pub tally: Tally,
    /// Every occurrence once, by id.
    pub occurrences: BTreeMap<[u8; 32], Occurrence>,
    /// Some of the things that could not be read.
    pub notes: Vec<Note>,
    /// How far each shard was processed, as far as these files say.
    pub reached: BTreeMap<ShardId, Option<Vec<u8>>>,
    /// Segments that a later owner did again.
    pub superseded: u64,
    /// What became of the items of each target.
    pub tallies: BTreeMap<u32, Tally>,
    /// How much of the plan was met, by target.
    pub coverage: BTreeMap<u32, Coverage>,
    /// The segments that count, by shard and in key order. Their tallies count here too; their notes are in `notes`.
    pub segments: Vec<Segment>,
    /// The last pass in which segments were compared or read again.
    pub last_pass: u32,
    /// What is wrong with the files.
    pub damage: Vec<Damage>,
}

/// Something wrong with a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A file that cannot be read to its end.
    #[error("{}: {damage}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        damage: FileDamage,
    },
    /// A file of another run, or of another creation of this one. Nothing in it counts.
    #[error("{}: it belongs to run {found}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: RunKey,
    },
    /// Records of a shard are missing between two that are there.
    #[error("shard {shard}: findings between two checkpoints are missing")]
    Gap {
        /// The shard.
        shard: ShardId,
    },
}

impl Damage {
    /// Whether something that was once durable is missing. A torn tail alone is what a killed worker leaves, and another run's
    /// file takes nothing away.
    pub fn loses_findings(&self) -> bool {
        match self {
            Self::File { damage: FileDamage::Torn { .. }, .. } | Self::Foreign { .. } => false,
            Self::File { .. } | Self::Gap { .. } => true,
        }
    }
}

/// Most notes kept of a folder.
const NOTES_MAX: usize = 1_000;

/// A segment and its findings.
type Found = (Segment, Vec<Occurrence>);

#[derive(Debug, Default)]
struct Ownership {
    cursor: Option<Option<Vec<u8>>>,
    segments: Vec<Found>,
}

/// Reads all findings files of `key` in `folder`. A folder that is not there holds none: no worker has begun. That nothing is
/// missing is for the receipt to say, which compares with the coordinator's cursors.
pub fn merge(folder: &(impl Folder + ?Sized), key: RunKey) -> io::Result<Merged> {
    let mut names = match folder.list() {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Merged::default()),
        Err(error) => return Err(error),
    };
    names.retain(|name| name.ends_with(SUFFIX));
    names.sort();
    let mut merger = Merger::new(key);
    for name in names {
        merger.file(&folder.path_of(&name), &files::read(folder, &name)?);
    }
    Ok(merger.finish())
}

#[derive(Debug)]
struct Merger {
    key: RunKey,
    shards: BTreeMap<ShardId, BTreeMap<FenceEpoch, Ownership>>,
    /// What was read again, and what was compared, by the latest pass.
    again: BTreeMap<Span, Found>,
    compared: BTreeMap<Span, Compared>,
    merged: Merged,
}

impl Merger {
    fn new(key: RunKey) -> Self {
        Self {
            key,
            shards: BTreeMap::new(),
            again: BTreeMap::new(),
            compared: BTreeMap::new(),
            merged: Merged::default(),
        }
    }

    fn file(&mut self, path: &Path, bytes: &[u8]) {
        let records = match Records::new(bytes) {
            Ok(records) if records.key() == self.key => records,
            // Fence epochs start anew with each creation of a run: what its owners say about cursors means nothing here.
            Ok(records) => {
                let found = records.key();
                self.merged.damage.push(Damage::Foreign { path: path.to_path_buf(), found });
                return;
            }
            Err(damage) => return self.damaged(path, damage),
        };
        let mut findings = Vec::new();
        for record in records {
            match record {
                Ok(Record::Begin { shard, fence, cursor }) => {
                    findings.clear();
                    self.shards.entry(shard).or_default().entry(fence).or_default().cursor = Some(cursor);
                }
                Ok(Record::Finding(occurrence)) => findings.push(*occurrence),
                Ok(Record::Segment(segment)) => self.segment(segment, std::mem::take(&mut findings)),
                Ok(Record::Compared(compared)) => self.compared(compared),
                Err(damage) => self.damaged(path, damage),
            }
        }
    }

    fn segment(&mut self, segment: Segment, findings: Vec<Occurrence>) {
        if segment.pass == 0 {
            let owners = self.shards.entry(segment.span.shard).or_default();
            owners.entry(segment.span.fence).or_default().segments.push((segment, findings));
            return;
        }
        self.merged.last_pass = self.merged.last_pass.max(segment.pass);
        let is_later = self.again.get(&segment.span).is_none_or(|(known, _)| known.pass < segment.pass);
        if is_later {
            self.again.insert(segment.span.clone(), (segment, findings));
        }
    }

    fn compared(&mut self, compared: Compared) {
        self.merged.last_pass = self.merged.last_pass.max(compared.pass);
        let is_later = self.compared.get(&compared.span).is_none_or(|known| known.pass < compared.pass);
        if is_later {
            self.compared.insert(compared.span.clone(), compared);
        }
    }

    /// What became of a segment in later passes.
    fn latest(&mut self, first: Found) -> Found {
        let span = &first.0.span;
        let (again, compared) = (self.again.remove(span), self.compared.remove(span));
        let mut latest = again.unwrap_or(first);
        if let Some(compared) = compared.filter(|compared| compared.pass > latest.0.pass) {
            latest.0.entry = compared.entry;
        }
        latest
    }

    fn damaged(&mut self, path: &Path, damage: FileDamage) {
        self.merged.damage.push(Damage::File { path: path.to_path_buf(), damage });
    }

    fn finish(mut self) -> Merged {
        for (shard, owners) in std::mem::take(&mut self.shards) {
            // From the last owner back, so that the lowest cursor of all later owners is known.
            let mut floor: Option<Option<Vec<u8>>> = None;
            let mut kept = Vec::new();
            for ownership in owners.into_values().rev() {
                for (segment, findings) in ownership.segments.into_iter().rev() {
                    let is_redone = floor.as_ref().is_some_and(|floor| {
                        // Planned files that are missing behind the last item count in a segment that covers no key. A later
                        // owner passes them again: the shard was not done.
                        let is_empty = segment.span.from == segment.span.to;
                        segment.span.to > *floor || is_empty && segment.span.to == *floor
                    });
                    if is_redone {
                        self.merged.superseded += 1;
                    } else {
                        kept.push((segment, findings));
                    }
                }
                if let Some(cursor) = ownership.cursor {
                    floor = Some(match floor {
                        Some(lowest) => lowest.min(cursor),
                        None => cursor,
                    });
                }
            }
            kept.reverse();
            // Every shard starts without progress.
            let mut reached: Option<Vec<u8>> = None;
            for found in kept {
                let (mut segment, findings) = self.latest(found);
                if reached != segment.span.from {
                    self.merged.damage.push(Damage::Gap { shard });
                }
                self.merged.tally.merge(&segment.tally);
                self.merged.tallies.entry(segment.target).or_default().merge(&segment.tally);
                self.merged.coverage.entry(segment.target).or_default().merge(&segment.entry.coverage);
                self.merged.notes.append(&mut segment.notes);
                for occurrence in findings {
                    self.merged.occurrences.insert(occurrence.id.0, occurrence);
                }
                reached.clone_from(&segment.span.to);
                self.merged.segments.push(segment);
            }
            self.merged.reached.insert(shard, reached);
        }
        // What kills a scanner is always named; the others are examples.
        self.merged.notes.sort_by_cached_key(|note| (note.reason != UnreadableReason::Poison, note.clone()));
        self.merged.notes.truncate(NOTES_MAX);
        self.merged
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tessera_contracts::{RunId, RunIncarnation};

    use super::*;
    use crate::findings::record::{begin_payload, compared_payload, frame, header, segment_payload};
    use crate::plan::ledger::Entry;
    use crate::plan::record::PlanId;

    fn at(at: u8) -> Option<Vec<u8>> {
        (at > 0).then(|| vec![at])
    }

    fn segment(fence: u64, from: u8, to: u8) -> Segment {
        let mut tally = Tally::default();
        for _ in from..to {
            tally.add_scanned(1);
        }
        Segment { span: span(fence, from, to), target: 0, pass: 0, entry: Entry::default(), tally, notes: Vec::new() }
    }

    fn span(fence: u64, from: u8, to: u8) -> Span {
        Span { shard: ShardId::new(1), fence: FenceEpoch::new(fence), from: at(from), to: at(to) }
    }

    const KEY: RunKey = RunKey::new(RunId::new(1), RunIncarnation::new(1));

    /// A file of one owner: where it began, and its segments.
    fn file(fence: u64, cursor: u8, segments: &[(u8, u8)]) -> Vec<u8> {
        file_of(KEY, fence, cursor, segments)
    }

    fn file_of(key: RunKey, fence: u64, cursor: u8, segments: &[(u8, u8)]) -> Vec<u8> {
        let mut file = header(key);
        frame(&begin_payload(ShardId::new(1), FenceEpoch::new(fence), at(cursor).as_deref()), &mut file);
        for &(from, to) in segments {
            frame(&segment_payload(&segment(fence, from, to)), &mut file);
        }
        file
    }

    fn merged(files: &[Vec<u8>]) -> Merged {
        let mut merger = Merger::new(KEY);
        for file in files {
            merger.file(Path::new("f"), file);
        }
        merger.finish()
    }

    #[test]
    fn a_segment_nobody_checkpointed_counts_until_a_later_owner_redoes_it() {
        let first = file(2, 0, &[(0, 3), (3, 5)]);
        let alone = merged(std::slice::from_ref(&first));
        assert_eq!((alone.tally.scanned, alone.superseded), (5, 0));
        let second = file(3, 3, &[(3, 4), (4, 9)]);
        for files in [[first.clone(), second.clone()], [second, first]] {
            let merged = merged(&files);
            assert_eq!((merged.tally.scanned, merged.superseded), (9, 1));
            assert_eq!(merged.reached[&ShardId::new(1)], at(9));
            assert!(merged.damage.is_empty());
        }
    }

    #[test]
    fn a_fenced_worker_that_writes_late_changes_nothing() {
        let zombie = file(2, 0, &[(0, 3), (3, 7), (7, 9)]);
        let merged = merged(&[zombie, file(3, 3, &[]), file(4, 3, &[(3, 9)])]);
        assert_eq!((merged.tally.scanned, merged.superseded), (9, 2));
        assert!(merged.damage.is_empty());
    }

    #[test]
    fn an_owner_that_began_again_from_nothing_supersedes_everything_before() {
        let merged = merged(&[file(2, 0, &[(0, 4)]), file(3, 0, &[(0, 2), (2, 4)])]);
        assert_eq!((merged.tally.scanned, merged.superseded), (4, 1));
    }

    /// It ends where it began: behind the last item, and with it the planned paths that are missing there.
    #[test]
    fn a_completion_that_a_later_owner_did_again_counts_once() {
        let first = file(2, 0, &[(0, 3), (3, 3)]);
        assert_eq!(merged(std::slice::from_ref(&first)).segments.len(), 2);
        let merged = merged(&[first, file(3, 3, &[(3, 3)])]);
        assert_eq!((merged.tally.scanned, merged.superseded, merged.segments.len()), (3, 1, 2));
        assert_eq!(merged.segments[1].span.fence, FenceEpoch::new(3));
        assert!(merged.damage.is_empty());
        let empty = self::merged(&[file(2, 0, &[(0, 0)]), file(3, 0, &[(0, 0)])]);
        assert_eq!((empty.segments.len(), empty.superseded), (1, 1), "of a shard without items too");
    }

    #[test]
    fn files_missing_behind_the_last_item_count_once_if_their_shard_was_not_done() {
        let end = |fence| {
            let mut end = segment(fence, 3, 3);
            end.tally.add_unreadable(UnreadableReason::PlannedNotRead, 2);
            (0..2).for_each(|key| end.entry.coverage.pass(&[key]));
            let mut file = file(fence, 3, &[]);
            frame(&segment_payload(&end), &mut file);
            file
        };
        let first = file(2, 0, &[(0, 3)]);
        for files in [vec![first.clone(), end(3)], vec![first.clone(), end(3), end(4)]] {
            let merged = merged(&files);
            assert_eq!((merged.tally.scanned, merged.tally.unreadable_total()), (3, 2));
            assert_eq!(merged.coverage[&0].planned, 2);
            assert!(merged.damage.is_empty());
        }
    }

    #[test]
    fn files_of_another_creation_of_the_run_are_left_out_and_named() {
        let before = RunKey::new(KEY.run, RunIncarnation::new(2));
        let elsewhere = RunKey::new(RunId::new(2), KEY.incarnation);
        // An owner of before with a higher fence, which began at the end: it would take everything away.
        for foreign in [before, elsewhere] {
            let merged =
                merged(&[file(2, 0, &[(0, 9)]), file_of(foreign, 5, 0, &[]), file_of(foreign, 6, 0, &[(0, 3)])]);
            assert_eq!((merged.tally.scanned, merged.superseded), (9, 0));
            let damage = Damage::Foreign { path: "f".into(), found: foreign };
            assert_eq!(merged.damage, [damage.clone(), damage]);
            assert!(!merged.damage[0].loses_findings());
        }
    }

    #[test]
    fn lost_records_are_a_gap_and_a_torn_tail_is_not() {
        let gap = merged(&[file(2, 0, &[(0, 3)]), file(3, 5, &[(5, 9)])]);
        assert_eq!(gap.damage, [Damage::Gap { shard: ShardId::new(1) }]);
        assert!(gap.damage[0].loses_findings());
        assert_eq!(merged(&[file(3, 5, &[(5, 9)])]).damage.len(), 1, "what came first is missing too");
        let mut torn = file(2, 0, &[(0, 3), (3, 5)]);
        torn.truncate(torn.len() - 1);
        let merged = merged(&[torn, file(3, 3, &[(3, 9)])]);
        assert_eq!(merged.tally.scanned, 9);
        assert!(merged.damage.len() == 1 && !merged.damage[0].loses_findings());
    }

    /// What a later pass wrote: segments that were read again with so many items, and such that were compared.
    fn later(pass: u32, plan: u64, again: &[(Span, u64)], compared: &[Span]) -> Vec<u8> {
        let mut file = header(KEY);
        let entry = Entry { plan: PlanId(plan), ..Entry::default() };
        for (span, items) in again {
            let mut tally = Tally::default();
            (0..*items).for_each(|_| tally.add_scanned(1));
            let segment = Segment { span: span.clone(), pass, entry, tally, ..segment(0, 0, 0) };
            frame(&segment_payload(&segment), &mut file);
        }
        for span in compared {
            frame(&compared_payload(&Compared { span: span.clone(), pass, entry }), &mut file);
        }
        file
    }

    #[test]
    fn what_was_read_again_stands_in_the_place_of_what_was_read_before() {
        let first = file(2, 0, &[(0, 3), (3, 5), (5, 6)]);
        let second = later(1, 7, &[(span(2, 0, 3), 10)], &[span(2, 3, 5)]);
        let third = later(2, 8, &[(span(2, 0, 3), 20)], &[]);
        for files in [[first.clone(), second.clone(), third.clone()], [third, second, first]] {
            let merged = merged(&files);
            assert_eq!((merged.tally.scanned, merged.last_pass, merged.superseded), (20 + 2 + 1, 2, 0));
            let plans: Vec<u64> = merged.segments.iter().map(|segment| segment.entry.plan.0).collect();
            assert_eq!(plans, [8, 7, 0]);
            assert!(merged.damage.is_empty());
        }
    }

    #[test]
    fn what_was_compared_before_it_was_read_again_is_what_was_read_again() {
        let first = file(2, 0, &[(0, 3)]);
        let merged = merged(&[later(1, 7, &[], &[span(2, 0, 3)]), later(2, 8, &[(span(2, 0, 3), 9)], &[]), first]);
        assert_eq!((merged.tally.scanned, merged.segments[0].entry.plan), (9, PlanId(8)));
    }

    #[test]
    fn reading_again_what_a_later_owner_did_anyway_changes_nothing() {
        let zombie = file(2, 0, &[(0, 3), (3, 7)]);
        let merged = merged(&[zombie, file(3, 3, &[(3, 9)]), later(1, 7, &[(span(2, 3, 7), 50)], &[])]);
        assert_eq!((merged.tally.scanned, merged.superseded), (9, 1));
        assert!(merged.damage.is_empty());
    }

    #[test]
    fn a_folder_that_no_worker_has_written_to_holds_nothing() {
        let merged = merge(Path::new("/no/such/folder"), KEY).unwrap();
        assert!(merged.damage.is_empty() && merged.segments.is_empty());
    }

    proptest! {
        /// Owners come and go, die with or without their last checkpoint, and write on after they were replaced.
        #[test]
        fn every_key_counts_once_whatever_happened(
            owners in prop::collection::vec((1_u8..6, 1_u8..4, any::<bool>(), 0_u8..3), 1..8),
            order in any::<u64>(),
        ) {
            let (mut files, mut checkpoint) = (Vec::new(), 0_u8);
            let mut uncommitted = 0;
            for (fence, &(count, step, last_checkpoint_lost, late)) in owners.iter().enumerate() {
                let begun = checkpoint;
                let mut segments = Vec::new();
                let mut at = begun;
                for _ in 0..count {
                    segments.push((at, at + step));
                    at += step;
                }
                checkpoint = if last_checkpoint_lost { at - step } else { at };
                uncommitted = at;
                for _ in 0..late {
                    segments.push((at, at + 1));
                    at += 1;
                    uncommitted = at;
                }
                files.push(file(fence as u64 + 2, begun, &segments));
            }
            let len = files.len();
            files.rotate_left(order as usize % len);
            let merged = merged(&files);
            prop_assert_eq!(merged.tally.scanned, u64::from(uncommitted));
            prop_assert!(merged.damage.is_empty());
        }
    }
}
