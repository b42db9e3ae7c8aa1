//! The log loses power at every single write, with many fates for unsynced bytes, and never gives back fewer records than were
//! acknowledged, more than were written, or anything else.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeMap;

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::wal::faulty::FaultyDirectory;
use tessera_lanes::wal::log::{Finding, Recovered, Wal};
use tessera_lanes::wal::record::{RECORD_HEADER_BYTES, RecordType, SEGMENT_HEADER_BYTES};
use tessera_lanes::wal::storage::Storage;

const LANE: LaneIndex = LaneIndex(3);

/// A small repeatable source of numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Record number `n` says that its slot has the value `n`, in a payload of a length that depends on `n`.
fn slot_of(n: u64) -> Slot {
    Slot((n % 7) as u8)
}

fn payload(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + (n as usize * 97) % 700, n as u8);
    bytes
}

fn state_after(n: u64) -> BTreeMap<u8, u64> {
    (1..=n).map(|n| (slot_of(n).0, n)).collect()
}

fn state_of(recovered: &Recovered) -> BTreeMap<u8, u64> {
    let mut state = BTreeMap::new();
    for record in recovered.records() {
        let n = u64::from_le_bytes(record.payload[..8].try_into().unwrap());
        assert_eq!(record.payload, payload(n), "a record is given back whole");
        state.insert(record.slot.0, n);
    }
    state
}

/// Writes records in groups of one to four with snapshots in between, from `n` on, until the disk fails or 40 are written.
/// Returns the last record written and the last acknowledged.
fn work(disk: &FaultyDirectory, random: &mut Random, from: u64, salt: u64) -> (u64, u64) {
    let (mut written, mut acked) = (from, from);
    let _ = (|| -> std::io::Result<()> {
        let (mut wal, _) = Wal::open(disk.clone(), LANE, salt)?;
        let mut salt = salt;
        while written < from + 40 {
            let mut batch = Vec::new();
            let first = written + 1;
            for n in first..=written + 1 + random.next() % 4 {
                wal.encode(&mut batch, RecordType::State, 0, slot_of(n), &payload(n));
                written = n;
            }
            wal.append(&batch)?;
            if random.next().is_multiple_of(3) {
                continue; // The next group syncs this one too.
            }
            wal.sync()?;
            acked = written;
            if random.next().is_multiple_of(4) {
                salt += 1;
                wal.begin_snapshot(salt)?;
                // The lane goes on while its snapshot is written.
                let state = state_after(written);
                let mut batch = Vec::new();
                wal.encode(&mut batch, RecordType::State, 0, slot_of(written + 1), &payload(written + 1));
                for (slot, n) in state {
                    wal.snapshot_record(0, Slot(slot), &payload(n))?;
                }
                written += 1;
                wal.append(&batch)?;
                wal.end_snapshot()?;
            }
        }
        Ok(())
    })();
    (written, acked)
}

fn check(recovered: &Recovered, written: u64, acked: u64, at: &str) -> u64 {
    assert!(!recovered.is_damaged(), "{at}: a crash is not damage: {:?}", recovered.findings);
    let state = state_of(recovered);
    let last = state.values().copied().max().unwrap_or(0);
    assert!(last >= acked, "{at}: record {acked} was acknowledged, only {last} came back");
    assert!(last <= written, "{at}: record {last} was never written");
    assert_eq!(state, state_after(last), "{at}: what came back is what was written up to {last}");
    last
}

#[test]
fn power_failure_at_every_write_loses_nothing_acknowledged_and_invents_nothing() {
    let operations = {
        let disk = FaultyDirectory::default();
        work(&disk, &mut Random(1), 0, 1);
        disk.operations()
    };
    assert!(operations > 60, "the script is worth crashing: {operations} operations");
    let mut torn = 0;
    for fail_at in 0..=operations {
        for fate in 1..=12 {
            let disk = FaultyDirectory::default();
            disk.fail_after(fail_at);
            let (written, acked) = work(&disk, &mut Random(1), 0, 1);
            let mut random = Random(fail_at * 1000 + fate);
            disk.crash(|| random.next());
            let at = format!("power off after {fail_at} operations, fate {fate}");
            let (_, recovered) = Wal::open(disk.clone(), LANE, 900).unwrap();
            torn += usize::from(!recovered.findings.is_empty());
            let last = check(&recovered, written, acked, &at);
            // Go on from there, and crash in the second life too.
            disk.fail_after(random.next() % 60);
            let (written, acked) = work(&disk, &mut random, last, 901);
            disk.crash(|| random.next());
            let (_, recovered) = Wal::open(disk, LANE, 902).unwrap();
            check(&recovered, written, acked.max(last), &format!("{at}, second life"));
        }
    }
    assert!(torn > 100, "the faults did tear tails: {torn}");
}

fn logged(records: u64) -> (FaultyDirectory, String) {
    let disk = FaultyDirectory::default();
    let (mut wal, _) = Wal::open(disk.clone(), LANE, 7).unwrap();
    for n in 1..=records {
        let mut batch = Vec::new();
        wal.encode(&mut batch, RecordType::State, 0, slot_of(n), &payload(n));
        wal.append(&batch).unwrap();
        wal.sync().unwrap();
    }
    let name = disk.list().unwrap().into_iter().find(|name| name.ends_with(".log")).unwrap();
    (disk, name)
}

/// Where the last of so many records ends, and the room behind it begins.
fn records_end(records: u64) -> usize {
    SEGMENT_HEADER_BYTES + (1..=records).map(|n| RECORD_HEADER_BYTES + payload(n).len()).sum::<usize>()
}

#[test]
fn a_flipped_bit_of_the_room_behind_the_records_is_cut_off_and_costs_none() {
    let (disk, name) = logged(6);
    let (end, length) = (records_end(6), disk.read(&name).unwrap().len());
    assert!(length > end + 1000, "a log is written over zeros: {length} bytes, {end} of them records");
    for at in [end, end + 1, end + 19, end + 20, (end + length) / 2, length - 1] {
        let (disk, name) = logged(6);
        disk.flip_bit(&name, at, 3);
        let (_, recovered) = Wal::open(disk.clone(), LANE, 8).unwrap();
        assert_eq!(state_of(&recovered), state_after(6), "byte {at}");
        assert!(matches!(recovered.findings[..], [Finding::TornTail { .. }]), "byte {at}: {:?}", recovered.findings);
        assert_eq!(disk.read(&name).unwrap().len(), end, "byte {at}");
    }
}

#[test]
fn a_log_that_is_closed_gives_its_room_back() {
    let (disk, name) = logged(6);
    let (wal, _) = Wal::open(disk.clone(), LANE, 8).unwrap();
    wal.close().unwrap();
    assert_eq!(disk.read(&name).unwrap().len(), records_end(6));
    let (mut wal, recovered) = Wal::open(disk.clone(), LANE, 9).unwrap();
    assert_eq!((state_of(&recovered), recovered.findings), (state_after(6), vec![]));
    let mut batch = Vec::new();
    wal.encode(&mut batch, RecordType::State, 0, slot_of(7), &payload(7));
    wal.append(&batch).unwrap();
    assert!(disk.read(&name).unwrap().len() >= records_end(7) + 4096);
    wal.close().unwrap();
    assert_eq!(disk.read(&name).unwrap().len(), records_end(7));
}

#[test]
fn any_flipped_bit_is_noticed_and_nothing_after_it_is_used() {
    let length = records_end(6);
    for at in 0..length {
        let (disk, name) = logged(6);
        disk.flip_bit(&name, at, (at % 8) as u8);
        let (_, recovered) = Wal::open(disk, LANE, 8).unwrap();
        let state = state_of(&recovered);
        let last = state.values().copied().max().unwrap_or(0);
        assert!(last < 6, "byte {at}: a flipped bit passed");
        assert_eq!(state, state_after(last), "byte {at}");
        assert!(!recovered.findings.is_empty(), "byte {at}: nothing was reported");
        let before_the_last = at < length - payload(6).len() - 20;
        assert_eq!(recovered.is_damaged(), before_the_last, "byte {at}: {:?}", recovered.findings);
    }
}

#[test]
fn after_damage_the_log_goes_on_from_the_good_part_and_a_snapshot_heals_it() {
    let (disk, name) = logged(6);
    disk.flip_bit(&name, 300, 1);
    let (mut wal, recovered) = Wal::open(disk.clone(), LANE, 8).unwrap();
    let good = state_of(&recovered).values().copied().max().unwrap_or(0);
    assert!(wal.is_damaged() && good < 6);
    let mut batch = Vec::new();
    wal.encode(&mut batch, RecordType::State, 0, slot_of(good + 1), &payload(good + 1));
    wal.append(&batch).unwrap();
    wal.sync().unwrap();
    drop(wal);

    // Started again before any snapshot: the good part and the records logged since are there, and it is not damage any more.
    let (mut wal, recovered) = Wal::open(disk.clone(), LANE, 9).unwrap();
    assert_eq!(state_of(&recovered), state_after(good + 1));
    assert_eq!(recovered.findings, []);
    wal.begin_snapshot(10).unwrap();
    for (slot, n) in state_after(good + 1) {
        wal.snapshot_record(0, Slot(slot), &payload(n)).unwrap();
    }
    wal.end_snapshot().unwrap();
    drop(wal);
    let (_, recovered) = Wal::open(disk, LANE, 11).unwrap();
    assert_eq!((state_of(&recovered), recovered.findings), (state_after(good + 1), vec![]));
}

#[test]
fn a_damaged_snapshot_is_reported_and_set_aside() {
    let (disk, _) = logged(6);
    let (mut wal, _) = Wal::open(disk.clone(), LANE, 8).unwrap();
    wal.begin_snapshot(9).unwrap();
    for (slot, n) in state_after(6) {
        wal.snapshot_record(0, Slot(slot), &payload(n)).unwrap();
    }
    wal.end_snapshot().unwrap();
    drop(wal);
    let name = disk.list().unwrap().into_iter().find(|name| name.ends_with(".snap")).unwrap();
    disk.flip_bit(&name, 200, 0);
    let (mut wal, recovered) = Wal::open(disk.clone(), LANE, 10).unwrap();
    assert!(matches!(&recovered.findings[..], [Finding::Damaged { file, .. }] if *file == name));
    for record in recovered.records() {
        let n = u64::from_le_bytes(record.payload[..8].try_into().unwrap());
        assert_eq!(record.payload, payload(n));
    }
    wal.begin_snapshot(11).unwrap();
    wal.end_snapshot().unwrap();
    assert!(disk.list().unwrap().contains(&format!("{name}.damaged")), "kept for the operator");
}

#[test]
fn records_of_a_released_slot_are_not_given_back() {
    let disk = FaultyDirectory::default();
    let (mut wal, _) = Wal::open(disk.clone(), LANE, 7).unwrap();
    let mut batch = Vec::new();
    wal.encode(&mut batch, RecordType::State, 0, Slot(1), &payload(1));
    wal.encode(&mut batch, RecordType::State, 0, Slot(2), &payload(2));
    wal.encode(&mut batch, RecordType::Released, 0, Slot(1), &[]);
    wal.encode(&mut batch, RecordType::State, 0, Slot(1), &payload(8));
    wal.append(&batch).unwrap();
    let (_, recovered) = Wal::open(disk, LANE, 8).unwrap();
    assert_eq!(state_of(&recovered), BTreeMap::from([(1, 8), (2, 2)]));
}
