//! The sources a worker has met, and whether it can read them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tessera_contracts::source_family::{SourceError, SourceErrorClass};

use super::reachable;
use crate::plan::ledger::OpenPlan;
use crate::plan::target::{Target, TargetKind};
use crate::source::Source;

/// The sources a worker has met.
#[derive(Debug)]
pub(super) struct Sources {
    known: Vec<Arc<Source>>,
    /// Repositories that have what was planned: looked at once, since objects do not go away while refs lead to them.
    reached: BTreeSet<u32>,
    /// Where lists lie.
    dir: PathBuf,
    pub(super) plan: Option<Arc<OpenPlan>>,
}

impl Sources {
    /// Those prepared already; others are made from the metadata of shards, with their lists in `dir`.
    pub(super) fn new(known: Vec<Arc<Source>>, dir: PathBuf, plan: Option<Arc<OpenPlan>>) -> Self {
        Self { known, reached: BTreeSet::new(), dir, plan }
    }

    /// The source of a shard with this metadata, if it can be read from here.
    pub(super) fn of(&mut self, metadata: &[u8]) -> Result<Arc<Source>, SourceError> {
        let target = Target::decode(metadata)
            .map_err(|error| SourceError::new(SourceErrorClass::Poisoned, error.to_string()))?;
        // Before it is opened: what is read along with a target (ignore rules, the index of git) must not be that of an empty
        // mount point.
        self.check(&target)?;
        if let TargetKind::Objects { .. } = target.kind {
            self.reached.insert(target.number);
        }
        if let Some(known) = self.known.iter().find(|source| *source.target() == target) {
            return Ok(Arc::clone(known));
        }
        let source = Arc::new(Source::of_target(target, &self.dir)?);
        self.known.push(Arc::clone(&source));
        Ok(source)
    }

    /// Whether a target can be read from here.
    pub(super) fn check(&self, target: &Target) -> Result<(), SourceError> {
        if self.reached.contains(&target.number) {
            return Ok(());
        }
        reachable::check(target, self.plan.as_ref().map(|plan| plan.record()))
    }

    /// Opens a source anew when it is met again: it failed.
    pub(super) fn forget(&mut self, source: &Source) {
        let target = source.target();
        self.known.retain(|known| known.target() != target);
        self.reached.remove(&target.number);
    }
}
