//! The records of a findings file.
//!
//! ```text
//! file    = magic "TSRFIND1", then records
//! record  = length u32, crc32c u32 of the payload, payload
//! payload = 1 begin    shard u64, fence u64, cursor?
//!         | 2 finding  an occurrence
//!         | 3 segment  shard u64, fence u64, from?, to?, tally, notes
//! ```
//!
//! Integers are little-endian. Findings belong to the segment that follows them in the file.

use tessera_contracts::{FenceEpoch, ShardId};

use crate::item::UnreadableReason;
use crate::occurrence::Occurrence;
use crate::tally::Tally;
use crate::wire::{Malformed, Reader, Writer};

/// The first bytes of a findings file.
pub const MAGIC: &[u8; 8] = b"TSRFIND1";

/// Largest payload: an occurrence with the longest path, secret and match is well below.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Most notes in one segment; counts go on.
pub const NOTES_MAX: usize = 32;

/// What one worker did between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The shard.
    pub shard: ShardId,
    /// The epoch it was held under.
    pub fence: FenceEpoch,
    /// The cursor before.
    pub from: Option<Vec<u8>>,
    /// The cursor after; the same as before if there was no item.
    pub to: Option<Vec<u8>>,
    /// What became of its items.
    pub tally: Tally,
    /// Some of the items that could not be read.
    pub notes: Vec<Note>,
}

/// One thing that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Number of the target.
    pub target: u32,
    /// Path below it with `/`, or an object id in hex.
    pub path: Vec<u8>,
    /// Why.
    pub reason: UnreadableReason,
}

/// One record.
#[derive(Debug, Clone)]
pub enum Record {
    /// A worker was granted a shard.
    Begin {
        /// The shard.
        shard: ShardId,
        /// The epoch.
        fence: FenceEpoch,
        /// Where it goes on.
        cursor: Option<Vec<u8>>,
    },
    /// A finding of the segment that follows.
    Finding(Box<Occurrence>),
    /// The end of a segment.
    Segment(Segment),
}

/// The payload that says a worker was granted a shard.
pub(crate) fn begin_payload(shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(1);
    writer.u64(shard.get());
    writer.u64(fence.get());
    writer.optional(cursor);
    writer.0
}

/// The payload of a finding.
pub(crate) fn finding_payload(occurrence: &Occurrence) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(2);
    occurrence.write(&mut writer);
    writer.0
}

/// The payload of a segment.
pub(crate) fn segment_payload(segment: &Segment) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(3);
    writer.u64(segment.shard.get());
    writer.u64(segment.fence.get());
    writer.optional(segment.from.as_deref());
    writer.optional(segment.to.as_deref());
    segment.tally.write(&mut writer);
    let notes = &segment.notes[..segment.notes.len().min(NOTES_MAX)];
    writer.u8(notes.len() as u8);
    for note in notes {
        writer.u32(note.target);
        writer.bytes(&note.path);
        writer.u8(note.reason as u8);
    }
    writer.0
}

/// Puts length and checksum before a payload.
pub(crate) fn frame(payload: &[u8], out: &mut Vec<u8>) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    out.extend_from_slice(payload);
}

impl Record {
    /// Reads a payload.
    pub fn read(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(payload);
        let record = match reader.u8()? {
            1 => Self::Begin {
                shard: ShardId::new(reader.u64()?),
                fence: FenceEpoch::new(reader.u64()?),
                cursor: reader.optional()?.map(<[u8]>::to_vec),
            },
            2 => Self::Finding(Box::new(Occurrence::read(&mut reader)?)),
            3 => {
                let (shard, fence) = (ShardId::new(reader.u64()?), FenceEpoch::new(reader.u64()?));
                let from = reader.optional()?.map(<[u8]>::to_vec);
                let to = reader.optional()?.map(<[u8]>::to_vec);
                let tally = Tally::read(&mut reader)?;
                let mut notes = Vec::new();
                for _ in 0..reader.u8()? {
                    let (target, path) = (reader.u32()?, reader.bytes()?.to_vec());
                    let reason = UnreadableReason::from_stored(reader.u8()?);
                    notes.push(Note { target, path, reason: reason.ok_or(Malformed("a note has an unknown reason"))? });
                }
                Self::Segment(Segment { shard, fence, from, to, tally, notes })
            }
            _ => return Err(Malformed("it is of an unknown kind")),
        };
        reader.end()?;
        Ok(record)
    }
}

/// Reads the records of a file, one after the other.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

/// Where a file stops making sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileDamage {
    /// It does not begin as it should.
    #[error("it is not a findings file, or of another version")]
    NotOurs,
    /// A record is cut short or does not match its checksum; what follows cannot be told apart.
    #[error("its last {bytes} bytes are not a whole record")]
    Torn {
        /// Bytes from the first bad one to the end.
        bytes: usize,
    },
    /// A record is whole but makes no sense.
    #[error("a record in it cannot be read: {0}")]
    Malformed(#[from] Malformed),
}

impl<'a> Records<'a> {
    /// The records of `file`.
    pub fn new(file: &'a [u8]) -> Result<Self, FileDamage> {
        match file.strip_prefix(MAGIC) {
            Some(rest) => Ok(Self { rest }),
            // Killed before the first sync.
            None if MAGIC.starts_with(file) => Err(FileDamage::Torn { bytes: file.len() }),
            None => Err(FileDamage::NotOurs),
        }
    }

    /// Bytes not read yet.
    pub(crate) fn bytes_left(&self) -> usize {
        self.rest.len()
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, FileDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let torn = FileDamage::Torn { bytes: self.rest.len() };
        let mut reader = Reader(self.rest);
        let payload = (|| {
            let (len, crc) = (reader.u32()? as usize, reader.u32()?);
            let payload = reader.fixed(len)?;
            if crc32c::crc32c(payload) == crc { Ok(payload) } else { Err(Malformed("checksum")) }
        })();
        match payload {
            Ok(payload) => {
                self.rest = reader.0;
                Some(Record::read(payload).map_err(FileDamage::from))
            }
            Err(_) => {
                self.rest = &[];
                Some(Err(torn))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment() -> Segment {
        let mut tally = Tally::default();
        tally.add_scanned(9);
        let note = Note { target: 1, path: b"x".to_vec(), reason: UnreadableReason::Io };
        Segment {
            shard: ShardId::new(5),
            fence: FenceEpoch::new(2),
            from: None,
            to: Some(b"k".to_vec()),
            tally,
            notes: vec![note],
        }
    }

    fn file() -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        frame(&begin_payload(ShardId::new(5), FenceEpoch::new(2), None), &mut file);
        frame(&segment_payload(&segment()), &mut file);
        file
    }

    #[test]
    fn records_come_back_in_order() {
        let file = file();
        let records: Vec<_> = Records::new(&file).unwrap().collect::<Result<_, _>>().unwrap();
        assert!(matches!(&records[0], Record::Begin { cursor: None, .. }));
        assert!(matches!(&records[1], Record::Segment(read) if *read == segment()));
    }

    #[test]
    fn a_file_cut_anywhere_gives_its_whole_records_and_says_so() {
        let file = file();
        for cut in MAGIC.len()..file.len() {
            let results: Vec<_> = Records::new(&file[..cut]).unwrap().collect();
            let whole = results.iter().filter(|result| result.is_ok()).count();
            assert!(whole < 2, "cut at {cut}");
            let is_between_records = results.iter().all(Result::is_ok);
            assert!(is_between_records || matches!(results.last(), Some(Err(FileDamage::Torn { .. }))));
        }
        assert_eq!(Records::new(b"TSR").unwrap_err(), FileDamage::Torn { bytes: 3 });
        assert_eq!(Records::new(b"something else").unwrap_err(), FileDamage::NotOurs);
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(at in 0_usize..1_000, flip in 1_u8..=255) {
            let mut file = file();
            let at = MAGIC.len() + at % (file.len() - MAGIC.len());
            file[at] ^= flip;
            prop_assert!(Records::new(&file).unwrap().any(|record| record.is_err()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = MAGIC.to_vec();
            frame(&bytes, &mut file);
            file.extend_from_slice(&bytes);
            prop_assert!(Records::new(&file).unwrap().count() <= file.len());
        }
    }
}
