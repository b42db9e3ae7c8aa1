//! Workers that share one shard, and owners that die on it.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement};
use tessera_detect::{Detector, IdKey, RuleSet, template};
use tessera_scan::clock::wall_clock;
use tessera_scan::findings::{FileSink, merge};
use tessera_scan::plan::key::target_range;
use tessera_scan::plan::target::{ReadOptions, Target, TargetKind};
use tessera_scan::read::Reader;
use tessera_scan::run::label::RunKey;
use tessera_scan::run::locked::Locked;
use tessera_scan::sweep::WorkerConfig;
use tessera_scan::sweep::worker::{Equipment, Worker, WorkerEnd};

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const KEY: RunKey = RunKey::new(RUN, INCARNATION);

fn tenant() -> TenantId {
    TenantId::from_name("test")
}

/// Files in one directory, every tenth with a secret.
fn tree(root: &Path, files: u64, bytes: usize) {
    for i in 0..files {
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(i)).unwrap();
        let secret = if i % 10 == 0 { format!("TOKEN={token}\n") } else { String::new() };
        std::fs::write(root.join(format!("f{i:04}")), format!("{}{secret}", "plain text\n".repeat(bytes / 11)))
            .unwrap();
    }
}

/// A run of one shard over the whole tree.
fn one_shard(root: &Path) -> Locked<InMemoryCoordinator> {
    let path = root.canonicalize().unwrap();
    let target = Target { number: 0, path, kind: TargetKind::Tree, rules: 0, options: ReadOptions::default() };
    let (start, end) = target_range(0);
    let metadata = target.encode().unwrap();
    let input = InitialShardInput { metadata: &metadata, ..InitialShardInput::new(ShardId::new(1), &start, &end) };
    let mut backend = Locked::new(InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(1_000)).unwrap());
    backend
        .create_run_with_shards(wall_clock(), tenant(), RUN, INCARNATION, RunConfig::default(), &[input], OpId::new(1))
        .unwrap();
    backend
}

fn work(mut backend: Locked<InMemoryCoordinator>, findings: &Path, id: u64, stop: &AtomicBool) -> WorkerEnd {
    let worker = WorkerId::new(id);
    let mut config = WorkerConfig::new(tenant(), RUN, worker);
    (config.safe_point_interval, config.renew_interval, config.page.items_max) = (3, 1, 8);
    let reader = Reader::new(Detector::new(&RuleSet::builtin()).unwrap(), IdKey::new([0; 32]), false);
    let sink = FileSink::create(findings, KEY, worker, id).unwrap();
    config.sharing.split_cost_min = 0;
    let equipment = Equipment::new(reader, findings.to_path_buf());
    Worker::new(config, wall_clock, equipment, Box::new(sink), stop).run(&mut backend).unwrap()
}

#[test]
fn idle_workers_get_a_share_of_one_large_shard_and_every_file_counts_once() {
    let (dir, findings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(dir.path(), 500, 100_000);
    let mut backend = one_shard(dir.path());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in 1..=3 {
            let (backend, stop, findings) = (backend.clone(), &stop, findings.path());
            scope.spawn(move || assert!(matches!(work(backend, findings, id, stop), WorkerEnd::Finished)));
        }
    });
    let mut shards = Vec::new();
    backend
        .list_shards_into(wall_clock(), tenant(), RUN, &ShardFilter::all(), ShardPage::first(1_000), &mut shards)
        .unwrap();
    assert!(shards.len() > 1, "nobody was asked to share");
    assert!(shards.iter().all(|shard| shard.status == ShardStatus::Done));
    let merged = merge(findings.path(), KEY).unwrap();
    assert_eq!((merged.tally.enumerated(), merged.tally.scanned, merged.occurrences.len()), (500, 500, 50));
    assert!(merged.damage.is_empty(), "{:?}", merged.damage);
}

#[test]
fn a_worker_that_stops_hands_its_shard_back_and_no_file_is_read_twice() {
    let (dir, findings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(dir.path(), 120, 50_000);
    let mut backend = one_shard(dir.path());
    // Told to stop before they begin, between items, and not at all.
    for id in 1..20 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (backend, stop, findings) = (backend.clone(), &stop, findings.path());
            scope.spawn(move || work(backend, findings, id, stop));
            std::thread::sleep(std::time::Duration::from_millis(id));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let progress = backend.get_run_progress(wall_clock(), tenant(), RUN).unwrap();
        assert_eq!(progress.leased, 0, "what was held was handed back");
    }
    work(backend, findings.path(), 99, &AtomicBool::new(false));
    let merged = merge(findings.path(), KEY).unwrap();
    assert_eq!((merged.tally.scanned, merged.occurrences.len(), merged.superseded), (120, 12, 0));
    assert!(merged.damage.is_empty());
}
