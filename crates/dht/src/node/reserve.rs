//! Memory that is taken at the start instead of as it is needed.
//!
//! By default a node is as small as what it has met so far, and a table that fills grows in doublings up to its bound: right for an
//! application with many nodes, or with one that is seldom used. A server may rather know from the first minute what it will take,
//! and then no datagram of a stranger, and no lookup, makes it allocate.
//!
//! Not here: what the node's own program asks it to announce and to keep alive, whose bounds are far above what most ask for; and the
//! record or the ids of an operation that gives something to others, which it has for as long as it lasts.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::LaneNode;
use super::operation::Operation;
use crate::identity::Crypto;

impl<C: Crypto> LaneNode<C> {
    /// Takes all memory that the lane's tables and queues may ever need.
    pub(super) fn reserve_all(&mut self) {
        self.sealer.reserve_all();
        self.table.reserve_all();
        self.records.reserve_all();
        self.providers.reserve_all();
        self.abuse.reserve_all();
        self.tokens.reserve_all();
        self.timers.reserve_all();
        self.requests.reserve_all();
        self.outstanding.reserve_all();
        self.sequences.reserve_all();
        self.operations.resize_with(self.config.operations_max, || Box::new(Operation::new()));
        let promises_max = self.config.promises_max;
        reserve_queue(&mut self.promises, promises_max);
        reserve_queue(&mut self.unlogged, promises_max);
        reserve_queue(&mut self.late, super::ask::LATE_MAX);
        reserve_queue(&mut self.stems, super::stem::STEMS_MAX);
        reserve_queue(&mut self.republish, super::upkeep::REPUBLISH_MAX);
        reserve_queue(&mut self.remembered, super::upkeep::SEEDS_MAX);
        reserve_queue(&mut self.lost, super::lost::LOST_MAX);
        self.healing.reserve_all();
    }
}

/// Some queues hold one more for a moment before they are cut to their length.
pub(super) fn reserve_queue<T>(queue: &mut VecDeque<T>, len_max: usize) {
    queue.reserve_exact((len_max + 1).saturating_sub(queue.len()));
}
