//! What is still to happen, in the order in which it will, and what one call of a lane asked for.

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::node::command::{CommandId, Outcome};
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox};

use super::LogEntry;

pub(super) enum Event {
    Datagram { to: usize, from: Addr, bytes: Vec<u8> },
    Forwarded { to: usize, lane: LaneIndex, from: Addr, bytes: Vec<u8>, hops: u8 },
    LaneMessage { to: usize, lane: LaneIndex, kind: u8, payload: Vec<u8> },
    Wake { node: usize, lane: usize },
    Synced { node: usize, lane: usize, entries: usize },
}

pub(super) struct Scheduled {
    pub(super) at_ms: u64,
    pub(super) number: u64,
    pub(super) event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ms, self.number) == (other.at_ms, other.number)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ms, self.number).cmp(&(other.at_ms, other.number))
    }
}

/// What one call of a lane asked for.
#[derive(Default)]
pub(crate) struct Effects {
    pub(super) sends: Vec<(Addr, Vec<u8>)>,
    pub(super) forwards: Vec<(Slot, Addr, Vec<u8>, u8)>,
    pub(super) messages: Vec<(LaneIndex, u8, Vec<u8>)>,
    pub(super) logs: Vec<LogEntry>,
    /// Entries in the node's log before this call, if it keeps one.
    pub(super) logged_before: Option<usize>,
    pub(super) completions: Vec<(CommandId, Outcome)>,
}

impl Outbox for Effects {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        self.sends.push((to, datagram.to_vec()));
    }

    fn forward(&mut self, slot: Slot, from: Addr, datagram: &[u8], hops: u8) {
        self.forwards.push((slot, from, datagram.to_vec(), hops));
    }

    fn message(&mut self, to: LaneIndex, _class: MessageClass, kind: u8, _prefix: u64, payload: &[u8]) {
        assert!(payload.len() <= 512, "a message between lanes is at most 512 bytes");
        self.messages.push((to, kind, payload.to_vec()));
    }

    fn log(&mut self, kind: u8, slot: Slot, payload: &[u8], _importance: Importance) -> Logged {
        let Some(before) = self.logged_before else { return Logged::Safe };
        self.logs.push((kind, slot, payload.to_vec()));
        Logged::At((before + self.logs.len()) as u64)
    }

    fn complete(&mut self, command: CommandId, outcome: Outcome) {
        self.completions.push((command, outcome));
    }
}
