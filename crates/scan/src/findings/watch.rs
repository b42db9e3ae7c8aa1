//! How far others have come, as their findings files tell.
//!
//! Reads only what was added since the last look. It counts what was written, also what will be done again, and so is
//! for a progress bar and nothing else; what counts is decided by [`merge`](super::merge()).

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use super::file::SUFFIX;
use super::record::{HEADER_BYTES, Record, Records};
use crate::files::Folder;
use crate::findings::tally::Tally;

/// Most bytes read of one file at a look: the rest is read at the next.
const LOOK_BYTES_MAX: u64 = 16 << 20;

/// Watches a folder of findings files.
#[derive(Debug, Default)]
pub struct Watch {
    /// How far each file was read.
    seen: HashMap<PathBuf, u64>,
    /// What was counted so far.
    pub tally: Tally,
    /// Findings so far.
    pub findings: u64,
    /// Bytes of all files at the first look, and at the last.
    lengths: Option<(u64, u64)>,
}

impl Watch {
    /// Whether a worker wrote something since the first look.
    pub fn has_grown(&self) -> bool {
        self.lengths.is_some_and(|(first, last)| last > first)
    }

    /// Looks until there is nothing new.
    pub fn look_to_the_end(&mut self, folder: &(impl Folder + ?Sized)) -> io::Result<()> {
        loop {
            let before = self.seen.values().sum::<u64>();
            self.look(folder)?;
            if self.seen.values().sum::<u64>() == before {
                return Ok(());
            }
        }
    }

    /// Looks again. A folder that is not there yet holds nothing.
    pub fn look(&mut self, folder: &(impl Folder + ?Sized)) -> io::Result<()> {
        let names = match folder.list() {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.lengths.get_or_insert((0, 0));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut length = 0;
        for name in names.iter().filter(|name| name.ends_with(SUFFIX)) {
            length += self.file(folder, name)?;
        }
        let (first, _) = self.lengths.unwrap_or((length, length));
        self.lengths = Some((first, length));
        Ok(())
    }

    /// Reads what was added to a file; returns its length.
    fn file(&mut self, folder: &(impl Folder + ?Sized), name: &str) -> io::Result<u64> {
        let file = folder.open(name)?;
        let length = file.byte_len()?;
        let seen = self.seen.entry(folder.path_of(name)).or_insert(HEADER_BYTES as u64);
        let start = *seen;
        let Some(added) = length.checked_sub(start) else { return Ok(length) };
        let mut bytes = vec![0; HEADER_BYTES + added.min(LOOK_BYTES_MAX) as usize];
        let (header, rest) = bytes.split_at_mut(HEADER_BYTES);
        match file.read_exact_at(header, 0).and_then(|()| file.read_exact_at(rest, start)) {
            // Cut in the meantime: what was abandoned was not durable.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(length),
            read => read?,
        }
        let Ok(mut records) = Records::new(&bytes) else { return Ok(length) };
        let (whole, mut findings) = (records.bytes_left(), 0);
        // Stops at the first record that is not whole: it is being written. What no segment follows may still be taken back.
        while let Some(Ok(record)) = records.next() {
            match record {
                Record::Finding(_) => findings += 1,
                Record::Segment(segment) => {
                    self.tally.merge(&segment.tally);
                    self.findings += std::mem::take(&mut findings);
                    *seen = start + (whole - records.bytes_left()) as u64;
                }
                Record::Begin { .. } | Record::Compared(_) => {}
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{FenceEpoch, RunId, RunIncarnation, ShardId, WorkerId};

    use super::*;
    use crate::findings::record::{Segment, Span};
    use crate::findings::{FileSink, FindingsSink};
    use crate::plan::ledger::Entry;
    use crate::run::label::RunKey;

    #[test]
    fn only_what_was_added_is_counted_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("findings");
        let mut watch = Watch::default();
        watch.look(&folder).unwrap();
        assert!(!watch.has_grown());
        std::fs::create_dir(&folder).unwrap();
        let key = RunKey::new(RunId::new(1), RunIncarnation::new(1));
        let mut sink = FileSink::create(&folder, key, WorkerId::new(1), 1).unwrap();
        for count in 1..=3 {
            let mut tally = Tally::default();
            tally.add_scanned(10);
            let (shard, fence) = (ShardId::new(1), FenceEpoch::new(2));
            sink.begin(shard, fence, None).unwrap();
            let span = Span { shard, fence, from: None, to: None };
            let segment = Segment { span, target: 0, pass: 0, entry: Entry::default(), tally, notes: Vec::new() };
            sink.commit(&segment).unwrap();
            for _ in 0..2 {
                watch.look(&folder).unwrap();
                assert_eq!((watch.tally.scanned, watch.tally.scanned_bytes), (count, count * 10));
                assert!(watch.has_grown());
            }
        }
        // A record that is being written is left for later.
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        std::fs::OpenOptions::new().append(true).open(file).unwrap().set_len(1_000).unwrap();
        watch.look(&folder).unwrap();
        assert_eq!(watch.tally.scanned, 3);
    }
}
