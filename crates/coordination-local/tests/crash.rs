//! A crash at any point loses nothing that was acknowledged, and keeps nothing half done.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::backends::FileBackend;
use support::{Dice, Disk, INCARNATION, RUN, TENANT, Workload, records};
use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement,
};
use tessera_coordination_local::LocalCoordinator;

fn config() -> CoordinatorRuntimeConfig {
    CoordinatorRuntimeConfig { slab_capacity: 1 << 16, ..CoordinatorRuntimeConfig::default() }
}

/// The coordinator after the first `operations` of a workload.
fn after(seed: u64, operations: usize) -> InMemoryCoordinator {
    let mut memory = InMemoryCoordinator::new(config()).unwrap();
    let mut workload = Workload::new(seed);
    for _ in 0..operations {
        workload.step(&mut memory).expect("nothing fails in memory");
    }
    memory
}

fn same(left: &mut impl RunManagement, right: &mut impl RunManagement) -> bool {
    left.get_run(TENANT, RUN).ok() == right.get_run(TENANT, RUN).ok() && records(left) == records(right)
}

/// Logs that are folded into the tables after every few operations, and hardly ever.
const LOGS: [u32; 2] = [3 << 10, 64 << 10];

/// Runs the workload on a disk whose power fails at `step`, cuts the power, and looks at the rest.
fn crash_at(seed: u64, step: u64, operations: usize, log_bytes: u32) {
    let disk = Disk::default();
    disk.failing_at(step);
    let mut acknowledged = 0;
    if let Ok(mut local) = LocalCoordinator::open_backend(disk.clone(), log_bytes, config()) {
        let mut workload = Workload::new(seed);
        while acknowledged < operations && workload.step(&mut local).is_ok() {
            acknowledged += 1;
        }
    }
    let left = disk.after_power_cut(&mut Dice::new(seed ^ step));
    let mut local = LocalCoordinator::open_backend(left, log_bytes, config())
        .unwrap_or_else(|error| panic!("log {log_bytes}, seed {seed}, power cut at step {step}: {error}"));
    let exact = same(&mut local, &mut after(seed, acknowledged));
    let one_more = acknowledged < operations && same(&mut local, &mut after(seed, acknowledged + 1));
    assert!(
        exact || one_more,
        "log {log_bytes}, seed {seed}, power cut at step {step}: neither the {acknowledged} acknowledged operations nor one more"
    );
}

#[test]
fn a_power_cut_at_any_write_or_sync_keeps_what_was_acknowledged() {
    let operations = 24;
    for log_bytes in LOGS {
        let disk = Disk::default();
        let mut local = LocalCoordinator::open_backend(disk.clone(), log_bytes, config()).unwrap();
        // Storage that was never whole need not open; files are made under another name for that reason.
        let created = disk.steps();
        let mut workload = Workload::new(7);
        for _ in 0..operations {
            workload.step(&mut local).unwrap();
        }
        drop(local);
        let steps = disk.steps();
        assert!(steps >= created + 2 * operations as u64, "every operation writes and syncs");
        for step in created + 1..=steps {
            crash_at(7, step, operations, log_bytes);
        }
    }
}

#[test]
fn power_cuts_in_other_workloads_keep_what_was_acknowledged() {
    for seed in 100..160 {
        let (mut dice, operations) = (Dice::new(seed), 30);
        crash_at(seed, 20 + dice.below(100), operations, LOGS[dice.below(2) as usize]);
    }
}

#[test]
fn one_write_or_sync_that_fails_takes_its_operation_back_and_nothing_else() {
    let operations = 16;
    for log_bytes in LOGS {
        let mut went_on = 0;
        for step in 1.. {
            let disk = Disk::default();
            let mut local = LocalCoordinator::open_backend(disk.clone(), log_bytes, config()).unwrap();
            let step = disk.steps() + step;
            disk.failing_once_at(step);
            let (mut workload, mut acknowledged, mut refused) = (Workload::new(7), 0, 0);
            while acknowledged < operations && refused < 2 {
                let before = workload.clone();
                if workload.step(&mut local).is_ok() {
                    acknowledged += 1;
                    continue;
                }
                workload = before;
                refused += 1;
                // Either it goes on from before that operation, or it says that it cannot go on.
                let again = local.get_run(TENANT, RUN);
                let cannot = again.is_err_and(|error| error.to_string().contains("reading the file again failed"));
                assert!(cannot || same(&mut local, &mut after(7, acknowledged)), "log {log_bytes}, step {step}");
            }
            drop(local);
            went_on += u32::from(refused == 1);
            let left = disk.after_power_cut(&mut Dice::new(step));
            let mut local = LocalCoordinator::open_backend(left, log_bytes, config()).unwrap();
            let exact = same(&mut local, &mut after(7, acknowledged));
            let one_more = refused == 2 && same(&mut local, &mut after(7, acknowledged + 1));
            assert!(exact || one_more, "log {log_bytes}, step {step}: {acknowledged} acknowledged, {refused} refused");
            if refused == 0 {
                break;
            }
        }
        assert!(went_on > operations as u32, "log {log_bytes}: it went on after {went_on} failures");
    }
}

#[test]
fn a_full_disk_is_an_error_that_leaves_everything_as_it_was() {
    let disk = Disk::default();
    let mut local = LocalCoordinator::open_backend(disk.clone(), LOGS[1], config()).unwrap();
    let mut workload = Workload::new(3);
    for _ in 0..12 {
        workload.step(&mut local).unwrap();
    }
    let before = records(&mut local);
    disk.with_room(Some(0));
    let said = loop {
        // Reads and refusals need no room; go on until something has to be written.
        if let Err(said) = workload.step(&mut local) {
            break said;
        }
    };
    assert!(!said.is_empty());
    disk.with_room(None);
    drop(local);
    let mut again = LocalCoordinator::open_backend(disk.after_power_cut(&mut Dice::new(1)), LOGS[1], config()).unwrap();
    assert_eq!(records(&mut again), before);
}

#[test]
fn every_caller_of_a_shared_write_that_failed_is_told_and_only_acknowledged_operations_are_kept() {
    const WORKERS: u64 = 8;
    let disk = Disk::default();
    let mut local = LocalCoordinator::open_backend(disk.clone(), LOGS[1], config()).unwrap();
    let edges: Vec<[u8; 8]> = (0..=WORKERS).map(|at| (at << 32).to_be_bytes()).collect();
    let shards: Vec<_> = (0..WORKERS as usize)
        .map(|at| InitialShardInput::new(ShardId::new(at as u64 + 1), &edges[at], &edges[at + 1]))
        .collect();
    let now = LogicalTime::new(1);
    local.create_run_with_shards(now, TENANT, RUN, INCARNATION, RunConfig::default(), &shards, OpId::new(1)).unwrap();
    let (told, all_at_work) = (AtomicU64::new(0), Barrier::new(WORKERS as usize + 1));
    let acknowledged: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=WORKERS)
            .map(|worker| {
                let (mut local, told, all_at_work) = (local.clone(), &told, &all_at_work);
                scope.spawn(move || {
                    let key = ShardKey::new(RUN, ShardId::new(worker));
                    let mut scratch = AcquireScratch::default();
                    let granted = local.acquire_and_restore_into(now, TENANT, key, WorkerId::new(worker), &mut scratch);
                    let lease = granted.unwrap().lease;
                    for step in 1.. {
                        let last = ((worker - 1) << 32 | step).to_be_bytes();
                        let cursor = CursorUpdate::at_key(&last).unwrap();
                        if local.checkpoint(now, TENANT, &lease, cursor, OpId::new(step)).is_err() {
                            told.fetch_add(1, Ordering::Relaxed);
                            return step - 1;
                        }
                        if step == 5 {
                            all_at_work.wait();
                        }
                    }
                    unreachable!("the disk fills up")
                })
            })
            .collect();
        all_at_work.wait();
        disk.with_room(Some(0));
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(told.into_inner(), WORKERS);
    disk.with_room(None);
    drop(local);
    let mut again = LocalCoordinator::open_backend(disk.after_power_cut(&mut Dice::new(1)), LOGS[1], config()).unwrap();
    for (worker, step) in (1..).zip(acknowledged) {
        let record = again.get_shard(TENANT, ShardKey::new(RUN, ShardId::new(worker))).unwrap();
        assert!(step >= 5);
        assert_eq!(record.cursor.last_key(), Some(((worker - 1) << 32 | step).to_be_bytes().as_slice()));
    }
}

const CHILD: &str = "TESSERA_LOCAL_CRASH_CHILD";

/// Not a test of its own: the process that the next test kills. It tells each operation once it is acknowledged.
#[test]
fn child_that_works_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    // A short log: it is killed while the log is folded, too.
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a new file");
    let storage = FileBackend::new(file).expect("no other process has it");
    let mut local = LocalCoordinator::open_backend(storage, LOGS[0], config()).expect("it is empty");
    let mut workload = Workload::new(11);
    let mut done = 0;
    loop {
        workload.step(&mut local).expect("nothing is wrong with the disk");
        done += 1;
        println!("done {done}");
    }
}

#[test]
fn a_killed_process_leaves_what_it_acknowledged() {
    let folder = std::env::temp_dir().join(format!("tessera-local-kill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for round in 0..6_u64 {
        let path = folder.join(format!("{round}.redb"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_works_until_it_is_killed", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut acknowledged = 0;
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let number = |line: &str| line.rsplit_once("done ").and_then(|(_, number)| number.parse::<usize>().ok());
        while acknowledged < 5 + 9 * round as usize {
            let line = told.next().expect("the child goes on until it is killed");
            acknowledged = number(&line).unwrap_or(acknowledged);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Operations it acknowledged before it died count too.
        acknowledged = told.filter_map(|line| number(&line)).last().unwrap_or(acknowledged);
        let mut local = LocalCoordinator::open(&path, config()).expect("a killed owner leaves no lock");
        let kept = [acknowledged, acknowledged + 1].into_iter().any(|count| same(&mut local, &mut after(11, count)));
        assert!(kept, "round {round}: the file holds neither {acknowledged} operations nor one more");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
