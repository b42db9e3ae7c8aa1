//! From targets to shards, and what the receipt is compared with.
//!
//! Each target is walked once, without opening files, and cut where about equal work lies between the cuts. That also tells how
//! much there is, so that progress can be shown, and which paths are to be read, so that none is missed in silence. The walk goes to
//! the end of every target, however many items it has, and holds none of them: a plan that ends early would call what it does
//! not name clean. It takes about as long as listing the files does; memory does not grow with them.
//!
//! | file | what |
//! | --- | --- |
//! | [`target`], [`key`] | what is scanned; the order of keys |
//! | `survey` | the walk |
//! | [`record`] | the plan, as it lies beside the findings |
//! | [`paths`], [`heads`] | what it holds of a tree, and of a history |
//! | [`coverage`], [`ledger`] | what workers met, held against it |
//! | `gone` | a plan held against the one before |

pub mod coverage;
pub(crate) mod gone;
pub mod heads;
pub mod key;
pub mod ledger;
pub mod paths;
pub mod record;
mod survey;
pub mod target;

use std::path::Path;

use tessera_contracts::ShardId;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::source_family::SourceFamily;

use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::op_ids::random_u64;
use crate::run::left_out::LeftOut;
use crate::source::Source;
use heads::Heads;
use record::{Listed, PlanId, PlanRecord, program};
use survey::Survey;
use target::Target;

/// Most shards of a run.
pub const SHARDS_MAX: usize = 1_024;

/// Work that is worth a shard of its own when there is plenty.
const SHARD_COST: u64 = 32 << 20;

/// Work that is worth handing to another worker at all.
const SHARD_COST_MIN: u64 = 1 << 20;

/// Shards for each worker where there is enough work, so that a slow one does not keep the others waiting.
const SHARDS_PER_WORKER: u64 = 4;

/// Keys remembered while walking; thinned out by half when there are more.
const MARKS_MAX: usize = 4 * SHARDS_MAX;

/// A source that was walked.
#[derive(Debug)]
pub struct Surveyed {
    /// Where items come from.
    pub source: Source,
    survey: Survey,
}

impl Surveyed {
    /// Walks over `source`. `heads` are what the refs of its repository led to before its history was listed; lists of paths go to
    /// `dir`.
    pub fn of(source: Source, heads: Option<Heads>, dir: &Path) -> Result<Self, ScanError> {
        let survey = Survey::of(&source, heads, dir)?;
        Ok(Self { source, survey })
    }
}

/// A run to be registered.
#[derive(Debug)]
pub struct Plan {
    shards: Vec<PlannedShard>,
    /// What there is to read.
    pub record: PlanRecord,
}

#[derive(Debug)]
struct PlannedShard {
    start: Vec<u8>,
    end: Vec<u8>,
    metadata: Vec<u8>,
}

impl Plan {
    /// Plans these sources for so many workers.
    pub fn new(sources: &[Surveyed], workers: usize, left_out: Vec<LeftOut>) -> Self {
        let total: u64 = sources.iter().map(|surveyed| surveyed.survey.cost).sum();
        let wanted = wanted_shards(total, workers as u64);
        let mut shards = Vec::new();
        for Surveyed { source, survey } in sources {
            // Each target has at least one shard; beyond that, its share of the work.
            let share = (u128::from(wanted) * u128::from(survey.cost)).div_ceil(u128::from(total.max(1))).max(1);
            cut(source.target(), survey, share as u64, &mut shards);
        }
        let targets = sources.iter().map(|surveyed| surveyed.survey.plan.clone()).collect();
        Self { shards, record: new_record(targets, left_out) }
    }

    /// Plans a target that `family` reads, for so many workers. The list of its keys goes to `dir`.
    pub(crate) fn of_family<F: SourceFamily>(
        target: &Target,
        family: &F,
        workers: usize,
        dir: &Path,
    ) -> Result<Self, ScanError> {
        let survey = Survey::of_family(family, target, dir, |_| true)?;
        let mut shards = Vec::new();
        cut(target, &survey, wanted_shards(survey.cost, workers as u64), &mut shards);
        Ok(Self { shards, record: new_record(vec![survey.plan], Vec::new()) })
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
}

/// Plans the sources of an interrupted run again: trees as they are now, histories as they were listed.
pub(crate) fn again<'s>(
    before: &PlanRecord,
    sources: impl Iterator<Item = &'s Source>,
    dir: &Path,
) -> Result<PlanRecord, ScanError> {
    let mut targets = Vec::new();
    for source in sources {
        let known = before.target(source.target().number).filter(|plan| matches!(plan.listed, Listed::Objects { .. }));
        targets.push(match known {
            Some(plan) => plan.clone(),
            None => Survey::of(source, None, dir)?.plan,
        });
    }
    Ok(new_record(targets, before.left_out.clone()))
}

fn new_record(targets: Vec<record::TargetPlan>, left_out: Vec<LeftOut>) -> PlanRecord {
    PlanRecord { id: PlanId(random_u64()), made_at: wall_clock().get(), program: program(), targets, left_out }
}

/// Cuts a target into up to `pieces` shards.
fn cut(target: &Target, survey: &Survey, pieces: u64, shards: &mut Vec<PlannedShard>) {
    let metadata = target.encode().expect("the walk over a target encoded it");
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
        shards.push(PlannedShard { start, end, metadata: metadata.clone() });
    }
}

fn wanted_shards(cost: u64, workers: u64) -> u64 {
    let by_size = cost / SHARD_COST;
    let by_workers = (workers * SHARDS_PER_WORKER).min(cost / SHARD_COST_MIN);
    by_size.max(by_workers).clamp(1, SHARDS_MAX as u64 / 2)
}

#[cfg(test)]
mod tests {
    use tessera_contracts::manifest::validate_manifest;

    use super::*;
    use crate::plan::target::{ReadOptions, TargetKind};

    fn source(number: u32, path: &Path, lists: &Path) -> Surveyed {
        let path = path.canonicalize().unwrap();
        let target = Target { number, path, kind: TargetKind::Tree, rules: 0, options: ReadOptions::default() };
        Surveyed::of(Source::of_target(target, Path::new("")).unwrap(), None, lists).unwrap()
    }

    #[test]
    fn shards_tile_each_target_and_hold_about_equal_work() {
        let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for i in 0..64 {
            // One directory holds nearly everything.
            std::fs::create_dir_all(dir.path().join("big")).unwrap();
            std::fs::write(dir.path().join(format!("big/{i:02}")), vec![b'x'; 256 << 10]).unwrap();
            std::fs::write(dir.path().join(format!("s{i:02}")), "x").unwrap();
        }
        let sources = [source(0, dir.path(), lists.path()), source(1, &dir.path().join("s00"), lists.path())];
        let plan = Plan::new(&sources, 2, Vec::new());
        let manifest = plan.manifest();
        let shards = validate_manifest(&manifest).unwrap();
        assert_eq!(plan.record.planned(), 129);
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
        let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let plan = Plan::new(&[source(0, dir.path(), lists.path())], 4, Vec::new());
        assert_eq!((plan.manifest().len(), plan.record.planned()), (1, 0));
    }
}
