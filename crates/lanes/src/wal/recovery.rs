//! Reading a log back: which files count, which records of them, and findings for the operator about the rest.

use std::io;

use tessera_contracts::prefix_map::Slot;

use crate::handler::Record;
use crate::wal::files::Found;
use crate::wal::record::{self, RecordHeader, RecordType, SEGMENT_HEADER_BYTES, SegmentHeader, Tail};
use crate::wal::storage::Storage;

/// The records of a log, and the state in which it was found.
#[derive(Debug, Default)]
pub struct Recovered {
    files: Vec<Vec<u8>>,
    records: Vec<Place>,
    /// Findings besides good records.
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
    /// The file ended in bytes that never were a whole record, as after a crash. They were cut off.
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

/// Where a log that was read goes on.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// The generation, good length and salt of the last log that counts.
    pub(super) append_to: Option<(u64, u64, u64)>,
    /// The generation of the snapshot, or zero.
    pub(super) base: u64,
    pub(super) log_bytes: u64,
    pub(super) snapshot_bytes: u64,
}

/// Reads the files of one lane, oldest first, as far as they can be trusted.
pub(super) fn load(storage: &impl Storage, found: &Found, recovered: &mut Recovered) -> io::Result<Loaded> {
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
            // Its good part is better than nothing; the files it replaced are gone.
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
                // A log that was being created when the power failed: it held nothing that had been acknowledged.
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
                expected = None; // Stop: later records build on lost ones.
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
