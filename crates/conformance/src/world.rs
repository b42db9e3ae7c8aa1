//! The world of a story: a backend, the leases its workers hold, and the names of its shards.
//!
//! Playing a command calls the one operation it stands for, with a collector of events, and puts the answer into words.
//! Names of split shards are worked out here by the rule of the protocol (ids derived from run, parent, operation and
//! index), not taken from the answer: a backend that names a child otherwise is answered with an unknown id.

use std::collections::BTreeMap;

use tessera_contracts::{CursorUpdate, LogicalTime, OpId, RunId, ShardId, ShardKey, ShardSpec, TenantId};
use tessera_coordination::events::EventCollector;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::{AcquireScratch, CoordinationFacade, Lease};

use crate::command::{Command, Ops};
use crate::line::Answer;
use crate::text::ShardName;

mod on_runs;
mod on_shards;
mod words;

pub(crate) struct World<B> {
    pub(crate) backend: B,
    scratch: AcquireScratch,
    leases: Vec<Held>,
    names: BTreeMap<(TenantId, RunId, ShardId), ShardName>,
    spawned: BTreeMap<(TenantId, ShardKey), usize>,
    /// Incarnations that creators drew so far.
    drawn: u64,
    /// The leases that the command played last presented.
    presented: Vec<Lease>,
}

/// A lease a worker was once given, and the range it has been told since.
#[derive(Clone, Debug)]
struct Held {
    lease: Lease,
    spec: ShardSpec,
    last_key: Option<Vec<u8>>,
}

/// The tenant called `name`; `nobody` is the id that means unassigned.
pub(crate) fn tenant_called(name: &str) -> TenantId {
    if name == "nobody" { TenantId::UNASSIGNED } else { TenantId::from_name(name) }
}

impl<B: CoordinationFacade> World<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self {
            backend,
            scratch: AcquireScratch::new(),
            leases: Vec::new(),
            names: BTreeMap::new(),
            spawned: BTreeMap::new(),
            drawn: 0,
            presented: Vec::new(),
        }
    }

    /// Every shard that was ever made, by tenant.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (TenantId, ShardKey)> + '_ {
        self.names.keys().map(|&(tenant, run, shard)| (tenant, ShardKey::new(run, shard)))
    }

    /// The leases that the command played last presented.
    pub(crate) fn presented(&self) -> &[Lease] {
        &self.presented
    }

    /// Every lease that was ever granted.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> + '_ {
        self.leases.iter().map(|held| &held.lease)
    }

    /// The id behind a name.
    pub(crate) fn resolve(&self, tenant: TenantId, name: &ShardName) -> Result<ShardKey, String> {
        let run = RunId::new(name.run);
        if name.below.is_empty() {
            return Ok(ShardKey::new(run, ShardId::new(name.root)));
        }
        let found = self.names.iter().find(|((owner, _, _), known)| *owner == tenant && *known == name);
        let ((_, run, shard), _) = found.ok_or_else(|| format!("shard {name} was never made in this story"))?;
        Ok(ShardKey::new(*run, *shard))
    }

    /// The name of an id; an unknown id is shown as it is.
    pub(crate) fn name(&self, tenant: TenantId, key: ShardKey) -> String {
        self.names.get(&(tenant, key.run, key.shard)).map_or_else(|| format!("unknown-{key}"), ToString::to_string)
    }

    /// Plays a command once for each of its op ids. An error is a mistake in the story, not in the backend.
    pub(crate) fn play(&mut self, now: u64, tenant: &str, command: &Command) -> Result<Vec<Answer>, String> {
        let ops = match command {
            Command::Register { op, .. }
            | Command::Start { op, .. }
            | Command::Settle { op, .. }
            | Command::Unpark { op, .. }
            | Command::Checkpoint { op, .. }
            | Command::Complete { op, .. }
            | Command::Park { op, .. }
            | Command::Replace { op, .. }
            | Command::Split { op, .. }
            | Command::Release { op, .. }
            | Command::Drain { op, .. } => *op,
            _ => Ops::one(0),
        };
        let (now, tenant) = (LogicalTime::new(now), tenant_called(tenant));
        (ops.first..=ops.last).map(|op| self.play_once(now, tenant, command, OpId::new(op))).collect()
    }

    fn play_once(&mut self, now: LogicalTime, tenant: TenantId, command: &Command, op: OpId) -> Result<Answer, String> {
        let mut events = EventCollector::new();
        self.presented.clear();
        let mut answer = match command {
            Command::Acquire { .. }
            | Command::Claim { .. }
            | Command::Renew { .. }
            | Command::Checkpoint { .. }
            | Command::Complete { .. }
            | Command::Park { .. }
            | Command::Replace { .. }
            | Command::Split { .. }
            | Command::Release { .. }
            | Command::Drain { .. } => self.play_shard_command(now, tenant, command, op, &mut events)?,
            _ => self.play_run_command(now, tenant, command, op, &mut events)?,
        };
        answer.events = events.iter().map(|event| self.event_line(now, tenant, event)).collect();
        Ok(answer)
    }
}

/// The cursor of a record, borrowed, for watchers to compare.
pub(crate) fn last_key(record: &ShardRecord) -> Option<&[u8]> {
    CursorUpdate::last_key(record.cursor.as_update())
}
