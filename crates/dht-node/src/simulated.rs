//! The lane that ships, for a runtime in virtual time ([`tessera_lanes::simulated`]): without a thread, a socket or a clock of
//! its own.
//!
//! A caller asks a lane with [`ask`], lets time pass, and looks whether there is an answer. It does what
//! [`Node`](crate::Node) does for its callers: a question that a lane took down with it, or that reached the wrong lane, is
//! asked again.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tessera_dht::contact::Contact;
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Command, CommandId, Outcome};
use tessera_dht::time::Now;
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::SLOT_OFFSET;
use tessera_lanes::LaneTime;
use tessera_lanes::config::LaneConfig;

pub use crate::handler::{DhtLane, NodeCommand};

use crate::clock::Clock;
use crate::handler::{Flags, Waiting};
use crate::oneshot;

/// A lane made at `now`, where time zero is `zero`. `make` is given the time.
pub fn lane(zero: Now, now: LaneTime, seeds: Vec<Contact>, make: impl FnOnce(Now) -> LaneNode) -> DhtLane {
    let clock = Clock::at_virtual(zero, now);
    let node = make(clock.early());
    DhtLane::new(Box::new(node), clock, Arc::new(seeds), Arc::new(Flags::default()))
}

/// The bounds of a lane of the DHT.
pub fn lane_config() -> LaneConfig {
    LaneConfig {
        // One more than the longest, so that a longer one is seen to be too long rather than cut.
        datagram_bytes_max: DATAGRAM_BYTES_MAX + 1,
        steer_offset: Some(SLOT_OFFSET as u16),
        // A lane of the DHT has buffers of its own.
        pool_buffers: 0,
        arena_bytes_max: 0,
        ..LaneConfig::default()
    }
}

/// A question to a lane.
#[derive(Debug)]
pub struct Asked(oneshot::Receiver<Outcome>);

/// What became of a question.
#[derive(Debug)]
pub enum Heard {
    /// Nothing yet.
    Nothing,
    /// It was answered.
    Outcome(Outcome),
    /// The lane went down with it.
    Lost,
}

/// A command for a lane, and where its outcome will be.
pub fn ask(id: CommandId, command: Command) -> (NodeCommand, Asked) {
    let (outcome, receiver) = oneshot::channel();
    (NodeCommand::Dht(id, command, Waiting { outcome, found: None }), Asked(receiver))
}

impl Asked {
    /// What became of it so far. An outcome is told once.
    pub fn hear(&mut self) -> Heard {
        match Pin::new(&mut self.0).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Heard::Nothing,
            Poll::Ready(Ok(outcome)) => Heard::Outcome(outcome),
            Poll::Ready(Err(oneshot::Lost)) => Heard::Lost,
        }
    }
}
