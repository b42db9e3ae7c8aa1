//! What lies in a target: a walk that opens nothing, weighs everything, and writes down what is to be read.

use std::path::Path;

use tessera_contracts::source_family::{ItemPages, PageLimits, SourceFamily, SourceItem};
use tessera_contracts::{CursorSemantics, CursorUpdate, RestoredShardState, ShardSpecRef};

use super::MARKS_MAX;
use super::coverage::Coverage;
use super::heads::Heads;
use super::paths::PathsWriter;
use super::record::{Listed, TargetPlan};
use crate::error::ScanError;
use crate::plan::key;
use crate::plan::target::{Target, TargetKind};
use crate::source::item::ItemKind;
use crate::source::{ITEM_COST_BYTES, Source};

/// What lies in a target.
#[derive(Debug)]
pub(super) struct Survey {
    /// Keys, and the cost of all that comes before them.
    pub(super) marks: Vec<(Vec<u8>, u64)>,
    pub(super) cost: u64,
    pub(super) plan: TargetPlan,
}

impl Survey {
    /// Walks over a target; lists of paths go to `dir`. `heads` are those that a list of objects was made from.
    pub(super) fn of(source: &Source, heads: Option<Heads>, dir: &Path) -> Result<Self, ScanError> {
        let target = source.target();
        match &target.kind {
            TargetKind::Objects { list } => {
                let mut planned = Coverage::default();
                let weights = weigh(source, target, |item| {
                    planned.pass(&item.key);
                    Ok(())
                })?;
                Ok(weights.into_survey(target, planned, Listed::Objects { name: *list, heads }))
            }
            TargetKind::Tree | TargetKind::Open { .. } => {
                Self::of_family(source, target, dir, |item| item.kind == ItemKind::File)
            }
        }
    }

    /// Walks over a target that `family` reads. A list of all items that `is_planned` goes to `dir`.
    pub(super) fn of_family<F: SourceFamily>(
        family: &F,
        target: &Target,
        dir: &Path,
        is_planned: impl Fn(&F::Item) -> bool,
    ) -> Result<Self, ScanError> {
        let failed = |source| ScanError::Folder { path: dir.to_path_buf(), source };
        let mut paths = PathsWriter::create(dir).map_err(failed)?;
        let weights =
            weigh(
                family,
                target,
                |item| {
                    if is_planned(item) { paths.push(item.key()).map_err(failed) } else { Ok(()) }
                },
            )?;
        let (name, planned) = paths.finish().map_err(failed)?;
        Ok(weights.into_survey(target, planned, Listed::Paths { name }))
    }
}

/// Weighs all items of a target, and shows them to `visit`.
fn weigh<F: SourceFamily>(
    family: &F,
    target: &Target,
    mut visit: impl FnMut(&F::Item) -> Result<(), ScanError>,
) -> Result<Weights, ScanError> {
    let mut weights = Weights::default();
    let (start, end) = key::target_range(target.number);
    let metadata = target.encode()?;
    let spec = ShardSpecRef::new(&start, &end, &metadata).expect("a target's range is one, and its size was checked");
    let state = RestoredShardState::new(spec, CursorUpdate::initial(), CursorSemantics::Completed)
        .expect("no cursor lies outside");
    let mut pages = family.open(&state).map_err(ScanError::Source)?;
    loop {
        let page = pages.next_page(PageLimits { items_max: 1_000, bytes_max: u64::MAX }).map_err(ScanError::Source)?;
        for item in &page.items {
            weights.add(item.key(), item.bytes());
            visit(item)?;
        }
        if page.is_last {
            return Ok(weights);
        }
    }
}

/// Where about equal work lies.
#[derive(Debug)]
struct Weights {
    marks: Vec<(Vec<u8>, u64)>,
    cost: u64,
    items: u64,
    bytes: u64,
    /// The least cost between two marks.
    quantum: u64,
    next_mark: u64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { marks: Vec::new(), cost: 0, items: 0, bytes: 0, quantum: 64 << 10, next_mark: 0 }
    }
}

impl Weights {
    fn add(&mut self, key: &[u8], size: u64) {
        if self.cost >= self.next_mark {
            self.marks.push((key.to_vec(), self.cost));
            self.next_mark = self.cost + self.quantum;
            if self.marks.len() >= MARKS_MAX {
                let mut keep = false;
                self.marks.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.quantum *= 2;
            }
        }
        self.items += 1;
        self.bytes = self.bytes.saturating_add(size);
        self.cost = self.cost.saturating_add(size.saturating_add(ITEM_COST_BYTES));
    }

    fn into_survey(self, target: &Target, planned: Coverage, listed: Listed) -> Survey {
        let Self { marks, cost, items, bytes, .. } = self;
        let (number, path, rules) = (target.number, target.path.clone(), target.rules);
        Survey { marks, cost, plan: TargetPlan { target: number, path, rules, items, bytes, planned, listed } }
    }
}
