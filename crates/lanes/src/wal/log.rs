//! The log of one lane on its storage: recovery, appending, snapshots.
//!
//! A generation is a log file that may begin with a snapshot. A snapshot of generation *g* replaces every log before *g*. To
//! make one: sync log *g-1*, start log *g*, write the snapshot beside it under another name, sync, rename, and only then remove
//! the older files. A crash anywhere leaves either the old files or the new snapshot whole.
//!
//! Each log names how much of its predecessor counts. So a predecessor that ends elsewhere is damaged, and one whose damage
//! was known when its successor was started is not reported for ever.
//!
//! A log is written over zeros that were put on disk before, in steps: then a sync changes neither the file's length nor where
//! its blocks are, and the file system need not write about them. Zeros are no record, so the unused room reads as the end
//! when power fails.

use std::io;

use tessera_contracts::prefix_map::{LaneIndex, Slot};

use crate::wal::files::{find_files, log_name, set_aside, snapshot_name, temporary_name};
pub use crate::wal::files::{lanes_with_files, remove_lane};
use crate::wal::record::{self, RecordHeader, RecordType, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wal::recovery::load;
pub use crate::wal::recovery::{Finding, Recovered};
use crate::wal::storage::{Storage, StorageFile};

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
    /// How far there is room, written over before the file grows again.
    room_end: u64,
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

/// Room made at a time: as much again as there is, so that a small log stays small.
const ROOM_BYTES_MIN: u64 = 4 << 10;
const ROOM_BYTES_MAX: u64 = 1 << 20;
/// The end of the room of a log that goes without.
const ROOM_NEVER: u64 = u64::MAX;

/// Bytes of a snapshot gathered before they are written.
const SNAPSHOT_BUFFER_BYTES: usize = 256 << 10;

impl<S: Storage> Wal<S> {
    /// Opens the log of `lane`, reads its records, and makes it ready to append to. `salt` is a random number.
    pub fn open(storage: S, lane: LaneIndex, salt: u64) -> io::Result<(Self, Recovered)> {
        let found = find_files(&storage, lane)?;
        for name in &found.temporary {
            storage.remove(name)?;
        }
        let mut recovered = Recovered::default();
        let loaded = load(&storage, &found, &mut recovered)?;
        // A file that cannot be used at all is set aside at once, out of the way of new records. A file
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
            room_end: room_at_first(salt),
            log_bytes: loaded.log_bytes,
            snapshot_bytes: loaded.snapshot_bytes,
            snapshot: None,
            is_damaged,
            damaged,
        };
        // Recovered records may never have been synced; the lane may not act on them before they are.
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
        self.make_room();
        Ok(())
    }

    /// Makes room once the old is used up; the sync of the records in the old puts the new on disk too.
    fn make_room(&mut self) {
        if self.len <= self.room_end {
            return;
        }
        let bytes = self.len.clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX);
        // A disk without room for zeros may have some for records: this log just goes on without.
        let made = self.file.make_room(bytes as usize).is_ok();
        self.room_end = if made { self.len + bytes } else { ROOM_NEVER };
    }

    /// Puts everything written on disk.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.len {
            self.file.sync()?;
            self.synced = self.len;
        }
        Ok(())
    }

    /// Puts everything written on disk, and cuts the file to its content: nothing more will come.
    pub fn close(mut self) -> io::Result<()> {
        self.sync()?;
        // Only room of our own: the writer of a lane that was given up may end while its successor's goes on.
        if (1..ROOM_NEVER).contains(&self.room_end) { self.file.give_back_room() } else { Ok(()) }
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

    /// Starts a snapshot and a new log. Records appended from now on are replayed after the snapshot.
    pub fn begin_snapshot(&mut self, salt: u64) -> io::Result<()> {
        self.sync()?;
        let generation = self.generation + 1;
        let (file, len) = create_log(&self.storage, self.lane, generation, salt, self.len)?;
        self.file = file;
        self.generation = generation;
        self.salt = salt;
        self.len = len;
        self.synced = 0;
        self.room_end = room_at_first(salt);
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

    /// Makes the running snapshot count, and removes the files it replaces.
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

/// None yet; or never, in a log in which zeros would read as records.
fn room_at_first(salt: u64) -> u64 {
    if record::zeros_are_no_record(salt) { 0 } else { ROOM_NEVER }
}

fn create_log<S: Storage>(
    storage: &S,
    lane: LaneIndex,
    generation: u64,
    salt: u64,
    previous_end: u64,
) -> io::Result<(S::File, u64)> {
    let name = log_name(lane, generation);
    let mut file = storage.create(&name)?;
    if let Err(error) = file.append(&SegmentHeader { salt, generation, previous_end }.encode()) {
        // On a full disk there is room for a name and not for a header. A lane that is let go for it leaves no trace, and one
        // that tries again starts with the old files.
        let _ = storage.remove(&name);
        return Err(error);
    }
    Ok((file, SEGMENT_HEADER_BYTES as u64))
}
