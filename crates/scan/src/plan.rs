//! From targets to shards.
//!
//! Each target is walked once, without opening files, and cut where about equal work lies between the cuts. That also tells how
//! much there is, so that progress can be shown. The walk is bounded: what lies beyond becomes part of the last
//! shard, which is split later if others have nothing to do.

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::source_family::{ItemPages, PageLimits, SourceError, SourceFamily};
use tessera_contracts::{CursorSemantics, CursorUpdate, RestoredShardState, ShardId, ShardSpecRef};

use crate::key;
use crate::source::{ITEM_COST_BYTES, Source};

/// Most shards of a run.
pub const SHARDS_MAX: usize = 1_024;

/// Most items looked at while planning one target.
pub const PLAN_ITEMS_MAX: u64 = 1_000_000;

/// Work that is worth a shard of its own when there is plenty.
const SHARD_COST: u64 = 32 << 20;

/// Work that is worth handing to another worker at all.
const SHARD_COST_MIN: u64 = 1 << 20;

/// Shards for each worker where there is enough work, so that a slow one does not keep the others waiting.
const SHARDS_PER_WORKER: u64 = 4;

/// Keys remembered while walking; thinned out by half when there are more.
const MARKS_MAX: usize = 4 * SHARDS_MAX;

/// A run to be registered.
#[derive(Debug, Default)]
pub struct Plan {
    shards: Vec<PlannedShard>,
    /// Items seen.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether everything was seen.
    pub is_whole: bool,
}

#[derive(Debug)]
struct PlannedShard {
    start: Vec<u8>,
    end: Vec<u8>,
    metadata: Vec<u8>,
}

impl Plan {
    /// Plans these sources for so many workers.
    pub fn new(sources: &[Source], workers: usize) -> Result<Self, SourceError> {
        let mut plan = Self { is_whole: true, ..Self::default() };
        let surveys: Vec<Survey> = sources.iter().map(Survey::of).collect::<Result<_, _>>()?;
        let total: u64 = surveys.iter().map(|survey| survey.cost).sum();
        let wanted = wanted_shards(total, workers as u64);
        for (source, survey) in sources.iter().zip(surveys) {
            // Each target has at least one shard; beyond that, its share of the work.
            let share = (u128::from(wanted) * u128::from(survey.cost)).div_ceil(u128::from(total.max(1))).max(1);
            plan.items += survey.items;
            plan.bytes += survey.bytes;
            plan.is_whole &= survey.is_whole;
            plan.add(source, &survey, share as u64);
        }
        Ok(plan)
    }

    /// The shards as a manifest takes them.
    pub fn manifest(&self) -> Vec<InitialShardInput<'_>> {
        let inputs = self.shards.iter().zip(1..);
        inputs
            .map(|(shard, id)| InitialShardInput {
                metadata: &shard.metadata,
                ..InitialShardInput::new(ShardId::new(id), &shard.start, &shard.end)
            })
            .collect()
    }

    fn add(&mut self, source: &Source, survey: &Survey, pieces: u64) {
        let target = source.target();
        let metadata = target.encode().expect("the target's size was checked when it was made");
        let (start, end) = key::target_range(target.number);
        let mut edges: Vec<Vec<u8>> = vec![start.to_vec()];
        for cut in 1..pieces {
            let cost = (u128::from(survey.cost) * u128::from(cut) / u128::from(pieces)) as u64;
            let mark = survey.marks.partition_point(|(_, before)| *before < cost);
            match survey.marks.get(mark) {
                Some((key, _)) if Some(key) > edges.last() => edges.push(key.clone()),
                _ => {}
            }
        }
        edges.push(end.to_vec());
        for pair in edges.windows(2) {
            let (start, end) = (pair[0].clone(), pair[1].clone());
            self.shards.push(PlannedShard { start, end, metadata: metadata.clone() });
        }
    }
}

fn wanted_shards(cost: u64, workers: u64) -> u64 {
    let by_size = cost / SHARD_COST;
    let by_workers = (workers * SHARDS_PER_WORKER).min(cost / SHARD_COST_MIN);
    by_size.max(by_workers).clamp(1, SHARDS_MAX as u64 / 2)
}

/// What lies in a target, roughly.
#[derive(Debug, Default)]
struct Survey {
    /// Keys, and the cost of all that comes before them.
    marks: Vec<(Vec<u8>, u64)>,
    cost: u64,
    items: u64,
    bytes: u64,
    is_whole: bool,
}

impl Survey {
    fn of(source: &Source) -> Result<Self, SourceError> {
        let (start, end) = key::target_range(source.target().number);
        let spec = ShardSpecRef::new(&start, &end, b"").expect("a target's range is one");
        let state = RestoredShardState::new(spec, CursorUpdate::initial(), CursorSemantics::Completed)
            .expect("no cursor lies outside");
        let mut pages = source.open(&state)?;
        let mut survey = Self::default();
        let (mut quantum, mut next_mark) = (64 << 10, 0);
        loop {
            let page = pages.next_page(PageLimits { items_max: 1_000, bytes_max: u64::MAX })?;
            for item in page.items {
                if survey.cost >= next_mark {
                    survey.marks.push((item.key, survey.cost));
                    next_mark = survey.cost + quantum;
                    if survey.marks.len() >= MARKS_MAX {
                        let mut keep = false;
                        survey.marks.retain(|_| {
                            keep = !keep;
                            keep
                        });
                        quantum *= 2;
                    }
                }
                survey.items += 1;
                survey.bytes = survey.bytes.saturating_add(item.size);
                survey.cost = survey.cost.saturating_add(item.size.saturating_add(ITEM_COST_BYTES));
            }
            if page.is_last || survey.items >= PLAN_ITEMS_MAX {
                survey.is_whole = page.is_last;
                return Ok(survey);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::manifest::validate_manifest;

    use super::*;
    use crate::target::{ReadOptions, Target, TargetKind};

    fn source(number: u32, path: &std::path::Path) -> Source {
        let path = path.canonicalize().unwrap();
        let target = Target { number, path, kind: TargetKind::Tree, options: ReadOptions::default() };
        Source::of_target(target, std::path::Path::new("")).unwrap()
    }

    #[test]
    fn shards_tile_each_target_and_hold_about_equal_work() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..64 {
            // One directory holds nearly everything.
            std::fs::create_dir_all(dir.path().join("big")).unwrap();
            std::fs::write(dir.path().join(format!("big/{i:02}")), vec![b'x'; 256 << 10]).unwrap();
            std::fs::write(dir.path().join(format!("s{i:02}")), "x").unwrap();
        }
        let sources = [source(0, dir.path()), source(1, &dir.path().join("s00"))];
        let plan = Plan::new(&sources, 2).unwrap();
        let manifest = plan.manifest();
        let shards = validate_manifest(&manifest).unwrap();
        assert_eq!((plan.items, plan.is_whole), (129, true));
        assert_eq!(manifest.len(), 9, "eight for the tree, one for the file");
        for pair in shards.shards().windows(2) {
            assert_eq!(pair[0].spec.end(), pair[1].spec.start(), "no gap");
        }
        let count_in = |index: usize| {
            let spec = shards.shards()[index].spec;
            (0..64)
                .filter(|i| spec.contains(&key::path_key(0, [b"big".as_slice(), format!("{i:02}").as_bytes()])))
                .count()
        };
        let largest = (0..8).map(count_in).max().unwrap();
        assert!(largest <= 10, "{largest} of 64 files in one of 8 shards");
    }

    #[test]
    fn a_small_tree_is_one_shard_and_a_large_one_is_bounded() {
        assert_eq!(wanted_shards(0, 8), 1);
        assert_eq!(wanted_shards(SHARD_COST_MIN * 3, 8), 3);
        assert_eq!(wanted_shards(SHARD_COST * 100, 8), 100);
        assert_eq!(wanted_shards(u64::MAX, 8), 512);
    }

    #[test]
    fn a_directory_without_files_is_a_shard_too() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::new(&[source(0, dir.path())], 4).unwrap();
        assert_eq!((plan.manifest().len(), plan.items), (1, 0));
    }
}
