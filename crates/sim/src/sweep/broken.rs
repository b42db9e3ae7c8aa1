//! Defects that were once there, or nearly, on purpose: the simulation must notice each.
//!
//! Each is a shell around something that ships, which breaks one rule of it.

use std::io;
use std::path::PathBuf;

use clap::ValueEnum;
use tessera_contracts::{FenceEpoch, ShardId};
use tessera_scan::files::{AppendFile, Folder, ReadFile};
use tessera_scan::findings::occurrence::Occurrence;
use tessera_scan::findings::record::Segment;
use tessera_scan::findings::tally::Tally;
use tessera_scan::findings::{FindingsSink, SinkError};
use tessera_scan::run::label::RunKey;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Defect {
    /// None.
    None,
    /// The id of a place leaves out its target: clones hide each other.
    PlaceWithoutTarget,
    /// A root that is empty counts as read: a file system that is not mounted is clean.
    EmptyRootIsRead,
    /// The merge takes segments of fenced-off workers, since it does not know where later owners began.
    FencedSegmentsCount,
    /// The cursor moves before findings are durable.
    CheckpointFirst,
    /// Findings are written with the offset behind their own.
    OffsetOffByOne,
    /// Findings of a segment that was abandoned stay, and belong to the next one.
    AbandonForgotten,
    /// The counts of a segment go on from those of the one before.
    TallyNotReset,
    /// The plan lacks a path of each target.
    PlanLosesPath,
    /// The plan is not synced before the run is registered.
    PlanUnsynced,
    /// A shard that was swept to its end is not reported as done.
    NothingCompletes,
}

impl Defect {
    /// All that break a rule.
    pub const ALL: [Self; 10] = [
        Self::PlaceWithoutTarget,
        Self::EmptyRootIsRead,
        Self::FencedSegmentsCount,
        Self::CheckpointFirst,
        Self::OffsetOffByOne,
        Self::AbandonForgotten,
        Self::TallyNotReset,
        Self::PlanLosesPath,
        Self::PlanUnsynced,
        Self::NothingCompletes,
    ];

    /// The property that must notice it.
    pub const fn caught_by(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::PlaceWithoutTarget => "NoPlaceIsMissing",
            Self::EmptyRootIsRead => "CompleteWhenItCanBe",
            Self::FencedSegmentsCount | Self::CheckpointFirst | Self::TallyNotReset | Self::PlanLosesPath => {
                "ReceiptIsThePlan"
            }
            Self::OffsetOffByOne => "NoPlaceIsInvented",
            Self::AbandonForgotten => "NoPlaceIsListedTwice",
            Self::PlanUnsynced => "PlanIsDurable",
            Self::NothingCompletes => "RunSettles",
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// `sink`, with this defect.
    pub(super) fn around(self, sink: impl FindingsSink + Send + 'static) -> Box<dyn FindingsSink + Send> {
        match self {
            Self::FencedSegmentsCount => Box::new(Unfenced(sink)),
            Self::CheckpointFirst => Box::new(Hasty { sink, late: None }),
            Self::OffsetOffByOne => Box::new(Shifted(sink)),
            Self::AbandonForgotten => Box::new(Keeping(sink)),
            Self::TallyNotReset => Box::new(Counting { sink, sum: Tally::default() }),
            _ => Box::new(sink),
        }
    }

    /// The submitter's folder, with this defect.
    pub(super) fn folder(self, folder: impl Folder + 'static) -> Box<dyn Folder> {
        if self == Self::PlanUnsynced { Box::new(Unsynced(folder)) } else { Box::new(folder) }
    }
}

/// A sink that does not write down where owners began.
struct Unfenced<S>(S);

impl<S: FindingsSink> FindingsSink for Unfenced<S> {
    fn key(&self) -> RunKey {
        self.0.key()
    }

    fn begin(&mut self, _: ShardId, _: FenceEpoch, _: Option<&[u8]>) -> Result<(), SinkError> {
        Ok(())
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.0.add(occurrence)
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.0.commit(segment)
    }

    fn abandon(&mut self) {
        self.0.abandon();
    }
}

/// A sink that calls a segment durable, and writes it when it is used next.
struct Hasty<S> {
    sink: S,
    late: Option<Segment>,
}

impl<S: FindingsSink> Hasty<S> {
    fn catch_up(&mut self) -> Result<(), SinkError> {
        self.late.take().map_or(Ok(()), |segment| self.sink.commit(&segment))
    }
}

impl<S: FindingsSink> FindingsSink for Hasty<S> {
    fn key(&self) -> RunKey {
        self.sink.key()
    }

    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        self.catch_up()?;
        self.sink.begin(shard, fence, cursor)
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.catch_up()?;
        self.sink.add(occurrence)
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.catch_up()?;
        self.late = Some(segment.clone());
        Ok(())
    }

    fn abandon(&mut self) {
        let _ = self.catch_up();
        self.sink.abandon();
    }
}

/// A sink that writes a place that is none.
struct Shifted<S>(S);

impl<S: FindingsSink> FindingsSink for Shifted<S> {
    fn key(&self) -> RunKey {
        self.0.key()
    }

    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        self.0.begin(shard, fence, cursor)
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.0.add(&Occurrence { offset: occurrence.offset + 1, ..occurrence.clone() })
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.0.commit(segment)
    }

    fn abandon(&mut self) {
        self.0.abandon();
    }
}

/// A sink that keeps what is abandoned.
struct Keeping<S>(S);

impl<S: FindingsSink> FindingsSink for Keeping<S> {
    fn key(&self) -> RunKey {
        self.0.key()
    }

    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        self.0.begin(shard, fence, cursor)
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.0.add(occurrence)
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.0.commit(segment)
    }

    fn abandon(&mut self) {}
}

/// A sink that counts on from one segment to the next.
struct Counting<S> {
    sink: S,
    sum: Tally,
}

impl<S: FindingsSink> FindingsSink for Counting<S> {
    fn key(&self) -> RunKey {
        self.sink.key()
    }

    fn begin(&mut self, shard: ShardId, fence: FenceEpoch, cursor: Option<&[u8]>) -> Result<(), SinkError> {
        self.sum = Tally::default();
        self.sink.begin(shard, fence, cursor)
    }

    fn add(&mut self, occurrence: &Occurrence) -> Result<(), SinkError> {
        self.sink.add(occurrence)
    }

    fn commit(&mut self, segment: &Segment) -> Result<(), SinkError> {
        self.sum.merge(&segment.tally);
        self.sink.commit(&Segment { tally: self.sum.clone(), ..segment.clone() })
    }

    fn abandon(&mut self) {
        self.sink.abandon();
    }
}

/// A folder in which nothing is synced.
#[derive(Debug)]
struct Unsynced<F>(F);

impl<F: Folder> Folder for Unsynced<F> {
    fn make(&self) -> io::Result<()> {
        self.0.make()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        Ok(Box::new(UnsyncedFile(self.0.create(name)?)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        self.0.open(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.0.path_of(name)
    }
}

/// A file in such a folder.
#[derive(Debug)]
struct UnsyncedFile(Box<dyn AppendFile>);

impl AppendFile for UnsyncedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }
}
