//! A lane by itself, for tests that look inside it.

use alloc::vec::Vec;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};

use super::LaneNode;
use super::command::{CommandId, Outcome};
use super::config::NodeConfig;
use super::outbox::{Importance, Logged, MessageClass, Outbox};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto as _, Identity};
use crate::time::Now;

pub(super) const T: Now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };

pub(super) fn lane() -> LaneNode<Identity> {
    lane_of(1)
}

pub(super) fn lane_of(seed: u8) -> LaneNode<Identity> {
    lane_among(seed, 0, 1)
}

/// One that is configured otherwise than by default.
pub(super) fn lane_with(config: NodeConfig) -> LaneNode<Identity> {
    made(config, 1, 0, 1)
}

/// One of several lanes of a node.
pub(super) fn lane_among(seed: u8, at: u8, lanes: usize) -> LaneNode<Identity> {
    made(NodeConfig::default(), seed, at, lanes)
}

fn made(config: NodeConfig, seed: u8, at: u8, lanes: usize) -> LaneNode<Identity> {
    let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), lanes).unwrap();
    LaneNode::new(config, Identity::from_seed(&[seed; 32]), map, LaneIndex(at), [seed; 32], T)
}

/// Somebody, in a network of its own.
pub(super) fn contact(n: u8) -> Contact {
    Contact { key: Identity::from_seed(&[n; 32]).public_key(), addr: Addr::v4([10, 0, n, 1], 1) }
}

/// Datagrams that were sent, and where to; and what other lanes were told.
#[derive(Default)]
pub(super) struct Sent(pub(super) Vec<(Addr, Vec<u8>)>, pub(super) Vec<(LaneIndex, u8, Vec<u8>)>);

impl Outbox for Sent {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        self.0.push((to, datagram.to_vec()));
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, to: LaneIndex, _: MessageClass, kind: u8, _: u64, payload: &[u8]) {
        self.1.push((to, kind, payload.to_vec()));
    }
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}
