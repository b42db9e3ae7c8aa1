//! The log of one lane on its storage: recovery, appending, snapshots.
//!
//! A generation is a log file that may begin with a snapshot. A snapshot of generation *g* replaces every log before *g*. To
//! make one: sync log *g-1*, start log *g*, write the snapshot beside it under another name, sync, rename, and only then remove
//! the older files. A crash anywhere leaves either the old files or the new snapshot whole.
//!
//! Each log names how much of its predecessor counts. So a predecessor that ends elsewhere is damaged, and one whose damage
//! was known when its successor was started is not reported for ever.

use std::collections::BTreeMap;
use std::io;

use tessera_contracts::prefix_map::{LaneIndex, Slot};

use crate::handler::Record;
use crate::wal::record::{self, RecordHeader, RecordType, SEGMENT_HEADER_BYTES, SegmentHeader, Tail};
use crate::wal::storage::{Storage, StorageFile};

/// What a log gave back, and in what state it was found.
#[derive(Debug, Default)]
pub struct Recovered {
    files: Vec<Vec<u8>>,
    records: Vec<Place>,
    /// What was found besides good records.
    pub findings: Vec<Finding>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    file: u32,
    start: u32,
    len: u32,
    kind: u8,
    slot: Slot,
}

/// Something an operator should know about a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The file ended in bytes that never were a whole record: what a crash leaves. They were cut off.
    TornTail {
        /// Which file.
        file: String,
        /// Where its good part ends.
        at: u64,
        /// How many bytes followed.
        bytes: u64,
    },
    /// A record that had been on disk is broken. Nothing after it was used.
    Damaged {
        /// Which file; it is kept, under the name with `.damaged` added once a snapshot has replaced it.
        file: String,
        /// Where the damage begins.
        at: u64,
        /// How many bytes of the file follow.
        bytes: u64,
    },
    /// A file that cannot be used because an earlier one is damaged or missing.
    Unused {
        /// Which file.
        file: String,
    },
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TornTail { file, at, bytes } => {
                write!(f, "{file}: cut {bytes} bytes of an unfinished write at {at}")
            }
            Self::Damaged { file, at, bytes } => write!(
                f,
                "{file}: damaged at byte {at}; the {bytes} bytes from there on are not used. The file is kept: \
                 check the disk, and restore the lane from a copy if these records matter"
            ),
            Self::Unused { file } => write!(f, "{file}: not used, because a file before it is damaged or missing"),
        }
    }
}

impl Recovered {
    /// The records in the order they were logged, those of released slots left out.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> + '_ {
        self.records.iter().map(|place| Record {
            kind: place.kind,
            slot: place.slot,
            payload: &self.files[place.file as usize][place.start as usize..(place.start + place.len) as usize],
        })
    }

    /// Whether a broken record was found.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.findings.iter().any(|finding| matches!(finding, Finding::Damaged { .. }))
    }
}

/// The open log of one lane.
#[derive(Debug)]
pub struct Wal<S: Storage> {
    storage: S,
    lane: LaneIndex,
    salt: u64,
    generation: u64,
    file: S::File,
    /// Bytes in the current log, and how many of them are known to be on disk.
    len: u64,
    synced: u64,
    /// Bytes in logs since the last snapshot, and in that snapshot.
    log_bytes: u64,
    snapshot_bytes: u64,
    snapshot: Option<SnapshotInProgress<S::File>>,
    is_damaged: bool,
    /// Files to set aside when a snapshot has replaced them.
    damaged: Vec<String>,
}

#[derive(Debug)]
struct SnapshotInProgress<F> {
    file: F,
    salt: u64,
    records: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

/// Bytes of a snapshot gathered before they are written.
const SNAPSHOT_BUFFER_BYTES: usize = 256 << 10;

impl<S: Storage> Wal<S> {
    /// Opens the log of `lane`, reads what it remembers, and makes it ready to append to. `salt` is a random number.
    pub fn open(storage: S, lane: LaneIndex, salt: u64) -> io::Result<(Self, Recovered)> {
        let found = find_files(&storage, lane)?;
        for name in &found.temporary {
            storage.remove(name)?;
        }
        let mut recovered = Recovered::default();
        let loaded = load(&storage, &found, &mut recovered)?;
        // What cannot be used at all is set aside at once, so that it is not in the way of what is logged from now on. A file
        // with a good beginning stays until a snapshot has replaced it.
        let mut damaged = Vec::new();
        for finding in &recovered.findings {
            match finding {
                Finding::Unused { file } | Finding::Damaged { file, at: 0, .. } => set_aside(&storage, file)?,
                Finding::Damaged { file, .. } => damaged.push(file.clone()),
                Finding::TornTail { .. } => {}
            }
        }
        let is_damaged = recovered.is_damaged();
        let (file, salt, generation, len) = match loaded.append_to {
            Some((generation, len, salt)) if !is_damaged => {
                (storage.open(&log_name(lane, generation), len)?, salt, generation, len)
            }
            // The last log is damaged, or there is none: start one that says how much of its predecessor counts.
            predecessor => {
                let generation = predecessor.map_or(loaded.base.max(1), |(generation, ..)| generation + 1);
                let previous_end = predecessor.map_or(0, |(_, end, _)| end);
                let (file, len) = create_log(&storage, lane, generation, salt, previous_end)?;
                (file, salt, generation, len)
            }
        };
        let mut wal = Self {
            storage,
            lane,
            salt,
            generation,
            file,
            len,
            synced: 0,
            log_bytes: loaded.log_bytes,
            snapshot_bytes: loaded.snapshot_bytes,
            snapshot: None,
            is_damaged,
            damaged,
        };
        // What was recovered may never have been synced; nobody may act on it before it is.
        wal.sync()?;
        wal.storage.sync_directory()?;
        Ok((wal, recovered))
    }

    /// Adds a record to `batch`, which [`Wal::append`] then writes.
    pub fn encode(&self, batch: &mut Vec<u8>, record_type: RecordType, kind: u8, slot: Slot, payload: &[u8]) {
        let header = RecordHeader { record_type, kind, slot: slot.0, synced: self.synced };
        record::encode(batch, self.salt, &header, payload);
    }

    /// Writes encoded records.
    pub fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        self.file.append(batch)?;
        self.len += batch.len() as u64;
        self.log_bytes += batch.len() as u64;
        Ok(())
    }

    /// Puts everything written on disk.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.len {
            self.file.sync()?;
            self.synced = self.len;
        }
        Ok(())
    }

    /// Whether everything written is on disk.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced == self.len
    }

    /// Bytes of log that a snapshot would replace, and bytes of the last snapshot.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64) {
        (self.log_bytes, self.snapshot_bytes)
    }

    /// Whether damage was found, so that a snapshot should be made at once.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Starts a snapshot and a new log. What is appended from now on is replayed after the snapshot.
    pub fn begin_snapshot(&mut self, salt: u64) -> io::Result<()> {
        self.sync()?;
        let generation = self.generation + 1;
        let (file, len) = create_log(&self.storage, self.lane, generation, salt, self.len)?;
        self.file = file;
        self.generation = generation;
        self.salt = salt;
        self.len = len;
        self.synced = 0;
        self.log_bytes = len;
        self.sync()?;
        let header = SegmentHeader { salt: !salt, generation, previous_end: 0 };
        let mut file = self.storage.create(&temporary_name(self.lane, generation))?;
        file.append(&header.encode())?;
        self.storage.sync_directory()?;
        self.snapshot = Some(SnapshotInProgress {
            file,
            salt: !salt,
            records: 0,
            bytes: SEGMENT_HEADER_BYTES as u64,
            buffer: Vec::new(),
        });
        Ok(())
    }

    /// Adds a record to the running snapshot; without one, does nothing.
    pub fn snapshot_record(&mut self, kind: u8, slot: Slot, payload: &[u8]) -> io::Result<()> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(()) };
        snapshot.records += 1;
        snapshot.write(RecordType::State, kind, slot, payload)
    }

    /// Makes the running snapshot count, and removes what it replaces.
    pub fn end_snapshot(&mut self) -> io::Result<()> {
        let Some(mut snapshot) = self.snapshot.take() else { return Ok(()) };
        let records = snapshot.records;
        snapshot.write(RecordType::SnapshotEnd, 0, Slot(0), &records.to_le_bytes())?;
        snapshot.file.append(&snapshot.buffer)?;
        snapshot.file.sync()?;
        let name = snapshot_name(self.lane, self.generation);
        self.storage.rename(&temporary_name(self.lane, self.generation), &name)?;
        self.storage.sync_directory()?;
        self.snapshot_bytes = snapshot.bytes;
        for name in std::mem::take(&mut self.damaged) {
            set_aside(&self.storage, &name)?;
        }
        self.is_damaged = false;
        let found = find_files(&self.storage, self.lane)?;
        let old = |(generation, name): (u64, String)| (generation < self.generation).then_some(name);
        for name in found.logs.into_iter().chain(found.snapshots).filter_map(old) {
            self.storage.remove(&name)?;
        }
        self.storage.sync_directory()
    }
}

impl<F: StorageFile> SnapshotInProgress<F> {
    fn write(&mut self, record_type: RecordType, kind: u8, slot: Slot, payload: &[u8]) -> io::Result<()> {
        let header = RecordHeader { record_type, kind, slot: slot.0, synced: 0 };
        let before = self.buffer.len();
        record::encode(&mut self.buffer, self.salt, &header, payload);
        self.bytes += (self.buffer.len() - before) as u64;
        if self.buffer.len() >= SNAPSHOT_BUFFER_BYTES {
            self.file.append(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

/// The lanes that have files in `storage`: more than there are lanes now, if there once were more.
pub fn lanes_with_files(storage: &impl Storage) -> io::Result<Vec<LaneIndex>> {
    let mut lanes: Vec<LaneIndex> =
        storage.list()?.iter().filter_map(|name| parse_name(name)).map(|(lane, ..)| lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    Ok(lanes)
}

/// Removes every file of `lane`: its records are safe elsewhere.
pub fn remove_lane(storage: &impl Storage, lane: LaneIndex) -> io::Result<()> {
    for name in storage.list()? {
        if parse_name(&name).is_some_and(|(of, ..)| of == lane) {
            storage.remove(&name)?;
        }
    }
    storage.sync_directory()
}

fn set_aside(storage: &impl Storage, name: &str) -> io::Result<()> {
    storage.rename(name, &format!("{name}.damaged"))
}

fn create_log<S: Storage>(
    storage: &S,
    lane: LaneIndex,
    generation: u64,
    salt: u64,
    previous_end: u64,
) -> io::Result<(S::File, u64)> {
    let mut file = storage.create(&log_name(lane, generation))?;
    file.append(&SegmentHeader { salt, generation, previous_end }.encode())?;
    Ok((file, SEGMENT_HEADER_BYTES as u64))
}

#[derive(Debug, Default)]
struct Found {
    logs: BTreeMap<u64, String>,
    snapshots: BTreeMap<u64, String>,
    temporary: Vec<String>,
}

fn find_files(storage: &impl Storage, lane: LaneIndex) -> io::Result<Found> {
    let mut found = Found::default();
    for name in storage.list()? {
        match parse_name(&name) {
            Some((of, generation, "log")) if of == lane => drop(found.logs.insert(generation, name)),
            Some((of, generation, "snap")) if of == lane => drop(found.snapshots.insert(generation, name)),
            Some((of, _, "tmp")) if of == lane => found.temporary.push(name),
            _ => {}
        }
    }
    Ok(found)
}

#[derive(Debug, Default)]
struct Loaded {
    /// The generation, good length and salt of the last log that counts.
    append_to: Option<(u64, u64, u64)>,
    /// The generation of the snapshot, or zero.
    base: u64,
    log_bytes: u64,
    snapshot_bytes: u64,
}

fn load(storage: &impl Storage, found: &Found, recovered: &mut Recovered) -> io::Result<Loaded> {
    let mut loaded = Loaded::default();
    let mut base = 0;
    // The newest snapshot that is whole. Older ones exist only if a crash kept them, or the newest is damaged.
    for (generation, name) in found.snapshots.iter().rev() {
        let bytes = storage.read(name)?;
        match read_snapshot(&bytes) {
            (places, None) => {
                loaded.snapshot_bytes = bytes.len() as u64;
                recovered.push_file(bytes, places);
                base = *generation;
                break;
            }
            // Its good part is better than nothing; what it replaced is gone.
            (places, Some(at)) => {
                let lost = bytes.len() as u64 - at;
                recovered.push_file(bytes, places);
                recovered.findings.push(Finding::Damaged { file: name.clone(), at, bytes: lost });
            }
        }
    }
    loaded.base = base;
    let mut logs = found.logs.range(base..).peekable();
    let mut expected = logs.peek().map(|(generation, _)| **generation);
    if base > 0 && expected != Some(base) {
        expected = None; // The log that belongs to the snapshot is gone.
    }
    while let Some((generation, name)) = logs.next() {
        if Some(*generation) != expected {
            recovered.findings.push(Finding::Unused { file: name.clone() });
            continue;
        }
        let bytes = storage.read(name)?;
        // How much of this log counts, if its successor could say.
        let next = logs.peek().map(|(generation, name)| (**generation, (*name).clone()));
        let next_says = match &next {
            Some((next, name)) => SegmentHeader::decode(&storage.read(name)?)
                .filter(|header| header.generation == *next && *next == generation + 1)
                .map(|header| header.previous_end),
            None => None,
        };
        let Some(header) = SegmentHeader::decode(&bytes).filter(|header| header.generation == *generation) else {
            if next_says.is_none() && (bytes.len() <= SEGMENT_HEADER_BYTES || bytes.iter().all(|byte| *byte == 0)) {
                // A log that was being created when the power failed: nothing was in it that anybody knew of.
                recovered.findings.push(Finding::TornTail { file: name.clone(), at: 0, bytes: bytes.len() as u64 });
                storage.remove(name)?;
            } else {
                let bytes = bytes.len() as u64;
                recovered.findings.push(Finding::Damaged { file: name.clone(), at: 0, bytes });
            }
            expected = None;
            continue;
        };
        let mut places = Vec::new();
        let (end, tail) = record::scan(&bytes, header.salt, |header, payload, at| {
            places.push(ScannedRecord { header, start: at + record::RECORD_HEADER_BYTES, len: payload.len() });
        });
        let (end, len) = (end as u64, bytes.len() as u64);
        loaded.append_to = Some((*generation, end, header.salt));
        loaded.log_bytes += end;
        recovered.push_file(bytes, places);
        expected = Some(generation + 1);
        let finding = match (tail, next_says) {
            (_, Some(previous_end)) if previous_end == end => None,
            (_, Some(_)) => Some(Finding::Damaged { file: name.clone(), at: end, bytes: len - end }),
            (Tail::Clean, None) => None,
            (Tail::Torn, None) => Some(Finding::TornTail { file: name.clone(), at: end, bytes: len - end }),
            (Tail::Damaged, None) => Some(Finding::Damaged { file: name.clone(), at: end, bytes: len - end }),
        };
        if let Some(finding) = finding {
            if matches!(finding, Finding::Damaged { .. }) {
                expected = None; // Stop: what follows was logged on top of what is lost.
            }
            recovered.findings.push(finding);
        }
    }
    Ok(loaded)
}

struct ScannedRecord {
    header: RecordHeader,
    start: usize,
    len: usize,
}

/// The good records of a snapshot, and the place where it stops being one if it is not whole.
fn read_snapshot(bytes: &[u8]) -> (Vec<ScannedRecord>, Option<u64>) {
    let mut places = Vec::new();
    let Some(header) = SegmentHeader::decode(bytes) else { return (places, Some(0)) };
    let mut promised = None;
    let (end, _) = record::scan(bytes, header.salt, |header, payload, at| {
        if header.record_type == RecordType::SnapshotEnd {
            promised = payload.try_into().ok().map(u64::from_le_bytes);
        } else {
            places.push(ScannedRecord { header, start: at + record::RECORD_HEADER_BYTES, len: payload.len() });
        }
    });
    let whole = promised == Some(places.len() as u64) && end == bytes.len();
    (places, (!whole).then_some(end as u64))
}

impl Recovered {
    fn push_file(&mut self, bytes: Vec<u8>, scanned: Vec<ScannedRecord>) {
        let file = self.files.len() as u32;
        self.files.push(bytes);
        for ScannedRecord { header, start, len } in scanned {
            let slot = Slot(header.slot);
            match header.record_type {
                RecordType::State => {
                    self.records.push(Place { file, start: start as u32, len: len as u32, kind: header.kind, slot })
                }
                RecordType::Released => self.records.retain(|place| place.slot != slot),
                RecordType::SnapshotEnd => {}
            }
        }
    }
}

fn log_name(lane: LaneIndex, generation: u64) -> String {
    format!("lane-{:03}.{generation:010}.log", lane.0)
}

fn snapshot_name(lane: LaneIndex, generation: u64) -> String {
    format!("lane-{:03}.{generation:010}.snap", lane.0)
}

fn temporary_name(lane: LaneIndex, generation: u64) -> String {
    format!("lane-{:03}.{generation:010}.tmp", lane.0)
}

fn parse_name(name: &str) -> Option<(LaneIndex, u64, &str)> {
    let (lane, rest) = name.strip_prefix("lane-")?.split_once('.')?;
    let (generation, extension) = rest.split_once('.')?;
    Some((LaneIndex(lane.parse().ok()?), generation.parse().ok()?, extension))
}
