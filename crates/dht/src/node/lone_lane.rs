//! A lane by itself, for tests that look inside it.

use alloc::vec::Vec;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};

use super::LaneNode;
use super::command::{Answer, CommandId, Outcome};
use super::config::NodeConfig;
use super::context::Context;
use super::operations::{Start, Task};
use super::outbox::{Importance, Logged, MessageClass, Nowhere, Outbox};
use super::peers::Question;
use super::requests::Purpose;
use super::router::Router;
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto as _, Identity, PublicKey};
use crate::lookup::Goal;
use crate::routing::RoutingTable;
use crate::seal::keys::NetworkKey;
use crate::time::Now;
use crate::wire::message::{Cookie, Message};
use tessera_contracts::point::NodeId;

pub(super) const T: Now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };

pub(super) fn lane() -> LaneNode {
    lane_of(1)
}

pub(super) fn lane_of(seed: u8) -> LaneNode {
    lane_among(seed, 0, 1)
}

/// A lane with other settings than the default.
pub(super) fn lane_with(config: NodeConfig) -> LaneNode {
    made(config, 1, 0, 1)
}

/// One of several lanes of a node.
pub(super) fn lane_among(seed: u8, at: u8, lanes: usize) -> LaneNode {
    made(NodeConfig::default(), seed, at, lanes)
}

fn made(config: NodeConfig, seed: u8, at: u8, lanes: usize) -> LaneNode {
    let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), lanes).unwrap();
    LaneNode::new(config, Identity::from_seed(&[seed; 32]), map, LaneIndex(at), [seed; 32], T)
}

/// A peer, in a network of its own.
pub(super) fn contact(n: u8) -> Contact {
    Contact { key: Identity::from_seed(&[n; 32]).public_key(), addr: Addr::v4([10, 0, n, 1], 1) }
}

/// Sent datagrams with their addresses, and messages to other lanes.
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

/// Set-up of one component for tests of another.
impl LaneNode {
    /// Has the lane do something of which only the result and the new state count.
    pub(super) fn act<T>(&mut self, now: Now, act: impl FnOnce(&mut Router, &mut Context<'_>) -> T) -> T {
        self.with(now, &mut Nowhere, act)
    }

    pub(super) fn with<T>(
        &mut self,
        now: Now,
        out: &mut impl Outbox,
        act: impl FnOnce(&mut Router, &mut Context<'_>) -> T,
    ) -> T {
        let (router, mut cx) = self.at(now, out);
        act(router, &mut cx)
    }

    pub(super) fn table_mut(&mut self) -> &mut RoutingTable {
        self.router.peers.members_mut().table_mut()
    }

    /// The lane has been given a peer's cookie.
    pub(super) fn keep_cookie(&mut self, key: &PublicKey, cookie: Cookie) {
        self.router.peers.link_mut().keep_cookie(T, key, cookie);
    }

    pub(super) fn network(&self) -> &NetworkKey {
        self.router.peers.sealer().network()
    }
}

impl Router {
    pub(super) fn request(
        &mut self,
        cx: &mut Context<'_>,
        to: Contact,
        id: NodeId,
        about: &[u8; 32],
        message: &Message<'_>,
        purpose: Purpose,
    ) -> bool {
        self.peers.ask(cx, Question { to, id, about, message: *message, purpose }).is_some()
    }

    pub(super) fn begin_for(
        &mut self,
        cx: &mut Context<'_>,
        task: Task,
        command: Option<CommandId>,
        target: [u8; 32],
        goal: Goal,
    ) -> Option<Answer> {
        self.begin(cx, Start { command, goal, ..Start::unasked(task, target) })
    }
}
