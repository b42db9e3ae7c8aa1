//! A wrong request is refused, for the reason that comes first, and leaves no trace; a right one is not refused.
//!
//! [`Past::due`] gives the right answer, in other words than those of the code that ships. A claim is judged by its grant: no
//! worker is granted a shard that is not free, or told that there is none where one is. A slow call of a store is not judged:
//! the records it saw are unknown.

use tessera_contracts::ids::LogicalTime;
use tessera_coordination::error::{ExpiredBecause, LeaseRefused};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;

use crate::coordination::call::{Answer, Caller, Outcome, Request};
use crate::coordination::due::{Due, Past};
use crate::coordination::refusal::Refusal;
use crate::coordination::watch::{Change, Checker, Sight};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct WrongIsRefused {
    past: Past,
}

impl Checker for WrongIsRefused {
    fn name(&self) -> &'static str {
        "WrongIsRefused"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let judged = match sight.call.request {
            _ if sight.waited => Ok(()),
            _ if sight.run_before.is_none() => check_without_run(sight),
            Request::Claim | Request::Acquire { .. } => check_grant(sight),
            _ => check_answer(sight, self.past.due(sight)),
        };
        self.past.learn(sight);
        judged
    }
}

/// There is no run, or one without shards, which can be cancelled and no more.
fn check_without_run(sight: &Sight<'_>) -> Result<(), String> {
    match (&sight.call.request, sight.answer) {
        (Request::Start { .. }, Answer::Accepted { .. } | Answer::Failed) | (Request::CancelRun { .. }, _) => Ok(()),
        (Request::Start { .. }, given) => Err(format!("{}: {given}", sight.call.request)),
        (_, Answer::Refused(_) | Answer::Throttled | Answer::Failed) => Ok(()),
        (Request::Retire { .. }, Answer::Accepted { outcome: Outcome::Replayed, .. }) => Ok(()),
        (request, given) => Err(format!("{request}: there is no run, and the answer was {given}")),
    }
}

fn check_answer(sight: &Sight<'_>, due: Result<Due, Refusal>) -> Result<(), String> {
    let request = &sight.call.request;
    let given = match sight.answer {
        Answer::Failed => return Ok(()),
        Answer::Refused(refusal) if store_lost_the_holder(sight, *refusal) => return Ok(()),
        Answer::Refused(refusal) => Err(*refusal),
        Answer::Accepted { outcome: Outcome::Executed, .. } | Answer::Renewed(_) => Ok(Due::Executed),
        Answer::Accepted { outcome: Outcome::Replayed | Outcome::Superseded, .. } => Ok(Due::Replayed),
        Answer::Granted { .. } | Answer::NoShard | Answer::Throttled => return Err(format!("{request} was granted")),
    };
    if given != due {
        return Err(format!("{request}: due was {due:?}, and the answer was {given:?}"));
    }
    if given == Ok(Due::Executed) {
        return Ok(());
    }
    // A store that lost sight of a holder has lost its renewals, too, in every call.
    let in_sight = |change: &&Change| sight.vouched.is_none_or(|vouched| vouched.contains(&change.after.key.shard));
    let mut seen = sight.changes.iter().filter(in_sight);
    match seen.find(|change| change.before.as_ref() != Some(&change.after)) {
        Some(change) => Err(format!("{request} was answered with {given:?}, and shard {} changed", change.after.key)),
        None => Ok(()),
    }
}

/// A store with sessions may lose sight of a holder at any moment, and of its renewals with it. It then says that the lease
/// ended, or when it would have ended had it not been renewed.
fn store_lost_the_holder(sight: &Sight<'_>, refusal: Refusal) -> bool {
    let Some((vouched, shard)) = sight.vouched.zip(sight.call.request.shard()) else { return false };
    match refusal {
        Refusal::NotLeased | Refusal::Lease(LeaseRefused::Expired { because: ExpiredBecause::SessionLost, .. }) => true,
        Refusal::Lease(LeaseRefused::Expired { because: ExpiredBecause::Deadline, .. }) => !vouched.contains(&shard),
        _ => false,
    }
}

fn check_grant(sight: &Sight<'_>) -> Result<(), String> {
    let (call, request) = (sight.call, &sight.call.request);
    let named = sight.named_before();
    let is_named = matches!(request, Request::Acquire { .. });
    let wrong = if call.caller == Caller::Stranger {
        Some(if is_named { Refusal::NoSuchShard } else { Refusal::NoSuchRun })
    } else if is_named && named.is_none() {
        Some(Refusal::NoSuchShard)
    } else if is_named && call.caller.worker_id().is_unassigned() {
        Some(Refusal::UnassignedWorker)
    } else if sight.was_settled() {
        Some(Refusal::RunSettled)
    } else if call.caller.worker_id().is_unassigned() {
        Some(Refusal::UnassignedWorker)
    } else {
        let status = named.map(|record| record.state.head.status);
        match status.filter(|status| *status != ShardStatus::Active) {
            Some(status) => Some(Refusal::Lease(LeaseRefused::Terminal { status })),
            None => named
                .filter(|record| has_no_holder(sight, record) && is_reported(sight, record))
                .map(|_| Refusal::ReportedUnreachable),
        }
    };
    match (sight.answer, wrong) {
        (Answer::Failed, _) => Ok(()),
        (Answer::Refused(given), Some(wrong)) if *given == wrong => Ok(()),
        // A claim without a worker's name is refused at once, or when there is a free shard.
        (Answer::NoShard, Some(Refusal::UnassignedWorker)) if !is_named => Ok(()),
        (Answer::Refused(Refusal::UnassignedWorker), Some(Refusal::RunSettled))
            if !is_named && call.caller.worker_id().is_unassigned() =>
        {
            Ok(())
        }
        (given, Some(wrong)) => Err(format!("{request}: due was {wrong:?}, and the answer was {given}")),
        (Answer::Granted { lease, .. }, None) => {
            let granted = sight.changes.iter().find(|change| change.after.key.shard == lease.shard());
            match granted.and_then(|change| change.before.as_ref()) {
                Some(before) if is_free(sight, before) && !is_used_up(sight, before) => Ok(()),
                _ => Err(format!("{request}: shard {} was granted, and it was not to be had", lease.shard())),
            }
        }
        (Answer::Refused(Refusal::RetriesExhausted), None)
            if named.is_some_and(|record| is_free(sight, record) && is_used_up(sight, record)) =>
        {
            Ok(())
        }
        (Answer::Throttled, None) if sight.config.cooldown > 0 => Ok(()),
        (Answer::NoShard, None) => match free_but_denied(sight) {
            Some(record) => Err(format!("{request}: none was found, and shard {} is free", record.key)),
            None => Ok(()),
        },
        (given, None) => Err(format!("{request}: nothing is wrong with it, and the answer was {given}")),
    }
}

/// Whether the caller may have the shard: no worker holds it, the caller did not report it, and no report holds it back.
fn is_free(sight: &Sight<'_>, before: &ShardRecord) -> bool {
    let allowance = sight.config.skew_allowance;
    let held_back = |until: LogicalTime| sight.call.at.get() < until.get() + allowance;
    let is_held_back = before.unreachable.iter().filter_map(|report| report.retry_after).any(held_back);
    has_no_holder(sight, before) && !is_reported(sight, before) && !is_held_back
}

/// Whether the caller said that it cannot reach the shard.
fn is_reported(sight: &Sight<'_>, before: &ShardRecord) -> bool {
    before.unreachable.iter().any(|report| report.worker == sight.call.caller.worker_id())
}

/// Whether no worker holds the shard any more, by the caller's clock and with the skew allowance for others.
fn has_no_holder(sight: &Sight<'_>, before: &ShardRecord) -> bool {
    let head = &before.state.head;
    let Some(holder) = head.lease else { return head.status == ShardStatus::Active };
    let is_own = holder.owner == sight.call.caller.worker_id();
    let allowance = if is_own { 0 } else { sight.config.skew_allowance };
    let was_lost = sight.vouched_before.is_some_and(|vouched| is_own || !vouched.contains(&before.key.shard));
    head.status == ShardStatus::Active && (was_lost || sight.call.at.get() >= holder.deadline.get() + allowance)
}

fn is_used_up(sight: &Sight<'_>, before: &ShardRecord) -> bool {
    sight.config.retries > 0 && before.state.head.stalled_acquisitions >= sight.config.retries
}

/// A shard that could have been granted. Judged where a claim sees all shards: not where a store's faults may hide them, nor
/// in a claim that parked the shards it tried.
fn free_but_denied<'s>(sight: &'s Sight<'_>) -> Option<&'s ShardRecord> {
    let named = sight.call.request.shard();
    let mut tried = sight.records.values().filter(|record| named.is_none_or(|shard| shard == record.key.shard));
    let parked = sight.changes.iter().any(|change| change.before.as_ref() != Some(&change.after));
    // A claim lists shards that any worker could have: a former holder is not spared the allowance there.
    let waits = if named.is_none() { sight.config.skew_allowance } else { 0 };
    let is_long_free = |record: &ShardRecord| {
        let ended = |deadline: u64| sight.call.at.get() >= deadline + waits;
        is_free(sight, record) && record.state.head.lease.is_none_or(|holder| ended(holder.deadline.get()))
    };
    tried.find(|record| sight.vouched.is_none() && !parked && is_long_free(record))
}
