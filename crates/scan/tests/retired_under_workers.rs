//! A run that is retired, and created anew under the same id, while a worker of the one before is still there.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement};
use tessera_detect::{Detector, IdKey, RuleSet, template};
use tessera_scan::clock::{Clock, wall_clock};
use tessera_scan::findings::{LazySink, merge};
use tessera_scan::plan::key::target_range;
use tessera_scan::plan::target::{ReadOptions, Target, TargetKind};
use tessera_scan::read::Reader;
use tessera_scan::run::label::RunKey;
use tessera_scan::run::locked::Locked;
use tessera_scan::sweep::WorkerConfig;
use tessera_scan::sweep::worker::{Equipment, LocalSite, Worker, WorkerEnd, WorkerError};

const RUN: RunId = RunId::new(1);
const FIRST: RunKey = RunKey::new(RUN, RunIncarnation::new(10));
const SECOND: RunKey = RunKey::new(RUN, RunIncarnation::new(20));
const FILES: u64 = 40;

fn tenant() -> TenantId {
    TenantId::from_name("test")
}

struct Stage {
    tree: tempfile::TempDir,
    findings: tempfile::TempDir,
    backend: Locked<InMemoryCoordinator>,
    stop: AtomicBool,
}

impl Stage {
    fn new() -> Self {
        let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(1_000)).unwrap();
        Self {
            tree: tempfile::tempdir().unwrap(),
            findings: tempfile::tempdir().unwrap(),
            backend: Locked::new(memory),
            stop: AtomicBool::new(false),
        }
    }

    fn plant(&self, secrets: bool) {
        for file in 0..FILES {
            let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(file)).unwrap();
            let text = if secrets { format!("TOKEN={token}\n") } else { "nothing\n".to_owned() };
            std::fs::write(self.tree.path().join(format!("f{file:04}")), text).unwrap();
        }
    }

    /// Makes the folder of a run, and the run with one shard.
    fn create(&self, key: RunKey) {
        std::fs::create_dir_all(self.folder(key)).unwrap();
        let path = self.tree.path().canonicalize().unwrap();
        let target = Target { number: 0, path, kind: TargetKind::Tree, options: ReadOptions::default(), rules: 0 };
        let (start, end) = target_range(0);
        let metadata = target.encode().unwrap();
        let shards =
            [InitialShardInput { metadata: &metadata, ..InitialShardInput::new(ShardId::new(1), &start, &end) }];
        let (config, op) = (RunConfig::default(), OpId::new(key.incarnation.get()));
        let mut backend = self.backend.clone();
        backend.create_run_with_shards(wall_clock(), tenant(), RUN, key.incarnation, config, &shards, op).unwrap();
    }

    /// Ends the run and forgets it, folder first.
    fn retire(&self, key: RunKey) {
        let mut backend = self.backend.clone();
        backend.complete_run(wall_clock(), tenant(), RUN, OpId::new(key.incarnation.get() + 1)).unwrap();
        std::fs::remove_dir_all(self.folder(key)).unwrap();
        let forgotten = backend.retire_runs(wall_clock(), tenant(), LogicalTime::new(u64::MAX), 1).unwrap();
        assert_eq!(forgotten, 1);
    }

    fn folder(&self, key: RunKey) -> PathBuf {
        self.findings.path().join(key.incarnation.to_string())
    }

    fn findings(&self, key: RunKey) -> PathBuf {
        self.folder(key).join("findings")
    }

    fn worker<C: Clock>(&self, id: u64, key: RunKey, clock: C) -> Worker<'_, LocalSite<'_>, C> {
        let mut config = WorkerConfig::new(tenant(), RUN, WorkerId::new(id));
        (config.safe_point_interval, config.page.items_max) = (0, 4);
        let reader = Reader::new(Detector::new(&RuleSet::builtin()).unwrap(), IdKey::new([0; 32]), false);
        let sink = Box::new(LazySink::new(self.findings(key), key, WorkerId::new(id)));
        Worker::new(config, clock, Equipment::new(reader, self.folder(key)), sink, &self.stop)
    }

    fn last_key(&self) -> Option<Vec<u8>> {
        let shard = self.backend.clone().get_shard(tenant(), ShardKey::new(RUN, ShardId::new(1))).unwrap();
        shard.cursor.last_key().map(<[u8]>::to_vec)
    }
}

fn files_below(dir: &Path) -> usize {
    dir.read_dir().map_or(0, |files| files.count())
}

#[test]
fn a_worker_of_the_run_before_writes_nothing_of_the_next() {
    let stage = Stage::new();
    stage.plant(false);
    stage.create(FIRST);
    let mut before = stage.worker(1, FIRST, wall_clock);
    assert_eq!(before.run(&mut stage.backend.clone()).unwrap(), WorkerEnd::Finished);
    stage.retire(FIRST);
    stage.plant(true);
    stage.create(SECOND);
    // It still has its sink, its job and its sources, and the run has the same id.
    assert_eq!(before.run(&mut stage.backend.clone()).unwrap(), WorkerEnd::RunSettled);
    assert_eq!((stage.last_key(), files_below(&stage.findings(SECOND))), (None, 0), "it did nothing");
    assert!(!stage.folder(FIRST).exists(), "and it made no folder for a run that is gone");
    let progress = stage.backend.clone().get_run_progress(wall_clock(), tenant(), RUN).unwrap();
    assert_eq!(progress.leased, 0, "what it was granted is free");
    let mut next = stage.worker(2, SECOND, wall_clock);
    assert_eq!(next.run(&mut stage.backend.clone()).unwrap(), WorkerEnd::Finished);
    let merged = merge(&stage.findings(SECOND), SECOND).unwrap();
    assert_eq!((merged.tally.scanned, merged.occurrences.len() as u64), (FILES, FILES));
    assert!(merged.damage.is_empty(), "{:?}", merged.damage);
}

/// How many files lie at or before the cursor.
fn files_done(cursor: Option<&[u8]>) -> u64 {
    let Some((_, rest)) = cursor.and_then(tessera_scan::plan::key::split) else { return 0 };
    let name = String::from_utf8(tessera_scan::plan::key::display_path(rest)).unwrap();
    name.trim_start_matches('f').parse::<u64>().unwrap() + 1
}

#[test]
fn when_the_folder_vanishes_the_cursor_does_not_move() {
    // The folder goes in the middle of a shard: when the worker looks at its clock for the n-th time.
    for moment in [20, 21, 22, 23, 24, 25, 40, 60] {
        let stage = Stage::new();
        stage.plant(true);
        stage.create(FIRST);
        let (looks, seen) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let clock = || {
            if looks.fetch_add(1, Ordering::Relaxed) == moment {
                seen.store(files_done(stage.last_key().as_deref()), Ordering::Relaxed);
                std::fs::remove_dir_all(stage.folder(FIRST)).unwrap();
            }
            wall_clock()
        };
        let end = stage.worker(1, FIRST, clock).run(&mut stage.backend.clone());
        match end {
            Err(WorkerError::Sink(error)) => assert!(error.is_gone(), "moment {moment}: {error}"),
            end => panic!("moment {moment}: {end:?}"),
        }
        let (before, after) = (seen.load(Ordering::Relaxed), files_done(stage.last_key().as_deref()));
        assert!(before > 0 && before < FILES, "moment {moment}: in the middle, after {before} files");
        // A segment that was durable before may still be checkpointed; the next one is not.
        assert!(after <= before + 1, "moment {moment}: from {before} to {after} files");
        assert!(!stage.folder(FIRST).exists(), "no folder is made for a run that is gone");
    }
}
