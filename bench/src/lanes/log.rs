//! The write-ahead log beside a file that is appended to and synced.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::handler::Notice;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::wal::log::Wal;
use tessera_lanes::wal::record::RecordType;
use tessera_lanes::wal::storage::Directory;
use tessera_lanes::wal::{Durability, Importance, LogConfig, Lsn};
use tessera_lanes::{Context, Handler};

use crate::harness::Pair;

/// Records and their bytes in one operation.
const RECORDS: u8 = 64;
const RECORD_BYTES: usize = 256;
/// A lane that logs a group of records when it is told to, and says when they are durable; beside a thread that does the same
/// with a bare file. Like for like: the next group comes when the last is durable, so that either side makes one sync a group,
/// of the same bytes; that it did is printed when the figure is done. CPU is that of all threads, and ours has one more: the
/// lane that does not wait for the disk.
pub(super) fn commit() -> Pair {
    let (here, there) = (Scratch::new("commit"), Scratch::new("bare"));
    let log = LogConfig { durability: Durability::Strict, compact_bytes_min: 1 << 40, ..LogConfig::default() };
    let config = RuntimeConfig {
        lanes: 1,
        log: Some((here.0.clone(), log)),
        spin: Duration::ZERO,
        pin: false,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config, |_| Logger::default()).expect("a lane with a log starts");
    let (ask, asked) = sync_channel::<SyncSender<()>>(1);
    let mut bare = File::create(there.0.join("bare")).expect("a file can be created");
    std::thread::spawn(move || {
        let mut group = Vec::new();
        for done in asked {
            group.clear();
            for _ in 0..RECORDS {
                group.extend_from_slice(&[0; 20]);
                group.extend_from_slice(&[5; RECORD_BYTES]);
            }
            bare.write_all(&group).and_then(|()| bare.sync_data()).expect("the disk takes it");
            let _ = done.send(()); // Nobody waits any more once the figure is done.
        }
    });
    let (to, durable) = sync_channel(1);
    let (mut ours, mut reference) = (Tally::new("ours", here), Tally::new("reference", there));
    let (to_bare, bare_durable) = sync_channel(1);
    Pair::new(
        move |times| {
            for _ in 0..times {
                assert!(runtime.command(LaneIndex(0), to.clone()).is_ok());
                ours.group(durable.recv().expect("every group becomes durable"));
            }
        },
        move |times| {
            for _ in 0..times {
                ask.send(to_bare.clone()).expect("the thread lives");
                bare_durable.recv().expect("every group becomes durable");
                reference.group(1);
            }
        },
    )
}

/// What one side did, told at its end.
struct Tally {
    side: &'static str,
    scratch: Scratch,
    groups: u64,
    syncs: u64,
}

impl Tally {
    fn new(side: &'static str, scratch: Scratch) -> Self {
        Self { side, scratch, groups: 0, syncs: 0 }
    }

    fn group(&mut self, syncs: u64) {
        self.groups += 1;
        self.syncs += syncs;
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let files = std::fs::read_dir(&self.scratch.0).into_iter().flatten().flatten();
        let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
        let records = self.groups.max(1) * u64::from(RECORDS);
        let (side, groups, syncs) = (self.side, self.groups, self.syncs);
        let each = bytes as f64 / records as f64;
        eprintln!("lanes/commit: {side} synced {syncs} times for {groups} groups, {each:.1} bytes a record");
    }
}

/// Logs a group for each command and answers when it is safe, with the number of syncs the lane was told of meanwhile.
#[derive(Default)]
struct Logger {
    waiting: Option<(Lsn, SyncSender<u64>)>,
    syncs: u64,
}

impl Handler for Logger {
    type Command = SyncSender<u64>;

    fn on_command(&mut self, cx: &mut Context, done: SyncSender<u64>) {
        let mut last = Lsn(0);
        for slot in 0..RECORDS {
            last = cx.log(1, Slot(slot), &[5; RECORD_BYTES], Importance::Hard).expect("the queue has room");
        }
        self.waiting = Some((last, done));
    }

    fn on_notice(&mut self, _: &mut Context, notice: Notice) {
        let Notice::Durable { upto } = notice else { return };
        self.syncs += 1;
        if let Some((_, done)) = self.waiting.take_if(|(last, _)| *last <= upto) {
            let _ = done.send(std::mem::take(&mut self.syncs));
        }
    }
}

/// A directory for the run, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
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
