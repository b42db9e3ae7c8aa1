//! The operator of a world.

use tessera_contracts::ids::{LogicalTime, OpId, RunIncarnation, ShardEpoch, ShardId, ShardKey};
use tessera_contracts::keyspace::Fraction;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::record::state::Head;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::status::RunStatus;

use super::super::call::{Backend, Call, Caller, INCARNATION, RUN, Request};
use super::super::stage::Violation;
use super::super::trace::Step;
use super::{Happening, World};

/// How often the operator looks.
pub(super) const PACE: u64 = 20;
/// How often a run is retired and created again, at most.
const RECREATIONS_MAX: u64 = 3;
/// How many of its past requests to unpark the operator may repeat.
const REMEMBERED_UNPARKS: usize = 8;

/// The runs that had the same id.
#[derive(Debug)]
pub(super) struct Recreation {
    /// How many there were after the first.
    count: u64,
    /// The incarnation drawn for the next.
    drawn: RunIncarnation,
}

impl Default for Recreation {
    fn default() -> Self {
        Self { count: 0, drawn: INCARNATION }
    }
}

impl<B: Backend + 'static> World<B> {
    /// The operator looks at the run: revives parked shards, gives holders orders, ends a finished run.
    pub(super) fn operate(&mut self) -> Result<(), Violation> {
        self.schedule(PACE, Happening::Operate);
        let run = self.stage.borrow_mut().run().map(|run| run.status);
        if run.is_none() {
            return self.start_again();
        }
        if run.is_some_and(RunStatus::is_terminal) && self.may_recreate() && self.dice.happens(self.rates.recreate) {
            return self.retire();
        }
        let heads: Vec<(ShardEpoch, ShardId, Head)> = {
            let stage = self.stage.borrow();
            stage.records().values().map(|record| (record.epoch(), record.key.shard, record.state.head)).collect()
        };
        let open = |status: ShardStatus| matches!(status, ShardStatus::Active | ShardStatus::Parked);
        if heads.iter().all(|(_, _, head)| !open(head.status)) {
            let op = self.next_op();
            self.operator_sends(Request::CompleteRun { op });
            return Ok(());
        }
        if self.dice.happens(self.rates.overload) {
            self.note("an overloaded backend answered everything at once");
            self.overloaded_until = self.now + self.dice.between(1, self.config.lease);
        }
        let split_storm = self.dice.happens(self.rates.split_storm);
        if split_storm {
            self.note("every holder was asked to split at once");
        }
        for (epoch, shard, head) in heads {
            let key = ShardKey::new(RUN, shard);
            if head.status == ShardStatus::Parked && (self.is_calm() || self.dice.happens(self.rates.unpark)) {
                let op = self.next_op();
                let unpark = Request::Unpark { key, expected: epoch, op };
                if self.unparks.len() == REMEMBERED_UNPARKS {
                    self.unparks.pop_front();
                }
                self.unparks.push_back(unpark.clone());
                let call = self.operators_call(unpark.clone());
                self.tell(|| Step::Sent(call));
                self.operator_sends(unpark);
            }
            if head.lease.is_some() && self.dice.happens(self.rates.order_yield) {
                self.operator_sends(Request::Order { key, epoch, order: OrderRequest::Yield });
            }
            if head.lease.is_some() && (self.dice.happens(self.rates.order_split) || split_storm) {
                let order = OrderRequest::Split(Fraction::HALF);
                self.operator_sends(Request::Order { key, epoch, order });
            }
        }
        if self.rates.duplicate > 0 && !self.unparks.is_empty() && self.dice.below(3) == 0 {
            // A script that repeats itself, long after.
            let at = self.dice.below(self.unparks.len() as u64) as usize;
            self.operator_sends(self.unparks[at].clone());
        }
        if self.dice.happens(self.rates.cancel) {
            let op = self.next_op();
            self.operator_sends(Request::CancelRun { op });
        }
        Ok(())
    }

    /// Whether the run, once it has settled, will be created again.
    pub(super) const fn may_recreate(&self) -> bool {
        self.rates.recreate > 0 && self.recreation.count < RECREATIONS_MAX
    }

    /// The settled run is retired. Its workers do not know, and their earlier requests may still arrive.
    fn retire(&mut self) -> Result<(), Violation> {
        // Incarnations come in no order.
        let drawn = (self.dice.below(1 << 32) << 8) | (self.recreation.count + 2);
        self.recreation.drawn = RunIncarnation::new(drawn);
        let settled_until = LogicalTime::new(self.now);
        self.operator_does(Request::Retire { settled_until })
    }

    /// The run is created again, with the shards it had in the beginning; where that failed half-way, once more.
    fn start_again(&mut self) -> Result<(), Violation> {
        self.operator_does(Request::start(&self.config, self.recreation.drawn))?;
        if self.stage.borrow_mut().run().is_some() {
            self.recreation.count += 1;
            self.note("a run was retired and created again");
        }
        Ok(())
    }

    /// At once, and by one operator: two that retire and create the same run are tested with the store, in `tessera-coordination-etcd`.
    fn operator_does(&mut self, request: Request) -> Result<(), Violation> {
        let call = self.operators_call(request);
        let stormy = !self.is_calm();
        self.stage.borrow_mut().perform(&call, stormy)?;
        Ok(())
    }

    fn next_op(&mut self) -> OpId {
        self.ops += 1;
        OpId::new(self.ops)
    }

    fn operators_call(&self, request: Request) -> Call {
        Call { at: LogicalTime::new(self.now), caller: Caller::Operator, request }
    }

    fn operator_sends(&mut self, request: Request) {
        let call = self.operators_call(request);
        self.send(0, call);
    }
}
