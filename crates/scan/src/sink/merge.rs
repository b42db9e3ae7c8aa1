//! The one reading of a folder of findings files.
//!
//! For each shard, an owner's segments count up to the cursor with which the next owner began. What lies beyond was not
//! checkpointed, and the next owner did it again. Files may come in any order and may end in a torn record; the result is
//! the same as if every item had been scanned once.
//!
//! Segments that count must join: each begins where the one before it ended. A gap means that records were lost after they
//! had been made durable, and the keys in it are not known to be clean; it is reported, never passed over.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tessera_contracts::{FenceEpoch, ShardId};

use super::file::SUFFIX;
use super::record::{FileDamage, Note, Record, Records, Segment};
use crate::occurrence::Occurrence;
use crate::tally::Tally;

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
    /// Records of a shard are missing between two that are there.
    #[error("shard {shard}: findings between two checkpoints are missing")]
    Gap {
        /// The shard.
        shard: ShardId,
    },
}

impl Damage {
    /// Whether something that was once durable is missing. A torn tail alone is what a killed worker leaves.
    pub fn loses_findings(&self) -> bool {
        !matches!(self, Self::File { damage: FileDamage::Torn { .. }, .. })
    }
}

/// Most notes kept of a folder.
const NOTES_MAX: usize = 1_000;

#[derive(Debug, Default)]
struct Ownership {
    cursor: Option<Option<Vec<u8>>>,
    segments: Vec<(Segment, Vec<Occurrence>)>,
}

/// Reads all findings files of `dir`.
pub fn merge(dir: &Path) -> io::Result<Merged> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX)) {
            files.push(path);
        }
    }
    files.sort();
    let mut merger = Merger::default();
    for path in files {
        merger.file(&path, &std::fs::read(&path)?);
    }
    Ok(merger.finish())
}

#[derive(Debug, Default)]
struct Merger {
    shards: BTreeMap<ShardId, BTreeMap<FenceEpoch, Ownership>>,
    merged: Merged,
}

impl Merger {
    fn file(&mut self, path: &Path, bytes: &[u8]) {
        let records = match Records::new(bytes) {
            Ok(records) => records,
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
                Ok(Record::Segment(segment)) => {
                    let ownership = self.shards.entry(segment.shard).or_default().entry(segment.fence).or_default();
                    ownership.segments.push((segment, std::mem::take(&mut findings)));
                }
                Err(damage) => self.damaged(path, damage),
            }
        }
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
                    let is_redone = floor.as_ref().is_some_and(|floor| segment.to > *floor);
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
            for (segment, findings) in kept {
                if reached != segment.from {
                    self.merged.damage.push(Damage::Gap { shard });
                }
                self.merged.tally.merge(&segment.tally);
                self.merged.notes.extend(segment.notes);
                for occurrence in findings {
                    self.merged.occurrences.insert(occurrence.id.0, occurrence);
                }
                reached = segment.to;
            }
            self.merged.reached.insert(shard, reached);
        }
        self.merged.notes.sort();
        self.merged.notes.truncate(NOTES_MAX);
        self.merged
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sink::record::{MAGIC, begin_payload, frame, segment_payload};

    fn key(at: u8) -> Option<Vec<u8>> {
        (at > 0).then(|| vec![at])
    }

    fn segment(fence: u64, from: u8, to: u8) -> Segment {
        let mut tally = Tally::default();
        for _ in from..to {
            tally.add_scanned(1);
        }
        Segment {
            shard: ShardId::new(1),
            fence: FenceEpoch::new(fence),
            from: key(from),
            to: key(to),
            tally,
            notes: Vec::new(),
        }
    }

    /// A file of one owner: where it began, and its segments.
    fn file(fence: u64, cursor: u8, segments: &[(u8, u8)]) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        frame(&begin_payload(ShardId::new(1), FenceEpoch::new(fence), key(cursor).as_deref()), &mut file);
        for &(from, to) in segments {
            frame(&segment_payload(&segment(fence, from, to)), &mut file);
        }
        file
    }

    fn merged(files: &[Vec<u8>]) -> Merged {
        let mut merger = Merger::default();
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
            assert_eq!(merged.reached[&ShardId::new(1)], key(9));
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
