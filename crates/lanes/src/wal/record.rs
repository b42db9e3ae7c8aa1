//! Records as bytes, and reading them back from a file that may end in the middle of one.
//!
//! ```text
//! segment:  magic 8 | salt 8 | generation 8 | previous end 8 | crc 4 | record …
//! record:   crc 4 | payload length 4 | synced 8 | type 1 | kind 1 | slot 1 | zero 1 | payload
//! ```
//!
//! All little-endian. The crc is CRC-32C over the bytes after it, seeded with the segment's salt, so that bytes of another file
//! that turn up in this one do not pass. `synced` is the length of the file that was known to be on disk when the record was
//! written: a broken record *before* that point was whole once, so it is damage; one after it may simply never have arrived.
//! Zeros up to the end of the file are room for more.

use crate::wal::RECORD_PAYLOAD_BYTES_MAX;

/// Bytes of a segment's header.
pub const SEGMENT_HEADER_BYTES: usize = 36;
/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 20;

const MAGIC: [u8; 8] = *b"TESSLOG1";

/// The first bytes of a log or snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// A number no other segment has, so that records cannot be mistaken for its own.
    pub salt: u64,
    /// Which segment of the lane this is.
    pub generation: u64,
    /// How much of the previous generation counts.
    pub previous_end: u64,
}

impl SegmentHeader {
    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.salt.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous_end.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..32]);
        bytes[32..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
        if bytes[..8] != MAGIC || read_u32(bytes, 32)? != crc32c::crc32c(&bytes[..32]) {
            return None;
        }
        Some(Self { salt: read_u64(bytes, 8)?, generation: read_u64(bytes, 16)?, previous_end: read_u64(bytes, 24)? })
    }
}

/// The role of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordType {
    /// Something the handler wants to remember.
    State = 0,
    /// The slot went to another lane: nothing before this about it counts.
    Released = 1,
    /// The end of a snapshot; its payload is the number of records before it.
    SnapshotEnd = 2,
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its role in the log.
    pub record_type: RecordType,
    /// The handler's kind.
    pub kind: u8,
    /// The slot it belongs to.
    pub slot: u8,
    /// How much of the file was on disk when it was written.
    pub synced: u64,
}

/// Appends a record to `out`.
pub fn encode(out: &mut Vec<u8>, salt: u64, header: &RecordHeader, payload: &[u8]) {
    assert!(payload.len() <= RECORD_PAYLOAD_BYTES_MAX, "the queue admits no longer record");
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&header.synced.to_le_bytes());
    out.extend_from_slice(&[header.record_type as u8, header.kind, header.slot, 0]);
    out.extend_from_slice(payload);
    let crc = checksum(salt, &out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads the record at `at`: its header, its payload and where the next begins. `None` if there is no whole, valid one.
#[must_use]
pub fn decode(bytes: &[u8], at: usize, salt: u64) -> Option<(RecordHeader, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let len = read_u32(rest, 4)? as usize;
    if len > RECORD_PAYLOAD_BYTES_MAX {
        return None;
    }
    let record = rest.get(..RECORD_HEADER_BYTES + len)?;
    if read_u32(record, 0)? != checksum(salt, &record[4..]) {
        return None;
    }
    let record_type = match (record[16], record[19]) {
        (0, 0) => RecordType::State,
        (1, 0) => RecordType::Released,
        (2, 0) => RecordType::SnapshotEnd,
        _ => return None,
    };
    let header = RecordHeader { record_type, kind: record[17], slot: record[18], synced: read_u64(record, 8)? };
    Some((header, &record[RECORD_HEADER_BYTES..], at + record.len()))
}

/// How a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With its last record, and room for more.
    Clean,
    /// With bytes that were never known to be on disk, as after a crash.
    Torn,
    /// With a record that was on disk once and is broken now.
    Damaged,
}

/// Walks the records of a segment from its header on, and says where the valid ones end and why.
pub fn scan<'a>(bytes: &'a [u8], salt: u64, mut each: impl FnMut(RecordHeader, &'a [u8], usize)) -> (usize, Tail) {
    let mut at = SEGMENT_HEADER_BYTES;
    while let Some((header, payload, next)) = decode(bytes, at, salt) {
        each(header, payload, at);
        at = next;
    }
    if bytes.iter().skip(at).all(|byte| *byte == 0) {
        return (at.min(bytes.len()), Tail::Clean);
    }
    // Any valid record further on that was written after this place had been synced proves that this place was whole.
    let was_synced = (at + 1..bytes.len())
        .any(|later| decode(bytes, later, salt).is_some_and(|(header, ..)| header.synced > at as u64));
    (at, if was_synced { Tail::Damaged } else { Tail::Torn })
}

/// Whether zeros are no record under `salt`: they pass for an empty one under one salt of 2^32.
#[must_use]
pub fn zeros_are_no_record(salt: u64) -> bool {
    checksum(salt, &[0; RECORD_HEADER_BYTES - 4]) != 0
}

fn checksum(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), bytes)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SALT: u64 = 0x1234_5678_9abc_def0;

    fn segment(payloads: &[Vec<u8>], synced_every: usize) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = SegmentHeader { salt: SALT, generation: 3, previous_end: 0 }.encode().to_vec();
        let mut ends = vec![bytes.len()];
        let mut synced = bytes.len();
        for (index, payload) in payloads.iter().enumerate() {
            if index % synced_every == 0 {
                synced = bytes.len();
            }
            let header = RecordHeader {
                record_type: RecordType::State,
                kind: index as u8,
                slot: !(index as u8),
                synced: synced as u64,
            };
            encode(&mut bytes, SALT, &header, payload);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, usize, Tail) {
        let mut payloads = Vec::new();
        let (end, tail) = scan(bytes, SALT, |_, payload, _| payloads.push(payload.to_vec()));
        (payloads, end, tail)
    }

    proptest! {
        #[test]
        fn a_file_cut_anywhere_gives_back_exactly_its_whole_records(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12), cut in 0usize..1000,
        ) {
            let (bytes, ends) = segment(&payloads, 1);
            let cut = SEGMENT_HEADER_BYTES + cut % (bytes.len() - SEGMENT_HEADER_BYTES + 1);
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            let (read, end, tail) = read(&bytes[..cut]);
            prop_assert_eq!(&read[..], &payloads[..whole]);
            prop_assert_eq!(end, ends[whole]);
            // A record may begin with zeros, and a cut within them looks like room. Nothing is lost by that.
            let is_room = bytes[ends[whole]..cut].iter().all(|byte| *byte == 0);
            prop_assert_eq!(tail, if is_room { Tail::Clean } else { Tail::Torn });
        }

        #[test]
        fn a_flipped_bit_never_passes_and_is_damage_if_something_synced_follows(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 3..12), at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let (mut bytes, ends) = segment(&payloads, 1);
            let at = SEGMENT_HEADER_BYTES + at.index(bytes.len() - SEGMENT_HEADER_BYTES);
            bytes[at] ^= 1 << bit;
            let hit = ends.iter().filter(|end| **end <= at).count() - 1;
            let (read, end, tail) = read(&bytes);
            prop_assert_eq!(&read[..], &payloads[..hit]);
            prop_assert_eq!(end, ends[hit]);
            // Each record vouches for all before it; no later record vouches for the last one.
            prop_assert_eq!(tail, if hit + 1 < payloads.len() { Tail::Damaged } else { Tail::Torn });
        }

        #[test]
        fn arbitrary_bytes_are_no_record_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..250) {
            prop_assert!(decode(&bytes, at, SALT).is_none());
            prop_assert!(SegmentHeader::decode(&bytes).is_none());
        }
    }

    #[test]
    fn zeros_after_the_last_record_are_room_and_anything_else_is_not() {
        let (mut bytes, ends) = segment(&[b"one".to_vec(), Vec::new()], 1);
        bytes.resize(bytes.len() + 3000, 0);
        assert_eq!(read(&bytes), (vec![b"one".to_vec(), Vec::new()], ends[2], Tail::Clean));
        bytes[ends[2] + 2000] = 1;
        assert_eq!(read(&bytes).1, ends[2]);
        assert_eq!(read(&bytes).2, Tail::Torn);
    }

    #[test]
    fn the_one_salt_under_which_zeros_are_a_record_is_known() {
        // A CRC is linear: the salt under which sixteen zeros have the checksum zero can be computed.
        let zeros = checksum(0, &[0; 16]);
        let mut rows: Vec<(u32, u64)> = (0..32).map(|bit| (checksum(1 << bit, &[0; 16]) ^ zeros, 1 << bit)).collect();
        let (mut left, mut salt) = (zeros, 0);
        for bit in 0..32 {
            let Some(at) = rows.iter().position(|(value, _)| value >> bit & 1 == 1) else { continue };
            let (value, from) = rows.swap_remove(at);
            for row in rows.iter_mut().filter(|row| row.0 >> bit & 1 == 1) {
                *row = (row.0 ^ value, row.1 ^ from);
            }
            if left >> bit & 1 == 1 {
                (left, salt) = (left ^ value, salt ^ from);
            }
        }
        assert_eq!(left, 0, "every checksum is that of some salt");
        assert!(decode(&[0; 40], 0, salt).is_some() && !zeros_are_no_record(salt));
        assert!(decode(&[0; 40], 0, SALT).is_none() && zeros_are_no_record(SALT));
    }

    #[test]
    fn a_record_of_another_segment_does_not_pass() {
        let (bytes, _) = segment(&[b"mine".to_vec()], 1);
        assert!(decode(&bytes, SEGMENT_HEADER_BYTES, SALT).is_some());
        assert!(decode(&bytes, SEGMENT_HEADER_BYTES, SALT + 1).is_none());
    }

    #[test]
    fn a_hole_in_what_was_never_synced_is_torn_not_damaged() {
        // Three records in one group: the disk kept the first and the third.
        let (mut bytes, ends) = segment(&[b"first".to_vec(), b"second".to_vec(), b"third".to_vec()], 99);
        bytes[ends[1]..ends[2]].fill(0);
        let (read, end, tail) = read(&bytes);
        assert_eq!((read, end, tail), (vec![b"first".to_vec()], ends[1], Tail::Torn));
    }
}
