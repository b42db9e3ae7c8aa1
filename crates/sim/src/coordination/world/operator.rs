//! The operator of a world.

use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey};
use tessera_contracts::keyspace::Fraction;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::record::status::ShardStatus;

use super::super::call::{Backend, Call, Caller, RUN, Request};
use super::super::trace::Step;
use super::{Happening, World};

/// How often the operator looks.
pub(super) const PACE: u64 = 20;
/// How many of its past requests to unpark the operator may repeat.
const REMEMBERED_UNPARKS: usize = 8;

impl<B: Backend + 'static> World<B> {
    /// The operator looks at the run: revives what is parked, asks holders for something, ends what is finished.
    pub(super) fn operate(&mut self) {
        self.schedule(PACE, Happening::Operate);
        let heads: Vec<(ShardId, _)> =
            self.stage.borrow().records().values().map(|record| (record.key.shard, record.state.head)).collect();
        let open = |status: ShardStatus| matches!(status, ShardStatus::Active | ShardStatus::Parked);
        if heads.iter().all(|(_, head)| !open(head.status)) {
            let op = self.next_op();
            self.operator_sends(Request::CompleteRun { op });
            return;
        }
        if self.dice.happens(self.rates.overload) {
            self.note("an overloaded backend answered everything at once");
            self.overloaded_until = self.now + self.dice.between(1, self.config.lease);
        }
        let split_storm = self.dice.happens(self.rates.split_storm);
        if split_storm {
            self.note("every holder was asked to split at once");
        }
        for (shard, head) in heads {
            let key = ShardKey::new(RUN, shard);
            if head.status == ShardStatus::Parked && (self.is_calm() || self.dice.happens(self.rates.unpark)) {
                let op = self.next_op();
                let unpark = Request::Unpark { key, fence: head.fence, op };
                if self.unparks.len() == REMEMBERED_UNPARKS {
                    self.unparks.pop_front();
                }
                self.unparks.push_back(unpark.clone());
                let call = self.operators_call(unpark.clone());
                self.tell(|| Step::Sent(call));
                self.operator_sends(unpark);
            }
            if head.lease.is_some() && self.dice.happens(self.rates.order_yield) {
                self.operator_sends(Request::Order { key, fence: head.fence, order: OrderRequest::Yield });
            }
            if head.lease.is_some() && (self.dice.happens(self.rates.order_split) || split_storm) {
                let order = OrderRequest::Split(Fraction::HALF);
                self.operator_sends(Request::Order { key, fence: head.fence, order });
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
