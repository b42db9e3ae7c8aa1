//! What lies in a target: a walk that opens nothing, weighs everything, and writes down what is to be read.

use std::path::Path;

use tessera_contracts::source_family::{ItemPages, PageLimits, SourceFamily};
use tessera_contracts::{CursorSemantics, CursorUpdate, RestoredShardState, ShardSpecRef};

use super::MARKS_MAX;
use super::coverage::Coverage;
use super::heads::Heads;
use super::paths::PathsWriter;
use super::record::{Listed, TargetPlan};
use crate::error::ScanError;
use crate::plan::key;
use crate::plan::target::TargetKind;
use crate::source::item::{Item, ItemKind};
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
        let failed = |source| ScanError::Folder { path: dir.to_path_buf(), source };
        let mut paths = match target.kind {
            TargetKind::Tree => Some(PathsWriter::create(dir).map_err(failed)?),
            TargetKind::Objects { .. } => None,
        };
        let (mut weights, mut objects) = (Weights::default(), Coverage::default());
        walk(source, &mut |item| {
            weights.add(item);
            match &mut paths {
                Some(paths) if item.kind == ItemKind::File => paths.push(&item.key).map_err(failed)?,
                Some(_) => {}
                None => objects.pass(&item.key),
            }
            Ok(())
        })?;
        let (planned, listed) = match (paths, &target.kind) {
            (Some(paths), _) => {
                let (name, planned) = paths.finish().map_err(failed)?;
                (planned, Listed::Paths { name })
            }
            (None, TargetKind::Objects { list }) => (objects, Listed::Objects { name: *list, heads }),
            (None, TargetKind::Tree) => unreachable!("a list of paths was begun"),
        };
        let (items, bytes) = (weights.items, weights.bytes);
        let plan = TargetPlan {
            target: target.number,
            path: target.path.clone(),
            rules: target.rules,
            items,
            bytes,
            planned,
            listed,
        };
        Ok(Self { marks: weights.marks, cost: weights.cost, plan })
    }
}

/// Shows `visit` all items of a target.
fn walk(source: &Source, visit: &mut dyn FnMut(&Item) -> Result<(), ScanError>) -> Result<(), ScanError> {
    let (start, end) = key::target_range(source.target().number);
    let spec = ShardSpecRef::new(&start, &end, b"").expect("a target's range is one");
    let state = RestoredShardState::new(spec, CursorUpdate::initial(), CursorSemantics::Completed)
        .expect("no cursor lies outside");
    let mut pages = source.open(&state).map_err(ScanError::Source)?;
    loop {
        let page = pages.next_page(PageLimits { items_max: 1_000, bytes_max: u64::MAX }).map_err(ScanError::Source)?;
        for item in &page.items {
            visit(item)?;
        }
        if page.is_last {
            return Ok(());
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
    fn add(&mut self, item: &Item) {
        if self.cost >= self.next_mark {
            self.marks.push((item.key.clone(), self.cost));
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
        self.bytes = self.bytes.saturating_add(item.size);
        self.cost = self.cost.saturating_add(item.size.saturating_add(ITEM_COST_BYTES));
    }
}
