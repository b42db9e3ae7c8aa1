//! Buffers for datagrams, and the list of callers to wake, which a thread lends to the lane that has its turn.
//!
//! Between turns they hold no datagrams, so the lanes of a thread can use the same: those are in the cache, and a process of many
//! lanes has few of them.

use std::time::Duration;

use crate::net::batch::Receiver;
use crate::net::calls::Calls;
use crate::net::send_queue::SendQueue;
use crate::time::LaneTime;
use crate::wakes::Wakes;

/// A thread that uses no more than so much of its buffers has little to do. If that is so for a while, it gives the rest
/// back to the system, but for a page: a burst would have most threads of a process hold many times that for ever.
const LITTLE_BYTES: usize = 4096;
const KEPT_BYTES: usize = 2048;
const IDLE: Duration = Duration::from_millis(250);

/// Which buffers a lane needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) calls: Calls,
    pub(super) datagram_bytes_max: usize,
    pub(super) send_queue_max: usize,
}

/// Buffers for one lane at a time.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) needs: Needs,
    pub(super) receiver: Receiver,
    pub(super) sends: SendQueue,
    /// Whom lanes that share the thread have answered. It wakes them when all had their turns.
    pub(super) wakes: Wakes,
    /// When more than a little was last in use; none once the rest is given back.
    last_burst: Option<LaneTime>,
}

impl Buffers {
    pub(super) fn new(needs: Needs) -> Self {
        Self {
            receiver: Receiver::new(needs.datagram_bytes_max, needs.calls),
            sends: SendQueue::new(needs.send_queue_max, needs.datagram_bytes_max),
            wakes: Wakes::default(),
            needs,
            last_burst: Some(LaneTime(0)),
        }
    }

    /// The thread is about to sleep.
    pub(super) fn rest(&mut self, now: LaneTime) {
        if self.receiver.take_reached().max(self.sends.take_reached()) > LITTLE_BYTES {
            self.last_burst = Some(now);
        }
        if self.last_burst.take_if(|burst| now.since(*burst) >= IDLE).is_some() {
            self.receiver.give_back(KEPT_BYTES);
            self.sends.give_back(KEPT_BYTES);
        }
    }
}
