//! Properties that must hold after every step.
//!
//! A watch reads the records of all shards before and after a step and judges the difference, so it needs no idea of the
//! right answer. Properties have the names they have in the TLA+ specification, where they are there
//! too. In very large runs it looks at the shards the command names.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::{LogicalTime, RunId, ShardKey, TenantId};
use tessera_coordination::CoordinationFacade;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::progress::ShardCounts;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;

use crate::backend::BackendConfig;
use crate::command::Command;
use crate::line::Answer;
use crate::world::{World, last_key, tenant_called};

/// Most shards that are all read after every step.
const SHARDS_READ_MAX: usize = 64;

/// First key, and first key above.
type Edges = (Vec<u8>, Vec<u8>);

pub(crate) struct Watch {
    config: BackendConfig,
    shards: BTreeMap<(TenantId, ShardKey), ShardRecord>,
    runs: BTreeMap<(TenantId, RunId), RunRecord>,
    /// The ranges each run was registered with: they must always be covered.
    registered: BTreeMap<(TenantId, RunId), Vec<Edges>>,
    /// Holders whose session was lost may be taken over before their deadline.
    sessions_lost: BTreeSet<u64>,
}

/// The step that was played.
pub(crate) struct Played<'a> {
    pub(crate) at: u64,
    pub(crate) tenant: &'a str,
    pub(crate) command: &'a Command,
    pub(crate) answers: &'a [Answer],
}

impl Watch {
    pub(crate) fn new(config: BackendConfig) -> Self {
        Self {
            config,
            shards: BTreeMap::new(),
            runs: BTreeMap::new(),
            registered: BTreeMap::new(),
            sessions_lost: BTreeSet::new(),
        }
    }

    pub(crate) fn session_lost(&mut self, worker: u64) {
        self.sessions_lost.insert(worker);
    }

    /// Looks at the world after a step; the error names the property that does not hold.
    pub(crate) fn look<B: CoordinationFacade>(
        &mut self,
        world: &mut World<B>,
        step: &Played<'_>,
    ) -> Result<(), String> {
        let known: BTreeSet<_> = world.shards().collect();
        let tenant = tenant_called(step.tenant);
        let all = known.len() <= SHARDS_READ_MAX;
        let looked_at: BTreeSet<_> = if all {
            known.clone()
        } else {
            let named = step.command.shards().into_iter().filter_map(|name| world.resolve(tenant, name).ok());
            named.map(|key| (tenant, key)).filter(|id| known.contains(id)).collect()
        };
        let before = std::mem::take(&mut self.shards);
        let mut changed = Vec::new();
        for &(owner, key) in &looked_at {
            let name = world.name(owner, key);
            let record = world.backend.get_shard(owner, key);
            let record = record.map_err(|error| format!("ShardKept: shard {name} is gone: {error}"))?;
            if (record.tenant, record.key) != (owner, key) {
                return Err(format!("TenantIsolation: shard {name} is stored as another shard"));
            }
            record.check_invariants().map_err(|violation| format!("RecordInvariants: shard {name}: {violation}"))?;
            let run = self.runs.get(&(owner, key.run)).map(|run| run.status);
            match before.get(&(owner, key)) {
                Some(old) if *old == record => {}
                Some(old) => {
                    self.judge(old, &record, run, step).map_err(|problem| format!("{problem} (shard {name})"))?;
                    let mut presented = world.presented().iter().filter(|lease| lease.key() == key);
                    if presented.any(|lease| lease.incarnation() != record.incarnation) {
                        return Err(format!("IncarnationFenced: a lease of another run changed shard {name}"));
                    }
                    changed.push(name);
                }
                None => changed.push(name),
            }
            self.shards.insert((owner, key), record);
        }
        if !all {
            self.shards.extend(before.into_iter().filter(|(id, _)| known.contains(id) && !looked_at.contains(id)));
        }
        self.judge_answers(&changed, all, step)?;
        if all {
            self.judge_runs(world, step, &known)?;
        }
        Ok(())
    }

    /// Two records of one shard, before and after.
    fn judge(
        &self,
        old: &ShardRecord,
        new: &ShardRecord,
        run: Option<RunStatus>,
        step: &Played<'_>,
    ) -> Result<(), &'static str> {
        let (was, is) = (&old.state.head, &new.state.head);
        let now = LogicalTime::new(step.at);
        if old.tenant != tenant_called(step.tenant) {
            return Err("TenantIsolation: a command of one tenant changed a shard of another");
        }
        if is.fence < was.fence {
            return Err("FenceMonotonic: the fence epoch fell");
        }
        if new.incarnation != old.incarnation {
            return Err("IncarnationFenced: a shard changed over to another incarnation of its run");
        }
        if last_key(new) < last_key(old) {
            return Err("CursorMonotonic: recorded progress moved back");
        }
        if last_key(new).is_some_and(|key| !new.spec.range().contains(key)) {
            return Err("CursorInBounds: recorded progress left the range");
        }
        if matches!(was.status, ShardStatus::Done | ShardStatus::Split) {
            return Err("TerminalIrreversible: a settled shard changed");
        }
        if was.status == ShardStatus::Parked
            && !(matches!(step.command, Command::Unpark { .. })
                && is.status == ShardStatus::Active
                && is.fence > was.fence)
        {
            return Err("TerminalIrreversible: a parked shard changed, and not by being unparked with a new fence");
        }
        if run.is_some_and(|status| status != RunStatus::Active) {
            return Err("SettledRunIsQuiet: a shard of a run that is not active changed");
        }
        if let Some(holder) = is.lease
            && was.lease.is_none_or(|old| old.owner != holder.owner)
            && is.fence == was.fence
        {
            return Err("OwnerChangeBumpsFence: a new owner got no new fence epoch");
        }
        if let Some(holder) = was.lease_live_at(now)
            && is.fence > was.fence
            && !self.sessions_lost.contains(&holder.owner.get())
        {
            return Err("NoTheftFromLiveOwner: the shard was granted while a live lease stood");
        }
        let lease_gated = matches!(
            step.command,
            Command::Checkpoint { .. }
                | Command::Complete { .. }
                | Command::Park { .. }
                | Command::Replace { .. }
                | Command::Split { .. }
                | Command::Release { .. }
                | Command::Drain { .. }
                | Command::Renew { .. }
        );
        if lease_gated && was.lease_live_at(now).is_none() {
            return Err("ExpiredIsRefused: a shard nobody held was changed by a lease");
        }
        if old.spawned.len() > new.spawned.len() || old.spawned != new.spawned[..old.spawned.len()] {
            return Err("SplitAtomicity: a child was struck from its parent's list");
        }
        Ok(())
    }

    /// Checks an answer's promises about the records.
    fn judge_answers(&self, changed: &[String], all: bool, step: &Played<'_>) -> Result<(), String> {
        let [answer] = step.answers else { return Ok(()) };
        let verdict = answer.line.verdict();
        let parks_instead = verdict == "refused: retries exhausted" || matches!(step.command, Command::Claim { .. });
        let nothing = (answer.line.is_refusal() && !parks_instead) || matches!(verdict, "replayed" | "superseded");
        // A run may have been created, or retired records forgotten, without a shard to show for it.
        if nothing && !matches!(step.command, Command::Start { .. }) {
            if !changed.is_empty() {
                return Err(format!(
                    "Idempotent: it was answered `{verdict}` but changed shard {}",
                    changed.join(", ")
                ));
            }
            if !answer.events.is_empty() {
                return Err(format!("EventsTellWhatHappened: it was answered `{verdict}` but told an event"));
            }
        }
        let tells = !matches!(step.command, Command::Start { .. });
        if verdict == "executed" && tells && answer.events.len() != 1 {
            return Err(format!("EventsTellWhatHappened: it was executed and told {} events", answer.events.len()));
        }
        let named = step.command.shards();
        if all && verdict == "executed" && named.len() == 1 {
            let shard = named[0].to_string();
            let stranger = changed.iter().find(|name| **name != shard && !name.starts_with(&format!("{shard}.")));
            if let Some(stranger) = stranger {
                return Err(format!("OneShardAtATime: shard {stranger} changed though shard {shard} was meant"));
            }
        }
        Ok(())
    }

    /// Runs as a whole: their records, their counts, and that no key was lost.
    fn judge_runs<B: CoordinationFacade>(
        &mut self,
        world: &mut World<B>,
        step: &Played<'_>,
        known: &BTreeSet<(TenantId, ShardKey)>,
    ) -> Result<(), String> {
        let runs: BTreeSet<_> = known.iter().map(|(tenant, key)| (*tenant, key.run)).collect();
        self.registered.retain(|run, _| runs.contains(run));
        for &(tenant, run) in &runs {
            let record =
                world.backend.get_run(tenant, run).map_err(|error| format!("RunKept: run is gone: {error}"))?;
            record.check_invariants().map_err(|violation| format!("RunInvariants: {violation}"))?;
            if let Some(old) = self.runs.get(&(tenant, run))
                && old.status.is_terminal()
                && *old != record
            {
                return Err(format!("RunTerminalIrreversible: settled run {} changed", run.get()));
            }
            let shards = || self.shards.iter().filter(|((owner, key), _)| *owner == tenant && key.run == run);
            let mut counts = ShardCounts::default();
            shards().for_each(|(_, record)| *counts.of_mut(record.state.head.status) += 1);
            let progress = world.backend.get_run_progress(LogicalTime::new(step.at), tenant, run);
            let progress = progress.map_err(|error| format!("RunKept: no progress: {error}"))?;
            if progress.counts != counts {
                return Err(format!(
                    "ProgressCounts: run {} has {counts:?} but reports {:?}",
                    run.get(),
                    progress.counts
                ));
            }
            let covered = tiles(shards().filter(|(_, r)| r.state.head.status != ShardStatus::Split).map(|(_, r)| r));
            let covered = covered.map_err(|problem| format!("SplitTiles: in run {} {problem}", run.get()))?;
            let registered = self.registered.entry((tenant, run)).or_insert_with(|| covered.clone());
            if *registered != covered {
                return Err(format!("Coverage: the shards of run {} no longer cover its keys", run.get()));
            }
            self.runs.insert((tenant, run), record);
        }
        self.runs.retain(|run, _| runs.contains(run));
        let limits = self.config.shard_limits;
        let of_tenant = known.iter().filter(|(tenant, _)| *tenant == tenant_called(step.tenant)).count() as u64;
        if of_tenant > limits.per_tenant_max || known.len() as u64 > limits.total_max {
            return Err(format!("ShardLimits: {of_tenant} shards of the tenant, {} in all", known.len()));
        }
        Ok(())
    }
}

/// The ranges of a run's shards, neighbours joined; a problem if two have a key in common.
fn tiles<'a>(records: impl Iterator<Item = &'a ShardRecord>) -> Result<Vec<Edges>, String> {
    let mut ranges: Vec<_> = records.map(|record| record.spec.range()).collect();
    ranges.sort_by_key(|range| range.start());
    if ranges.windows(2).any(|pair| pair[0].overlaps(pair[1])) {
        return Err("two shards share a key".into());
    }
    let mut joined: Vec<Edges> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some((_, end)) if *end == range.start() => *end = range.end().into(),
            _ => joined.push((range.start().into(), range.end().into())),
        }
    }
    Ok(joined)
}
