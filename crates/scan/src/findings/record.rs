//! The records of a findings file.
//!
//! ```text
//! file    = header, records
//! header  = magic "TSRFIND2", run u64, incarnation u64, crc32c u32 of these two
//! record  = length u32, crc32c u32 of the payload, payload
//! payload = 1 begin    shard u64, fence u64, cursor?
//!         | 2 finding  an occurrence
//!         | 3 segment  span, target u32, pass u32, entry, tally, notes
//!         | 4 compared span, pass u32, entry
//! span    = shard u64, fence u64, from?, to?
//! entry   = plan u64, planned u64, digest of planned keys u128, new u64, identity u128, racy u8
//! ```
//!
//! Integers are little-endian. Findings belong to the segment that follows them in the file. The header says which creation of
//! which run the file belongs to: fence epochs start anew in each, so records of two must never be compared. A segment of
//! pass 0 is the work of a shard's owner. Later passes are those of a command that goes on with an interrupted run: what is
//! still as it was is noted as compared, and what is not is read again, in a segment with the span of the one it replaces.

use tessera_contracts::{FenceEpoch, RunId, RunIncarnation, ShardId};

use crate::findings::occurrence::Occurrence;
use crate::findings::tally::Tally;
use crate::plan::ledger::Entry;
use crate::run::label::RunKey;
use crate::source::item::UnreadableReason;
use crate::wire::{Malformed, Reader, Writer};

/// The first bytes of a findings file.
pub const MAGIC: &[u8; 8] = b"TSRFIND2";

/// Bytes before the first record.
pub const HEADER_BYTES: usize = MAGIC.len() + 8 + 8 + 4;

/// Largest payload: an occurrence with the longest path, secret and match is well below.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Most notes in one segment; counts go on.
pub const NOTES_MAX: usize = 32;

/// The keys between two checkpoints of one owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The shard.
    pub shard: ShardId,
    /// The epoch it was held under.
    pub fence: FenceEpoch,
    /// The cursor before.
    pub from: Option<Vec<u8>>,
    /// The cursor after; the same as before if there was no item.
    pub to: Option<Vec<u8>>,
}

/// What one worker did between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// What it covers.
    pub span: Span,
    /// The target of the shard, by its number.
    pub target: u32,
    /// 0 for the work of the shard's owner, more if it was read again.
    pub pass: u32,
    /// What was planned of it, and what its items were.
    pub entry: Entry,
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
    /// A segment whose items are still what they were.
    Compared(Compared),
}

/// That the items of a segment were compared with what is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// The segment.
    pub span: Span,
    /// When, among all comparisons of the run.
    pub pass: u32,
    /// What the segment is worth under the plan of that time.
    pub entry: Entry,
}

/// The header of a file that belongs to `key`.
pub fn header(key: RunKey) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u64(key.run.get());
    writer.u64(key.incarnation.get());
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&writer.0);
    header.extend_from_slice(&crc32c::crc32c(&writer.0).to_le_bytes());
    header
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
    segment.span.write(&mut writer);
    writer.u32(segment.target);
    writer.u32(segment.pass);
    segment.entry.write(&mut writer);
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

/// The payload of a comparison.
pub(crate) fn compared_payload(compared: &Compared) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(4);
    compared.span.write(&mut writer);
    writer.u32(compared.pass);
    compared.entry.write(&mut writer);
    writer.0
}

/// Puts length and checksum before a payload.
pub(crate) fn frame(payload: &[u8], out: &mut Vec<u8>) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    out.extend_from_slice(payload);
}

impl Span {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.shard.get());
        writer.u64(self.fence.get());
        writer.optional(self.from.as_deref());
        writer.optional(self.to.as_deref());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (shard, fence) = (ShardId::new(reader.u64()?), FenceEpoch::new(reader.u64()?));
        let from = reader.optional()?.map(<[u8]>::to_vec);
        Ok(Self { shard, fence, from, to: reader.optional()?.map(<[u8]>::to_vec) })
    }
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
                let span = Span::read(&mut reader)?;
                let (target, pass) = (reader.u32()?, reader.u32()?);
                let entry = Entry::read(&mut reader)?;
                let tally = Tally::read(&mut reader)?;
                let mut notes = Vec::new();
                for _ in 0..reader.u8()? {
                    let (target, path) = (reader.u32()?, reader.bytes()?.to_vec());
                    let reason = UnreadableReason::from_stored(reader.u8()?);
                    notes.push(Note { target, path, reason: reason.ok_or(Malformed("a note has an unknown reason"))? });
                }
                Self::Segment(Segment { span, target, pass, entry, tally, notes })
            }
            4 => Self::Compared(Compared {
                span: Span::read(&mut reader)?,
                pass: reader.u32()?,
                entry: Entry::read(&mut reader)?,
            }),
            _ => return Err(Malformed("it is of an unknown kind")),
        };
        reader.end()?;
        Ok(record)
    }
}

/// Reads the records of a file, one after the other.
#[derive(Debug)]
pub struct Records<'a> {
    key: RunKey,
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
        let Some((header, rest)) = file.split_at_checked(HEADER_BYTES) else { return Err(torn_header(file)) };
        let mut reader = Reader(header.strip_prefix(MAGIC).ok_or_else(|| torn_header(file))?);
        let key = RunKey::new(RunId::new(reader.u64()?), RunIncarnation::new(reader.u64()?));
        if super::record::header(key) != header {
            let damage = Malformed("the checksum of its header is wrong").into();
            return Err(if rest.is_empty() { torn_header(file) } else { damage });
        }
        Ok(Self { key, rest })
    }

    /// Which creation of which run they belong to.
    pub const fn key(&self) -> RunKey {
        self.key
    }

    /// Bytes not read yet.
    pub(crate) fn bytes_left(&self) -> usize {
        self.rest.len()
    }
}

/// What is wrong with a file whose header is not whole. The header is synced before a record follows it: if nothing does,
/// the machine stopped before that, and what was not written may read as zeros.
fn torn_header(file: &[u8]) -> FileDamage {
    let written = &file[..file.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)];
    let is_ours = MAGIC.starts_with(written) || written.starts_with(MAGIC);
    if is_ours && file.len() <= HEADER_BYTES { FileDamage::Torn { bytes: file.len() } } else { FileDamage::NotOurs }
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
            // No payload is empty. Zeros are the end of a file whose machine stopped, and their checksum is zero too.
            if len > 0 && crc32c::crc32c(payload) == crc { Ok(payload) } else { Err(Malformed("checksum")) }
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
    use crate::plan::coverage::Coverage;
    use crate::plan::record::PlanId;
    use crate::source::identity::Identity;

    fn segment() -> Segment {
        let mut tally = Tally::default();
        tally.add_scanned(9);
        let note = Note { target: 1, path: b"x".to_vec(), reason: UnreadableReason::Io };
        let coverage = Coverage { planned: 3, digest: 1 << 99, added: 1 };
        let entry = Entry { plan: PlanId(8), coverage, identity: Identity { digest: u128::MAX, is_racy: true } };
        Segment { span: span(), target: 1, pass: 2, entry, tally, notes: vec![note] }
    }

    fn span() -> Span {
        Span { shard: ShardId::new(5), fence: FenceEpoch::new(2), from: None, to: Some(b"k".to_vec()) }
    }

    fn compared() -> Compared {
        Compared { span: span(), pass: 3, entry: segment().entry }
    }

    const KEY: RunKey = RunKey::new(RunId::new(0xbeef), RunIncarnation::new(0xcafe));

    fn file() -> Vec<u8> {
        let mut file = header(KEY);
        frame(&begin_payload(ShardId::new(5), FenceEpoch::new(2), None), &mut file);
        frame(&segment_payload(&segment()), &mut file);
        frame(&compared_payload(&compared()), &mut file);
        file
    }

    #[test]
    fn records_come_back_in_order() {
        let file = file();
        let records: Vec<_> = Records::new(&file).unwrap().collect::<Result<_, _>>().unwrap();
        assert!(matches!(&records[0], Record::Begin { cursor: None, .. }));
        assert!(matches!(&records[1], Record::Segment(read) if *read == segment()));
        assert!(matches!(&records[2], Record::Compared(read) if *read == compared()));
    }

    #[test]
    fn a_file_cut_anywhere_gives_its_whole_records_and_says_so() {
        let file = file();
        for cut in HEADER_BYTES..file.len() {
            let results: Vec<_> = Records::new(&file[..cut]).unwrap().collect();
            let whole = results.iter().filter(|result| result.is_ok()).count();
            assert!(whole < 3, "cut at {cut}");
            let is_between_records = results.iter().all(Result::is_ok);
            assert!(is_between_records || matches!(results.last(), Some(Err(FileDamage::Torn { .. }))));
        }
        for cut in 0..HEADER_BYTES {
            assert_eq!(Records::new(&file[..cut]).unwrap_err(), FileDamage::Torn { bytes: cut });
        }
        assert_eq!(Records::new(b"something else").unwrap_err(), FileDamage::NotOurs);
    }

    #[test]
    fn what_a_power_cut_leaves_as_zeros_is_torn_and_takes_nothing_away() {
        let whole = file();
        for kept in 0..whole.len() {
            let mut zeroed = whole.clone();
            zeroed[kept..].fill(0);
            if kept < HEADER_BYTES {
                // Nothing follows a header that was not synced.
                zeroed.truncate(HEADER_BYTES);
                let read = Records::new(&zeroed);
                assert!(read.is_ok() || read.unwrap_err() == FileDamage::Torn { bytes: HEADER_BYTES }, "{kept}");
                continue;
            }
            let results: Vec<_> = Records::new(&zeroed).unwrap().collect();
            let (last, before) = results.split_last().unwrap();
            // The last bytes of a record may be zeros anyway.
            assert!(matches!(last, Ok(_) | Err(FileDamage::Torn { .. })), "kept {kept}: {last:?}");
            assert!(before.iter().all(Result::is_ok), "kept {kept}");
        }
        let mut damaged = whole;
        damaged[..HEADER_BYTES].fill(0);
        assert_eq!(Records::new(&damaged).unwrap_err(), FileDamage::NotOurs, "a header that had records is not torn");
    }

    #[test]
    fn the_header_says_whose_it_is_and_damage_to_it_is_noticed() {
        let file = file();
        assert_eq!(Records::new(&file).unwrap().key(), KEY);
        for at in 0..HEADER_BYTES {
            let mut damaged = file.clone();
            damaged[at] ^= 0x40;
            assert!(Records::new(&damaged).is_err(), "byte {at}");
        }
        let hex: String = header(KEY).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "54535246494e4432efbe000000000000feca00000000000075a4567d");
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(at in 0_usize..1_000, flip in 1_u8..=255) {
            let mut file = file();
            let at = HEADER_BYTES + at % (file.len() - HEADER_BYTES);
            file[at] ^= flip;
            prop_assert!(Records::new(&file).unwrap().any(|record| record.is_err()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut file = header(KEY);
            frame(&bytes, &mut file);
            file.extend_from_slice(&bytes);
            prop_assert!(Records::new(&file).unwrap().count() <= file.len());
        }
    }
}
