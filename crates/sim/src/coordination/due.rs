//! The due answer to a request: the rules once more, in the plainest words, apart from the code that ships.
//!
//! It knows the record as it was before the call, the caller's clock, and which operations took effect so far. From these it
//! derives the answer: take effect, be recognised as a retry, or be refused, and for which reason first.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardId};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_coordination::Lease;
use tessera_coordination::error::{ExpiredBecause, LeaseRefused};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;

use super::call::{Answer, Caller, Outcome, REGISTRATION, RUN, Request, key_bytes};
use super::refusal::Refusal;
use super::stage::UNREGISTERED;
use super::watch::Sight;

/// The due answer, if it is no refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It takes effect.
    Executed,
    /// It took effect before.
    Replayed,
}

/// Where an op id is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    Run(RunId),
    Shard(ShardId),
}

/// Operations that took effect, and their parameters.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Of this incarnation of the run; operations of others are forgotten.
    incarnation: Option<RunIncarnation>,
    first: BTreeMap<(Home, OpId), Request>,
}

impl Past {
    /// Remembers the effect of a call; where the store failed, the record tells.
    pub(super) fn learn(&mut self, sight: &Sight<'_>) {
        let incarnation = sight.run.map(|run| run.incarnation);
        if self.incarnation != incarnation {
            self.incarnation = incarnation;
            self.first.retain(|(home, _), _| *home == Home::Run(UNREGISTERED));
        }
        let (Some(home), Some(op)) = (home(&sight.call.request), sight.call.request.op()) else { return };
        let happened = match (sight.answer, home) {
            (Answer::Accepted { outcome: Outcome::Executed, .. }, _) => true,
            (Answer::Failed, Home::Run(_)) => sight.run.is_some_and(|run| run.find_op(op).is_some()),
            (Answer::Failed, Home::Shard(shard)) => {
                sight.records.get(&shard).is_some_and(|record| record.state.op_log.find(op).is_some())
            }
            _ => false,
        };
        if happened {
            self.first.entry((home, op)).or_insert_with(|| sight.call.request.clone());
        }
    }

    /// The due answer to a request that is no claim.
    pub(super) fn due(&self, sight: &Sight<'_>) -> Result<Due, Refusal> {
        let call = sight.call;
        match &call.request {
            Request::Claim | Request::Acquire { .. } | Request::Start { .. } => Ok(Due::Executed),
            Request::Retire { settled_until } => {
                let settled = sight.run_before.and_then(|run| run.completed_at);
                let is_due = settled.is_some_and(|settled| settled <= *settled_until);
                Ok(if is_due { Due::Executed } else { Due::Replayed })
            }
            Request::CreateRun { run } if run.is_unassigned() => Err(Refusal::NoSuchRun),
            Request::CreateRun { .. } => Err(Refusal::RunExists),
            Request::CompleteRun { .. } | Request::CancelRun { .. } | Request::Register { .. }
                if call.caller == Caller::Stranger =>
            {
                Err(Refusal::NoSuchRun)
            }
            Request::Register { run, roots, op } => {
                if ![RUN, UNREGISTERED].contains(run) {
                    return Err(Refusal::NoSuchRun);
                }
                if is_bad_manifest(roots) {
                    return Err(Refusal::BadManifest);
                }
                if self.is_replay(Home::Run(*run), *op, &call.request)? {
                    return Ok(Due::Replayed);
                }
                if *run == RUN { Err(Refusal::NotInitializing) } else { Ok(Due::Executed) }
            }
            Request::CompleteRun { .. } | Request::CancelRun { .. } if sight.run_before.is_none() => {
                Err(Refusal::NoSuchRun)
            }
            Request::CompleteRun { op } | Request::CancelRun { op } => {
                if self.is_replay(Home::Run(RUN), *op, &call.request)? {
                    return Ok(Due::Replayed);
                }
                if sight.was_settled() {
                    return Err(Refusal::RunSettled);
                }
                let is_open = |record: &ShardRecord| {
                    matches!(record.state.head.status, ShardStatus::Active | ShardStatus::Parked)
                };
                if matches!(call.request, Request::CompleteRun { .. }) && sight.records.values().any(is_open) {
                    return Err(Refusal::ShardsOpen);
                }
                Ok(Due::Executed)
            }
            _ => self.due_to_shard(sight),
        }
    }

    fn due_to_shard(&self, sight: &Sight<'_>) -> Result<Due, Refusal> {
        let call = sight.call;
        if call.request.lease().is_some_and(|lease| lease.tenant() != call.caller.tenant()) {
            return Err(Refusal::OtherTenant);
        }
        let Some(record) = sight.named_before().filter(|_| call.caller != Caller::Stranger) else {
            return Err(Refusal::NoSuchShard);
        };
        if call.request.incarnation().is_some_and(|presented| presented != record.incarnation) {
            return Err(Refusal::OtherIncarnation);
        }
        if let Some(op) = call.request.op() {
            let home = Home::Shard(record.key.shard);
            // A residual split is recognised by its child when the op-log has forgotten it.
            let made_a_child = matches!(call.request, Request::SplitResidual { .. })
                && matches!(self.first.get(&(home, op)), Some(Request::SplitResidual { .. }));
            if op.is_unassigned() || made_a_child || record.state.op_log.find(op).is_some() {
                return match self.is_replay(home, op, &call.request)? {
                    true => Ok(Due::Replayed),
                    false => Err(Refusal::OpIdReused),
                };
            }
        }
        let head = &record.state.head;
        match &call.request {
            Request::Renew { lease } => return check_lease(record, lease, call.at).map(|()| Due::Executed),
            _ if sight.was_settled() => return Err(Refusal::RunSettled),
            Request::Unpark { .. } if head.status != ShardStatus::Parked => return Err(Refusal::NotParked),
            Request::Unpark { expected, .. } if head.fence != expected.fence => return Err(Refusal::FenceMoved),
            Request::Unpark { .. } => return Ok(Due::Executed),
            Request::Order { epoch, .. } => {
                check_open(record, epoch.fence)?;
                let is_held = head.lease.is_some_and(|holder| call.at < holder.deadline);
                return if is_held { Ok(Due::Executed) } else { Err(Refusal::NotLeased) };
            }
            _ => {}
        }
        if let Some(lease) = call.request.lease() {
            check_lease(record, lease, call.at)?;
        }
        let room = || {
            let born = sight.changes.iter().filter(|change| change.before.is_none()).count();
            sight.config.shards_max.saturating_sub(sight.records.len() - born)
        };
        match &call.request {
            Request::Checkpoint { last: None, .. } => Err(Refusal::MissingKey),
            Request::Checkpoint { last, .. } | Request::Complete { last, .. } => check_cursor(record, *last),
            Request::Release { last: Some(last), .. } => check_cursor(record, Some(*last)),
            Request::SplitReplace { plan, .. } if !tiles(record, plan) => Err(Refusal::SplitUnfit),
            Request::SplitResidual { plan, .. } if !is_residual(record, plan) => Err(Refusal::SplitUnfit),
            Request::SplitReplace { plan, .. } if plan.children().len() > room() => Err(Refusal::TooManyShards),
            Request::SplitResidual { .. } if room() < 1 => Err(Refusal::TooManyShards),
            _ => Ok(()),
        }
        .map(|()| Due::Executed)
    }

    /// Whether the operation took effect before; a reused id is neither that nor new.
    fn is_replay(&self, home: Home, op: OpId, request: &Request) -> Result<bool, Refusal> {
        match self.first.get(&(home, op)) {
            _ if op.is_unassigned() => Err(Refusal::OpIdReused),
            Some(first) if asks_the_same(first, request) => Ok(true),
            Some(_) => Err(Refusal::OpIdReused),
            // The run's shards were registered before the first look.
            None => match (home, op) {
                (Home::Run(RUN), _) if op == REGISTRATION => Err(Refusal::OpIdReused),
                _ => Ok(false),
            },
        }
    }
}

fn home(request: &Request) -> Option<Home> {
    match request {
        Request::CompleteRun { .. } | Request::CancelRun { .. } => Some(Home::Run(RUN)),
        Request::Register { run, .. } => Some(Home::Run(*run)),
        other => other.shard().map(Home::Shard),
    }
}

/// Everything but the lease is the same.
fn asks_the_same(first: &Request, again: &Request) -> bool {
    match (first, again) {
        (Request::Checkpoint { last: a, .. }, Request::Checkpoint { last: b, .. })
        | (Request::Complete { last: a, .. }, Request::Complete { last: b, .. }) => a == b,
        (Request::Park { reason: a, .. }, Request::Park { reason: b, .. }) => a == b,
        (Request::Release { last: a, why: for_a, .. }, Request::Release { last: b, why: for_b, .. }) => {
            a == b && for_a == for_b
        }
        (Request::SplitReplace { plan: a, .. }, Request::SplitReplace { plan: b, .. }) => a == b,
        (Request::SplitResidual { plan: a, .. }, Request::SplitResidual { plan: b, .. }) => a == b,
        (Request::Unpark { expected: a, .. }, Request::Unpark { expected: b, .. }) => a == b,
        (Request::CompleteRun { .. }, Request::CompleteRun { .. })
        | (Request::CancelRun { .. }, Request::CancelRun { .. }) => true,
        _ => false,
    }
}

fn check_open(record: &ShardRecord, presented: FenceEpoch) -> Result<(), Refusal> {
    let head = &record.state.head;
    if head.status != ShardStatus::Active {
        return Err(Refusal::Lease(LeaseRefused::Terminal { status: head.status }));
    }
    if head.fence != presented {
        return Err(Refusal::Lease(LeaseRefused::StaleFence { presented, current: head.fence }));
    }
    Ok(())
}

fn check_lease(record: &ShardRecord, lease: &Lease, at: LogicalTime) -> Result<(), Refusal> {
    check_open(record, lease.fence())?;
    let stranger = Refusal::Lease(LeaseRefused::OwnerDivergence { presented: lease.owner() });
    let holder = record.state.head.lease.ok_or(stranger)?;
    if at >= holder.deadline {
        let because = ExpiredBecause::Deadline;
        return Err(Refusal::Lease(LeaseRefused::Expired { deadline: holder.deadline, now: at, because }));
    }
    if holder.owner == lease.owner() { Ok(()) } else { Err(stranger) }
}

fn check_cursor(record: &ShardRecord, last: Option<u16>) -> Result<(), Refusal> {
    let recorded = record.cursor.last_key();
    let Some(last) = last.map(key_bytes) else {
        return if recorded.is_some() { Err(Refusal::CursorBack) } else { Ok(()) };
    };
    if recorded.is_some_and(|recorded| last.as_slice() < recorded) {
        return Err(Refusal::CursorBack);
    }
    if last.as_slice() < record.spec.start() || last.as_slice() >= record.spec.end() {
        return Err(Refusal::CursorOutside);
    }
    Ok(())
}

fn tiles(record: &ShardRecord, plan: &SplitReplacePlan) -> bool {
    let mut edge = record.spec.start();
    for child in plan.children() {
        if child.start() != edge {
            return false;
        }
        edge = child.end();
    }
    edge == record.spec.end()
}

fn is_residual(record: &ShardRecord, plan: &SplitResidualPlan) -> bool {
    let (kept, given) = (plan.kept(), plan.residual());
    kept.start() == record.spec.start()
        && kept.end() == given.start()
        && given.end() == record.spec.end()
        && record.cursor.last_key().is_none_or(|last| last < kept.end())
}

fn is_bad_manifest(roots: &[(ShardId, Vec<u8>, Vec<u8>)]) -> bool {
    let ids: BTreeSet<ShardId> = roots.iter().map(|(shard, ..)| *shard).collect();
    let meets = |a: &(ShardId, Vec<u8>, Vec<u8>), b: &(ShardId, Vec<u8>, Vec<u8>)| a.1 < b.2 && b.1 < a.2;
    roots.is_empty()
        || ids.len() < roots.len()
        || roots.iter().any(|(shard, start, end)| {
            shard.is_unassigned() || shard.get() >> 63 == 1 || start.is_empty() || end.is_empty() || start >= end
        })
        || roots.iter().enumerate().any(|(at, root)| roots[..at].iter().any(|earlier| meets(earlier, root)))
}
