//! The log between the operations and the tables: a torn entry is cut off, a damaged one is refused, and a restart finds
//! the same whichever way a record took.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod support;

use support::{Dice, Disk, RUN, TENANT, Workload, records, tables_at};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement};
use tessera_coordination_local::{LocalCoordinator, OpenError};

const LOG_AT: usize = 4096;
const LOG: u32 = 32 << 10;

fn config() -> CoordinatorRuntimeConfig {
    CoordinatorRuntimeConfig { slab_capacity: 1 << 16, ..CoordinatorRuntimeConfig::default() }
}

fn open(file: &[u8]) -> Result<LocalCoordinator, OpenError> {
    LocalCoordinator::open_backend(Disk::holding(file), LOG, config())
}

type Seen = (Option<RunRecord>, Vec<ShardRecord>);

fn seen(backend: &mut impl RunManagement) -> Seen {
    (backend.get_run(TENANT, RUN).ok(), records(backend))
}

/// The visible state after so many operations, from none on.
fn histories(seed: u64, operations: usize) -> Vec<Seen> {
    let mut memory = InMemoryCoordinator::new(config()).unwrap();
    let mut workload = Workload::new(seed);
    let mut all = vec![seen(&mut memory)];
    for _ in 0..operations {
        workload.step(&mut memory).unwrap();
        all.push(seen(&mut memory));
    }
    all
}

/// The file after so many operations, as a process that is killed leaves it.
fn killed_after(seed: u64, operations: usize) -> Vec<u8> {
    let disk = Disk::default();
    let mut local = LocalCoordinator::open_backend(disk.clone(), LOG, config()).unwrap();
    let mut workload = Workload::new(seed);
    for _ in 0..operations {
        workload.step(&mut local).unwrap();
    }
    disk.bytes()
}

/// Where the log's entries begin in a file, and where the last one ends.
fn entries(file: &[u8]) -> Vec<usize> {
    let mut edges = vec![LOG_AT];
    loop {
        let at = *edges.last().unwrap();
        let length = u32::from_le_bytes(*file[at + 4..].first_chunk().unwrap()) as usize;
        if length == 0 {
            return edges;
        }
        edges.push((at + 16 + length).next_multiple_of(8));
    }
}

#[test]
fn a_log_that_ends_at_any_byte_gives_the_operations_that_were_whole() {
    let operations = 6;
    let (histories, file) = (histories(7, operations), killed_after(7, operations));
    let edges = entries(&file);
    assert_eq!(edges.len(), operations + 1, "one entry for each");
    for cut in LOG_AT..edges[operations] {
        let mut torn = file.clone();
        torn[cut..tables_at(&file) as usize].fill(0);
        // Zeros behind an entry that ends in zeros are no loss.
        let whole = edges.iter().filter(|edge| torn[..**edge] == file[..**edge]).count() - 1;
        assert_eq!(seen(&mut open(&torn).unwrap()), histories[whole], "cut at byte {cut}");
    }
}

#[test]
fn bytes_behind_a_torn_entry_do_not_matter() {
    let operations = 8;
    let (histories, file) = (histories(7, operations), killed_after(7, operations));
    let edges = entries(&file);
    let mut dice = Dice::new(1);
    for cut in (edges[operations - 1]..edges[operations] - 8).step_by(5) {
        let mut torn = file.clone();
        torn[cut..tables_at(&file) as usize].fill_with(|| dice.below(256) as u8);
        assert_eq!(seen(&mut open(&torn).unwrap()), histories[operations - 1], "cut at byte {cut}");
    }
}

#[test]
fn a_flipped_bit_in_an_entry_before_the_last_is_refused_and_left_as_it_is() {
    let file = killed_after(7, 8);
    let edges = entries(&file);
    let inside = |at: usize| edges.windows(2).any(|edge| (edge[0]..edge[0] + 16).contains(&at));
    let last = edges[edges.len() - 2];
    for at in (LOG_AT..last).filter(|at| inside(*at) || at % 11 == 0) {
        let mut flipped = file.clone();
        flipped[at] ^= 1 << (at % 8);
        let disk = Disk::holding(&flipped);
        let opened = LocalCoordinator::open_backend(disk.clone(), LOG, config());
        let padding = edges.iter().any(|edge| (edge.saturating_sub(7)..*edge).contains(&at)) && file[at] == 0;
        let Err(refused) = opened else {
            assert!(padding, "byte {at} was changed unnoticed");
            continue;
        };
        assert!(matches!(refused, OpenError::Damaged { .. }), "byte {at}: {refused:?}");
        let words = refused.to_string();
        assert!(words.contains("of its log") && words.contains("move it away"), "byte {at}: {words}");
        let log = LOG_AT..tables_at(&file) as usize;
        assert!(disk.bytes()[log.clone()] == flipped[log], "byte {at}: the log was written to");
    }
}

#[test]
fn a_log_whose_beginning_is_missing_or_that_runs_ahead_of_its_tables_is_refused() {
    let file = killed_after(7, 8);
    let (edges, tables_at) = (entries(&file), tables_at(&file) as usize);
    let mut missing = file.clone();
    missing[edges[0]..edges[1]].fill(0);
    let words = open(&missing).unwrap_err().to_string();
    assert!(words.contains("entry 1 of its log") && words.contains("entry 2 behind it is whole"), "{words}");
    let mut shifted = file.clone();
    shifted.copy_within(edges[1]..tables_at, LOG_AT);
    let words = open(&shifted).unwrap_err().to_string();
    assert!(words.contains("entry 1 of its log is missing, and entry 2 is there"), "{words}");
}

#[test]
fn a_log_of_another_file_or_from_before_the_last_fold_changes_nothing() {
    let (mine, other) = (killed_after(7, 8), killed_after(8, 8));
    let log = LOG_AT..tables_at(&mine) as usize;
    let mut mixed = mine.clone();
    mixed[log.clone()].copy_from_slice(&other[log.clone()]);
    assert_eq!(seen(&mut open(&mixed).unwrap()), histories(7, 0)[0], "no entry of it counts here");

    // Closed well, everything is in the tables, and the log is as it was before.
    let disk = Disk::holding(&mine);
    drop(LocalCoordinator::open_backend(disk.clone(), LOG, config()).unwrap());
    assert!(disk.bytes()[log.clone()] == mine[log.clone()]);
    let mut without = disk.bytes();
    without[log].fill(0);
    for file in [disk.bytes(), without] {
        assert_eq!(seen(&mut open(&file).unwrap()), histories(7, 8)[8]);
    }
}

/// Rewrites the last entry of a file's log and gives it the checksum that it then must have.
fn forge(file: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let edges = entries(file);
    let (at, end) = (edges[edges.len() - 2], edges[edges.len() - 1]);
    let length = u32::from_le_bytes(*file[at + 4..].first_chunk().unwrap()) as usize;
    change(&mut file[at + 16..end]);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&file[16..24]), &file[at + 4..at + 16 + length]);
    file[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_record_in_the_log_that_breaks_an_invariant_does_not_reach_the_tables() {
    // The last operation changes one shard: a row of the hot table, its value behind kind, key and length.
    let (operations, value_at) = (8, 1 + 48 + 4);
    let mut file = killed_after(7, operations);
    let whole = file.clone();
    forge(&mut file, |rows| assert_eq!(rows[0], 4, "a hot row"));
    assert!(file == whole, "an entry that is not changed is forged as it was");
    // Behind version, kind and incarnation.
    let (status_at, fence_at) = (value_at + 2 + 8, value_at + 2 + 8 + 1);
    let mut broken = whole.clone();
    forge(&mut broken, |rows| rows[fence_at..fence_at + 8].fill(0));
    let mut unknown = whole.clone();
    forge(&mut unknown, |rows| rows[status_at] = 99);
    let mut no_row = whole.clone();
    forge(&mut no_row, |rows| rows[0] = 77);
    for (file, words) in [(broken, "invariant 4"), (unknown, "field status"), (no_row, "row 77")] {
        let disk = Disk::holding(&file);
        // The second try meets what the first left.
        for _ in 0..2 {
            let refused = LocalCoordinator::open_backend(disk.clone(), LOG, config()).unwrap_err();
            assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
            assert!(refused.to_string().contains(words), "{words}: {refused}");
        }
        // The tables are unchanged.
        let mut left = disk.bytes();
        left[LOG_AT..tables_at(&file) as usize].copy_from_slice(&whole[LOG_AT..tables_at(&file) as usize]);
        assert_eq!(seen(&mut open(&left).unwrap()), histories(7, operations)[operations], "{words}");
    }
}

#[test]
fn it_makes_no_difference_how_long_the_log_is() {
    let operations = 60;
    let expected = histories(5, operations).pop().unwrap();
    // No log, one too small for some records, some that are folded now and then, and one that never is.
    for log_bytes in [0, 500, 2 << 10, 3_001, 16 << 10, 1 << 20] {
        let disk = Disk::default();
        let mut local = LocalCoordinator::open_backend(disk.clone(), log_bytes, config()).unwrap();
        let mut workload = Workload::new(5);
        for done in 0..operations {
            workload.step(&mut local).unwrap();
            if done % 17 == 16 {
                drop(local);
                local = LocalCoordinator::open_backend(disk.clone(), log_bytes, config()).unwrap();
            }
        }
        assert_eq!(seen(&mut local), expected, "log of {log_bytes} bytes");
        let killed = Disk::holding(&disk.bytes());
        assert_eq!(seen(&mut LocalCoordinator::open_backend(killed, 0, config()).unwrap()), expected);
        let written = &disk.bytes()[LOG_AT..tables_at(&disk.bytes()) as usize];
        assert_eq!(written.len(), log_bytes as usize, "the log has its bound");
    }
}

#[test]
fn an_operation_costs_one_write_and_one_sync_as_long_as_the_log_has_room() {
    let disk = Disk::default();
    let mut local = LocalCoordinator::open_backend(disk.clone(), 1 << 20, config()).unwrap();
    let mut workload = Workload::new(7);
    workload.step(&mut local).unwrap();
    for _ in 0..40 {
        let (steps, syncs) = (disk.steps(), disk.syncs());
        workload.step(&mut local).unwrap();
        assert!(disk.steps() - steps <= 2 && disk.syncs() - syncs <= 1, "{} steps", disk.steps() - steps);
    }
}
