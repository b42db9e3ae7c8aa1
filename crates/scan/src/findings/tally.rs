//! What became of items, in numbers that always add up.
//!
//! `enumerated = scanned + skipped + unreadable`: there is no field for the sum, so it cannot disagree with its parts.
//! Counts are read back from files, which may hold anything: sums stop at the largest number instead of wrapping.

use std::collections::BTreeMap;

use crate::source::item::{SkipReason, UnreadableReason};
use crate::wire::{Malformed, Reader, Writer};

/// Counts of items by what became of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Read to the end and searched.
    pub scanned: u64,
    /// Their bytes.
    pub scanned_bytes: u64,
    /// Left out on purpose, by reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// Not readable, by reason.
    pub unreadable: BTreeMap<UnreadableReason, u64>,
    /// Findings that were not kept because one item had too many.
    pub findings_cut: u64,
}

impl Tally {
    /// Everything that was met.
    pub fn enumerated(&self) -> u64 {
        self.scanned.saturating_add(self.skipped_total()).saturating_add(self.unreadable_total())
    }

    /// Left out on purpose, for any reason.
    pub fn skipped_total(&self) -> u64 {
        self.skipped.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Not readable, for any reason.
    pub fn unreadable_total(&self) -> u64 {
        self.unreadable.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Counts one item that was searched.
    pub fn add_scanned(&mut self, bytes: u64) {
        self.scanned = self.scanned.saturating_add(1);
        self.scanned_bytes = self.scanned_bytes.saturating_add(bytes);
    }

    /// Counts items left out.
    pub fn add_skipped(&mut self, reason: SkipReason, count: u64) {
        let sum = self.skipped.entry(reason).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Counts items that could not be read.
    pub fn add_unreadable(&mut self, reason: UnreadableReason, count: u64) {
        let sum = self.unreadable.entry(reason).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        self.scanned = self.scanned.saturating_add(other.scanned);
        self.scanned_bytes = self.scanned_bytes.saturating_add(other.scanned_bytes);
        self.findings_cut = self.findings_cut.saturating_add(other.findings_cut);
        for (&reason, &count) in &other.skipped {
            self.add_skipped(reason, count);
        }
        for (&reason, &count) in &other.unreadable {
            self.add_unreadable(reason, count);
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        for number in [self.scanned, self.scanned_bytes, self.findings_cut] {
            writer.u64(number);
        }
        writer.u8(self.skipped.len() as u8);
        for (&reason, &count) in &self.skipped {
            writer.u8(reason as u8);
            writer.u64(count);
        }
        writer.u8(self.unreadable.len() as u8);
        for (&reason, &count) in &self.unreadable {
            writer.u8(reason as u8);
            writer.u64(count);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut tally = Self {
            scanned: reader.u64()?,
            scanned_bytes: reader.u64()?,
            findings_cut: reader.u64()?,
            ..Self::default()
        };
        let unknown = Malformed("it counts for a reason this version does not know");
        for _ in 0..reader.u8()? {
            let reason = SkipReason::from_stored(reader.u8()?).ok_or(unknown)?;
            tally.add_skipped(reason, reader.u64()?);
        }
        for _ in 0..reader.u8()? {
            let reason = UnreadableReason::from_stored(reader.u8()?).ok_or(unknown)?;
            tally.add_unreadable(reason, reader.u64()?);
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_a_damaged_file_reach_a_limit_and_do_not_wrap() {
        let mut tally =
            Tally { scanned: u64::MAX, scanned_bytes: u64::MAX, findings_cut: u64::MAX, ..Tally::default() };
        for _ in 0..2 {
            tally.add_skipped(SkipReason::Binary, u64::MAX);
        }
        let other = tally.clone();
        tally.merge(&other);
        tally.add_scanned(1);
        assert_eq!((tally.enumerated(), tally.skipped_total(), tally.scanned_bytes), (u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn parts_add_up_and_come_back_from_bytes() {
        let mut tally = Tally { findings_cut: 3, ..Tally::default() };
        tally.add_scanned(10);
        tally.add_scanned(5);
        tally.add_skipped(SkipReason::Binary, 4);
        tally.add_unreadable(UnreadableReason::Io, 1);
        assert_eq!((tally.enumerated(), tally.scanned_bytes), (7, 15));
        let mut writer = Writer::default();
        tally.write(&mut writer);
        let mut reader = Reader(&writer.0);
        assert_eq!(Tally::read(&mut reader), Ok(tally.clone()));
        assert_eq!(reader.end(), Ok(()));
        let mut twice = tally.clone();
        twice.merge(&tally);
        assert_eq!((twice.enumerated(), twice.findings_cut), (14, 6));
    }
}
