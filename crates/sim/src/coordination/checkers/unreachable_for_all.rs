//! A shard is parked as unreachable only when no worker is left that might reach it. A worker that reported it is not granted
//! it again, no worker is before the time that a report asked for, and a shard that some worker reaches is scanned in the end.
//!
//! A worker might reach it if it takes part in the run and has not reported it. Where sessions are known, every worker with a live
//! session takes part. Where they are not, every worker does that holds a live lease, and those of the last three that asked
//! for a shard that did so within a lease; there, three reports suffice.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{LogicalTime, RunIncarnation, ShardId, WorkerId};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::status::RunStatus;

use crate::coordination::call::{Answer, Caller, Request, Why, edge_number};
use crate::coordination::watch::{Change, Checker, Ending, Sight};

/// Reports that suffice where sessions are not known, and askers that are remembered there.
const GUESSED_MAX: usize = 3;
/// Reports that a shard remembers; one more parks it.
const REPORTS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct UnreachableForAll {
    incarnation: Option<RunIncarnation>,
    /// The workers that reported a shard since it was last unparked, and until when they asked all others to wait.
    reports: BTreeMap<ShardId, BTreeMap<WorkerId, Option<LogicalTime>>>,
    /// The workers that ever sent a report about a shard.
    sent: BTreeSet<(ShardId, WorkerId)>,
    /// The last workers that asked for a shard, the latest first, and when.
    askers: Vec<(WorkerId, LogicalTime)>,
    /// Reported shards that are not finished, and a worker that reaches them.
    unfinished: BTreeMap<ShardId, usize>,
}

impl Checker for UnreachableForAll {
    fn name(&self) -> &'static str {
        "UnreachableForAll"
    }

    fn after_restart(&mut self) {
        self.askers.clear();
    }

    fn after_late(&mut self, changes: &[Change], _: Option<&BTreeSet<ShardId>>) -> Result<(), String> {
        changes.iter().for_each(|change| self.learn(&change.after));
        Ok(())
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let incarnation = sight.run.map(|run| run.incarnation);
        if self.incarnation != incarnation {
            *self = Self { incarnation, ..Self::default() };
        }
        self.note_asker(sight);
        self.check_grant(sight)?;
        let reporter = reporter(sight);
        self.sent.extend(reporter);
        for change in sight.changes {
            self.check_change(sight, change)?;
            self.learn(&change.after);
            let is_open = matches!(change.after.state.head.status, ShardStatus::Active | ShardStatus::Parked);
            let waits = is_open && !change.after.unreachable.is_empty();
            match waits.then(|| sight.config.reaches(edge_number(change.after.spec.start()))).flatten() {
                Some(worker) => self.unfinished.insert(change.after.key.shard, worker),
                None => self.unfinished.remove(&change.after.key.shard),
            };
        }
        match reporter.filter(|_| sight.is_executed() && !sight.waited) {
            Some((shard, worker)) => self.check_report(sight, shard, worker),
            None => self.check_vain_claim(sight),
        }
    }

    fn at_end(&mut self, ending: &Ending) -> Result<(), String> {
        match self.unfinished.first_key_value() {
            Some((shard, worker)) if !ending.run.is_some_and(RunStatus::is_terminal) => {
                Err(format!("shard {shard} is not scanned in the end, although worker {worker} reaches it"))
            }
            _ => Ok(()),
        }
    }
}

/// The shard and the worker that cannot reach it, if the call says so.
fn reporter(sight: &Sight<'_>) -> Option<(ShardId, WorkerId)> {
    match &sight.call.request {
        Request::Release { lease, why: Why::Unreachable(_), .. } => Some((lease.shard(), lease.owner())),
        _ => None,
    }
}

impl UnreachableForAll {
    fn learn(&mut self, record: &ShardRecord) {
        let told = record.unreachable.iter().map(|report| (report.worker, report.retry_after));
        self.reports.insert(record.key.shard, told.collect());
    }

    /// A backend without sessions remembers which workers ask, except those that it throttles or refuses at once.
    fn note_asker(&mut self, sight: &Sight<'_>) {
        let worker = sight.call.caller.worker_id();
        let is_heard = match (&sight.call.request, sight.answer) {
            (_, Answer::Failed) => false,
            (Request::Claim, answer) => {
                let is_refused = matches!(answer, Answer::Refused(_)) && !sight.call.caller.worker_id().is_unassigned();
                !matches!(answer, Answer::Throttled) && !is_refused && !sight.was_settled()
            }
            (Request::Acquire { key }, _) => sight.records.contains_key(&key.shard),
            _ => false,
        };
        if !is_heard || sight.call.caller == Caller::Stranger {
            return;
        }
        let before = self.askers.iter().position(|(asker, _)| *asker == worker).map(|place| self.askers.remove(place));
        let at = before.map_or(sight.call.at, |(_, before)| before.max(sight.call.at));
        self.askers.insert(0, (worker, at));
        self.askers.truncate(GUESSED_MAX);
    }

    fn check_grant(&self, sight: &Sight<'_>) -> Result<(), String> {
        let Answer::Granted { lease, .. } = sight.answer else { return Ok(()) };
        let Some(reports) = self.reports.get(&lease.shard()).filter(|_| !sight.waited) else { return Ok(()) };
        let (shard, worker, at) = (lease.shard(), lease.owner(), sight.call.at);
        if reports.contains_key(&worker) {
            return Err(format!("worker {worker} reported shard {shard} as unreachable and was granted it again"));
        }
        match reports.values().flatten().find(|until| at < **until) {
            Some(until) => Err(format!("shard {shard} was granted at {at}, and a report holds it back until {until}")),
            None => Ok(()),
        }
    }

    fn check_change(&self, sight: &Sight<'_>, change: &Change) -> Result<(), String> {
        let Some(before) = &change.before else { return Ok(()) };
        let (was, is, shard) = (before.state.head, change.after.state.head, change.after.key.shard);
        let told: BTreeSet<WorkerId> = change.after.unreachable.iter().map(|report| report.worker).collect();
        if let Some(worker) = told.iter().find(|worker| !self.sent.contains(&(shard, **worker))) {
            return Err(format!("worker {worker} is said to have reported shard {shard}, and did not"));
        }
        if was.status == ShardStatus::Parked && is.status == ShardStatus::Active {
            return match told.first() {
                Some(worker) => Err(format!("shard {shard} was unparked, and the report of worker {worker} stays")),
                None => Ok(()),
            };
        }
        // A worker whose session has ended has taken its report along.
        let stays = |worker: &WorkerId| sight.present.is_none_or(|present| !sight.waited && present.contains(worker));
        let mut known = before.unreachable.iter().map(|report| report.worker);
        if let Some(worker) = known.find(|worker| !told.contains(worker) && stays(worker)) {
            return Err(format!("the report of worker {worker} about shard {shard} was forgotten"));
        }
        let is_parked_now = was.status == ShardStatus::Active
            && is.status == ShardStatus::Parked
            && is.park.is_some_and(|park| park.reason == ParkReason::Unreachable);
        if !is_parked_now || sight.waited || matches!(sight.call.request, Request::Park { .. }) {
            return Ok(());
        }
        if let Some(worker) = self.left(sight, shard, &told) {
            let request = &sight.call.request;
            return Err(format!(
                "{request}: shard {shard} was parked as unreachable, and worker {worker} may reach it"
            ));
        }
        match told.is_empty() {
            true => Err(format!("shard {shard} was parked as unreachable, and no worker reported it")),
            false => Ok(()),
        }
    }

    /// A report is remembered; the one after which no worker is left parks the shard.
    fn check_report(&self, sight: &Sight<'_>, shard: ShardId, worker: WorkerId) -> Result<(), String> {
        let Some(record) = sight.records.get(&shard) else { return Ok(()) };
        let told: BTreeSet<WorkerId> = record.unreachable.iter().map(|report| report.worker).collect();
        if !told.contains(&worker) && told.len() < REPORTS_MAX {
            return Err(format!("worker {worker} reported shard {shard} as unreachable, and that is not remembered"));
        }
        // A worker that lost its session in the course of the call was perhaps still there when the report was judged.
        let is_certain = sight.present.is_none();
        if is_certain && record.state.head.status == ShardStatus::Active && self.left(sight, shard, &told).is_none() {
            return Err(format!("shard {shard} is open, and no worker is left that has not reported it"));
        }
        Ok(())
    }

    /// A claim that finds nothing parks the shards its worker has reported, if no other worker is left: they may have gone since.
    fn check_vain_claim(&self, sight: &Sight<'_>) -> Result<(), String> {
        let is_vain = matches!((&sight.call.request, sight.answer), (Request::Claim, Answer::NoShard));
        // One claim parks a few shards and leaves the others to the next.
        let parks = sight.changes.iter().any(|change| change.before.as_ref() != Some(&change.after));
        if !is_vain || parks || sight.present.is_some() {
            return Ok(());
        }
        let (worker, at) = (sight.call.caller.worker_id(), sight.call.at.get());
        let is_over = |deadline: LogicalTime| at >= deadline.get() + sight.config.skew_allowance;
        for record in sight.records.values() {
            let (head, shard) = (record.state.head, record.key.shard);
            let is_open =
                head.status == ShardStatus::Active && head.lease.is_none_or(|holder| is_over(holder.deadline));
            let told: BTreeSet<WorkerId> = record.unreachable.iter().map(|report| report.worker).collect();
            if is_open && told.contains(&worker) && self.left(sight, shard, &told).is_none() {
                return Err(format!("worker {worker} claimed in vain, and shard {shard} is open with no worker left"));
            }
        }
        Ok(())
    }

    /// A worker that might reach the shard: it takes part in the run and has not reported it.
    fn left(&self, sight: &Sight<'_>, shard: ShardId, told: &BTreeSet<WorkerId>) -> Option<WorkerId> {
        if let Some(present) = sight.present {
            return present.difference(told).next().copied().filter(|_| told.len() <= REPORTS_MAX);
        }
        if told.len() >= GUESSED_MAX {
            return None;
        }
        let at = sight.call.at;
        let of_late = |asked: &LogicalTime| at.get() < asked.get() + sight.config.lease;
        let askers = self.askers.iter().filter(|(_, asked)| of_late(asked)).map(|(worker, _)| *worker);
        let others = sight.records.values().filter(|record| record.key.shard != shard);
        let holders = others.filter_map(|record| record.state.head.lease_live_at(at)).map(|holder| holder.owner);
        askers.chain(holders).find(|worker| !told.contains(worker))
    }
}
