//! One directory holds nearly everything: how evenly do workers share it?
//!
//! Measured in bytes and not in time, so that neither the machine nor its load matters. Workers are kept in step: one that
//! has read more waits for those who have read less, and nobody begins another item before each idle worker has had a chance
//! to look for work. The *makespan* is then the number of bytes that the busiest worker read while others read or waited.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement};
use tessera_detect::{Detector, IdKey, RuleSet};
use tessera_scan::clock::{Clock, wall_clock};
use tessera_scan::findings::{FileSink, merge};
use tessera_scan::plan::key::target_range;
use tessera_scan::plan::target::{ReadOptions, Target, TargetKind};
use tessera_scan::plan::{Plan, Surveyed};
use tessera_scan::read::Reader;
use tessera_scan::run::label::RunKey;
use tessera_scan::run::locked::Locked;
use tessera_scan::source::Source;
use tessera_scan::sweep::worker::{Equipment, Worker, WorkerProgress};
use tessera_scan::sweep::{Sharing, WorkerConfig};

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const KEY: RunKey = RunKey::new(RUN, INCARNATION);
const WORKERS: u64 = 4;

type Backend = Locked<InMemoryCoordinator>;

fn tenant() -> TenantId {
    TenantId::from_name("test")
}

fn shards(backend: &Backend, filter: &ShardFilter) -> Vec<ShardSummary> {
    let mut shards = Vec::new();
    let page = ShardPage::first(1_000);
    backend.clone().list_shards_into(wall_clock(), tenant(), RUN, filter, page, &mut shards).unwrap();
    shards
}

/// Where each worker stands.
#[derive(Default, Clone)]
struct Standing {
    /// Bytes read, and bytes others read while it had nothing to do.
    reached: u64,
    counted: u64,
    looks: u64,
    was_idle: bool,
    is_gone: bool,
}

/// Keeps workers in step.
struct Steps {
    backend: Backend,
    standings: Mutex<Vec<Standing>>,
    changed: Condvar,
}

impl Steps {
    /// Which workers hold a shard.
    fn holders(&self) -> BTreeSet<usize> {
        let active = shards(&self.backend, &ShardFilter::active());
        active.iter().filter_map(|shard| shard.lease).map(|lease| lease.owner.get() as usize - 1).collect()
    }

    /// Called by worker `me` between any two items.
    fn step(&self, me: usize, progress: &WorkerProgress) {
        let read = progress.bytes.load(Ordering::Relaxed);
        let mut all = self.standings.lock().unwrap();
        let holders = self.holders();
        let work = read - all[me].counted;
        if work == 0 {
            all[me].looks += 1;
            all[me].was_idle |= !holders.contains(&me);
            self.changed.notify_all();
            return;
        }
        if std::mem::take(&mut all[me].was_idle) {
            let others = holders.iter().filter(|&&other| other != me).map(|&other| all[other].reached);
            all[me].reached = others.min().unwrap_or(0).max(all[me].reached);
        }
        all[me].counted = read;
        all[me].reached += work;
        self.changed.notify_all();
        let looks: Vec<u64> = all.iter().map(|other| other.looks).collect();
        loop {
            let holders = self.holders();
            let waits_for = |other: usize| {
                let their = &all[other];
                let is_behind = if holders.contains(&other) {
                    their.reached < all[me].reached
                } else {
                    // Twice: once to ask, once to take.
                    their.looks < looks[other] + 2
                };
                other != me && !their.is_gone && is_behind
            };
            if !(0..all.len()).any(waits_for) {
                return;
            }
            // Leases change without a word: look again soon.
            all = self.changed.wait_timeout(all, Duration::from_millis(1)).unwrap().0;
        }
    }

    fn leave(&self, me: usize) {
        self.standings.lock().unwrap()[me].is_gone = true;
        self.changed.notify_all();
    }
}

struct StepClock {
    steps: Arc<Steps>,
    me: usize,
    progress: Arc<WorkerProgress>,
}

impl Clock for StepClock {
    fn now(&self) -> LogicalTime {
        self.steps.step(self.me, &self.progress);
        wall_clock()
    }
}

/// One directory with nine tenths of the bytes, in files of very different sizes, among many small ones.
fn skewed_tree(root: &Path) -> u64 {
    std::fs::create_dir_all(root.join("m/big")).unwrap();
    let mut total = 0;
    let mut write = |path: String, len: usize| {
        std::fs::write(root.join(path), "x\n".repeat(len / 2)).unwrap();
        total += len as u64 / 2 * 2;
    };
    for i in 0..200_usize {
        write(format!("m/big/{i:03}"), 2_000 + (i * 7_919) % 38_000);
        write(format!("{}{i:03}", if i % 2 == 0 { 'a' } else { 'z' }), 2_000);
    }
    total
}

fn target(root: &Path) -> Target {
    let path = root.canonicalize().unwrap();
    Target { number: 0, path, kind: TargetKind::Tree, rules: 0, options: ReadOptions::default() }
}

/// Sweeps the tree with all workers. Returns the makespan and the shards as they ended.
fn sweep(manifest: &[InitialShardInput<'_>], sharing: Sharing) -> (u64, Vec<ShardSummary>) {
    let findings = tempfile::tempdir().unwrap();
    let mut backend = Locked::new(InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(1_000)).unwrap());
    backend
        .create_run_with_shards(wall_clock(), tenant(), RUN, INCARNATION, RunConfig::default(), manifest, OpId::new(1))
        .unwrap();
    let standings = Mutex::new(vec![Standing::default(); WORKERS as usize]);
    let steps = Arc::new(Steps { backend: backend.clone(), standings, changed: Condvar::new() });
    let stop = AtomicBool::new(false);
    let detector = Detector::new(&RuleSet::builtin()).unwrap();
    std::thread::scope(|scope| {
        for id in 1..=WORKERS {
            let (steps, progress) = (Arc::clone(&steps), Arc::new(WorkerProgress::default()));
            let clock = StepClock { steps: Arc::clone(&steps), me: id as usize - 1, progress: Arc::clone(&progress) };
            let mut config = WorkerConfig::new(tenant(), RUN, WorkerId::new(id));
            (config.renew_interval, config.page.items_max, config.sharing) = (0, 1, sharing);
            config.idle_wait_max = Duration::from_millis(1);
            let reader = Reader::new(detector.fork(), IdKey::new([0; 32]), false);
            let sink = Box::new(FileSink::create(findings.path(), KEY, WorkerId::new(id), id).unwrap());
            let equipment = Equipment { progress, ..Equipment::new(reader, findings.path().to_path_buf()) };
            let (mut backend, stop) = (backend.clone(), &stop);
            scope.spawn(move || {
                Worker::new(config, clock, equipment, sink, stop).run(&mut backend).unwrap();
                steps.leave(id as usize - 1);
            });
        }
    });
    let merged = merge(findings.path(), KEY).unwrap();
    assert_eq!((merged.tally.scanned, merged.superseded), (400, 0), "every file once");
    let makespan = steps.standings.lock().unwrap().iter().map(|standing| standing.reached).max().unwrap();
    (makespan, shards(&backend, &ShardFilter::all()))
}

fn sharing() -> Sharing {
    Sharing { asks: true, ask_interval: 0, split_cost_min: 20_000, replace_cost_min: u64::MAX, replace_children: 8 }
}

/// Makespan over what it would be if work could be cut anywhere.
fn ratio(makespan: u64, total: u64) -> f64 {
    makespan as f64 * WORKERS as f64 / total as f64
}

/// The worst plan there is: everything in one shard.
fn in_one_shard(sharing: Sharing) -> (f64, Vec<ShardSummary>) {
    let dir = tempfile::tempdir().unwrap();
    let total = skewed_tree(dir.path());
    let (metadata, (start, end)) = (target(dir.path()).encode().unwrap(), target_range(0));
    let input = InitialShardInput { metadata: &metadata, ..InitialShardInput::new(ShardId::new(1), &start, &end) };
    let (makespan, shards) = sweep(&[input], sharing);
    (ratio(makespan, total), shards)
}

#[test]
fn without_sharing_one_worker_does_it_all() {
    let (ratio, _) = in_one_shard(Sharing { asks: false, ..sharing() });
    assert!(ratio > 3.9, "the measure sees it: {ratio:.2}");
}

#[test]
fn one_shard_is_shared_on_request_within_one_and_a_half_times_the_ideal() {
    let (ratio, shards) = in_one_shard(sharing());
    assert!(ratio <= 1.5, "{ratio:.2} with {} shards", shards.len());
    assert!(shards.iter().all(|shard| shard.status == ShardStatus::Done), "by residual splits alone");
}

#[test]
fn a_large_share_is_cut_into_several_at_once_within_one_and_a_half_times_the_ideal() {
    let (ratio, shards) = in_one_shard(Sharing { replace_cost_min: 500_000, ..sharing() });
    assert!(ratio <= 1.5, "{ratio:.2} with {} shards", shards.len());
    let replaced = shards.iter().filter(|shard| shard.status == ShardStatus::Split).count();
    assert!(replaced >= 1, "a share was replaced by its parts");
}

#[test]
fn a_planned_tree_is_finished_within_one_and_a_half_times_the_ideal() {
    let dir = tempfile::tempdir().unwrap();
    let total = skewed_tree(dir.path());
    let lists = tempfile::tempdir().unwrap();
    let source = Source::of_target(target(dir.path()), Path::new("")).unwrap();
    let plan = Plan::new(&[Surveyed::of(source, None, lists.path()).unwrap()], WORKERS as usize, Vec::new());
    let (makespan, shards) = sweep(&plan.manifest(), sharing());
    assert!(ratio(makespan, total) <= 1.5, "{:.2} with {} shards", ratio(makespan, total), shards.len());
}
