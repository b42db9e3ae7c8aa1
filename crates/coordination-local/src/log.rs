//! The log: batches one behind the other, each synced before the next is written.
//!
//! ```text
//! entry:  crc 4 | length 4 | number 8 | rows | zeros up to a multiple of 8
//! ```
//!
//! The crc is CRC-32C over the file's salt, the length, the number and the rows. Numbers grow by one and are never used for two
//! batches that count. When the log is full its rows are folded into the tables, which then say up to which number they
//! contain it, and the next entry is written at the beginning again, over the old ones.
//!
//! Entries are written over bytes that the file has already, so that a sync has nothing to tell the file system but the
//! bytes themselves; that is most of what makes this faster than appending to a file. Room is made in steps, by zeros behind
//! the entry that needs it; a file that is used little stays small on disk, though not in length.
//!
//! **Torn or damaged.** Only the last entry may be incomplete: it was being written when the power failed, and no caller had
//! its answer. A broken entry with a whole one of a higher number behind it was synced once, so it is damage, and the file
//! is refused. Damage to the very last entry looks like a torn one; a clean close leaves no entry for that to happen to.

use std::io;
use std::sync::Arc;

use redb::StorageBackend;

use crate::layout::{HEADER_BYTES, Header};

const HEAD_BYTES: usize = 16;

/// Entries begin at multiples of this, so that looking for one takes little time.
const ALIGNED: usize = 8;

/// No log gets this far in a lifetime, so that numbers can be added up without care.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// How much room is made at once.
const ROOM_STEP: u64 = 256 << 10;

#[derive(Debug)]
pub(crate) struct Log {
    storage: Arc<dyn StorageBackend>,
    header: Header,
    /// Where the next entry goes, from the log's beginning.
    end: u64,
    /// How far bytes were written since the file was opened.
    room: u64,
    /// The number of the last entry, or of one that failed.
    last: u64,
    entry: Vec<u8>,
}

impl Log {
    /// Reads the entries after the last one that the tables contain. The inner error names the damage.
    pub(crate) fn open(
        storage: Arc<dyn StorageBackend>,
        header: Header,
        contained: u64,
    ) -> io::Result<Result<Self, String>> {
        if contained > NUMBER_MAX {
            return Ok(Err(format!("its tables contain entry {contained} of the log, and no log gets that far")));
        }
        let mut log = Self { storage, header, end: 0, room: 0, last: contained, entry: Vec::new() };
        let area = log.read(u64::from(header.log_bytes))?;
        while let Some((number, rows)) = decode(&area, log.end as usize, header.salt) {
            if number <= contained {
                break; // Left from before the last fold.
            }
            if number != log.last + 1 {
                let expected = log.last + 1;
                return Ok(Err(format!("entry {expected} of its log is missing, and entry {number} is there")));
            }
            log.last = number;
            log.end += entry_bytes(rows.len()) as u64;
        }
        let broken = log.last + 1;
        // No more than these fit behind it, so hardly anything else has to be summed up to see that it is no entry.
        let later_numbers = broken + 1..=broken + (area.len() / HEAD_BYTES) as u64;
        let later = (log.end as usize..area.len())
            .step_by(ALIGNED)
            .filter(|at| read_u64(&area, at + 8).is_some_and(|number| later_numbers.contains(&number)))
            .find_map(|at| decode(&area, at, header.salt));
        Ok(match later {
            None => Ok(log),
            Some((number, _)) => Err(format!(
                "entry {broken} of its log, at byte {}, is broken, and entry {number} behind it is whole",
                HEADER_BYTES + log.end
            )),
        })
    }

    /// The number up to which tables contain the log once its rows are in them.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Whether rows of this length can be appended now.
    pub(crate) fn has_room_for(&self, rows: &[u8]) -> bool {
        self.end + entry_bytes(rows.len()) as u64 <= u64::from(self.header.log_bytes)
    }

    /// Whether rows of this length can be appended when there is nothing else.
    pub(crate) fn can_ever_hold(&self, rows: &[u8]) -> bool {
        entry_bytes(rows.len()) as u64 <= u64::from(self.header.log_bytes)
    }

    /// Appends a batch, durably. If that fails, the bytes there are unknown: its number is used up, and the log is to be
    /// folded before anything else is appended, so that the tables say that the number is behind them.
    pub(crate) fn append(&mut self, rows: &[u8]) -> io::Result<()> {
        assert!(self.has_room_for(rows), "the caller has checked the room");
        self.last += 1;
        encode(&mut self.entry, self.header.salt, self.last, rows);
        let end = self.end + self.entry.len() as u64;
        if end > self.room {
            self.room = (end + ROOM_STEP).min(u64::from(self.header.log_bytes));
            self.entry.resize((self.room - self.end) as usize, 0);
        }
        self.storage.write(HEADER_BYTES + self.end, &self.entry)?;
        self.storage.sync_data()?;
        self.end = end;
        Ok(())
    }

    /// The log's entries, one behind the other.
    pub(crate) fn entries(&self) -> io::Result<Entries> {
        Ok(Entries { bytes: self.read(self.end)?, salt: self.header.salt })
    }

    /// Begins at the beginning again: the tables contain everything.
    pub(crate) fn restart(&mut self) {
        self.end = 0;
    }

    fn read(&self, bytes: u64) -> io::Result<Vec<u8>> {
        let there = self.storage.len()?.saturating_sub(HEADER_BYTES);
        let mut area = vec![0; bytes.min(there) as usize];
        self.storage.read(HEADER_BYTES, &mut area)?;
        Ok(area)
    }
}

/// The content of a log when it was read.
#[derive(Debug)]
pub(crate) struct Entries {
    bytes: Vec<u8>,
    salt: u64,
}

impl Entries {
    /// The rows of each entry, or none of it if the bytes are no longer those that were written.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Result<&[u8], String>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            (at < self.bytes.len()).then(|| {
                let Some((_, rows)) = decode(&self.bytes, at, self.salt) else {
                    let place = HEADER_BYTES as usize + at;
                    at = self.bytes.len();
                    return Err(format!("the log's entry at byte {place} was whole before and is not now"));
                };
                at += entry_bytes(rows.len());
                Ok(rows)
            })
        })
    }
}

fn encode(entry: &mut Vec<u8>, salt: u64, number: u64, rows: &[u8]) {
    entry.clear();
    entry.extend_from_slice(&[0; 4]);
    entry.extend_from_slice(&(rows.len() as u32).to_le_bytes());
    entry.extend_from_slice(&number.to_le_bytes());
    entry.extend_from_slice(rows);
    let crc = checksum(salt, &entry[4..]);
    entry[..4].copy_from_slice(&crc.to_le_bytes());
    entry.resize(entry_bytes(rows.len()), 0);
}

/// How much of the log an entry takes.
fn entry_bytes(rows: usize) -> usize {
    (HEAD_BYTES + rows).next_multiple_of(ALIGNED)
}

/// The number and the rows of the entry at `at`, if a whole one is there.
fn decode(area: &[u8], at: usize, salt: u64) -> Option<(u64, &[u8])> {
    let bytes = area.get(at..)?;
    let length = read_u32(bytes, 4)? as usize;
    let entry = bytes.get(..HEAD_BYTES.checked_add(length)?)?;
    let number = read_u64(entry, 8)?;
    (number > 0 && read_u32(entry, 0)? == checksum(salt, &entry[4..])).then(|| (number, &entry[HEAD_BYTES..]))
}

fn checksum(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), bytes)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
