//! A caller that sends wrong requests on purpose: forged leases, cursors that go back, splits that do not fit, reused ids, other
//! workers' shards.
//!
//! A vandal looks at the records as they are and makes a request that is wrong in one way, otherwise well-made, and asks at
//! once. So a backend that does not check that one thing lets it in. The right answer is not given here: see
//! `due`, which judges all requests alike.

use std::collections::BTreeMap;

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, WorkerId,
};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_coordination::Lease;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::record::op_log::OpKind;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::record::RunRecord;

use super::call::{Call, Caller, RUN, Request, STRANGER, TENANT, Why, edge_number, key_number};
use super::config::Config;
use super::dice::Dice;
use super::forged::{Forged, before, halves, longer, lower, many_children, part, with_op};
use super::stage::UNREGISTERED;

/// The ways to be wrong, as marks of paths taken.
pub const WAYS: [&str; 30] = [
    "a vandal's cursor that goes back was refused",
    "a vandal's cursor outside the shard was refused",
    "a vandal's checkpoint without a key was refused",
    "a vandal's completion that forgets progress was refused",
    "a vandal's old fence was refused",
    "a vandal's fence that is not given yet was refused",
    "a vandal's lease of another owner was refused",
    "a vandal's expired lease was refused",
    "a vandal's lease of a free shard was refused",
    "a vandal's reused op id was refused",
    "a vandal's op id 0 was refused",
    "a vandal's children that leave a gap were refused",
    "a vandal's children that overlap were refused",
    "a vandal's children that are not the whole were refused",
    "a vandal's children that are too many were refused",
    "a vandal's residual that does not fit was refused",
    "a vandal's residual that is processed already was refused",
    "a vandal's work on a settled shard was refused",
    "a vandal's work in a settled run was refused",
    "a vandal's unknown shard was refused",
    "a vandal's lease of another tenant was refused",
    "a vandal's work in another tenant's name was refused",
    "a vandal's unpark of what is not parked was refused",
    "a vandal's unpark at another fence was refused",
    "a vandal's order to nobody was refused",
    "a vandal's end of an unfinished run was refused",
    "a vandal's shard list was refused",
    "a vandal's claim without a name was refused",
    "a vandal's grab of a held shard was refused",
    "a vandal's work under another incarnation of the run was refused",
];

/// See the module.
#[derive(Debug)]
pub(super) struct Vandal {
    dice: Dice,
    ops: u64,
    skew_allowance: u64,
    room: u64,
    /// Residual splits that it saw remembered; an op-log forgets them, their children stay as long as the run does.
    residuals: Vec<(RunIncarnation, ShardId, OpId)>,
}

impl Vandal {
    /// The vandal of a world, with dice of its own: the deeds of others do not depend on it.
    pub(super) fn new(config: &Config) -> Self {
        let dice = Dice::new(config.seed ^ 0xbad0_bad0_bad0_bad0);
        Self {
            dice,
            ops: 1 << 62,
            skew_allowance: config.skew_allowance,
            room: config.shards_max as u64,
            residuals: Vec::new(),
        }
    }

    /// Whether it is in the mood.
    pub(super) const fn is_up_to_something(&mut self, rate: u32) -> bool {
        self.dice.happens(rate)
    }

    /// A request that is wrong in the named way; none if there is nothing to be wrong about. Where a store `may_lose`
    /// sight of a holder, it is not known beforehand that to grab its shard is wrong.
    pub(super) fn ask(
        &mut self,
        now: u64,
        records: &BTreeMap<ShardId, ShardRecord>,
        run: &RunRecord,
        may_lose: bool,
    ) -> Option<(&'static str, Call)> {
        self.residuals.retain(|(incarnation, ..)| *incarnation == run.incarnation);
        let run = run.status;
        let way = self.dice.below(WAYS.len() as u64) as usize;
        let now = LogicalTime::new(now);
        let (at, caller, request) = match way {
            0..=16 if way != 9 && way != 8 => {
                let record = self.pick(records, |record| record.state.head.lease.is_some())?;
                self.about_held(way, record)?
            }
            8 => {
                let record = self.pick(records, |record| {
                    record.state.head.status == ShardStatus::Active && record.state.head.lease.is_none()
                })?;
                let lease = Forged::of(record).granted();
                (now, Caller::Vandal, self.any_work(record, lease))
            }
            9 => {
                let (record, request) = self.reused_op(records)?;
                (record.state.head.lease.map_or(now, before), Caller::Vandal, request)
            }
            17 => {
                let record = self.pick(records, |record| record.state.head.status.is_terminal())?;
                let acquire = Request::Acquire { key: record.key };
                let lease = Forged::of(record).granted();
                match self.dice.below(4) {
                    0 => (now, Caller::Worker(0), acquire),
                    1 => (
                        now,
                        Caller::Operator,
                        Request::Order { key: record.key, epoch: record.epoch(), order: OrderRequest::Yield },
                    ),
                    _ => (now, Caller::Vandal, self.any_work(record, lease)),
                }
            }
            18 => {
                let record = self.pick(records, |_| run.is_terminal())?;
                let at = record.state.head.lease.map_or(now, before);
                let lease = Forged::of(record).granted();
                match self.dice.below(6) {
                    0 => (now, Caller::Worker(0), Request::Claim),
                    1 => (now, Caller::Worker(0), Request::Acquire { key: record.key }),
                    2 => (now, Caller::Vandal, Request::CancelRun { op: self.next_op() }),
                    3 => (now, Caller::Vandal, Request::CompleteRun { op: self.next_op() }),
                    4 => (now, Caller::Vandal, self.unpark(record)),
                    _ => (at, Caller::Vandal, self.any_operation(record, lease)),
                }
            }
            19 => {
                let record = self.pick(records, |_| true)?;
                let key = ShardKey::new(RUN, ShardId::new(self.dice.between(1 << 20, 1 << 21)));
                let lease = Forged { key, ..Forged::of(record) }.granted();
                let newborn = ShardEpoch::new(record.incarnation, FenceEpoch::INITIAL);
                match self.dice.below(4) {
                    0 => (now, Caller::Worker(0), Request::Acquire { key }),
                    1 => (now, Caller::Vandal, Request::Unpark { key, expected: newborn, op: self.next_op() }),
                    _ => (now, Caller::Vandal, self.any_work(record, lease)),
                }
            }
            20 => {
                let record = self.pick(records, |record| record.state.head.lease.is_some())?;
                let at = record.state.head.lease.map_or(now, before);
                let stolen = self.dice.below(2) == 0;
                let tenant = if stolen { TENANT } else { STRANGER };
                let lease = Forged { tenant, ..Forged::of(record) }.granted();
                let caller = if stolen { Caller::Stranger } else { Caller::Vandal };
                (at, caller, self.any_work(record, lease))
            }
            21 => {
                let record = self.pick(records, |_| true)?;
                let lease = Forged { tenant: STRANGER, ..Forged::of(record) }.granted();
                let at = record.state.head.lease.map_or(now, before);
                let key = record.key;
                let request = match self.dice.below(6) {
                    0 => Request::Claim,
                    1 => Request::Acquire { key },
                    2 => self.unpark(record),
                    3 => Request::CancelRun { op: self.next_op() },
                    4 => Request::Order { key, epoch: record.epoch(), order: OrderRequest::Yield },
                    _ => self.any_work(record, lease),
                };
                (at, Caller::Stranger, request)
            }
            22 => {
                let record = self.pick(records, |record| record.state.head.status != ShardStatus::Parked)?;
                (now, Caller::Vandal, self.unpark(record))
            }
            23 => {
                let record = self.pick(records, |record| record.state.head.status == ShardStatus::Parked)?;
                let expected = ShardEpoch { fence: self.other_fence(record.state.head.fence), ..record.epoch() };
                (now, Caller::Vandal, Request::Unpark { key: record.key, expected, op: self.next_op() })
            }
            24 => {
                let record = self.pick(records, |record| record.state.head.status == ShardStatus::Active)?;
                let head = record.state.head;
                // It has no holder, or not under that fence, or not any more.
                let (at, fence) = match head.lease {
                    None => (now, head.fence),
                    Some(holder) if self.dice.below(2) == 0 => (holder.deadline, head.fence),
                    Some(holder) => (before(holder), self.other_fence(head.fence)),
                };
                let epoch = ShardEpoch { fence, ..record.epoch() };
                (at, Caller::Vandal, Request::Order { key: record.key, epoch, order: OrderRequest::Yield })
            }
            25 => (now, Caller::Vandal, Request::CompleteRun { op: self.next_op() }),
            26 => (now, Caller::Vandal, self.shard_list()),
            27 => {
                let record = self.pick(records, |_| true)?;
                let key = record.key;
                let request = if self.dice.below(2) == 0 { Request::Claim } else { Request::Acquire { key } };
                (now, Caller::Vandal, request)
            }
            28 => {
                let record = self.pick(records, |record| record.state.head.lease.is_some() && !may_lose)?;
                let holder = record.state.head.lease?;
                // Another worker, up to the last moment of the skew allowance.
                let thief = if holder.owner.get() == 1 { 1 } else { 0 };
                let early = self.dice.below(self.skew_allowance + 1);
                let last = LogicalTime::new(before(holder).get() + self.skew_allowance - early);
                (last, Caller::Worker(thief), Request::Acquire { key: record.key })
            }
            _ => {
                let record = self.pick(records, |_| true)?;
                let at = record.state.head.lease.map_or(now, before);
                let incarnation = RunIncarnation::new(record.incarnation.get() + self.dice.between(1, 3));
                let lease = Forged { incarnation, ..Forged::of(record) }.granted();
                let epoch = ShardEpoch { incarnation, ..record.epoch() };
                let request = match self.dice.below(4) {
                    0 => Request::Order { key: record.key, epoch, order: OrderRequest::Yield },
                    1 => Request::Unpark { key: record.key, expected: epoch, op: self.next_op() },
                    _ => self.any_work(record, lease),
                };
                (at, Caller::Vandal, request)
            }
        };
        Some((WAYS[way], Call { at, caller, request }))
    }

    /// Wrong ways to treat a shard that is held: by its true lease, unless the lease is the fault.
    fn about_held(&mut self, way: usize, record: &ShardRecord) -> Option<(LogicalTime, Caller, Request)> {
        let (head, holder) = (record.state.head, record.state.head.lease?);
        let (true_lease, op) = (Forged::of(record).granted(), self.next_op());
        let (lo, hi) = (edge_number(record.spec.start()), edge_number(record.spec.end()));
        let done = record.cursor.last_key().map(key_number);
        let request = match way {
            0 => {
                let before_that = done.filter(|done| *done > lo)? - 1;
                let last = self.dice.between(u64::from(lo), u64::from(before_that)) as u16;
                self.progress(true_lease, Some(last))
            }
            1 => {
                let below = self.dice.below(2) == 0 && lo > 0;
                let last = if below { self.dice.below(u64::from(lo)) as u16 } else { hi + self.dice.below(3) as u16 };
                self.progress(true_lease, Some(last))
            }
            2 => Request::Checkpoint { lease: true_lease, last: None, op },
            3 => Request::Complete { lease: true_lease, last: done.map_or(Some(hi), |_| None), op },
            4 => {
                let fence = FenceEpoch::new(head.fence.get().checked_sub(1).filter(|fence| *fence > 0)?);
                self.any_work(record, Forged { fence, ..Forged::of(record) }.granted())
            }
            5 => self.any_work(record, Forged { fence: head.fence.next()?, ..Forged::of(record) }.granted()),
            6 => {
                let owner = WorkerId::new(holder.owner.get() % 6 + 1);
                self.any_work(record, Forged { owner, ..Forged::of(record) }.granted())
            }
            7 => {
                let late = LogicalTime::new(holder.deadline.get() + self.dice.below(3));
                return Some((late, Caller::Vandal, self.any_work(record, true_lease)));
            }
            10 => with_op(self.any_operation(record, true_lease), OpId::UNASSIGNED),
            11..=13 => Request::SplitReplace { lease: true_lease, plan: self.unfit_children(way, record)?, op },
            14 => Request::SplitReplace { lease: true_lease, plan: many_children(record, self.room + 1)?, op },
            15 => Request::SplitResidual { lease: true_lease, plan: self.unfit_residual(record)?, op },
            _ => {
                let cut = record.cursor.last_key()?;
                let plan = SplitResidualPlan::new(part(record.spec.start(), cut)?, part(cut, record.spec.end())?);
                Request::SplitResidual { lease: true_lease, plan, op }
            }
        };
        Some((before(holder), Caller::Vandal, request))
    }

    fn pick<'r>(
        &mut self,
        records: &'r BTreeMap<ShardId, ShardRecord>,
        is_fit: impl Fn(&ShardRecord) -> bool,
    ) -> Option<&'r ShardRecord> {
        let fit: Vec<&ShardRecord> = records.values().filter(|record| is_fit(record)).collect();
        let at = self.dice.below(fit.len().max(1) as u64) as usize;
        fit.get(at).copied()
    }

    /// Something under the id of an operation that took effect on the shard: of one that is remembered, or of a residual split
    /// that was, for which another residual split is still a retry or wrong.
    fn reused_op<'r>(&mut self, records: &'r BTreeMap<ShardId, ShardRecord>) -> Option<(&'r ShardRecord, Request)> {
        let record = self.pick(records, |record| !record.state.op_log.is_empty())?;
        for entry in record.state.op_log.iter().filter(|entry| entry.kind == OpKind::SplitResidual) {
            let split = (record.incarnation, record.key.shard, entry.op_id);
            if !self.residuals.contains(&split) {
                self.residuals.push(split);
            }
        }
        let at = self.dice.below(2 * self.residuals.len() as u64 + 1) as usize;
        if let Some((_, shard, op)) = self.residuals.get(at).copied() {
            let record = records.get(&shard)?;
            let (lower, upper) = halves(record)?;
            let plan = SplitResidualPlan::new(lower, upper);
            return Some((record, Request::SplitResidual { lease: Forged::of(record).granted(), plan, op }));
        }
        let at = self.dice.below(record.state.op_log.len() as u64) as usize;
        let op = record.state.op_log.iter().nth(at)?.op_id;
        Some((record, with_op(self.any_operation(record, Forged::of(record).granted()), op)))
    }

    fn next_op(&mut self) -> OpId {
        self.ops += 1;
        OpId::new(self.ops)
    }

    const fn other_fence(&mut self, fence: FenceEpoch) -> FenceEpoch {
        let back = self.dice.below(2) == 0 && fence.get() > 1;
        FenceEpoch::new(if back { fence.get() - 1 } else { fence.get() + 1 })
    }

    fn unpark(&mut self, record: &ShardRecord) -> Request {
        Request::Unpark { key: record.key, expected: record.epoch(), op: self.next_op() }
    }

    /// Progress, told in one of three ways.
    fn progress(&mut self, lease: Lease, last: Option<u16>) -> Request {
        let op = self.next_op();
        match self.dice.below(3) {
            0 => Request::Checkpoint { lease, last, op },
            1 => Request::Complete { lease, last, op },
            _ => Request::Release { lease, last, why: Why::Released, op },
        }
    }

    /// Anything that a holder may do to this shard.
    fn any_work(&mut self, record: &ShardRecord, lease: Lease) -> Request {
        if self.dice.below(6) == 0 { Request::Renew { lease } } else { self.any_operation(record, lease) }
    }

    /// The same, with an op id.
    fn any_operation(&mut self, record: &ShardRecord, lease: Lease) -> Request {
        let op = self.next_op();
        let lo = edge_number(record.spec.start());
        let last = Some(record.cursor.last_key().map_or(lo, key_number));
        match self.dice.below(7) {
            0 => Request::Checkpoint { lease, last, op },
            1 => Request::Complete { lease, last, op },
            2 => Request::Park { lease, reason: ParkReason::Other, op },
            3 => Request::Release { lease, last, why: Why::Released, op },
            4 => match halves(record) {
                Some((lower, upper)) => {
                    let plan = SplitReplacePlan::new(vec![lower, upper]).expect("two children make a plan");
                    Request::SplitReplace { lease, plan, op }
                }
                None => Request::Checkpoint { lease, last, op },
            },
            5 => match halves(record) {
                Some((lower, upper)) => {
                    Request::SplitResidual { lease, plan: SplitResidualPlan::new(lower, upper), op }
                }
                None => Request::Complete { lease, last, op },
            },
            _ => Request::Release { lease, last: None, why: Why::Yielded, op },
        }
    }

    fn unfit_children(&mut self, way: usize, record: &ShardRecord) -> Option<SplitReplacePlan> {
        let (start, end) = (record.spec.start(), record.spec.end());
        let first = longer(start, 1);
        let children = match way {
            // A gap, and an overlap.
            11 => vec![part(start, &first)?, part(&longer(start, 2), end)?],
            12 => vec![part(start, &longer(start, 2))?, part(&first, end)?],
            _ => match self.dice.below(4) {
                0 => vec![part(&first, &longer(start, 2))?, part(&longer(start, 2), end)?],
                1 => vec![part(start, &first)?, part(&first, &longer(start, 2))?],
                2 => vec![part(start, &first)?, part(&first, &longer(end, 1))?],
                _ => vec![part(&lower(start)?, &first)?, part(&first, end)?],
            },
        };
        SplitReplacePlan::new(children).ok()
    }

    fn unfit_residual(&mut self, record: &ShardRecord) -> Option<SplitResidualPlan> {
        let (start, end) = (record.spec.start(), record.spec.end());
        // Ahead of all progress, so that it is wrong in one way only.
        let at = record.cursor.last_key().unwrap_or(start);
        let (cut, behind) = (longer(at, 1), longer(at, 2));
        let (kept, given) = match self.dice.below(5) {
            0 => (part(start, &cut)?, part(&behind, end)?),
            1 => (part(start, &behind)?, part(&cut, end)?),
            2 => (part(start, &cut)?, part(&cut, &longer(end, 1))?),
            3 => (part(start, &cut)?, part(&cut, &behind)?),
            _ => (part(&lower(start)?, &cut)?, part(&cut, end)?),
        };
        Some(SplitResidualPlan::new(kept, given))
    }

    fn shard_list(&mut self) -> Request {
        let root = |shard: u64, start: &[u8], end: &[u8]| (ShardId::new(shard), start.to_vec(), end.to_vec());
        let good = vec![root(1, b"a", b"m"), root(2, b"m", b"z")];
        let op = self.next_op();
        let (run, op, roots) = match self.dice.below(11) {
            0 => return Request::CreateRun { run: RUN },
            1 => return Request::CreateRun { run: RunId::UNASSIGNED },
            2 => (RUN, op, good),
            3 => (RUN, OpId::new(1), good),
            4 => (UNREGISTERED, OpId::UNASSIGNED, good),
            5 => (UNREGISTERED, op, Vec::new()),
            6 => (UNREGISTERED, op, vec![root(1, b"a", b"n"), root(2, b"m", b"z")]),
            7 => (UNREGISTERED, op, vec![root(1, b"a", b"m"), root(1, b"m", b"z")]),
            8 => (UNREGISTERED, op, vec![root(1, b"m", b"a")]),
            9 => (UNREGISTERED, op, vec![root(1, b"", b"m"), root(1 << 63, b"m", b"z")]),
            _ => (RunId::new(77), op, good),
        };
        Request::Register { run, roots, op }
    }
}
