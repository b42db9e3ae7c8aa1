//! Errors of a file that cannot be used, and several workers that share its writes.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use support::{Disk, INCARNATION, RUN, TENANT, Workload, records};
use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, RunManagement};
use tessera_coordination_local::{LocalCoordinator, OpenError};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tessera-local-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

const LOG: u32 = 1 << 20;

fn config() -> CoordinatorRuntimeConfig {
    CoordinatorRuntimeConfig { slab_capacity: 1 << 20, ..CoordinatorRuntimeConfig::default() }
}

#[test]
fn everything_is_there_after_reopening() {
    let path = folder("reopen").join("runs.redb");
    let mut local = LocalCoordinator::open(&path, config()).unwrap();
    let mut workload = Workload::new(5);
    for _ in 0..60 {
        workload.step(&mut local).unwrap();
    }
    let (run, shards) = (local.get_run(TENANT, RUN).unwrap(), records(&mut local));
    assert!(shards.len() > support::SHARDS as usize, "the workload splits");
    drop(local);
    let mut again = LocalCoordinator::open(&path, config()).unwrap();
    assert_eq!((again.get_run(TENANT, RUN).unwrap(), records(&mut again)), (run, shards));
    workload.step(&mut again).unwrap();
}

#[test]
fn a_retired_run_is_gone_from_the_file_too() {
    let path = folder("retire").join("runs.redb");
    let mut local = LocalCoordinator::open(&path, config()).unwrap();
    let mut workload = Workload::new(5);
    for _ in 0..20 {
        workload.step(&mut local).unwrap();
    }
    // Some of it is in the tables, and some only in the log.
    drop(local);
    let mut local = LocalCoordinator::open(&path, config()).unwrap();
    for _ in 0..20 {
        workload.step(&mut local).unwrap();
    }
    local.cancel_run(LogicalTime::new(500), TENANT, RUN, OpId::new(9_000)).unwrap();
    assert_eq!(local.retire_runs(LogicalTime::new(501), TENANT, LogicalTime::new(500), 10), Ok(1));
    drop(local);
    let mut again = LocalCoordinator::open(&path, config()).unwrap();
    assert!(again.get_run(TENANT, RUN).is_err());
    assert_eq!(records(&mut again), []);
}

#[test]
fn a_second_opener_is_told_which_process_is_in_the_way() {
    let path = folder("second").join("runs.redb");
    let first = LocalCoordinator::open(&path, config()).unwrap();
    let refused = LocalCoordinator::open(&path, config()).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }));
    assert!(refused.to_string().contains("in use by another process") && refused.to_string().contains("runs.redb"));
    drop(first);
    LocalCoordinator::open(&path, config()).unwrap();
}

#[test]
fn a_file_of_another_format_or_kind_is_refused_and_left_alone() {
    let folder = folder("format");
    let newer = folder.join("newer.redb");
    drop(LocalCoordinator::open(&newer, config()).unwrap());
    let mut bytes = fs::read(&newer).unwrap();
    bytes[8] += 1;
    let crc = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    fs::write(&newer, &bytes).unwrap();
    let refused = LocalCoordinator::open(&newer, config()).unwrap_err();
    assert!(matches!(refused, OpenError::Format { found: Some(5), known: 4, .. }), "{refused}");
    assert!(fs::read(&newer).unwrap() == bytes, "a refused file is not written to");
    bytes[9] += 1;
    fs::write(&newer, &bytes).unwrap();
    let refused = LocalCoordinator::open(&newer, config()).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("its header is damaged"), "{refused}");

    let foreign = folder.join("foreign.redb");
    let database = redb::Database::create(&foreign).unwrap();
    let transaction = database.begin_write().unwrap();
    let songs: redb::TableDefinition<'_, &str, u32> = redb::TableDefinition::new("songs");
    transaction.open_table(songs).unwrap().insert("one", 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let refused = LocalCoordinator::open(&foreign, config()).unwrap_err();
    assert!(matches!(refused, OpenError::Format { found: None, .. }), "{refused}");

    let oldest = folder.join("oldest.redb");
    let database = redb::Database::create(&oldest).unwrap();
    let transaction = database.begin_write().unwrap();
    let formats: redb::TableDefinition<'_, &str, u32> = redb::TableDefinition::new("format");
    transaction.open_table(formats).unwrap().insert("format", 1).unwrap();
    transaction.commit().unwrap();
    let refused = LocalCoordinator::open(&oldest, config()).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    drop(database);
    let refused = LocalCoordinator::open(&oldest, config()).unwrap_err();
    assert!(matches!(refused, OpenError::Format { found: Some(1), known: 4, .. }), "{refused}");
    assert!(refused.to_string().contains("this program reads only 4"), "{refused}");

    let text = folder.join("notes.txt");
    fs::write(&text, b"these are not the bytes you are looking for, but there are a good many of them").unwrap();
    let refused = LocalCoordinator::open(&text, config()).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    assert!(fs::read(&text).unwrap().starts_with(b"these are"), "a refused file is not written to");
}

#[test]
fn a_crash_while_the_file_is_made_does_not_stand_in_the_way() {
    let folder = folder("creation");
    let path = folder.join("runs.redb");
    let half = folder.join("runs.redb.new-4000000");
    fs::write(&half, b"half a database").unwrap();
    fs::write(folder.join("runs.redb.newer"), b"of another").unwrap();
    drop(LocalCoordinator::open(&path, config()).unwrap());
    assert!(!half.exists(), "what the crashed process left is cleared away");
    assert!(folder.join("runs.redb.newer").exists(), "and nothing else is");
}

#[test]
fn a_missing_folder_is_named() {
    let path = folder("missing").join("no/such/folder/runs.redb");
    let refused = LocalCoordinator::open(&path, config()).unwrap_err();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
    assert!(refused.to_string().contains("no/such/folder"));
}

#[test]
fn a_file_cut_short_is_refused_and_not_misread() {
    let folder = folder("short");
    let path = folder.join("runs.redb");
    let mut local = LocalCoordinator::open(&path, config()).unwrap();
    let mut workload = Workload::new(5);
    for _ in 0..20 {
        workload.step(&mut local).unwrap();
    }
    drop(local);
    let whole = fs::read(&path).unwrap();
    let tables_at = support::tables_at(&whole) as usize;
    for kept in [0, 7, 8, 27, 28, 100, 4096, tables_at / 2, tables_at, tables_at + 100, whole.len() - 4096] {
        let cut = folder.join(format!("cut-{kept}.redb"));
        fs::write(&cut, &whole[..kept]).unwrap();
        match LocalCoordinator::open(&cut, config()) {
            // An empty file is a new one.
            Ok(mut local) => assert!(kept == 0 && records(&mut local).is_empty(), "{kept} bytes were believed"),
            Err(refused) => {
                assert!(refused.to_string().contains("cut-"), "{refused}");
                let is_left = kept > tables_at || fs::read(&cut).unwrap() == whole[..kept];
                assert!(is_left, "a file without tables was written to: {refused}");
            }
        }
    }
}

#[test]
fn workers_on_many_threads_share_writes() {
    const WORKERS: u64 = 8;
    const CHECKPOINTS: u64 = 40;
    let disk = Disk::slow(Duration::from_micros(500));
    let mut local = LocalCoordinator::open_backend(disk.clone(), LOG, config()).unwrap();
    let edges: Vec<[u8; 1]> = (0..=WORKERS as u8).map(|at| [at * 10 + 1]).collect();
    let shards: Vec<_> = (0..WORKERS as usize)
        .map(|at| InitialShardInput::new(ShardId::new(at as u64 + 1), &edges[at], &edges[at + 1]))
        .collect();
    let now = LogicalTime::new(1);
    local.create_run_with_shards(now, TENANT, RUN, INCARNATION, RunConfig::default(), &shards, OpId::new(1)).unwrap();
    let before = disk.syncs();
    let start = Arc::new(Barrier::new(WORKERS as usize));
    std::thread::scope(|scope| {
        for worker in 1..=WORKERS {
            let (mut local, start) = (local.clone(), Arc::clone(&start));
            scope.spawn(move || {
                let key = ShardKey::new(RUN, ShardId::new(worker));
                let mut scratch = AcquireScratch::default();
                let granted = local.acquire_and_restore_into(now, TENANT, key, WorkerId::new(worker), &mut scratch);
                let lease = granted.unwrap().lease;
                start.wait();
                for step in 0..CHECKPOINTS {
                    let last = [worker as u8 * 10 - 9 + (step / 5) as u8];
                    let cursor = CursorUpdate::at_key(&last).unwrap();
                    local.checkpoint(now, TENANT, &lease, cursor, OpId::new(worker * 1_000 + step)).unwrap();
                }
            });
        }
    });
    let operations = WORKERS * (CHECKPOINTS + 1);
    let shared = disk.syncs() - before;
    assert!(shared < operations, "{shared} syncs for {operations} operations");
    let mut again =
        LocalCoordinator::open_backend(disk.after_power_cut(&mut support::Dice::new(1)), LOG, config()).unwrap();
    for worker in 1..=WORKERS {
        let record = again.get_shard(TENANT, ShardKey::new(RUN, ShardId::new(worker))).unwrap();
        assert_eq!(record.cursor.last_key(), Some([worker as u8 * 10 - 2].as_slice()));
    }
}
