//! The changes since the last write, told by the operations' events.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{RunId, ShardKey, TenantId};
use tessera_coordination::InMemoryCoordinator;
use tessera_coordination::RunManagement;
use tessera_coordination::error::InfraError;
use tessera_coordination::events::{EventSink, StateTransitionEvent, Touched};

use crate::rows::Rows;

/// How much of a shard's record changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Extent {
    Hot,
    Whole,
}

/// Records to be written.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    runs: BTreeSet<(TenantId, RunId)>,
    shards: BTreeMap<(TenantId, ShardKey), Extent>,
    gone: BTreeSet<(TenantId, RunId)>,
    /// Runs whose shards are all new.
    activated: BTreeSet<(TenantId, RunId)>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.shards.is_empty() && self.gone.is_empty()
    }

    fn note(&mut self, event: &StateTransitionEvent) {
        let run = (event.tenant, event.run);
        match event.kind.touched() {
            Touched::Shard(shard) => self.note_shard(event, shard, Extent::Hot),
            Touched::Split { parent, children } => {
                self.note_shard(event, parent, Extent::Whole);
                children.iter().for_each(|child| self.note_shard(event, *child, Extent::Whole));
            }
            Touched::Run => {
                self.runs.insert(run);
            }
            Touched::RunAndRoots => {
                self.runs.insert(run);
                self.activated.insert(run);
            }
            Touched::RunGone => {
                self.runs.remove(&run);
                self.activated.remove(&run);
                self.shards.retain(|(tenant, key), _| (*tenant, key.run) != run);
                self.gone.insert(run);
            }
        }
    }

    fn note_shard(&mut self, event: &StateTransitionEvent, shard: tessera_contracts::ids::ShardId, extent: Extent) {
        let noted = self.shards.entry((event.tenant, ShardKey::new(event.run, shard))).or_insert(extent);
        *noted = extent.max(*noted);
    }

    /// Appends the records to write, as they stand in `memory` now. Later changes of the same records need a later write.
    pub(crate) fn append_to(mut self, rows: &mut Rows, memory: &mut InMemoryCoordinator) -> Result<(), InfraError> {
        let lost =
            |what: String| InfraError::corruption("local.gather", format!("{what} was changed and is not there"));
        self.gone.into_iter().for_each(|(tenant, run)| rows.gone(tenant, run));
        for (tenant, run) in self.runs {
            let record = memory.get_run(tenant, run).map_err(|_| lost(format!("run {run}")))?;
            if self.activated.contains(&(tenant, run)) {
                for root in &record.root_shards {
                    self.shards.insert((tenant, ShardKey::new(run, *root)), Extent::Whole);
                }
            }
            rows.run(&record);
        }
        for ((tenant, key), extent) in self.shards {
            if extent == Extent::Whole {
                rows.cold(&memory.get_shard(tenant, key).map_err(|_| lost(format!("shard {key}")))?);
            }
            let part = memory.hot_part(tenant, key).map_err(|_| lost(format!("shard {key}")))?;
            rows.hot(tenant, key, &part);
        }
        Ok(())
    }
}

/// Notes changes, and keeps the events until they are durable.
pub(crate) struct Recorder<'c> {
    pub(crate) changes: &'c mut Changes,
    pub(crate) kept: Option<&'c mut Vec<StateTransitionEvent>>,
}

impl EventSink for Recorder<'_> {
    fn is_enabled(&self) -> bool {
        true
    }

    fn emit(&mut self, event: StateTransitionEvent) -> bool {
        self.changes.note(&event);
        if let Some(kept) = &mut self.kept {
            kept.push(event);
        }
        true
    }
}
