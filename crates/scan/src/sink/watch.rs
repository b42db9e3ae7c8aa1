//! How far others have come, as their findings files tell.
//!
//! Reads only what was added since the last look. It counts what was written, also what will be done again, and so is
//! for a progress bar and nothing else; what counts is decided by [`merge`](super::merge()).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::file::SUFFIX;
use super::record::{MAGIC, Record, Records};
use crate::tally::Tally;

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
}

impl Watch {
    /// Looks again. A folder that is not there yet holds nothing.
    pub fn look(&mut self, dir: &Path) -> io::Result<()> {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX)) {
                self.file(path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: PathBuf) -> io::Result<()> {
        let mut file = File::open(&path)?;
        let seen = self.seen.entry(path).or_insert(MAGIC.len() as u64);
        let start = *seen;
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = MAGIC.to_vec();
        file.take(LOOK_BYTES_MAX).read_to_end(&mut bytes)?;
        let Ok(mut records) = Records::new(&bytes) else { return Ok(()) };
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
                Record::Begin { .. } => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{FenceEpoch, ShardId, WorkerId};

    use super::*;
    use crate::sink::record::Segment;
    use crate::sink::{FileSink, FindingsSink};

    #[test]
    fn only_what_was_added_is_counted_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("findings");
        let mut watch = Watch::default();
        watch.look(&folder).unwrap();
        let mut sink = FileSink::create(&folder, WorkerId::new(1), 1).unwrap();
        for count in 1..=3 {
            let mut tally = Tally::default();
            tally.add_scanned(10);
            let (shard, fence) = (ShardId::new(1), FenceEpoch::new(2));
            sink.begin(shard, fence, None).unwrap();
            sink.commit(&Segment { shard, fence, from: None, to: None, tally, notes: Vec::new() }).unwrap();
            for _ in 0..2 {
                watch.look(&folder).unwrap();
                assert_eq!((watch.tally.scanned, watch.tally.scanned_bytes), (count, count * 10));
            }
        }
        // A record that is being written is left for later.
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        std::fs::OpenOptions::new().append(true).open(file).unwrap().set_len(1_000).unwrap();
        watch.look(&folder).unwrap();
        assert_eq!(watch.tally.scanned, 3);
    }
}
