//! The view of the checkers: every call with the records before and after it, every result, and how it ended.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{RunIncarnation, ShardId, ShardKey, WorkerId};
use tessera_coordination::error::GetShardError;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};

use super::call::{Answer, Backend, Call, Caller, RUN, TENANT};
use super::config::Config;
use super::sink::{ResultWrite, Sink};

/// Everything a checker may look at after a call.
#[derive(Debug)]
pub struct Sight<'w> {
    /// The world's configuration.
    pub config: &'w Config,
    /// True time.
    pub now: u64,
    /// The call.
    pub call: &'w Call,
    /// The answer.
    pub answer: &'w Answer,
    /// The records that were looked at again, before and after; `None` before means that the shard is new.
    pub changes: &'w [Change],
    /// All records, after.
    pub records: &'w BTreeMap<ShardId, ShardRecord>,
    /// The run before the call; none while it is retired and the next one has no shards yet.
    pub run_before: Option<&'w RunRecord>,
    /// The run after it.
    pub run: Option<&'w RunRecord>,
    /// Durable results.
    pub sink: &'w Sink,
    /// How far each worker's clock is off.
    pub clock_offsets: &'w [i64],
    /// The shards whose holder the store vouched for before the call, where a store can lose sight of one.
    pub vouched_before: Option<&'w BTreeSet<ShardId>>,
    /// The same, after it.
    pub vouched: Option<&'w BTreeSet<ShardId>>,
    /// The workers that had a live session in the run before the call and have one after it, where the backend knows sessions.
    pub present: Option<&'w BTreeSet<WorkerId>>,
    /// Time passed in the store during the call. Earlier requests may have arrived meanwhile, so the records may have
    /// been others when the call was judged.
    pub waited: bool,
}

/// One record before and after a call.
#[derive(Clone, Debug)]
pub struct Change {
    /// Before.
    pub before: Option<ShardRecord>,
    /// After.
    pub after: ShardRecord,
}

impl Sight<'_> {
    /// The record of the shard the call names, as it was before.
    pub fn named_before(&self) -> Option<&ShardRecord> {
        let shard = self.call.request.shard()?;
        self.changes.iter().find(|change| change.after.key.shard == shard)?.before.as_ref()
    }

    /// Whether the run was settled before the call.
    pub fn was_settled(&self) -> bool {
        self.run_before.is_some_and(|run| run.status.is_terminal())
    }

    /// The incarnation that the call names, if that is not the run's.
    pub fn other_incarnation(&self) -> Option<RunIncarnation> {
        let current = self.run_before.map(|run| run.incarnation);
        self.call.request.incarnation().filter(|presented| Some(*presented) != current)
    }

    /// Whether the call took effect just now.
    pub fn is_executed(&self) -> bool {
        match self.answer {
            Answer::Granted { .. } => true,
            Answer::Renewed(renewed) => renewed.orders.cancelled.is_none(),
            Answer::Accepted { outcome, .. } => *outcome == super::call::Outcome::Executed,
            Answer::NoShard | Answer::Throttled | Answer::Refused(_) | Answer::Failed => false,
        }
    }

    /// The worker that asked.
    pub const fn worker(&self) -> Option<usize> {
        match self.call.caller {
            Caller::Worker(worker) => Some(worker),
            Caller::Operator | Caller::Vandal | Caller::Stranger => None,
        }
    }
}

/// How a world ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// The run's last status; none if it was retired and not created again.
    pub run: Option<RunStatus>,
    /// Calm steps it took.
    pub calm_steps: u64,
    /// Calm steps it was given.
    pub calm_steps_max: u64,
}

/// One property, watched. Named as in `specs/coordination`.
pub trait Checker: std::fmt::Debug {
    /// The property's name.
    fn name(&self) -> &'static str;

    /// After every call.
    fn after_call(&mut self, _sight: &Sight<'_>) -> Result<(), String> {
        Ok(())
    }

    /// The records changed between two calls, by late requests in a store.
    fn after_late(&mut self, _changes: &[Change], _vouched: Option<&BTreeSet<ShardId>>) -> Result<(), String> {
        Ok(())
    }

    /// The backend was started again: state in memory only is gone.
    fn after_restart(&mut self) {}

    /// After every result that the store accepted.
    fn after_result(&mut self, _result: &ResultWrite, _records: &BTreeMap<ShardId, ShardRecord>) -> Result<(), String> {
        Ok(())
    }

    /// When the world ends.
    fn at_end(&mut self, _ending: &Ending) -> Result<(), String> {
        Ok(())
    }
}

/// The records of the run as last read.
#[derive(Debug, Default)]
pub struct Mirror {
    /// By shard.
    pub records: BTreeMap<ShardId, ShardRecord>,
}

impl Mirror {
    /// Reads the shards a call can have touched; all of them now and then, to notice changes outside its shards.
    pub fn read_after(
        &mut self,
        backend: &mut impl Backend,
        call: &Call,
        answer: &Answer,
        everything: bool,
    ) -> Vec<Change> {
        let mut shards: Vec<ShardId> = call.request.shard().into_iter().collect();
        match answer {
            Answer::Granted { lease, .. } => shards.push(lease.shard()),
            Answer::Accepted { children, .. } => shards.extend(children),
            _ => {}
        }
        // A failed call may have done anything it was asked to.
        if everything || matches!(answer, Answer::Failed) {
            return self.read_all(backend);
        }
        shards.dedup();
        self.read(backend, shards)
    }

    /// Reads all shards.
    pub fn read_all(&mut self, backend: &mut impl Backend) -> Vec<Change> {
        let shards = all_shards(backend);
        self.read(backend, shards)
    }

    fn read(&mut self, backend: &mut impl Backend, shards: Vec<ShardId>) -> Vec<Change> {
        let mut changes = Vec::with_capacity(shards.len());
        for shard in shards {
            let found = backend.get_shard(TENANT, ShardKey::new(RUN, shard));
            if !self.records.contains_key(&shard) && matches!(found, Err(GetShardError::Access(_))) {
                // Named by a vandal, and never there.
                continue;
            }
            let after = found.expect("a shard that was there, or was said to be made, is there");
            let before = self.records.insert(shard, after.clone());
            changes.push(Change { before, after });
        }
        changes
    }
}

/// The ids of all shards of the run.
pub fn all_shards(backend: &mut impl Backend) -> Vec<ShardId> {
    let (mut page, mut found, mut all) = (Some(ShardPage::first(1_000)), Vec::new(), Vec::new());
    while let Some(next) = page {
        let now = tessera_contracts::LogicalTime::new(1);
        page = backend
            .list_shards_into(now, TENANT, RUN, &ShardFilter::all(), next, &mut found)
            .expect("the run is there to be listed");
        all.extend(found.iter().map(|summary| summary.shard));
    }
    all
}
