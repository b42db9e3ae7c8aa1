//! A findings file that is made when there is something to write: a worker that never gets a shard leaves none.

use tessera_contracts::{FenceEpoch, ShardId, WorkerId};

use super::record::Segment;
use super::{FileSink, FindingsSink, SinkError};
use crate::files::Folder;
use crate::findings::occurrence::Occurrence;
use crate::op_ids::random_u64;
use crate::run::label::RunKey;

/// Appends to one file, which is made when a shard is granted.
#[derive(Debug)]
pub struct LazySink {
    folder: Box<dyn Folder>,
    key: RunKey,
    worker: WorkerId,
    file: Option<FileSink>,
}

impl LazySink {
    /// A sink for `worker` in `folder`, which belongs to `key`.
    pub fn new(folder: impl Folder + 'static, key: RunKey, worker: WorkerId) -> Self {
        Self { folder: Box::new(folder), key, worker, file: None }
    }

    fn file(&mut self) -> Result<&mut FileSink, SinkError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => FileSink::create(&*self.folder, self.key, self.worker, random_u64())?,
        };
        Ok(self.file.insert(file))
    }
}

impl FindingsSink for LazySink {
    fn key(&self) -> RunKey {
        self.key
    }

    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        self.file()?.begin(shard, fence, cursor)
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.file()?.add(occurrence)
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.file()?.commit(segment)
    }

    fn abandon(&mut self) {
        if let Some(file) = &mut self.file {
            file.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{RunId, RunIncarnation};

    use super::*;

    #[test]
    fn there_is_no_file_before_there_is_a_shard() {
        let dir = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        let key = RunKey::new(RunId::new(1), RunIncarnation::new(1));
        let mut sink = LazySink::new(dir.path().to_path_buf(), key, WorkerId::new(1));
        sink.abandon();
        assert_eq!(files(), 0);
        sink.begin(ShardId::new(1), FenceEpoch::new(2), None).unwrap();
        sink.begin(ShardId::new(2), FenceEpoch::new(2), None).unwrap();
        assert_eq!(files(), 1);
    }
}
