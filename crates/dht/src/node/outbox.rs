//! The world as a lane sees it: the calls it makes.
//!
//! The world is a runtime with sockets and a write-ahead log, or a simulator; the lane cannot tell. No call
//! blocks; one that cannot be carried out is lost like a datagram.
//!
//! This looks like the context that the lanes' runtime gives its handlers, and is not the same on purpose. That one is a
//! thing of threads, sockets and clocks, which this crate must not be able to name; it knows envelopes, classes and map
//! versions where a lane of the DHT says "tell that lane"; and it cannot be run by the ten thousand. So the shell maps
//! one to the other, call by call, and the arrow between the crates keeps its direction.

use tessera_contracts::prefix_map::{LaneIndex, Slot};

use super::command::{CommandId, Outcome};
use crate::addr::Addr;
use crate::wire::message::SignedProvider;

/// How much a message between lanes matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageClass {
    /// Said once, seldom, and to be heard: where this node is seen, and which peer has lost its trust. Sent again until it is acknowledged.
    Control,
    /// Needed to carry out a command: fanout of announcements.
    Coordination,
    /// Good to know, lossy by design: contacts.
    Hint,
}

/// Messages between lanes. A payload is at most 512 bytes.
pub mod message_kind {
    /// A contact that answered one lane: contact, round trip in milliseconds (u32, `u32::MAX` for unknown).
    pub const CONTACT: u8 = 1;
    /// A contact that asked one lane and should be verified by its owner: contact.
    pub const CANDIDATE: u8 = 2;
    /// A contact that fell silent: contact. From the lane that looks after it to all, from any other to that one.
    pub const SILENT: u8 = 3;
    /// A peer's score: public key, score (f64).
    pub const SCORE: u8 = 4;
    /// Verified providers for the receiver to keep: up to three times content id and signed provider.
    pub const PROVIDERS: u8 = 5;
    /// A contact that said good-bye to one lane: node id.
    pub const LEFT: u8 = 6;
    /// Where others see this node: address.
    pub const OBSERVED: u8 = 7;
}

/// How much a log record matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    /// May be lost in a crash, and is dropped first when the log lags.
    Soft,
    /// Was promised to a peer or caller.
    Hard,
}

/// The fate of a piece given to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logged {
    /// There is nothing to wait for: it is as safe as the node's configuration promises, or no log is kept.
    Safe,
    /// Safe once [`LaneNode::on_durable`](super::LaneNode::on_durable) names this number or a later one.
    At(u64),
    /// The log did not take it: nothing may be promised.
    Refused,
}

/// Where a lane's effects go.
pub trait Outbox {
    /// Sends a datagram.
    fn send(&mut self, to: Addr, datagram: &[u8]);

    /// Hands a datagram, as it came, to the lane that owns `slot`; `hops` lanes have passed it on so far.
    fn forward(&mut self, slot: Slot, from: Addr, datagram: &[u8], hops: u8);

    /// Sends a message to another lane. Messages of one kind and prefix may be coalesced.
    fn message(&mut self, to: LaneIndex, class: MessageClass, kind: u8, prefix: u64, payload: &[u8]);

    /// Sends a message to the lane that owns a slot: the one named, as far as this lane knows. Where messages take time, one that comes to a lane
    /// that has given the slot away is passed on as it is, and no more often than its time to live allows.
    fn message_to_owner(
        &mut self,
        (owner, slot): (LaneIndex, Slot),
        class: MessageClass,
        kind: u8,
        prefix: u64,
        payload: &[u8],
    ) {
        let _ = slot;
        self.message(owner, class, kind, prefix, payload);
    }

    /// Logs a piece of state that belongs to `slot`: kinds are in `node::log_kind`. A peer's write is
    /// acknowledged when the log says that it is safe.
    fn log(&mut self, kind: u8, slot: Slot, payload: &[u8], importance: Importance) -> Logged;

    /// A provider was found on behalf of a command that goes on. Told once for each provider; the outcome has them all.
    fn found_provider(&mut self, command: CommandId, provider: &SignedProvider) {
        let _ = (command, provider);
    }

    /// A command is done.
    fn complete(&mut self, command: CommandId, outcome: Outcome);
}

/// For events without effects: records read back from the log.
pub(super) struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: Addr, _: &[u8]) {}
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}
