//! Defects that were once there, or nearly, on purpose: the simulation must notice each.
//!
//! Each is a shell around something that ships, which breaks one rule of it.

use clap::ValueEnum;
use tessera_contracts::{FenceEpoch, ShardId};
use tessera_scan::findings::occurrence::Occurrence;
use tessera_scan::findings::record::Segment;
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
}

impl Defect {
    /// All that break a rule.
    pub const ALL: [Self; 4] =
        [Self::PlaceWithoutTarget, Self::EmptyRootIsRead, Self::FencedSegmentsCount, Self::CheckpointFirst];

    /// The property that must notice it.
    pub const fn caught_by(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::PlaceWithoutTarget => "NoPlaceIsMissing",
            Self::EmptyRootIsRead | Self::FencedSegmentsCount | Self::CheckpointFirst => "CompleteWhenItCanBe",
        }
    }

    /// `sink`, with this defect.
    pub(super) fn around(self, sink: impl FindingsSink + Send + 'static) -> Box<dyn FindingsSink + Send> {
        match self {
            Self::FencedSegmentsCount => Box::new(Unfenced(sink)),
            Self::CheckpointFirst => Box::new(Hasty { sink, late: None }),
            _ => Box::new(sink),
        }
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
