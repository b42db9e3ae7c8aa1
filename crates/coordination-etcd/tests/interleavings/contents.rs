//! All that the store holds, read past every coordinator.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::{RunId, ShardId, ShardKey};
use tessera_coordination::error::RunNotFound;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::state::ShardState;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::stored::join;
use tessera_coordination_etcd::codec::{
    ColdPart, FamilyPart, HatchingPart, HotPart, OwnerPart, RootsPart, RunPart, decode_count,
};
use tessera_coordination_etcd::keyspace::shard_of;
use tessera_coordination_etcd::sim_kv::SimKv;

use crate::calls::{NEIGHBOUR, RUN, TENANT};
use crate::keys::{Heading, heading_of, run_of, scan};
use crate::player::{run_text, shard_text};

/// Everything, by run.
pub struct Contents {
    pub runs: BTreeMap<RunId, Run>,
    /// What the counters say: of all shards, and of the tenant's.
    pub counts: BTreeMap<Heading, u64>,
}

/// All that the store holds of one run.
#[derive(Default)]
pub struct Run {
    pub record: Option<RunPart>,
    pub roots: Option<RootsPart>,
    pub colds: BTreeMap<ShardId, ColdPart>,
    pub hots: BTreeMap<ShardId, HotPart>,
    pub owners: BTreeMap<ShardId, OwnerPart>,
    pub indexes: BTreeMap<Heading, BTreeSet<ShardId>>,
    pub families: Vec<FamilyPart>,
    pub splits_under_way: BTreeMap<ShardId, HatchingPart>,
    /// Workers that take part in it.
    pub standings: usize,
    pub is_listed_active: bool,
    pub is_listed_new: bool,
    pub keys: Vec<String>,
}

impl Contents {
    /// Reads it.
    ///
    /// # Errors
    /// If something cannot be read, or has no place.
    pub fn read(kv: &SimKv) -> Result<Self, String> {
        let mut runs: BTreeMap<RunId, Run> = BTreeMap::new();
        let mut counts = BTreeMap::new();
        for stored in scan(kv) {
            let (key, value) = (&stored.key, &stored.value);
            let text = String::from_utf8_lossy(key).into_owned();
            let wrong = |error: &dyn std::fmt::Display| format!("{text} cannot be read: {error}");
            let heading = heading_of(key).ok_or_else(|| format!("{text} has no heading"))?;
            if matches!(heading, Heading::CountAll | Heading::CountOf) {
                if !text.ends_with("/guard") {
                    *counts.entry(heading).or_default() += decode_count(value).map_err(|e| wrong(&e))?;
                }
                continue;
            }
            let Some(id) = run_of(heading, key) else { continue };
            let run = runs.entry(id).or_default();
            let shard = shard_of(key).unwrap_or(ShardId::UNASSIGNED);
            run.keys.push(text.clone());
            match heading {
                Heading::Run => run.record = Some(RunPart::decode(value).map_err(|e| wrong(&e))?),
                Heading::Roots => run.roots = Some(RootsPart::decode(value).map_err(|e| wrong(&e))?),
                Heading::Cold => drop(run.colds.insert(shard, ColdPart::decode(value).map_err(|e| wrong(&e))?)),
                Heading::Hot => drop(run.hots.insert(shard, HotPart::decode(value).map_err(|e| wrong(&e))?)),
                Heading::Owner => drop(run.owners.insert(shard, OwnerPart::decode(value).map_err(|e| wrong(&e))?)),
                Heading::Free | Heading::Held | Heading::Parked | Heading::Reported => {
                    run.indexes.entry(heading).or_default().insert(shard);
                }
                Heading::Family => run.families.push(FamilyPart::decode(value).map_err(|e| wrong(&e))?),
                Heading::Hatching => {
                    drop(run.splits_under_way.insert(shard, HatchingPart::decode(value).map_err(|e| wrong(&e))?));
                }
                Heading::ActiveRun => run.is_listed_active = true,
                Heading::NewRun => run.is_listed_new = true,
                Heading::Standing => run.standings += 1,
                Heading::Present | Heading::Abstains | Heading::Retired | Heading::CountAll | Heading::CountOf => {}
            }
        }
        Ok(Self { runs, counts })
    }

    /// What readers see of it, as [`crate::player::Side::state`] tells it, in order.
    pub fn visible(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for id in [RUN, NEIGHBOUR] {
            let run = self.runs.get(&id).and_then(|run| Some((run, run.record.as_ref()?)));
            let Some((run, record)) = run.filter(|(_, record)| record.removal.is_none()) else {
                lines.push(format!("{id}: {}", RunNotFound { run: id }));
                continue;
            };
            let roots = run.roots.clone().unwrap_or_default().roots;
            lines.push(format!("{id}: {}", run_text(&record.to_record(TENANT, id, roots))));
            if record.status != RunStatus::Initializing {
                lines.extend(run.published().map(|(shard, _)| shard_text(&run.shard(ShardKey::new(id, *shard)))));
            }
        }
        lines.sort();
        lines
    }
}

impl Run {
    /// Shards that readers see: those of a split that was staged and not carried out are none.
    pub fn published(&self) -> impl Iterator<Item = (&ShardId, &ColdPart)> {
        self.colds.iter().filter(|(shard, cold)| {
            let parent = cold.parent.and_then(|parent| self.colds.get(&parent));
            !cold.staged || parent.is_some_and(|parent| parent.spawned.iter().any(|child| child.id == **shard))
        })
    }

    /// How many shards the counters count for this run.
    pub fn counted(&self) -> u64 {
        let Some(record) = &self.record else { return 0 };
        match (record.removal, record.staging) {
            (Some(removal), _) => u64::from(removal.counted),
            (None, Some(staging)) => u64::from(staging.reserved),
            (None, None) => self.published().count() as u64,
        }
    }

    pub fn status(&self, shard: ShardId) -> ShardStatus {
        self.hots.get(&shard).map_or(ShardStatus::Active, |hot| hot.head.status)
    }

    pub fn is_held(&self, shard: ShardId) -> bool {
        self.hots.get(&shard).is_some_and(|hot| hot.head.lease.is_some())
    }

    /// Whether some worker said that it cannot reach it.
    pub fn is_reported(&self, shard: ShardId) -> bool {
        self.hots.get(&shard).is_some_and(|hot| !hot.unreachable.is_empty())
    }

    pub fn is_open(&self, shard: ShardId) -> bool {
        !matches!(self.status(shard), ShardStatus::Done | ShardStatus::Split)
    }

    /// The record of a shard that there is.
    fn shard(&self, key: ShardKey) -> ShardRecord {
        let cold = self.colds[&key.shard].clone();
        let Some(hot) = self.hots.get(&key.shard) else {
            let ColdPart { incarnation, spec, cursor_semantics, parent, born_at: cursor, spawned, .. } = cold;
            let state = ShardState::newborn(cursor_semantics, parent);
            let (park_detail, unreachable) = (None, Vec::new());
            return ShardRecord {
                tenant: TENANT,
                key,
                incarnation,
                state,
                spec,
                cursor,
                spawned,
                park_detail,
                unreachable,
            };
        };
        let mut record = join(TENANT, key, cold, hot.clone()).expect("audited");
        // A renewal writes the owner key alone.
        if let (Some(lease), Some(owner)) = (&mut record.state.head.lease, self.owners.get(&key.shard)) {
            lease.deadline = lease.deadline.max(owner.deadline);
        }
        record
    }
}
