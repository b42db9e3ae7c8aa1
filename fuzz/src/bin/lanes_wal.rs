//! A lane's log opens with any files, and records it gave back once it gives back again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::wal::faulty::FaultyDirectory;
use tessera_lanes::wal::log::{Recovered, Wal};
use tessera_lanes::wal::record::{self, RecordHeader, RecordType, SegmentHeader};
use tessera_lanes::wal::storage::{Storage, StorageFile};

const LANE: LaneIndex = LaneIndex(0);
const SALT: u64 = 7;

/// A file: whether it is a snapshot, its generation, how much of the one before it counts, its records, and what follows.
type File<'a> = (bool, u8, Option<u16>, Vec<Record<'a>>, &'a [u8]);
/// What it is to the log, kind, slot, how much was on disk, and what it says.
type Record<'a> = (u8, u8, u8, u16, &'a [u8]);

fuzz_target!(|files: Vec<File<'_>>| {
    let directory = FaultyDirectory::default();
    for (is_snapshot, generation, previous_end, records, rest) in files.into_iter().take(4) {
        let generation = u64::from(generation % 4);
        let mut bytes = Vec::new();
        if let Some(end) = previous_end {
            bytes.extend(SegmentHeader { salt: SALT, generation, previous_end: u64::from(end) }.encode());
        }
        for (record_type, kind, slot, synced, payload) in records {
            let record_type =
                [RecordType::State, RecordType::Released, RecordType::SnapshotEnd][usize::from(record_type % 3)];
            let header = RecordHeader { record_type, kind, slot, synced: u64::from(synced) };
            record::encode(&mut bytes, SALT, &header, payload);
        }
        bytes.extend(rest);
        let name = format!("lane-000.{generation:010}.{}", if is_snapshot { "snap" } else { "log" });
        let mut file = directory.create(&name).expect("the directory never fails here");
        file.append(&bytes).expect("the directory never fails here");
    }
    let (_, first) = Wal::open(directory.clone(), LANE, SALT + 1).expect("damage is reported, and not an error");
    let (_, again) = Wal::open(directory, LANE, SALT + 2).expect("damage is reported, and not an error");
    assert_eq!(remembered(&first), remembered(&again));
});

fn remembered(recovered: &Recovered) -> Vec<(u8, u8, Vec<u8>)> {
    recovered.records().map(|record| (record.kind, record.slot.0, record.payload.to_vec())).collect()
}
