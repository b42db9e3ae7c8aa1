//! A request to a backend as plain data, and its outcome: so that it can be delayed, repeated, written down and replayed.

use std::fmt;

use tessera_contracts::ids::{
    LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{Cursor, CursorUpdate, ShardSpec};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::error::IdempotentOutcome;
use tessera_coordination::events::NoEvents;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::snapshot::{AcquireResultView, AcquireScratch, CapacityHint};
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::record::unreachable::Unreachable;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{CoordinationBackend, Lease, RunManagement, ShardClaiming};

use super::config::Config;
use super::dice::Dice;
use super::refusal::{Refusal, Told, refused};

/// The tenant of every simulated run.
pub const TENANT: TenantId = TenantId::from_bytes([3; 32]);
/// A tenant that has nothing.
pub const STRANGER: TenantId = TenantId::from_bytes([4; 32]);
/// The simulated run.
pub const RUN: RunId = RunId::new(1);
/// The number drawn by the creator of the first simulated run.
pub const INCARNATION: RunIncarnation = RunIncarnation::new(1);

/// The traits of a backend that a world needs.
pub trait Backend: CoordinationBackend + RunManagement + ShardClaiming {}

impl<B: CoordinationBackend + RunManagement + ShardClaiming> Backend for B {}

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The worker with this number.
    Worker(usize),
    /// A person, without a lease.
    Operator,
    /// A caller with wrong requests in the tenant's name; see [`super::vandal`].
    Vandal,
    /// The same, in another tenant's name.
    Stranger,
}

impl Caller {
    /// In whose name it asks.
    pub const fn tenant(self) -> TenantId {
        match self {
            Self::Worker(_) | Self::Operator | Self::Vandal => TENANT,
            Self::Stranger => STRANGER,
        }
    }

    /// The worker it says it is; a vandal says nothing.
    pub const fn worker_id(self) -> WorkerId {
        match self {
            Self::Worker(worker) => worker_id(worker),
            Self::Stranger => WorkerId::new(1),
            Self::Operator | Self::Vandal => WorkerId::UNASSIGNED,
        }
    }
}

/// One request, with the time on its sender's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The sender's time.
    pub at: LogicalTime,
    /// The sender.
    pub caller: Caller,
    /// The request.
    pub request: Request,
}

/// A request. Keys are numbers here; see [`key_bytes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the protocol's arguments, by their names")]
pub enum Request {
    /// Any shard.
    Claim,
    /// This shard.
    Acquire { key: ShardKey },
    /// More time.
    Renew { lease: Lease },
    /// Progress up to and including `last`; without it, wrong.
    Checkpoint { lease: Lease, last: Option<u16>, op: OpId },
    /// Done; `last` is absent if there was nothing to do.
    Complete { lease: Lease, last: Option<u16>, op: OpId },
    /// Cannot go on.
    Park { lease: Lease, reason: ParkReason, op: OpId },
    /// Give back.
    Release { lease: Lease, last: Option<u16>, why: Why, op: OpId },
    /// Replace by children.
    SplitReplace { lease: Lease, plan: SplitReplacePlan, op: OpId },
    /// Split off the rest.
    SplitResidual { lease: Lease, plan: SplitResidualPlan, op: OpId },
    /// Revive.
    Unpark { key: ShardKey, expected: ShardEpoch, op: OpId },
    /// Ask the holder for something.
    Order { key: ShardKey, epoch: ShardEpoch, order: OrderRequest },
    /// All is done.
    CompleteRun { op: OpId },
    /// Call it off.
    CancelRun { op: OpId },
    /// Make a run.
    CreateRun { run: RunId },
    /// Give a run these shards, each with its first key and its end.
    Register { run: RunId, roots: Vec<(ShardId, Vec<u8>, Vec<u8>)>, op: OpId },
    /// Forget runs that were settled by then.
    Retire { settled_until: LogicalTime },
    /// Create the simulated run with its shards, under the incarnation that was drawn for it.
    Start { incarnation: RunIncarnation, config: RunConfig, roots: Vec<(ShardId, Vec<u8>, Vec<u8>)> },
}

/// The op id under which every incarnation of the simulated run got its shards.
pub const REGISTRATION: OpId = OpId::new(1);

impl Request {
    /// Creates the run of a world, under this incarnation.
    pub fn start(config: &Config, incarnation: RunIncarnation) -> Self {
        let edges: Vec<u16> = config.edges().collect();
        let bytes = |edge: u16| key_bytes(edge).to_vec();
        let roots =
            (1..).zip(edges.windows(2)).map(|(shard, pair)| (ShardId::new(shard), bytes(pair[0]), bytes(pair[1])));
        let run_config =
            RunConfig { lease_duration: Some(config.lease), max_shard_retries: config.retries, ..RunConfig::default() };
        Self::Start { incarnation, config: run_config, roots: roots.collect() }
    }

    /// The lease it presents.
    pub const fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Renew { lease }
            | Self::Checkpoint { lease, .. }
            | Self::Complete { lease, .. }
            | Self::Park { lease, .. }
            | Self::Release { lease, .. }
            | Self::SplitReplace { lease, .. }
            | Self::SplitResidual { lease, .. } => Some(lease),
            Self::Claim
            | Self::Acquire { .. }
            | Self::Unpark { .. }
            | Self::Order { .. }
            | Self::CompleteRun { .. }
            | Self::CancelRun { .. }
            | Self::CreateRun { .. }
            | Self::Register { .. }
            | Self::Retire { .. }
            | Self::Start { .. } => None,
        }
    }

    /// The incarnation of the run that it names, with a lease or without.
    pub fn incarnation(&self) -> Option<RunIncarnation> {
        match self {
            Self::Unpark { expected: epoch, .. } | Self::Order { epoch, .. } => Some(epoch.incarnation),
            other => other.lease().map(Lease::incarnation),
        }
    }

    /// The shard it names.
    pub fn shard(&self) -> Option<ShardId> {
        match self {
            Self::Acquire { key } | Self::Unpark { key, .. } | Self::Order { key, .. } => Some(key.shard),
            other => other.lease().map(Lease::shard),
        }
    }

    /// Its op id, if it has one.
    pub const fn op(&self) -> Option<OpId> {
        match self {
            Self::Checkpoint { op, .. }
            | Self::Complete { op, .. }
            | Self::Park { op, .. }
            | Self::Release { op, .. }
            | Self::SplitReplace { op, .. }
            | Self::SplitResidual { op, .. }
            | Self::Unpark { op, .. }
            | Self::CompleteRun { op }
            | Self::CancelRun { op }
            | Self::Register { op, .. } => Some(*op),
            Self::Claim
            | Self::Acquire { .. }
            | Self::Renew { .. }
            | Self::Order { .. }
            | Self::CreateRun { .. }
            | Self::Retire { .. }
            | Self::Start { .. } => None,
        }
    }
}

/// Why a shard is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// For a reason of its own.
    Released,
    /// It was asked to yield.
    Yielded,
    /// It is about to stop.
    Drained,
    /// It cannot reach the target, and all workers are to wait until this time.
    Unreachable(Option<LogicalTime>),
}

impl Why {
    /// A worker cannot reach the target; now and then it asks all others to wait, for up to a lease.
    pub(super) fn unreachable(now: LogicalTime, lease_length: u64, dice: &mut Dice) -> Self {
        let waits = dice.below(2) == 0;
        Self::Unreachable(waits.then(|| now.saturating_add(dice.between(1, lease_length))))
    }

    /// As the protocol has it.
    pub fn reason(self) -> ReleaseReason<'static> {
        match self {
            Self::Released => ReleaseReason::Released,
            Self::Yielded => ReleaseReason::Yielded,
            Self::Drained => ReleaseReason::Drained,
            Self::Unreachable(retry_after) => {
                ReleaseReason::Unreachable(Unreachable { retry_after, ..Unreachable::because("simulated") })
            }
        }
    }
}

impl From<ReleaseReason<'_>> for Why {
    fn from(reason: ReleaseReason<'_>) -> Self {
        match reason {
            ReleaseReason::Released => Self::Released,
            ReleaseReason::Yielded => Self::Yielded,
            ReleaseReason::Drained => Self::Drained,
            ReleaseReason::Unreachable(said) => Self::Unreachable(said.retry_after),
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants say what the fields are")]
pub enum Answer {
    /// A shard: keys from `lo` to below `hi`, of which `next` is the first to do.
    Granted { lease: Lease, lo: u16, hi: u16, next: u16, hint: CapacityHint },
    /// No shard at the moment.
    NoShard,
    /// Too soon after the last claim.
    Throttled,
    /// More time, and orders.
    Renewed(RenewResult),
    /// It happened, now or before. `children` are the shards a split made.
    Accepted { outcome: Outcome, children: Vec<ShardId> },
    /// The protocol says no.
    Refused(Refusal),
    /// The store failed, and it may or may not have happened.
    Failed,
}

/// Whether an accepted operation took effect just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Just now.
    Executed,
    /// Before; this was a retry.
    Replayed,
    /// Before, and it was undone since.
    Superseded,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, caller, request } = self;
        match caller {
            Caller::Worker(worker) => write!(f, "at {at} w{worker} {request}"),
            Caller::Operator => write!(f, "at {at} operator {request}"),
            Caller::Vandal => write!(f, "at {at} vandal {request}"),
            Caller::Stranger => write!(f, "at {at} stranger {request}"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |spec: &ShardSpec| format!("[{},{})", edge_number(spec.start()), edge_number(spec.end()));
        let verb = match self {
            Self::Claim => return f.write_str("claims"),
            Self::Acquire { key } => return write!(f, "acquires {}", key.shard),
            Self::CompleteRun { op } => return write!(f, "completes the run, op {op}"),
            Self::CancelRun { op } => return write!(f, "cancels the run, op {op}"),
            Self::Unpark { key, expected, op } => {
                return write!(f, "unparks {} expecting fence {}, op {op}", key.shard, expected.fence);
            }
            Self::Order { key, order, .. } => return write!(f, "orders {}: {order:?}", key.shard),
            Self::CreateRun { run } => return write!(f, "creates run {run}"),
            Self::Register { run, roots, op } => {
                return write!(f, "registers {} shards in run {run}, op {op}", roots.len());
            }
            Self::Retire { settled_until } => return write!(f, "retires runs settled by {settled_until}"),
            Self::Start { incarnation, roots, .. } => {
                return write!(f, "starts incarnation {} with {} shards", incarnation.get(), roots.len());
            }
            Self::Renew { .. } => "renews".to_string(),
            Self::Checkpoint { last, .. } => format!("checkpoints {last:?}"),
            Self::Complete { last, .. } => format!("completes at {last:?}"),
            Self::Park { reason, .. } => format!("parks for {reason:?}"),
            Self::Release { last, why, .. } => format!("releases at {last:?} ({why:?})"),
            Self::SplitReplace { plan, .. } => {
                format!("replaces by {}", plan.children().iter().map(range).collect::<Vec<_>>().join(" "))
            }
            Self::SplitResidual { plan, .. } => format!("keeps {}", range(plan.kept())),
        };
        match self.lease() {
            Some(lease) => {
                let (shard, fence, incarnation) = (lease.shard(), lease.fence(), lease.incarnation().get());
                write!(f, "{verb}, shard {shard} fence {fence} of incarnation {incarnation}")?;
            }
            None => f.write_str(&verb)?,
        }
        match self.op() {
            Some(op) => write!(f, ", op {op}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { lease, lo, hi, next, .. } => {
                let (shard, fence, deadline) = (lease.shard(), lease.fence(), lease.deadline());
                write!(f, "shard {shard} [{lo},{hi}) from {next}, fence {fence} until {deadline}")
            }
            Self::NoShard => f.write_str("none"),
            Self::Throttled => f.write_str("throttled"),
            Self::Renewed(renewed) => write!(f, "until {}", renewed.new_deadline),
            Self::Accepted { outcome, children } if children.is_empty() => write!(f, "{outcome:?}"),
            Self::Accepted { outcome, children } => write!(f, "{outcome:?}: {children:?}"),
            Self::Refused(refusal) => write!(f, "refused: {refusal:?}"),
            Self::Failed => f.write_str("failed"),
        }
    }
}

/// A key as bytes: big-endian, so that order is kept.
pub const fn key_bytes(key: u16) -> [u8; 2] {
    key.to_be_bytes()
}

/// A key from its bytes.
pub fn key_number(bytes: &[u8]) -> u16 {
    match bytes {
        [high, low] => u16::from_be_bytes([*high, *low]),
        _ => panic!("the simulated keys have two bytes, this one {}", bytes.len()),
    }
}

/// The first key at or behind the edge of a range. A holder that is asked to split cuts at the shortest key that
/// fits: between two keys, or at one byte where the first byte of the keys changes.
pub fn edge_number(bytes: &[u8]) -> u16 {
    match bytes {
        [high] => key_number(&[*high, 0]),
        [_, _] => key_number(bytes),
        [high, low, ..] => key_number(&[*high, *low]) + 1,
        [] => panic!("the simulated ranges are bounded, this edge is not"),
    }
}

/// The cursor that says so, with a token.
pub(super) fn cursor(last: Option<u16>) -> Cursor {
    let key = last.map(key_bytes);
    let token = last.map(|key| [b't', key as u8]);
    Cursor::new(key.as_ref().map(|key| key.as_slice()), token.as_ref().map(|token| token.as_slice()))
        .expect("a simulated cursor is legal")
}

/// Asks the backend.
pub fn perform(backend: &mut impl Backend, call: &Call, scratch: &mut AcquireScratch) -> Answer {
    let (now, tenant) = (call.at, call.caller.tenant());
    match &call.request {
        Request::Claim | Request::Acquire { .. } => grant(backend, call, scratch),
        Request::Renew { lease } => match backend.renew(now, tenant, lease) {
            Ok(renewed) => Answer::Renewed(renewed),
            Err(error) => refused(error),
        },
        Request::Checkpoint { lease, last, op } => {
            plain(backend.checkpoint(now, tenant, lease, cursor(*last).as_update(), *op))
        }
        Request::Complete { lease, last, op } => {
            plain(backend.complete(now, tenant, lease, cursor(*last).as_update(), *op))
        }
        Request::Park { lease, reason, op } => {
            plain(backend.park_shard(now, tenant, lease, Park::because(*reason).with_detail("simulated"), *op))
        }
        Request::Release { lease, last, why, op } => {
            let cursor = last.map(|last| cursor(Some(last)));
            let cursor: Option<CursorUpdate<'_>> = cursor.as_ref().map(Cursor::as_update);
            plain(backend.release(now, tenant, lease, cursor, why.reason(), *op))
        }
        Request::SplitReplace { lease, plan, op } => {
            answered(backend.split_replace(now, tenant, lease, plan, *op), |children| children)
        }
        Request::SplitResidual { lease, plan, op } => {
            answered(backend.split_residual(now, tenant, lease, plan, *op), |child| vec![child])
        }
        Request::Unpark { key, expected, op } => {
            answered(backend.unpark_shard(now, tenant, *key, *expected, *op), |_| Vec::new())
        }
        Request::Order { key, epoch, order } => {
            match backend.order_with_events(now, tenant, *key, *epoch, *order, &mut NoEvents) {
                Ok(()) => Answer::Accepted { outcome: Outcome::Executed, children: Vec::new() },
                Err(error) => refused(error),
            }
        }
        Request::CompleteRun { op } => plain(backend.complete_run(now, tenant, RUN, *op)),
        Request::CancelRun { op } => plain(backend.cancel_run(now, tenant, RUN, *op)),
        Request::CreateRun { run } => match backend.create_run(now, tenant, *run, INCARNATION, RunConfig::default()) {
            Ok(()) => Answer::Accepted { outcome: Outcome::Executed, children: Vec::new() },
            Err(error) => refused(error),
        },
        Request::Register { run, roots, op } => {
            let roots: Vec<InitialShardInput<'_>> =
                roots.iter().map(|(shard, start, end)| InitialShardInput::new(*shard, start, end)).collect();
            answered(backend.register_shards(now, tenant, *run, &roots, *op), |_| Vec::new())
        }
        Request::Retire { settled_until } => match backend.retire_runs(now, tenant, *settled_until, usize::MAX) {
            Ok(0) => Answer::Accepted { outcome: Outcome::Replayed, children: Vec::new() },
            Ok(_) => Answer::Accepted { outcome: Outcome::Executed, children: Vec::new() },
            Err(error) => refused(error),
        },
        Request::Start { incarnation, config, roots } => {
            let roots: Vec<InitialShardInput<'_>> = roots
                .iter()
                .map(|(shard, start, end)| InitialShardInput {
                    metadata: b"simulated",
                    ..InitialShardInput::new(*shard, start, end)
                })
                .collect();
            let started = backend.create_run_with_shards(now, tenant, RUN, *incarnation, *config, &roots, REGISTRATION);
            answered(started, |_| Vec::new())
        }
    }
}

fn grant(backend: &mut impl Backend, call: &Call, scratch: &mut AcquireScratch) -> Answer {
    let (tenant, worker) = (call.caller.tenant(), call.caller.worker_id());
    match call.request {
        Request::Acquire { key } => backend
            .acquire_and_restore_into(call.at, tenant, key, worker, scratch)
            .map_or_else(refused, |view| granted(&view)),
        _ => {
            let claimed = backend.claim_next_available(call.at, tenant, RUN, worker, scratch);
            claimed.map_or_else(refused, |view| granted(&view))
        }
    }
}

/// A grant as an answer.
pub(super) fn granted(view: &AcquireResultView<'_>) -> Answer {
    let (lo, hi) = (edge_number(view.snapshot.spec.start()), edge_number(view.snapshot.spec.end()));
    let next = view.snapshot.cursor.last_key().map_or(lo, |key| key_number(key) + 1);
    Answer::Granted { lease: view.lease, lo, hi, next, hint: view.capacity }
}

/// The name of a simulated worker.
pub const fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(worker as u64 + 1)
}

/// An outcome that says no more than that, as an answer.
pub(super) fn plain<E: Told>(result: Result<IdempotentOutcome<()>, E>) -> Answer {
    answered(result, |()| Vec::new())
}

/// An outcome as an answer; `children` are the shards it tells of.
pub(super) fn answered<T, E: Told>(
    result: Result<IdempotentOutcome<T>, E>,
    children: impl Fn(T) -> Vec<ShardId>,
) -> Answer {
    let (outcome, value) = match result {
        Ok(IdempotentOutcome::Executed(value)) => (Outcome::Executed, value),
        Ok(IdempotentOutcome::Replayed(value)) => (Outcome::Replayed, value),
        Ok(IdempotentOutcome::Superseded(value)) => (Outcome::Superseded, value),
        Err(error) => return refused(error),
    };
    Answer::Accepted { outcome, children: children(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_of_any_length_is_the_first_key_at_or_behind_it() {
        for key in [0_u16, 1, 255, 256, 511, 1024] {
            assert_eq!(edge_number(&key_bytes(key)), key);
        }
        assert_eq!(edge_number(&[1]), 256, "the shortest cut between keys 255 and 257 has one byte");
        assert_eq!(edge_number(&[0, 7, 128]), 8, "a cut between keys 7 and 8");
        assert_eq!(edge_number(&[0, 255, 0]), 256, "right behind key 255");
    }
}
