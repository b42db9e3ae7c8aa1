//! The identity of states.

use super::{Belief, Request, World, Writer};
use crate::explore::bounds::Bounds;

impl<const LOG: usize> World<LOG> {
    /// Everything the protocol can see, in the model's terms: times as ticks left, no history, no counters.
    ///
    /// `orders` are the orders in which the workers may be named. Where the model calls them alike, all are given, and
    /// worlds that differ only in which worker is which are one.
    ///
    /// # Panics
    /// If no order is given.
    pub fn visible_state(&self, bounds: &Bounds, orders: &[Vec<usize>]) -> Vec<u8> {
        let seen = orders.iter().map(|order| self.visible_in_order(bounds, order));
        seen.min().expect("workers stand in some order")
    }

    fn visible_in_order(&self, bounds: &Bounds, order: &[usize]) -> Vec<u8> {
        // An operator is none of the workers.
        let named = |worker: usize| order.iter().position(|other| *other == worker).map_or(255, |place| place as u8);
        let mut bytes = Vec::with_capacity(128);
        bytes.extend([self.run.status.as_u8(), self.run.incarnation.get() as u8]);
        bytes.extend(order.iter().map(|worker| u8::from(self.live[*worker])));
        bytes.extend(order.iter().map(|worker| self.skew[*worker] as u8));
        bytes.push(self.shards.len() as u8);
        for shard in &self.shards {
            let head = &shard.state.head;
            bytes.extend([head.status.as_u8(), shard.fence() as u8, shard.lo(), shard.hi(), shard.next()]);
            let left = head.lease.map(|holder| {
                let left = holder.deadline.get() as i64 - self.now as i64;
                let owner = named(holder.owner.get() as usize - 1);
                [owner, left.max(-(bounds.skew_tolerance as i64)) as i8 as u8]
            });
            bytes.extend(left.unwrap_or([255, 0]));
            bytes.push(shard.state.op_log.len() as u8);
            bytes.extend(shard.state.op_log.iter().map(|entry| entry.op_id.get() as u8));
            bytes.push(u8::from(shard.is_cut_off()));
            bytes.extend(order.iter().map(|worker| u8::from(shard.is_reported_by(*worker))));
            bytes.extend(shard.born.map_or([255, 255], |(parent, op)| [parent as u8, op as u8]));
        }
        bytes.push(self.requests.len() as u8);
        for request in &self.requests {
            let Request { kind, worker, shard, epoch, argument, .. } = request;
            bytes.extend([*kind as u8, named(*worker), *shard as u8, *argument]);
            bytes.extend([epoch.incarnation.get() as u8, epoch.fence.get() as u8]);
        }
        for worker in order {
            match &self.beliefs[*worker] {
                None => bytes.push(255),
                Some(Belief { lease, shard, lo, hi, next, waits_for }) => bytes.extend([
                    *shard as u8,
                    lease.incarnation().get() as u8,
                    lease.fence().get() as u8,
                    *lo,
                    *hi,
                    *next,
                    waits_for.map_or(255, |op| op as u8),
                ]),
            }
        }
        for Writer { fence, worker } in self.sink.iter().chain(&self.control) {
            // Under fence 0 no worker has written yet.
            bytes.extend([*fence as u8, if *fence == 0 { 255 } else { named(*worker) }]);
        }
        bytes.extend(self.recorded.to_le_bytes());
        bytes.extend(&self.executed);
        bytes
    }

    /// Whether the world is explored further; an unexplored one is checked, but neither counted nor left.
    pub fn is_explored(&self, bounds: &Bounds) -> bool {
        let leases: u64 = self.shards.iter().map(|shard| shard.fence() - 1).sum();
        bounds.leases_max.is_none_or(|most| leases <= most)
    }
}
