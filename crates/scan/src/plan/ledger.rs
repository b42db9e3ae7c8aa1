//! What a worker met, held against what was planned.
//!
//! Items come in key order, and so do planned paths: both are walked side by side. A planned path that the walk passes by
//! is *missing*: it was planned and is not read. An item that is not in the plan is *new*, which is allowed.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use super::coverage::Coverage;
use super::paths::{PathsCursor, PlannedPaths};
use super::record::{Listed, PlanError, PlanId, PlanRecord};
use crate::files::Folder;
use crate::source::identity::{Identity, IdentityBuilder};
use crate::source::item::{Item, ItemKind};
use crate::wire::{Malformed, Reader, Writer};

/// Most lists kept open, the ones opened last: a run may have thousands of trees.
const LISTS_OPEN_MAX: usize = 32;

/// A plan whose lists can be read. Workers of a process share one.
#[derive(Debug)]
pub struct OpenPlan {
    record: PlanRecord,
    /// Lists of paths that were opened, by name.
    open: Mutex<Vec<([u8; 16], Arc<PlannedPaths>)>>,
    folder: Box<dyn Folder>,
}

impl OpenPlan {
    /// A plan whose lists lie in `folder`.
    pub fn new(record: PlanRecord, folder: impl Folder + 'static) -> Self {
        Self { record, open: Mutex::default(), folder: Box::new(folder) }
    }

    /// The plan in a run's folder.
    pub fn load(folder: impl Folder + 'static) -> Result<Self, PlanError> {
        Ok(Self::new(PlanRecord::load(&folder)?, folder))
    }

    /// What it says.
    pub fn record(&self) -> &PlanRecord {
        &self.record
    }

    /// A ledger for items of a target, from `low` on.
    pub fn ledger(&self, target: u32, low: Bound<&[u8]>) -> io::Result<Ledger> {
        let Some(plan) = self.record.target(target) else { return Ok(Ledger::default()) };
        let planned = match &plan.listed {
            Listed::Objects { .. } => Planned::Each,
            Listed::Paths { name } => Planned::Paths { cursor: PathsCursor::new(self.paths(name)?, low)? },
        };
        Ok(Ledger { plan: self.record.id, planned, ..Ledger::default() })
    }

    fn paths(&self, name: &[u8; 16]) -> io::Result<Arc<PlannedPaths>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, paths)) = open.iter().find(|(known, _)| known == name) {
            return Ok(Arc::clone(paths));
        }
        let paths = Arc::new(PlannedPaths::open(&*self.folder, name)?);
        if open.len() == LISTS_OPEN_MAX {
            open.remove(0);
        }
        open.push((*name, Arc::clone(&paths)));
        Ok(paths)
    }
}

/// What is known of the items of a target.
#[derive(Debug, Default)]
enum Planned {
    /// Nothing: there is no plan.
    #[default]
    Nothing,
    /// The plan is the list that the items come from.
    Each,
    /// Paths that the walk should meet.
    Paths { cursor: PathsCursor },
}

/// The account of a stretch of keys.
#[derive(Debug, Default)]
pub struct Ledger {
    plan: PlanId,
    planned: Planned,
    coverage: Coverage,
    identity: IdentityBuilder,
}

/// What a ledger says of a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The plan it was held against.
    pub plan: PlanId,
    /// Planned items that were passed.
    pub coverage: Coverage,
    /// What the items were.
    pub identity: Identity,
}

impl Entry {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u64(self.plan.0);
        self.coverage.write(writer);
        self.identity.write(writer);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let plan = PlanId(reader.u64()?);
        Ok(Self { plan, coverage: Coverage::read(reader)?, identity: Identity::read(reader)? })
    }
}

impl Ledger {
    /// The walk has done `item`; `missing` is told the planned keys before it that were not met.
    pub fn met(&mut self, item: &Item, missing: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.pass(Bound::Excluded(&item.key), missing)?;
        self.identity.add(item);
        match &mut self.planned {
            Planned::Nothing => {}
            Planned::Each => self.coverage.pass(&item.key),
            Planned::Paths { cursor } => {
                if cursor.peek()? == Some(&item.key) {
                    self.coverage.pass(&item.key);
                    cursor.advance();
                } else if item.kind == ItemKind::File {
                    self.coverage.added += 1;
                }
            }
        }
        Ok(())
    }

    /// The walk has met everything up to `bound`: planned keys that are left there are missing.
    pub fn pass(&mut self, bound: Bound<&[u8]>, missing: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Planned::Paths { cursor } = &mut self.planned else { return Ok(()) };
        while let Some(key) = cursor.peek()? {
            let is_within = match bound {
                Bound::Unbounded => true,
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
            };
            if !is_within {
                break;
            }
            missing(key);
            self.coverage.pass(key);
            cursor.advance();
        }
        Ok(())
    }

    /// The entry of the stretch since the last call.
    pub fn take(&mut self) -> Entry {
        let coverage = std::mem::take(&mut self.coverage);
        Entry { plan: self.plan, coverage, identity: self.identity.take() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::paths::PathsWriter;
    use super::super::record::TargetPlan;
    use super::*;
    use crate::source::item::SkipReason;

    fn key(name: &str) -> Vec<u8> {
        [&[0, 0, 0, 0], name.as_bytes()].concat()
    }

    fn item(name: &str) -> Item {
        Item { key: key(name), size: 1, kind: ItemKind::File, stamp: None }
    }

    /// A plan of these names, in a folder.
    fn plan(dir: &Path, names: &[&str]) -> (OpenPlan, Coverage) {
        let mut writer = PathsWriter::create(dir).unwrap();
        names.iter().for_each(|name| writer.push(&key(name)).unwrap());
        let (name, planned) = writer.finish().unwrap();
        let target = TargetPlan {
            target: 0,
            path: "/srv".into(),
            rules: 0,
            items: names.len() as u64,
            bytes: 0,
            planned,
            listed: Listed::Paths { name },
        };
        let targets = vec![target];
        let record = PlanRecord { id: PlanId(1), made_at: 0, program: String::new(), targets, left_out: Vec::new() };
        (OpenPlan::new(record, dir.to_path_buf()), planned)
    }

    /// What a walk over `names` finds missing, in stretches that end behind each name of `cuts`.
    fn walked(plan: &OpenPlan, names: &[&str], cuts: &[&str]) -> (Vec<String>, Coverage) {
        let (mut missing, mut sum) = (Vec::new(), Coverage::default());
        let mut low = Bound::Unbounded;
        let ends: Vec<Vec<u8>> = cuts.iter().map(|cut| key(cut)).chain([vec![255]]).collect();
        for end in &ends {
            // Another worker, which knows only where the one before stopped.
            let mut ledger = plan.ledger(0, low).unwrap();
            let mut is_missing = |key: &[u8]| missing.push(String::from_utf8_lossy(&key[4..]).into_owned());
            let is_ahead = |key: &[u8]| match low {
                Bound::Excluded(low) => key > low,
                _ => true,
            };
            for name in names.iter().filter(|name| is_ahead(&key(name)) && key(name) <= *end) {
                ledger.met(&item(name), &mut is_missing).unwrap();
            }
            ledger.pass(Bound::Included(end), &mut is_missing).unwrap();
            sum.merge(&ledger.take().coverage);
            low = Bound::Excluded(end);
        }
        (missing, sum)
    }

    #[test]
    fn missing_paths_are_named_and_new_ones_counted_however_the_walk_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let (plan, planned) = plan(dir.path(), &["a", "b", "c", "e", "g"]);
        let cuts: [&[&str]; 6] = [&[], &["a"], &["b"], &["bb"], &["c", "d"], &["a", "b", "f", "g", "h"]];
        for cuts in cuts {
            let (missing, sum) = walked(&plan, &["a", "c", "d", "e", "f"], cuts);
            assert_eq!(missing, ["b", "g"], "cut at {cuts:?}");
            assert!(sum.covers(&planned) && sum.added == 2, "cut at {cuts:?}: {sum:?}");
        }
        let (missing, sum) = walked(&plan, &[], &["c"]);
        assert_eq!((missing.len(), sum.covers(&planned)), (5, true), "an empty folder covers the plan by missing it");
    }

    #[test]
    fn a_planned_file_that_is_left_out_now_was_met() {
        let dir = tempfile::tempdir().unwrap();
        let (plan, planned) = plan(dir.path(), &["a"]);
        let mut ledger = plan.ledger(0, Bound::Unbounded).unwrap();
        let kind = ItemKind::Skipped { reason: SkipReason::TooLarge, count: 1 };
        ledger.met(&Item { kind: kind.clone(), ..item("a") }, &mut |_| panic!("nothing is missing")).unwrap();
        ledger.met(&Item { kind, ..item("b") }, &mut |_| panic!("nothing is missing")).unwrap();
        let coverage = ledger.take().coverage;
        assert!(coverage.covers(&planned) && coverage.added == 0);
    }

    #[test]
    fn without_a_plan_nothing_is_missing_and_nothing_new() {
        let mut ledger = Ledger::default();
        ledger.met(&item("a"), &mut |_| panic!("nothing is missing")).unwrap();
        assert_eq!(ledger.take().coverage, Coverage::default());
    }
}
