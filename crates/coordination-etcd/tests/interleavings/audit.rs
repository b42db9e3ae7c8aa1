//! What must hold of the store whenever no call is under way, whichever coordinator wrote: records, indexes, counters and coverage.

use tessera_contracts::RunId;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination_etcd::codec::RunPart;

use crate::calls::TENANT;
use crate::contents::{Contents, Run};
use crate::keys::Heading;

/// Keys from the first to the second, which is not one of them.
type Range = (Vec<u8>, Vec<u8>);

/// Checks the whole store.
///
/// # Errors
/// What does not hold, in words.
pub fn audit(contents: &Contents) -> Result<(), String> {
    let mut expected = 0;
    for (id, run) in &contents.runs {
        run.check().map_err(|problem| format!("run {id}: {problem}"))?;
        expected += run.counted();
    }
    for (scope, count) in &contents.counts {
        if *count != expected {
            return Err(format!("Counters: {scope:?} says {count} shards, and there are {expected}"));
        }
    }
    Ok(())
}

impl Run {
    fn check(&self) -> Result<(), String> {
        let Some(record) = &self.record else {
            return Err(format!("NoLeftovers: there is no such run, and there is {:?}", self.keys));
        };
        self.check_run(record)?;
        if record.removal.is_some() {
            // Readers see nothing of it, and the next removal or creation finishes it.
            return Ok(());
        }
        self.check_parts()?;
        self.check_incarnations(record)?;
        if record.status == RunStatus::Active {
            self.check_indexes()?;
        }
        if matches!(record.status, RunStatus::Active | RunStatus::Done) {
            self.check_coverage()?;
        }
        if record.status == RunStatus::Done
            && let Some((shard, _)) = self.published().find(|(shard, _)| self.is_open(**shard))
        {
            return Err(format!("DoneIsDone: the run is done, and {shard} is {:?}", self.status(*shard)));
        }
        Ok(())
    }

    fn check_run(&self, record: &RunPart) -> Result<(), String> {
        let roots = self.roots.clone().unwrap_or_default().roots;
        let whole = record.to_record(TENANT, RunId::new(1), roots);
        whole.check_invariants().map_err(|violation| format!("RunInvariants: {violation}"))?;
        let (active, new) = (record.status == RunStatus::Active, record.status == RunStatus::Initializing);
        if (self.is_listed_active, self.is_listed_new) != (active, new) {
            let listed = (self.is_listed_active, self.is_listed_new);
            return Err(format!("RunIndexes: {}, and listed as active and new: {listed:?}", record.status));
        }
        if record.status.is_terminal() && self.standings > 0 {
            return Err(format!(
                "NoStandings: {}, and {} standings say that it is open",
                record.status, self.standings
            ));
        }
        if record.removal.is_some() {
            return Ok(());
        }
        if new && record.staging.is_none() && !self.colds.is_empty() {
            return Err(format!("NoLeftovers: nobody registers, and there are {} shards", self.colds.len()));
        }
        Ok(())
    }

    /// Every part is one of a shard that there is, and every shard of a split is published or named by what is under way.
    fn check_parts(&self) -> Result<(), String> {
        let indexed = self.indexes.values().flatten();
        let parts = self.hots.keys().chain(self.owners.keys()).chain(indexed).chain(self.splits_under_way.keys());
        for shard in parts.chain(self.families.iter().flat_map(|family| &family.children)) {
            if !self.colds.contains_key(shard) {
                return Err(format!("NoLeftovers: there is no shard {shard}, and something of it"));
            }
        }
        // A child that was held is in the indexes, and need not be made known any more.
        for (shard, cold) in self.colds.iter().filter(|(shard, cold)| cold.staged && !self.hots.contains_key(shard)) {
            let named = cold.parent.and_then(|parent| self.splits_under_way.get(&parent));
            if !named.is_some_and(|split| split.children.contains(shard)) {
                return Err(format!("NoLeftovers: {shard} is staged, and no split under way names it"));
            }
        }
        for (shard, owner) in &self.owners {
            let holder = self.hots.get(shard).and_then(|hot| hot.head.lease.map(|lease| (lease.owner, hot.head.fence)));
            if holder != Some((owner.worker, owner.fence)) {
                return Err(format!("OwnerKeys: the record of {shard} says {holder:?}, its owner key {owner:?}"));
            }
        }
        Ok(())
    }

    /// Every part is of the run's own incarnation.
    fn check_incarnations(&self, record: &RunPart) -> Result<(), String> {
        let colds = self.colds.iter().map(|(shard, cold)| (shard, cold.incarnation));
        let hots = self.hots.iter().map(|(shard, hot)| (shard, hot.incarnation));
        match colds.chain(hots).find(|(_, incarnation)| *incarnation != record.incarnation) {
            Some((shard, other)) => {
                Err(format!("Incarnations: the run is of {}, and {shard} of {other}", record.incarnation))
            }
            None => Ok(()),
        }
    }

    fn check_indexes(&self) -> Result<(), String> {
        for (shard, cold) in self.published() {
            let expected = match (self.status(*shard), self.is_held(*shard)) {
                (ShardStatus::Active, false) if self.is_reported(*shard) => Some(Heading::Reported),
                (ShardStatus::Active, false) => Some(Heading::Free),
                (ShardStatus::Active, true) => Some(Heading::Held),
                (ShardStatus::Parked, _) => Some(Heading::Parked),
                (ShardStatus::Done | ShardStatus::Split, _) => None,
            };
            let found: Vec<Heading> =
                self.indexes.iter().filter(|(_, shards)| shards.contains(shard)).map(|(heading, _)| *heading).collect();
            let untouched = !self.hots.contains_key(shard);
            let in_family = self.families.iter().any(|family| family.children.contains(shard));
            let is_right = match (&found[..], expected) {
                ([], None) => true,
                ([found], Some(expected)) => *found == expected,
                // It is known by its family, or its split has yet to make it known.
                ([], Some(Heading::Free)) => untouched && (in_family || cold.staged),
                _ => false,
            };
            if !is_right {
                return Err(format!("ShardIndexes: {shard} is in {found:?}, and belongs in {expected:?}"));
            }
        }
        Ok(())
    }

    /// The shards that still stand for their keys tile what was registered: nothing twice, nothing missing.
    fn check_coverage(&self) -> Result<(), String> {
        let registered = self.roots.clone().unwrap_or_default().roots;
        let mut expected: Vec<Range> = registered
            .iter()
            .map(|root| (root.get().to_be_bytes().to_vec(), (root.get() + 1).to_be_bytes().to_vec()))
            .collect();
        expected.sort();
        let standing = self.published().filter(|(shard, _)| self.status(**shard) != ShardStatus::Split);
        let mut covered: Vec<Range> =
            standing.map(|(_, cold)| (cold.spec.start().to_vec(), cold.spec.end().to_vec())).collect();
        covered.sort();
        if merged(&covered)? != merged(&expected)? {
            return Err(format!(
                "Coverage: {} roots were registered, and {} shards cover {:02x?}",
                registered.len(),
                covered.len(),
                merged(&covered)?
            ));
        }
        Ok(())
    }
}

/// Ranges in order, those that touch as one.
fn merged(ranges: &[Range]) -> Result<Vec<Range>, String> {
    let mut merged: Vec<Range> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some((_, reached)) if *reached > *start => {
                return Err(format!("Coverage: {start:02x?} is covered twice"));
            }
            Some((_, reached)) if reached == start => reached.clone_from(end),
            _ => merged.push((start.clone(), end.clone())),
        }
    }
    Ok(merged)
}
