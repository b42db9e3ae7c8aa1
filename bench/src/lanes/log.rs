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
/// Groups under way at once: the next gathers while one is on its way to the disk.
const WINDOW: u64 = 4;

/// A lane that logs a group of records when it is told to, and says when they are durable; beside a thread that does the same
/// with a bare file, a write and a sync for each group. What comes while a sync runs goes with the next one on our side.
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
    let (ask, asked) = sync_channel::<SyncSender<()>>(WINDOW as usize);
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
    let windowed = |times: u64, mut begin: Box<dyn FnMut(SyncSender<()>)>| {
        let (to, answers) = sync_channel(WINDOW as usize);
        for at in 0..times {
            if at >= WINDOW {
                answers.recv().expect("every group becomes durable");
            }
            begin(to.clone());
        }
        for _ in 0..times.min(WINDOW) {
            answers.recv().expect("every group becomes durable");
        }
    };
    let runtime = std::rc::Rc::new(runtime);
    Pair::new(
        move |times| {
            let _keep = &here;
            let runtime = runtime.clone();
            windowed(times, Box::new(move |done| assert!(runtime.command(LaneIndex(0), done).is_ok())));
        },
        move |times| {
            let _keep = &there;
            let ask = ask.clone();
            windowed(times, Box::new(move |done| ask.send(done).expect("the thread lives")));
        },
    )
}

/// Logs a group for each command and answers when it is safe.
#[derive(Default)]
struct Logger {
    waiting: std::collections::VecDeque<(Lsn, SyncSender<()>)>,
}

impl Handler for Logger {
    type Command = SyncSender<()>;

    fn on_command(&mut self, cx: &mut Context, done: SyncSender<()>) {
        let mut last = Lsn(0);
        for slot in 0..RECORDS {
            last = cx.log(1, Slot(slot), &[5; RECORD_BYTES], Importance::Hard).expect("the queue has room");
        }
        self.waiting.push_back((last, done));
    }

    fn on_notice(&mut self, _: &mut Context, notice: Notice) {
        let Notice::Durable { upto } = notice else { return };
        while let Some((lsn, done)) = self.waiting.pop_front_if(|(lsn, _)| *lsn <= upto) {
            debug_assert!(lsn <= upto);
            let _ = done.send(());
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
