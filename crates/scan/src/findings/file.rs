//! A worker's own findings file.

use std::io;
use std::path::{Path, PathBuf};

use tessera_contracts::{FenceEpoch, ShardId, WorkerId};

use super::FindingsSink;
use super::record::{
    Compared, HEADER_BYTES, Segment, begin_payload, compared_payload, finding_payload, frame, header, segment_payload,
};
use crate::files::{AppendFile, Folder};
use crate::findings::occurrence::Occurrence;
use crate::run::label::RunKey;

/// How findings files end.
pub(super) const SUFFIX: &str = ".findings";

/// Findings of a segment are written out when they take this much, so that memory stays bounded.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Appends to one file, which is this worker's alone.
#[derive(Debug)]
pub struct FileSink {
    key: RunKey,
    path: PathBuf,
    file: Box<dyn AppendFile>,
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
    /// `path` cannot be written because of `source`.
    pub fn new(path: &Path, source: io::Error) -> Self {
        let advice = match source.kind() {
            io::ErrorKind::NotFound => {
                "the folder of the run was taken away; nothing was checkpointed, and the same command scans again"
            }
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

impl SinkError {
    /// Whether the folder of the run is gone, as after its run was retired.
    pub fn is_gone(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

impl FileSink {
    /// Creates a new file of `key` in `folder`. `nonce` tells apart the starts of one worker.
    ///
    /// The folder is created if need be, but not the one that it lies in: that one is made with the run, and one that is
    /// gone was taken away with it.
    pub fn create(
        folder: &(impl Folder + ?Sized),
        key: RunKey,
        worker: WorkerId,
        nonce: u64,
    ) -> Result<Self, SinkError> {
        let name = format!("{:016x}-{nonce:016x}{SUFFIX}", worker.get());
        let path = folder.path_of(&name);
        let failed = |error| SinkError::new(&path, error);
        folder.make().map_err(failed)?;
        let mut file = folder.create(&name).map_err(failed)?;
        let made = file.append(&header(key)).and_then(|()| file.sync()).and_then(|()| folder.sync());
        made.map_err(failed)?;
        let len = HEADER_BYTES as u64;
        Ok(Self { key, path, file, buffer: Vec::new(), committed: len, written: len, begun: None })
    }

    /// Makes durable that segments are still what they were.
    pub(crate) fn compared(&mut self, compared: &[Compared]) -> Result<(), SinkError> {
        for compared in compared {
            self.append(&compared_payload(compared))?;
        }
        self.sync()
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        self.flush()?;
        if let Err(error) = self.file.sync() {
            // After a failed sync it is not known what is on the disk; the next owner does the segment again.
            self.abandon();
            return Err(SinkError::new(&self.path, error));
        }
        self.committed = self.written;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        if let Err(error) = self.file.append(&self.buffer) {
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
    fn key(&self) -> RunKey {
        self.key
    }

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
        self.sync()?;
        self.begun = None;
        Ok(())
    }

    fn abandon(&mut self) {
        self.buffer.clear();
        // Best effort: findings without a segment are dropped by the merge, and so is a torn tail.
        let _ = self.file.truncate(self.committed);
        self.written = self.committed;
        if let Some(payload) = &self.begun {
            frame(payload, &mut self.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tessera_contracts::{RunId, RunIncarnation};

    use super::*;
    use crate::findings::record::{Records, Span};
    use crate::findings::tally::Tally;
    use crate::plan::ledger::Entry;

    const KEY: RunKey = RunKey::new(RunId::new(1), RunIncarnation::new(1));

    /// A disk without room.
    #[derive(Debug)]
    struct Full;

    impl AppendFile for Full {
        fn append(&mut self, _: &[u8]) -> io::Result<()> {
            std::io::Write::write_all(&mut std::fs::OpenOptions::new().write(true).open("/dev/full")?, b"x")
        }

        fn sync(&mut self) -> io::Result<()> {
            panic!("nothing was written")
        }

        fn truncate(&mut self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    fn segment(to: &[u8]) -> Segment {
        let span = Span { shard: ShardId::new(1), fence: FenceEpoch::new(2), from: None, to: Some(to.to_vec()) };
        let entry = Entry::default();
        Segment { span, target: 0, pass: 0, entry, tally: Tally::default(), notes: Vec::new() }
    }

    #[test]
    fn a_file_is_private_and_never_another_workers() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        let mut sink = FileSink::create(&folder, KEY, WorkerId::new(7), 1).unwrap();
        sink.begin(ShardId::new(1), FenceEpoch::new(2), None).unwrap();
        sink.commit(&segment(b"k")).unwrap();
        let error = FileSink::create(&folder, KEY, WorkerId::new(7), 1).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        FileSink::create(&folder, KEY, WorkerId::new(7), 2).unwrap();
        assert_eq!(std::fs::metadata(&sink.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(Records::new(&std::fs::read(&sink.path).unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn what_was_abandoned_leaves_no_trace_and_the_next_segment_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = FileSink::create(dir.path(), KEY, WorkerId::new(7), 1).unwrap();
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
        let mut sink = FileSink::create(dir.path(), KEY, WorkerId::new(7), 1).unwrap();
        sink.begin(ShardId::new(1), FenceEpoch::new(2), Some(b"c")).unwrap();
        sink.abandon();
        sink.commit(&segment(b"d")).unwrap();
        let bytes = std::fs::read(&sink.path).unwrap();
        let first = Records::new(&bytes).unwrap().next().unwrap().unwrap();
        assert!(matches!(first, crate::findings::record::Record::Begin { cursor: Some(cursor), .. } if cursor == b"c"));
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = FileSink::create(dir.path(), KEY, WorkerId::new(7), 1).unwrap();
        sink.file = Box::new(Full);
        let error = sink.commit(&segment(b"a")).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("free some space"), "{error}");
        assert!(sink.buffer.is_empty(), "nothing is carried into a later segment");
    }

    #[test]
    fn a_segment_in_a_file_that_was_taken_away_is_not_called_durable() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run/findings");
        let missing = FileSink::create(&folder, KEY, WorkerId::new(7), 1).unwrap_err();
        assert!(missing.is_gone() && !dir.path().join("run").exists(), "no folder is made for a run that has none");
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let mut sink = FileSink::create(&folder, KEY, WorkerId::new(7), 1).unwrap();
        sink.commit(&segment(b"a")).unwrap();
        std::fs::remove_dir_all(dir.path().join("run")).unwrap();
        let gone = sink.commit(&segment(b"b")).unwrap_err();
        assert!(gone.is_gone() && gone.to_string().contains("taken away"), "{gone}");
        // The next run of that id makes a file of the same name: it is not this one.
        std::fs::create_dir(dir.path().join("run")).unwrap();
        FileSink::create(&folder, KEY, WorkerId::new(7), 1).unwrap();
        assert!(sink.commit(&segment(b"b")).unwrap_err().is_gone());
    }
}
