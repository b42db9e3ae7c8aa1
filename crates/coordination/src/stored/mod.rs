//! What durable backends store, byte by byte.
//!
//! Every value begins with a version and a kind, so that a record of another layout or another kind is refused by name
//! and never misread. Numbers are little-endian and of fixed width, byte strings carry a 32-bit length that is checked
//! against its bound before anything is copied, options are one byte 0 or 1, and what is left over is an error. A decoder
//! meets whatever lies in a store, so it refuses and never panics.
//!
//! A shard's record is kept in two parts: *cold*, what it covers and what it spawned, written by splits; and *hot*, what
//! every operation changes. A checkpoint thus writes about a kilobyte, whatever the metadata.
//!
//! [`Writer`] and [`Reader`] are public so that a backend writes values of its own in the same way.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use tessera_contracts::CursorUpdate;
use tessera_contracts::cursor::Cursor;
use tessera_contracts::ids::{LogicalTime, RunIncarnation, ShardKey, TenantId};
use tessera_contracts::limits::{MAX_KEY_SIZE, MAX_TOKEN_SIZE};

use crate::record::shard_record::ShardRecord;
use crate::record::state::ShardState;

mod cold;
mod hot;
mod run;

pub use cold::ColdPart;
pub use hot::{HOT_BYTES_USUAL, HotPart, HotView};
pub use run::{RootsPart, RunPart, Staging};

/// The layout that is written.
pub const VERSION: u8 = 3;

/// What a value holds. Numbers below 64 belong to this module; a backend takes its own from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// As it is stored.
    pub number: u8,
    /// As errors call it.
    pub name: &'static str,
}

impl Kind {
    /// A run's record.
    pub const RUN: Self = Self { number: 1, name: "run record" };
    /// The seldom-written part of a shard's record.
    pub const COLD: Self = Self { number: 2, name: "cold shard record" };
    /// The often-written part of a shard's record.
    pub const HOT: Self = Self { number: 3, name: "hot shard record" };
    /// A run's roots.
    pub const ROOTS: Self = Self { number: 5, name: "list of roots" };
}

/// A shard's whole record from its two parts.
///
/// # Errors
/// If the parts are of different incarnations of the run: then one of them is a leftover of a retired run.
pub fn join(tenant: TenantId, key: ShardKey, cold: ColdPart, hot: HotPart) -> Result<ShardRecord, IncarnationMismatch> {
    check_same_incarnation(cold.incarnation, hot.incarnation)?;
    let ColdPart { incarnation, spec, cursor_semantics, parent, spawned, .. } = cold;
    let HotPart { head, cursor, op_log, history, park_detail, unreachable, .. } = hot;
    let state = ShardState { head, cursor_semantics, parent, op_log, history };
    Ok(ShardRecord { tenant, key, incarnation, state, spec, cursor, spawned, park_detail, unreachable })
}

/// Whether what was read of one shard, or of a run and its shard, belongs to one creation of the run.
///
/// # Errors
/// If not.
pub fn check_same_incarnation(expected: RunIncarnation, found: RunIncarnation) -> Result<(), IncarnationMismatch> {
    if expected == found { Ok(()) } else { Err(IncarnationMismatch { expected, found }) }
}

/// Parts of different incarnations of a run lie under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a part is of incarnation {found} of the run, the others are of {expected}")]
pub struct IncarnationMismatch {
    /// The incarnation of what was read first.
    pub expected: RunIncarnation,
    /// The incarnation of what does not go with it.
    pub found: RunIncarnation,
}

/// Why a stored value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError {
    /// What was being read.
    pub reading: &'static str,
    /// The field at fault.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stored {}, field {}: {}", self.reading, self.field, self.problem)
    }
}

impl core::error::Error for CodecError {}

/// Writes one value.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins a value of this kind; `capacity` is about how long it will be.
    pub fn new(kind: Kind, capacity: usize) -> Self {
        Self::behind(kind, Vec::with_capacity(capacity))
    }

    /// Begins a value of this kind behind what is there.
    #[must_use]
    pub fn behind(kind: Kind, mut bytes: Vec<u8>) -> Self {
        bytes.extend_from_slice(&[VERSION, kind.number]);
        Self { bytes }
    }

    /// One byte.
    pub fn u8(&mut self, number: u8) {
        self.bytes.push(number);
    }

    /// Four bytes.
    pub fn u32(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// A length or a count.
    pub fn length(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("what is stored is bounded far below 4 GiB"));
    }

    /// A byte string with its length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// A value that may be absent.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// A point in time.
    pub fn time(&mut self, time: LogicalTime) {
        self.u64(time.get());
    }

    /// A run's incarnation.
    pub fn incarnation(&mut self, incarnation: RunIncarnation) {
        self.u64(incarnation.get());
    }

    /// A cursor.
    pub fn cursor(&mut self, cursor: CursorUpdate<'_>) {
        self.option(cursor.last_key(), Self::bytes);
        self.option(cursor.token(), Self::bytes);
    }

    /// The value, and whatever it was written behind.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads one value; whatever is wrong is named by field.
#[derive(Debug)]
pub struct Reader<'b> {
    reading: &'static str,
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Begins to read a value that must be of this kind.
    pub fn new(kind: Kind, bytes: &'b [u8]) -> Result<Self, CodecError> {
        let mut reader = Self { reading: kind.name, rest: bytes };
        let version = reader.u8("version")?;
        if version != VERSION {
            return Err(reader.wrong("version", format!("{version}, but this program knows only {VERSION}")));
        }
        let found = reader.u8("kind")?;
        if found != kind.number {
            return Err(reader.wrong("kind", format!("{found} instead of {}", kind.number)));
        }
        Ok(reader)
    }

    /// An error about `field`.
    pub fn wrong(&self, field: &'static str, problem: impl Into<String>) -> CodecError {
        CodecError { reading: self.reading, field, problem: problem.into() }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize, field: &'static str) -> Result<&'b [u8], CodecError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| self.wrong(field, format!("{count} bytes expected, {} left", self.rest.len())))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], CodecError> {
        let taken = self.take(N, field)?;
        Ok(taken.try_into().expect("exactly as many bytes were taken"))
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, CodecError> {
        self.array(field).map(u8::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, CodecError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, CodecError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A length or count, refused beyond its bound before anything of that size is touched.
    pub fn length(&mut self, max: usize, field: &'static str) -> Result<usize, CodecError> {
        let count = self.u32(field)? as usize;
        if count > max {
            return Err(self.wrong(field, format!("{count}, at most {max} are possible")));
        }
        Ok(count)
    }

    /// A byte string of at most `max` bytes.
    pub fn bytes(&mut self, max: usize, field: &'static str) -> Result<&'b [u8], CodecError> {
        let count = self.length(max, field)?;
        self.take(count, field)
    }

    /// A value that may be absent.
    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        match self.u8(field)? {
            0 => Ok(None),
            1 => read(self).map(Some),
            tag => Err(self.wrong(field, format!("{tag} is neither absent (0) nor present (1)"))),
        }
    }

    /// A value that is stored by its number.
    pub fn numbered<T>(&mut self, field: &'static str, from: impl FnOnce(u8) -> Option<T>) -> Result<T, CodecError> {
        let number = self.u8(field)?;
        from(number).ok_or_else(|| self.wrong(field, format!("{number} is not one of its numbers")))
    }

    /// A point in time.
    pub fn time(&mut self, field: &'static str) -> Result<LogicalTime, CodecError> {
        self.u64(field).map(LogicalTime::new)
    }

    /// A run's incarnation; none is stored without one.
    pub fn incarnation(&mut self) -> Result<RunIncarnation, CodecError> {
        let incarnation = RunIncarnation::new(self.u64("incarnation")?);
        if incarnation.is_unassigned() {
            return Err(self.wrong("incarnation", "0 means unassigned"));
        }
        Ok(incarnation)
    }

    /// A cursor.
    pub fn cursor(&mut self, field: &'static str) -> Result<Cursor, CodecError> {
        let last_key = self.option(field, |reader| reader.bytes(MAX_KEY_SIZE, field))?;
        let token = self.option(field, |reader| reader.bytes(MAX_TOKEN_SIZE, field))?;
        let cursor = Cursor::new(last_key, token).map_err(|error| self.wrong(field, error.to_string()))?;
        // An empty token would be read as none; then the record would not encode to what was read.
        if cursor.token() != token {
            return Err(self.wrong(field, "an empty token is stored as none"));
        }
        Ok(cursor)
    }

    /// Checks that nothing is left over.
    pub fn finish(self) -> Result<(), CodecError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.wrong("end", format!("{} bytes are left over", self.rest.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_token_is_refused_since_it_would_be_written_as_none() {
        let mut writer = Writer::new(Kind::HOT, 16);
        writer.option(Some(&b"k"[..]), Writer::bytes);
        writer.option(Some(&b""[..]), Writer::bytes);
        let bytes = writer.finish();
        let refused = Reader::new(Kind::HOT, &bytes).unwrap().cursor("cursor").unwrap_err();
        assert_eq!(refused.field, "cursor");
    }

    #[test]
    fn what_cannot_be_read_is_named_by_record_and_field() {
        let bytes = [VERSION + 1, Kind::HOT.number];
        let refused = Reader::new(Kind::HOT, &bytes).unwrap_err();
        assert_eq!(refused.to_string(), "stored hot shard record, field version: 4, but this program knows only 3");
    }
}

/// Shared by the tests of every part: what holds for all of them.
#[cfg(test)]
mod testing {
    use std::format;
    use std::string::String;

    use super::CodecError;

    /// Compares an encoding with the committed one, which must never change for a given version.
    pub(super) fn assert_golden(name: &str, encoded: &[u8]) {
        let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
        let text: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
        if std::env::var_os("TESSERA_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, format!("{text}\n")).expect("the golden folder is writable");
        }
        let golden = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path}: {error}; TESSERA_WRITE_GOLDEN=1 writes it"));
        assert_eq!(text, golden.trim(), "{name}: stored records of this version would no longer be readable");
    }

    /// No prefix, no extension and no single changed byte may panic, and neither of the first two may decode.
    pub(super) fn assert_robust<T>(encoded: &[u8], decode: impl Fn(&[u8]) -> Result<T, CodecError>) {
        for cut in 0..encoded.len() {
            assert!(decode(&encoded[..cut]).is_err(), "the first {cut} of {} bytes decode", encoded.len());
        }
        let longer = [encoded, &[0]].concat();
        assert!(decode(&longer).is_err_and(|error| error.field == "end"), "a trailing byte is accepted");
        for at in 0..encoded.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = encoded.to_vec();
                changed[at] ^= flip;
                // It may be another valid record; it must not panic.
                let _ = decode(&changed);
            }
        }
        let mut newer = encoded.to_vec();
        newer[0] += 1;
        assert!(decode(&newer).is_err_and(|error| error.field == "version"));
        let mut other = encoded.to_vec();
        other[1] = 99;
        assert!(decode(&other).is_err_and(|error| error.field == "kind"));
    }
}
