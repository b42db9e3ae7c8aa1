//! A worker's own findings file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tessera_contracts::{FenceEpoch, ShardId, WorkerId};

use super::FindingsSink;
use super::record::{MAGIC, Segment, begin_payload, finding_payload, frame, segment_payload};
use crate::occurrence::Occurrence;

/// How findings files end.
pub(super) const SUFFIX: &str = ".findings";

/// Findings of a segment are written out when they take this much, so that memory stays bounded.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Appends to one file, which is this worker's alone.
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// Length of the file up to the last commit.
    committed: u64,
    /// Length of the file.
    written: u64,
    /// Who holds which shard from where: not yet durable, and needed before any segment of it.
    begun: Option<Vec<u8>>,
}

/// Findings could not be made durable. The cursor must not move.
#[derive(Debug, thiserror::Error)]
#[error("cannot write findings to {path}: {source}; {advice}")]
pub struct SinkError {
    /// The file.
    pub path: PathBuf,
    /// What the operating system says.
    pub source: io::Error,
    /// What to do.
    pub advice: &'static str,
}

impl SinkError {
    fn new(path: &Path, source: io::Error) -> Self {
        let advice = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space and run the same command again: it goes on from the last checkpoint"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "make the folder writable, or choose another with --state-dir (--findings in a fleet)"
            }
            _ => "nothing that was checkpointed is lost; run the same command again",
        };
        Self { path: path.to_path_buf(), source, advice }
    }
}

impl FileSink {
    /// Creates a new file in `dir`, which is created if need be. `nonce` tells apart the starts of one worker.
    pub fn create(dir: &Path, worker: WorkerId, nonce: u64) -> Result<Self, SinkError> {
        let path = dir.join(format!("{:016x}-{nonce:016x}{SUFFIX}", worker.get()));
        let failed = |error| SinkError::new(&path, error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        // Findings say where secrets are: nobody else's business.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        file.write_all(MAGIC).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        let len = MAGIC.len() as u64;
        Ok(Self { path, file, buffer: Vec::new(), committed: len, written: len, begun: None })
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let wrote = self.file.write_all(&self.buffer);
        if let Err(error) = wrote {
            self.abandon();
            return Err(SinkError::new(&self.path, error));
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), SinkError> {
        frame(payload, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES_MAX { self.flush() } else { Ok(()) }
    }
}

impl FindingsSink for FileSink {
    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        // Synced with the first segment: an owner that leaves no segment need not have been here.
        let payload = begin_payload(shard, fence, cursor);
        self.append(&payload)?;
        self.begun = Some(payload);
        Ok(())
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.append(&finding_payload(occurrence))
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.append(&segment_payload(segment))?;
        self.flush()?;
        if let Err(error) = self.file.sync_data() {
            // After a failed sync nobody knows what is on the disk; the segment is done again by whoever comes next.
            self.abandon();
            return Err(SinkError::new(&self.path, error));
        }
        self.committed = self.written;
        self.begun = None;
        Ok(())
    }

    fn abandon(&mut self) {
        use std::io::Seek;
        self.buffer.clear();
        // Best effort: findings without a segment are dropped by the merge, and so is a torn tail.
        let _ = self.file.set_len(self.committed);
        let _ = self.file.seek(io::SeekFrom::Start(self.committed));
        self.written = self.committed;
        if let Some(payload) = &self.begun {
            frame(payload, &mut self.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::sink::record::Records;
    use crate::tally::Tally;

    fn segment(to: &[u8]) -> Segment {
        Segment {
            shard: ShardId::new(1),
            fence: FenceEpoch::new(2),
            from: None,
            to: Some(to.to_vec()),
            tally: Tally::default(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_file_is_private_and_never_another_workers() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        let mut sink = FileSink::create(&folder, WorkerId::new(7), 1).unwrap();
        sink.begin(ShardId::new(1), FenceEpoch::new(2), None).unwrap();
        sink.commit(&segment(b"k")).unwrap();
        let error = FileSink::create(&folder, WorkerId::new(7), 1).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        FileSink::create(&folder, WorkerId::new(7), 2).unwrap();
        assert_eq!(std::fs::metadata(&sink.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(Records::new(&std::fs::read(&sink.path).unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn what_was_abandoned_leaves_no_trace_and_the_next_segment_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = FileSink::create(dir.path(), WorkerId::new(7), 1).unwrap();
        sink.commit(&segment(b"a")).unwrap();
        sink.append(&[2; 100]).unwrap();
        sink.flush().unwrap();
        sink.abandon();
        sink.commit(&segment(b"b")).unwrap();
        let bytes = std::fs::read(&sink.path).unwrap();
        assert!(Records::new(&bytes).unwrap().all(|record| record.is_ok()));
        assert_eq!(Records::new(&bytes).unwrap().count(), 2);
    }

    #[test]
    fn who_holds_a_shard_is_not_forgotten_with_an_abandoned_segment() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = FileSink::create(dir.path(), WorkerId::new(7), 1).unwrap();
        sink.begin(ShardId::new(1), FenceEpoch::new(2), Some(b"c")).unwrap();
        sink.abandon();
        sink.commit(&segment(b"d")).unwrap();
        let bytes = std::fs::read(&sink.path).unwrap();
        let first = Records::new(&bytes).unwrap().next().unwrap().unwrap();
        assert!(matches!(first, crate::sink::record::Record::Begin { cursor: Some(cursor), .. } if cursor == b"c"));
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_what_to_do() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut sink = FileSink {
            path: "/dev/full".into(),
            file: full,
            buffer: Vec::new(),
            committed: 0,
            written: 0,
            begun: None,
        };
        let error = sink.commit(&segment(b"a")).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("free some space"), "{error}");
        assert!(sink.buffer.is_empty(), "nothing is carried into a later segment");
    }
}
