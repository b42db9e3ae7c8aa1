//! The one-file backend beside a raw loop that appends the same bytes to a file and syncs it, in batches of the same size.
//!
//! Syncing is nearly all of the time on both sides, so wall time is what to read here; CPU stands beside it. Of many threads
//! one half gathers while the other's batch is written, so a batch is half of them, on both sides. That many threads sleep
//! and wake for every batch costs more than the batch; a second figure therefore has as many threads on the raw side too:
//! that is like beside like, and the first shows what the threads cost.
//!
//! Ours writes over room that the file has already, and a file that grows makes a sync tell the file system about it. When
//! the raw loop has such room as well, the difference is the coordinator's own cost: the figures `in-room`.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::stored::HotView;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, CoordinatorRuntimeConfig, Lease, RunManagement, ShardClaiming,
};
use tessera_coordination_local::LocalCoordinator;

use crate::harness::{Figure, Pair};

const TENANT: TenantId = TenantId::from_bytes([6; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);

/// Figures of the backend of one machine.
pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "local/checkpoint-alone",
            "a checkpoint of one worker beside one record appended and synced",
            || checkpoints(1, Bench::append_in_halves),
        ),
        Figure::cost(
            "local/checkpoint-alone-in-room",
            "the same beside one record written over zeros and synced",
            || checkpoints(1, |bench, _| Box::new(bench.append(1, Room::Made))),
        ),
        Figure::cost(
            "local/checkpoint-x64",
            "64 checkpoints of 64 threads beside 64 records appended and synced in halves, as ours are",
            || checkpoints(64, Bench::append_in_halves),
        ),
        Figure::cost(
            "local/checkpoint-x64-threads",
            "the same beside 64 threads whose records are appended and synced together",
            || checkpoints(64, Bench::append_on_threads),
        ),
        Figure::cost("local/renew-64", "renewing 64 shards in one call beside 64 records appended and synced", || {
            renewals(Room::Growing)
        }),
        Figure::cost("local/renew-64-in-room", "the same beside 64 records written over zeros and synced", || {
            renewals(Room::Made)
        }),
        Figure::cost(
            "local/start-after-crash",
            "opening a file whose log is as long as it becomes beside opening one that was closed well",
            starts,
        ),
    ]
}

/// A folder of its own below the temporary one; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tessera-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a temporary folder can be made");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Leftovers lie in the temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The target of the raw loop.
#[derive(Clone, Copy)]
enum Room {
    /// A file that grows.
    Growing,
    /// A file of zeros, from the beginning again when its end is reached.
    Made,
}

/// As long as the coordinator's log.
const ROOM_BYTES: usize = 4 << 20;

/// A coordinator with so many shards, all held.
struct Bench {
    runs: LocalCoordinator,
    leases: Vec<Lease>,
    folder: Folder,
}

impl Bench {
    fn start(shards: u64) -> Self {
        let folder = Folder::new();
        let mut runs = LocalCoordinator::open(folder.0.join("runs.redb"), CoordinatorRuntimeConfig::default())
            .expect("a new file can be made");
        let bounds: Vec<[u8; 8]> = (1..=shards + 1).map(u64::to_be_bytes).collect();
        let inputs: Vec<InitialShardInput<'_>> = (0..shards as usize)
            .map(|root| InitialShardInput::new(ShardId::new(root as u64 + 1), &bounds[root], &bounds[root + 1]))
            .collect();
        let config = RunConfig { lease_duration: Some(3_600_000), ..RunConfig::default() };
        runs.create_run_with_shards(LogicalTime::new(1), TENANT, RUN, INCARNATION, config, &inputs, OpId::new(1))
            .expect("registered");
        let mut scratch = AcquireScratch::new();
        let leases = (0..shards).map(|_| {
            let claimed = runs.claim_next_available(LogicalTime::new(1), TENANT, RUN, WorkerId::new(1), &mut scratch);
            claimed.expect("granted").lease
        });
        let leases = leases.collect();
        Self { runs, leases, folder }
    }

    /// How many bytes of a shard an operation writes.
    fn record_bytes(&mut self) -> usize {
        let key = ShardKey::new(RUN, ShardId::new(1));
        HotView::of(&self.runs.get_shard(TENANT, key).expect("there")).encode().len()
    }

    /// The reference: so many records at once, appended and synced.
    fn append(&mut self, records: usize, room: Room) -> impl FnMut(u64) + use<> {
        let mut file = File::create(self.folder.0.join("raw")).expect("a file can be made");
        let mut batch = vec![7; self.record_bytes() * records];
        let (mut serial, mut at) = (0u64, 0);
        if let Room::Made = room {
            file.write_all(&vec![0; ROOM_BYTES]).expect("there is space on the disk");
            file.sync_all().expect("synced");
        }
        move |times| {
            for _ in 0..times {
                // Something differs each time: some stores skip a write that changes nothing.
                serial += 1;
                batch[..8].copy_from_slice(&serial.to_be_bytes());
                if let Room::Made = room {
                    at = if at + batch.len() > ROOM_BYTES { 0 } else { at };
                    file.seek(SeekFrom::Start(at as u64)).expect("within the file");
                    at += batch.len();
                }
                file.write_all(&batch).expect("written");
                file.sync_data().expect("synced");
            }
        }
    }

    /// The reference for so many threads, of which one half gathers while the other's records are written.
    fn append_in_halves(&mut self, threads: u64) -> Box<dyn FnMut(u64)> {
        let mut append = self.append(threads.div_ceil(2) as usize, Room::Growing);
        let halves = threads.min(2);
        Box::new(move |times| append(times * halves))
    }

    /// The reference with as many threads: each hands its record to the open batch and sleeps until that is synced.
    fn append_on_threads(&mut self, threads: u64) -> Box<dyn FnMut(u64)> {
        let bytes = self.record_bytes();
        let appender = Arc::new(Appender {
            file: Mutex::new(File::create(self.folder.0.join("raw")).expect("a file can be made")),
            gathered: Mutex::default(),
        });
        let mut next = 0;
        let workers = on_threads((0..threads).map(|_| {
            let (appender, mut record) = (Arc::clone(&appender), vec![7; bytes]);
            move |serial: u64| {
                record[..8].copy_from_slice(&serial.to_be_bytes());
                appender.append(&record);
            }
        }));
        Box::new(move |times| {
            workers.run(next..next + times);
            next += times;
        })
    }
}

/// A file that many threads append to, with one sync for all who come together.
struct Appender {
    file: Mutex<File>,
    gathered: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    synced: Arc<OnceLock<()>>,
}

impl Appender {
    fn append(&self, record: &[u8]) {
        let mut gathered = self.gathered.lock().expect("no panic");
        let (first, synced) = (gathered.bytes.is_empty(), Arc::clone(&gathered.synced));
        gathered.bytes.extend_from_slice(record);
        drop(gathered);
        if first {
            // The first thread writes for all that come while the file is in use.
            let mut file = self.file.lock().expect("no panic");
            let batch = std::mem::take(&mut *self.gathered.lock().expect("no panic"));
            file.write_all(&batch.bytes).expect("written");
            file.sync_data().expect("synced");
            drop(file);
            batch.synced.set(()).expect("only its first author does this");
        }
        synced.wait();
    }
}

/// Threads that are there already: starting them is not measured.
struct Workers(Vec<(Sender<Range<u64>>, Receiver<()>)>);

fn on_threads<F: FnMut(u64) + Send + 'static>(bodies: impl Iterator<Item = F>) -> Workers {
    let start = |mut body: F| {
        let ((order, orders), (done, when_done)) = (channel::<Range<u64>>(), channel());
        std::thread::spawn(move || {
            for serials in orders {
                serials.for_each(&mut body);
                // No thread listens once the figure is over.
                let _ = done.send(());
            }
        });
        (order, when_done)
    };
    Workers(bodies.map(start).collect())
}

impl Workers {
    fn run(&self, serials: Range<u64>) {
        self.0.iter().for_each(|(order, _)| order.send(serials.clone()).expect("it waits for orders"));
        self.0.iter().for_each(|(_, when_done)| when_done.recv().expect("a thread of the measurement failed"));
    }
}

fn checkpoint(runs: &mut LocalCoordinator, lease: &Lease, serial: u64) {
    // The root's own key, and behind it a position that grows.
    let key = [lease.shard().get().to_be_bytes(), serial.to_be_bytes()].concat();
    let cursor = CursorUpdate::at_key(&key).expect("valid");
    runs.checkpoint(LogicalTime::new(2), TENANT, lease, cursor, OpId::new(serial)).expect("recorded");
}

fn checkpoints(threads: u64, reference: impl Fn(&mut Bench, u64) -> Box<dyn FnMut(u64)>) -> Pair {
    let mut bench = Bench::start(threads);
    let mut serial = 10;
    // Until the log of operations is full, records grow.
    for _ in 0..16 {
        serial += 1;
        bench.leases.iter().for_each(|lease| checkpoint(&mut bench.runs, lease, serial));
    }
    let reference = reference(&mut bench, threads);
    let workers = on_threads(bench.leases.iter().map(|lease| {
        let (lease, mut runs) = (*lease, bench.runs.clone());
        move |serial| checkpoint(&mut runs, &lease, serial)
    }));
    let ours = move |times: u64| {
        let _alive = &bench.folder;
        workers.run(serial + 1..serial + 1 + times);
        serial += times;
    };
    Pair::new(ours, reference)
}

fn renewals(room: Room) -> Pair {
    let mut bench = Bench::start(64);
    let reference = bench.append(64, room);
    let mut now = 2;
    let mut answers = Vec::new();
    let ours = move |times| {
        for _ in 0..times {
            now += 1;
            bench.runs.renew_many(LogicalTime::new(now), TENANT, &bench.leases, &mut answers);
            assert!(answers.iter().all(Result::is_ok));
        }
    };
    Pair::new(ours, reference)
}

/// Both files hold the same 4,096 shards; one of them has its log full of them, as a process leaves it that is killed.
fn starts() -> Pair {
    let mut bench = Bench::start(4_096);
    let mut answers = Vec::new();
    let live = bench.folder.0.join("runs.redb");
    // The log is folded when the next batch does not fit, so it is at its longest just before.
    let mut longest = (0, Vec::new());
    for now in 3..40 {
        bench.runs.renew_many(LogicalTime::new(now), TENANT, &bench.leases[..512], &mut answers);
        let file = fs::read(&live).expect("it can be read");
        let zeros = file[4096..4096 + ROOM_BYTES].iter().rev().take_while(|byte| **byte == 0).count();
        if ROOM_BYTES - zeros > longest.0 {
            longest = (ROOM_BYTES - zeros, file);
        }
    }
    let (_, killed) = longest;
    let Bench { runs, folder, .. } = bench;
    drop(runs);
    let (closed, crashed) = (folder.0.join("runs.redb"), folder.0.join("crashed.redb"));
    let open = |path: &PathBuf| {
        drop(LocalCoordinator::open(path, CoordinatorRuntimeConfig::default()).expect("a killed owner leaves no lock"));
    };
    let (path, again) = (crashed.clone(), move |_| fs::write(&crashed, &killed).expect("there is space on the disk"));
    let ours = move |times| (0..times).for_each(|_| open(&path));
    let reference = move |times| {
        let _alive = &folder;
        (0..times).for_each(|_| open(&closed));
    };
    Pair::new(ours, reference).refilled(1, again)
}
