//! Storage that loses unsynced bytes, and a small workload whose effects can be told apart.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redb::backends::FileBackend;
use redb::{Database, StorageBackend};
use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::plan_split_residual;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{AcquireScratch, CoordinationBackend, Lease, RunManagement};

pub(crate) const TENANT: TenantId = TenantId::from_bytes([9; 32]);
pub(crate) const RUN: RunId = RunId::new(1);
pub(crate) const INCARNATION: RunIncarnation = RunIncarnation::new(1);
pub(crate) const SHARDS: u64 = 4;

/// A generator of small numbers; good enough to pick faults with, and the same on every machine.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A disk under power cuts: synced bytes survive, and of the rest a random part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    inner: Arc<Mutex<Platter>>,
}

#[derive(Debug, Default)]
struct Platter {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
    /// Writes and syncs so far.
    steps: u64,
    syncs: u64,
    /// From this step on everything fails, as if the power were gone.
    fails_from: Option<u64>,
    /// This step fails, and no other.
    fails_once: Option<u64>,
    /// How long a sync takes.
    sync_takes: Duration,
    /// Writes beyond this length fail, as on a full disk.
    room: Option<u64>,
}

impl Disk {
    /// A disk whose power fails at the given step.
    pub(crate) fn failing_at(&self, step: u64) {
        self.inner.lock().unwrap().fails_from = Some(step);
    }

    /// A disk that fails at the given step, and is well afterwards.
    pub(crate) fn failing_once_at(&self, step: u64) {
        self.inner.lock().unwrap().fails_once = Some(step);
    }

    /// A disk that takes so long to sync, during which others can do something.
    pub(crate) fn slow(sync_takes: Duration) -> Self {
        Self { inner: Arc::new(Mutex::new(Platter { sync_takes, ..Platter::default() })) }
    }

    /// A disk that holds these bytes.
    pub(crate) fn holding(bytes: &[u8]) -> Self {
        let platter = Platter { durable: bytes.to_vec(), current: bytes.to_vec(), ..Platter::default() };
        Self { inner: Arc::new(Mutex::new(platter)) }
    }

    /// Its bytes, synced or not.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.inner.lock().unwrap().current.clone()
    }

    /// A disk that is full beyond `room` bytes; `None` gives it room again.
    pub(crate) fn with_room(&self, room: Option<u64>) {
        self.inner.lock().unwrap().room = room;
    }

    pub(crate) fn steps(&self) -> u64 {
        self.inner.lock().unwrap().steps
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.inner.lock().unwrap().syncs
    }

    pub(crate) fn length(&self) -> u64 {
        self.inner.lock().unwrap().current.len() as u64
    }

    /// The disk after the power cut: of the writes since the last sync some made it, some not, and some half.
    pub(crate) fn after_power_cut(&self, dice: &mut Dice) -> Self {
        let platter = self.inner.lock().unwrap();
        let mut image = platter.durable.clone();
        for (offset, bytes) in &platter.unsynced {
            let kept = match dice.below(3) {
                0 => 0,
                1 => bytes.len(),
                _ => dice.below(bytes.len() as u64 + 1) as usize,
            };
            put(&mut image, *offset, &bytes[..kept]);
        }
        Self::holding(&image)
    }
}

fn put(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset as usize..end].copy_from_slice(bytes);
}

impl Platter {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match self.fails_from {
            Some(step) if self.steps >= step => Err(io::Error::other("the power is gone")),
            _ if self.fails_once == Some(self.steps) => Err(io::Error::other("a bad sector")),
            _ => Ok(()),
        }
    }

    fn check_room(&self, end: u64) -> io::Result<()> {
        match self.room {
            Some(room) if end > room => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.inner.lock().unwrap();
        let end = offset as usize + out.len();
        let bytes = platter.current.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.inner.lock().unwrap();
        platter.step()?;
        platter.check_room(len)?;
        // A length change is metadata and is taken as durable at once: the harsher half, lost contents, is kept.
        platter.current.resize(len as usize, 0);
        platter.durable.resize(len as usize, 0);
        platter.unsynced.retain(|(offset, bytes)| offset + bytes.len() as u64 <= len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.inner.lock().unwrap();
        platter.step()?;
        platter.syncs += 1;
        std::thread::sleep(platter.sync_takes);
        let Platter { durable, unsynced, .. } = &mut *platter;
        unsynced.drain(..).for_each(|(offset, bytes)| put(durable, offset, &bytes));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.inner.lock().unwrap();
        platter.step()?;
        platter.check_room(offset + data.len() as u64)?;
        put(&mut platter.current, offset, data);
        platter.unsynced.push((offset, data.to_vec()));
        Ok(())
    }
}

/// Where the tables of a file begin, as its header says: behind the header and the log.
pub(crate) fn tables_at(file: &[u8]) -> u64 {
    4096 + u64::from(u32::from_le_bytes(*file[12..].first_chunk().unwrap()))
}

/// The tables of a file, to look into and to tamper with.
pub(crate) fn tables(path: &Path) -> Database {
    let at = tables_at(&std::fs::read(path).unwrap());
    let file = FileBackend::new(File::options().read(true).write(true).open(path).unwrap()).unwrap();
    Database::builder().create_with_backend(Behind { file, at }).unwrap()
}

#[derive(Debug)]
struct Behind {
    file: FileBackend,
    at: u64,
}

impl StorageBackend for Behind {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len()? - self.at)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(self.at + offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(self.at + len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(self.at + offset, data)
    }
}

/// One worker that does a bit of everything, the same for the same seed.
#[derive(Clone)]
pub(crate) struct Workload {
    dice: Dice,
    now: u64,
    op: u64,
    leases: Vec<Option<Lease>>,
    progress: Vec<u8>,
    split: BTreeSet<u64>,
}

impl Workload {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            now: 1,
            op: 1,
            leases: vec![None; SHARDS as usize],
            progress: vec![0; SHARDS as usize],
            split: BTreeSet::new(),
        }
    }

    /// The next operation; the error is the backend's.
    pub(crate) fn step(&mut self, backend: &mut (impl CoordinationBackend + RunManagement)) -> Result<(), String> {
        self.now += 1;
        self.op += 1;
        let (now, op) = (LogicalTime::new(self.now), OpId::new(self.op));
        match self.op {
            2 => {
                let config = RunConfig { lease_duration: Some(1_000_000), ..RunConfig::default() };
                return backend.create_run(now, TENANT, RUN, INCARNATION, config).map_err(|error| error.to_string());
            }
            3 => {
                let edges: Vec<[u8; 1]> = (0..=SHARDS as u8).map(|at| [at * 50 + 1]).collect();
                let shards: Vec<_> = (0..SHARDS)
                    .map(|at| {
                        InitialShardInput::new(ShardId::new(at + 1), &edges[at as usize], &edges[at as usize + 1])
                    })
                    .collect();
                let registered = backend.register_shards(now, TENANT, RUN, &shards, op);
                return registered.map(drop).map_err(|error| error.to_string());
            }
            _ => {}
        }
        let at = self.dice.below(SHARDS) as usize;
        let key = ShardKey::new(RUN, ShardId::new(at as u64 + 1));
        let Some(lease) = self.leases[at] else {
            let mut scratch = AcquireScratch::default();
            let granted = backend.acquire_and_restore_into(now, TENANT, key, WorkerId::new(1), &mut scratch);
            self.leases[at] = Some(granted.map_err(|error| error.to_string())?.lease);
            return Ok(());
        };
        let base = at as u8 * 50 + 1;
        let last = [base + self.progress[at]];
        match self.dice.below(9) {
            // Several records in one write.
            8 => {
                let held: Vec<Lease> = self.leases.iter().flatten().copied().collect();
                let mut answers = Vec::new();
                backend.renew_many(now, TENANT, &held, &mut answers);
                answers.into_iter().try_for_each(|answer| answer.map(drop).map_err(|error| error.to_string()))?;
            }
            0 => {
                let released = backend.release(now, TENANT, &lease, None, ReleaseReason::Released, op);
                released.map_err(|error| error.to_string())?;
                self.leases[at] = None;
            }
            1 => drop(backend.renew(now, TENANT, &lease).map_err(|error| error.to_string())?),
            2 if self.progress[at] < 20 && self.split.insert(at as u64) => {
                let record = backend.get_shard(TENANT, key).map_err(|error| error.to_string())?;
                let plan = plan_split_residual(record.spec.view(), Some(&last), &[base + 40]);
                let split = backend.split_residual(now, TENANT, &lease, &plan.expect("the point is ahead"), op);
                split.map_err(|error| error.to_string())?;
            }
            _ => {
                self.progress[at] = (self.progress[at] + 1).min(35);
                let cursor = CursorUpdate::new(Some(&last), Some(b"token")).expect("a legal cursor");
                backend.checkpoint(now, TENANT, &lease, cursor, op).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// Everything there is to see.
pub(crate) fn records(backend: &mut impl RunManagement) -> Vec<ShardRecord> {
    let mut found = Vec::new();
    let now = LogicalTime::new(1);
    if backend.list_shards_into(now, TENANT, RUN, &ShardFilter::all(), ShardPage::first(1_000), &mut found).is_err() {
        return Vec::new();
    }
    let keys: Vec<_> = found.iter().map(|summary| ShardKey::new(RUN, summary.shard)).collect();
    keys.into_iter().map(|key| backend.get_shard(TENANT, key).expect("a listed shard is there")).collect()
}
