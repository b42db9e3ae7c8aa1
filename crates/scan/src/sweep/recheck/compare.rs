//! Whether the items of segments are still what they were when they were read.

use tessera_contracts::source_family::{ItemPages, PageLimits, SourceError, SourceErrorClass, SourceFamily};

use super::suspect::Suspect;
use crate::findings::plan_failed;
use crate::plan::ledger::{Entry, Ledger, OpenPlan};
use crate::source::Source;
use crate::source::item::Item;

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its items are what they were; what it is worth under the plan.
    Same(Entry),
    /// All of them are here and look as they did, but that proves nothing.
    Unproven,
    /// They are not what they were.
    Changed,
    /// Some that were planned are not here.
    Absent,
}

/// Compares segments that follow each other with what is there now, in one walk that opens no file.
pub(crate) fn batch(source: &Source, plan: &OpenPlan, batch: &[Suspect]) -> Result<Vec<Verdict>, SourceError> {
    let Some(first) = batch.first() else { return Ok(Vec::new()) };
    let ledger = plan.ledger(first.segment.target, first.low()).map_err(|error| plan_failed(&error))?;
    let mut walk = Walk { batch, ledger, missing: 0, verdicts: Vec::new() };
    let state = first.state().map_err(|error| SourceError::new(SourceErrorClass::Poisoned, error.to_string()))?;
    let mut pages = source.open(&state)?;
    loop {
        let page = pages.next_page(PageLimits { items_max: 1_000, bytes_max: u64::MAX })?;
        for item in &page.items {
            walk.item(item)?;
        }
        if page.is_last || walk.is_over() {
            break;
        }
    }
    while !walk.is_over() {
        walk.close()?;
    }
    Ok(walk.verdicts)
}

/// Whether a segment is read again whatever it looks like: its stamps prove nothing, or something in it could not be read
/// and perhaps can be now.
fn must_be_read(suspect: &Suspect) -> bool {
    suspect.segment.entry.identity.is_racy || suspect.segment.tally.unreadable_total() > 0
}

struct Walk<'b> {
    batch: &'b [Suspect],
    ledger: Ledger,
    /// Planned paths of the segment under way that are not there.
    missing: u64,
    verdicts: Vec<Verdict>,
}

impl Walk<'_> {
    fn is_over(&self) -> bool {
        self.verdicts.len() == self.batch.len()
    }

    fn item(&mut self, item: &Item) -> Result<(), SourceError> {
        while !self.is_over() && !self.batch[self.verdicts.len()].reaches(&item.key) {
            self.close()?;
        }
        if self.is_over() {
            return Ok(());
        }
        let missing = &mut self.missing;
        self.ledger.met(item, &mut |_| *missing += 1).map_err(|error| plan_failed(&error))
    }

    /// The walk has left a segment.
    fn close(&mut self) -> Result<(), SourceError> {
        let suspect = &self.batch[self.verdicts.len()];
        let missing = &mut self.missing;
        self.ledger.pass(suspect.bound(), &mut |_| *missing += 1).map_err(|error| plan_failed(&error))?;
        let (now, missing) = (self.ledger.take(), std::mem::take(missing));
        let looks_same = suspect.segment.entry.identity.digest == now.identity.digest;
        self.verdicts.push(match looks_same {
            _ if missing > 0 => Verdict::Absent,
            true if must_be_read(suspect) => Verdict::Unproven,
            true => Verdict::Same(now),
            false => Verdict::Changed,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;
    use std::path::Path;

    use tessera_contracts::{FenceEpoch, ShardId};

    use super::*;
    use crate::findings::record::{Segment, Span};
    use crate::findings::tally::Tally;
    use crate::plan::key;
    use crate::plan::target::{ReadOptions, Target, TargetKind};
    use crate::plan::{Plan, Surveyed};
    use crate::source::item::UnreadableReason;

    fn source(path: &Path) -> Source {
        let kind = TargetKind::Tree;
        let target = Target { number: 0, path: path.to_path_buf(), kind, rules: 0, options: ReadOptions::default() };
        Source::of_target(target, Path::new("")).unwrap()
    }

    fn planned(path: &Path, lists: &Path) -> OpenPlan {
        let plan = Plan::new(&[Surveyed::of(source(path), None, lists).unwrap()], 1, Vec::new());
        OpenPlan::new(plan.record, lists.to_path_buf())
    }

    /// A segment of the keys behind `from` up to `to`, with the files that are there now, all of them old.
    fn segment(source: &Source, plan: &OpenPlan, from: Option<&str>, to: &str) -> Segment {
        let key = |name: &str| key::path_key(0, [name.as_bytes()]);
        let (from, to) = (from.map(key), key(to));
        let span = Span { shard: ShardId::new(1), fence: FenceEpoch::new(2), from, to: Some(to) };
        let mut segment =
            Segment { span, target: 0, pass: 0, entry: Entry::default(), tally: Tally::default(), notes: Vec::new() };
        let suspect = suspect(segment.clone());
        let mut ledger = plan.ledger(0, Bound::Unbounded).unwrap();
        let mut pages = source.open(&suspect.state().unwrap()).unwrap();
        for item in pages.next_page(PageLimits::default()).unwrap().items.iter() {
            if suspect.reaches(&item.key) {
                ledger.met(item, &mut |_| {}).unwrap();
                segment.tally.add_scanned(item.size);
            }
        }
        segment.entry = ledger.take();
        segment.entry.identity.is_racy = false;
        segment
    }

    fn suspect(segment: Segment) -> Suspect {
        let (start, end) = key::target_range(0);
        Suspect::of_shard(segment, (&start, &end), false)
    }

    /// Two segments of four files; then `change` happens to the files and the first segment.
    fn changed(change: impl FnOnce(&Path, &mut Segment)) -> [bool; 2] {
        let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path().canonicalize().unwrap();
        for name in ["a", "b", "c", "d"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        let (source, before) = (source(&root), planned(&root, lists.path()));
        let mut first = segment(&source, &before, None, "b");
        let second = segment(&source, &before, Some("b"), "d");
        change(&root, &mut first);
        let suspects = [suspect(first), suspect(second)];
        let verdicts = batch(&source, &before, &suspects).unwrap();
        [0, 1].map(|at| !matches!(verdicts[at], Verdict::Same(_)))
    }

    #[test]
    fn what_is_as_it_was_is_the_same_and_a_change_is_found_in_its_segment() {
        assert_eq!(changed(|_, _| {}), [false, false]);
        assert_eq!(changed(|root, _| std::fs::write(root.join("b"), "longer").unwrap()), [true, false]);
        assert_eq!(changed(|root, _| std::fs::write(root.join("cc"), "new").unwrap()), [false, true]);
        assert_eq!(changed(|root, _| std::fs::remove_file(root.join("d")).unwrap()), [false, true]);
    }

    /// A disk that failed, or a user without permission: the stamps are the same today, and the files can be read.
    #[test]
    fn a_segment_in_which_something_could_not_be_read_is_read_again_whatever_it_looks_like() {
        assert_eq!(changed(|_, first| first.tally.add_unreadable(UnreadableReason::Io, 1)), [true, false]);
        assert_eq!(changed(|_, first| first.entry.identity.is_racy = true), [true, false]);
    }

    /// A file that was planned after the segment was read, and that was gone again before the comparison.
    #[test]
    fn a_segment_without_a_file_of_the_newest_plan_is_not_the_same() {
        let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("a"), "a").unwrap();
        let (source, before) = (source(&root), planned(&root, lists.path()));
        let suspects = [suspect(segment(&source, &before, None, "b"))];
        std::fs::write(root.join("aa"), "aa").unwrap();
        let now = planned(&root, lists.path());
        std::fs::remove_file(root.join("aa")).unwrap();
        assert!(matches!(batch(&source, &before, &suspects).unwrap()[..], [Verdict::Same(_)]));
        assert_eq!(batch(&source, &now, &suspects).unwrap(), [Verdict::Absent]);
    }
}
