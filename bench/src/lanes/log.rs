//! The write-ahead log beside a file that is appended to and synced. The log writes over zeros it has put there before, a
//! mebibyte at a time at most, and those are in its figure.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::wal::log::Wal;
use tessera_lanes::wal::record::RecordType;
use tessera_lanes::wal::storage::Directory;

use crate::harness::Pair;

/// The log itself, beside a file.
pub(super) fn append() -> Pair {
    let (here, there) = (Scratch::new("log"), Scratch::new("raw"));
    let directory = Directory::open(&here.0).expect("the directory is there");
    let (mut wal, _) = Wal::open(directory, LaneIndex(0), 1).expect("an empty log opens");
    let mut raw = File::create(there.0.join("raw")).expect("a file can be created");
    let payload = [5; 256];
    let mut batch = Vec::new();
    let mut raw_batch = Vec::new();
    Pair::new(
        move |times| {
            let _keep = &here;
            for _ in 0..times {
                batch.clear();
                for slot in 0..64 {
                    wal.encode(&mut batch, RecordType::State, 1, Slot(slot), &payload);
                }
                wal.append(&batch).and_then(|()| wal.sync()).expect("the disk takes it");
            }
        },
        move |times| {
            let _keep = &there;
            for _ in 0..times {
                raw_batch.clear();
                for _ in 0..64 {
                    raw_batch.extend_from_slice(&[0; 20]);
                    raw_batch.extend_from_slice(&payload);
                }
                raw.write_all(&raw_batch).and_then(|()| raw.sync_data()).expect("the disk takes it");
            }
        },
    )
}

/// A directory for the run, removed at its end.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tessera-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
