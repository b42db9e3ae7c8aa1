//! A request that takes effect changes the record as asked, and no more: holder, fence, progress, orders, the count of fruitless
//! acquisitions, the memory of the operation, and the first state of children.

use tessera_contracts::ids::{FenceEpoch, OpId, ShardId};
use tessera_contracts::{Cursor, LogicalTime, ShardSpec};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::record::lease::LeaseHolder;
use tessera_coordination::record::orders::StandingOrders;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::state::Head;
use tessera_coordination::record::status::ShardStatus;

use crate::coordination::call::{Answer, Outcome, Request, Why, cursor};
use crate::coordination::watch::{Change, Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct DoneAsAsked;

impl Checker for DoneAsAsked {
    fn name(&self) -> &'static str {
        "DoneAsAsked"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        let (shard, children): (_, &[ShardId]) = match sight.answer {
            _ if sight.waited => return Ok(()),
            Answer::Granted { lease, .. } => (Some(lease.shard()), &[]),
            Answer::Renewed(renewed) => {
                if renewed.orders.cancelled.is_some() != sight.was_settled() {
                    let status = sight.run_before.map(|run| run.status);
                    return Err(format!("{}: the run is {status:?}, which it is not told", sight.call.request));
                }
                (sight.call.request.shard(), &[])
            }
            Answer::Accepted { outcome: Outcome::Executed, children } => (sight.call.request.shard(), children),
            _ => return Ok(()),
        };
        let changed = sight.changes.iter().find(|change| Some(change.after.key.shard) == shard);
        let Some(Change { before: Some(before), after }) = changed else { return Ok(()) };
        let said = |what: String| format!("{}: shard {}: {what}", sight.call.request, after.key);
        let (mut expected, mut found) = (Shown::of(before).after(sight, before), Shown::of(after));
        if sight.vouched.is_some_and(|vouched| !vouched.contains(&after.key.shard)) {
            // A store that lost sight of the holder has lost its renewals, too.
            (expected.lease, found.lease) = (None, None);
        }
        if found != expected {
            return Err(said(format!("{expected:?} was due, and it is {found:?}")));
        }
        match sight.call.request.op().filter(|op| is_forgotten(after, *op)) {
            Some(op) => Err(said(format!("operation {op} is not remembered"))),
            None => check_children(sight, before, children).map_err(said),
        }
    }
}

fn is_forgotten(after: &ShardRecord, op: OpId) -> bool {
    after.state.op_log.find(op).is_none()
}

/// The compared fields of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    status: ShardStatus,
    fence: FenceEpoch,
    lease: Option<LeaseHolder>,
    stalled: u32,
    orders: StandingOrders,
    cursor: Cursor,
    spec: ShardSpec,
}

impl Shown {
    fn of(record: &ShardRecord) -> Self {
        let Head { status, fence, lease, stalled_acquisitions: stalled, orders, .. } = record.state.head;
        let cursor = record.cursor.clone();
        // Orders to a settled shard and its tries are of no consequence.
        let (stalled, orders) = if status.is_terminal() { (0, StandingOrders::NONE) } else { (stalled, orders) };
        Self { status, fence, lease, stalled, orders, cursor, spec: record.spec.clone() }
    }

    /// The same after the request.
    fn after(mut self, sight: &Sight<'_>, before: &ShardRecord) -> Self {
        let until = LogicalTime::new(sight.call.at.get() + sight.config.lease);
        match &sight.call.request {
            Request::Claim | Request::Acquire { .. } => {
                self.fence = FenceEpoch::new(self.fence.get() + 1);
                self.lease = Some(LeaseHolder { owner: sight.call.caller.worker_id(), deadline: until });
                self.stalled += 1;
                self.orders = StandingOrders::NONE;
            }
            Request::Renew { .. } if sight.was_settled() => {}
            Request::Renew { .. } => {
                self.lease = self.lease.map(|holder| LeaseHolder { deadline: until.max(holder.deadline), ..holder });
            }
            Request::Checkpoint { last, .. } => self.progresses(*last),
            Request::Complete { last, .. } => {
                self.progresses(*last);
                self.settles(ShardStatus::Done);
            }
            Request::Park { .. } => self.settles(ShardStatus::Parked),
            Request::Release { last, why, .. } => {
                if last.is_some() {
                    self.progresses(*last);
                }
                // Whether the last report parks the shard is judged by `UnreachableForAll`.
                let is_parked = |record: &ShardRecord| record.state.head.status == ShardStatus::Parked;
                if matches!(why, Why::Unreachable(_)) && sight.records.get(&before.key.shard).is_some_and(is_parked) {
                    self.settles(ShardStatus::Parked);
                    return self;
                }
                self.lease = None;
                self.stalled = self.stalled.saturating_sub(1);
                self.orders = StandingOrders::NONE;
            }
            Request::SplitReplace { .. } => self.settles(ShardStatus::Split),
            Request::SplitResidual { plan, .. } => {
                self.spec = plan.kept().clone();
                self.stalled = 0;
                self.orders.split_requested = None;
            }
            Request::Unpark { .. } => {
                self.status = ShardStatus::Active;
                self.fence = FenceEpoch::new(before.state.head.fence.get() + 1);
                self.stalled = 0;
            }
            Request::Order { order: OrderRequest::Yield, .. } => self.orders.yield_requested = true,
            Request::Order { order: OrderRequest::Split(kept), .. } => self.orders.split_requested = Some(*kept),
            Request::CompleteRun { .. }
            | Request::CancelRun { .. }
            | Request::CreateRun { .. }
            | Request::Register { .. }
            | Request::Retire { .. }
            | Request::Start { .. } => {}
        }
        self
    }

    /// A step in key or token: a child inherits its parent's key and not its token.
    fn progresses(&mut self, last: Option<u16>) {
        let before = std::mem::replace(&mut self.cursor, cursor(last));
        if before != self.cursor {
            self.stalled = 0;
        }
    }

    fn settles(&mut self, status: ShardStatus) {
        (self.status, self.lease, self.stalled, self.orders) = (status, None, 0, StandingOrders::NONE);
    }
}

/// Each child has its range, and begins where its parent was, if that is in it.
fn check_children(sight: &Sight<'_>, before: &ShardRecord, children: &[ShardId]) -> Result<(), String> {
    let ranges: Vec<&ShardSpec> = match &sight.call.request {
        Request::SplitReplace { plan, .. } => plan.children().iter().collect(),
        Request::SplitResidual { plan, .. } => vec![plan.residual()],
        _ => Vec::new(),
    };
    if ranges.len() != children.len() {
        return Err(format!("{} children were asked for, and {} made", ranges.len(), children.len()));
    }
    for (spec, child) in ranges.into_iter().zip(children) {
        let Some(child) = sight.records.get(child) else { return Err(format!("there is no child {child}")) };
        let inherited = before.cursor.last_key().filter(|last| spec.start() <= *last && *last < spec.end());
        if child.spec != *spec || child.cursor.last_key() != inherited || child.state.head != Head::newborn() {
            return Err(format!("a child begins as {child:?}"));
        }
    }
    Ok(())
}
