//! Virtual nodes and the datagrams between them: delayed, lost and doubled as the seed decides.

use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::handler::Handler;
use crate::simulated::VirtualNode;
use crate::time::{LaneTime, micros};

/// How a virtual network treats datagrams.
#[derive(Clone, Copy, Debug)]
pub struct NetworkConfig {
    /// The shortest way.
    pub delay_min: Duration,
    /// The longest way.
    pub delay_max: Duration,
    /// Of a thousand datagrams, how many are lost.
    pub loss_permille: u32,
    /// Of a thousand datagrams, how many arrive twice.
    pub duplicate_permille: u32,
    /// Everything that is random follows from this.
    pub seed: u64,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_millis(1),
            delay_max: Duration::from_millis(20),
            loss_permille: 0,
            duplicate_permille: 0,
            seed: 0,
        }
    }
}

/// Nodes, and datagrams on their way between them.
pub struct VirtualNetwork<H: Handler> {
    config: NetworkConfig,
    nodes: BTreeMap<SocketAddr, VirtualNode<H>>,
    flying: BinaryHeap<std::cmp::Reverse<Flying>>,
    rng: ChaCha8Rng,
    sent: u64,
    now: LaneTime,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    arrives: LaneTime,
    sequence: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl<H: Handler> std::fmt::Debug for VirtualNetwork<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualNetwork")
            .field("nodes", &self.nodes.len())
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl<H: Handler> VirtualNetwork<H> {
    /// An empty network.
    #[must_use]
    pub fn new(config: NetworkConfig) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(config.seed);
        Self { config, nodes: BTreeMap::new(), flying: BinaryHeap::new(), rng, sent: 0, now: LaneTime(0) }
    }

    /// Puts a node at an address, in place of the one that was there.
    pub fn insert(&mut self, at: SocketAddr, node: VirtualNode<H>) -> Option<VirtualNode<H>> {
        self.nodes.insert(at, node)
    }

    /// Takes a node off the network.
    pub fn remove(&mut self, at: SocketAddr) -> Option<VirtualNode<H>> {
        self.nodes.remove(&at)
    }

    /// The node at an address.
    pub fn node(&mut self, at: SocketAddr) -> Option<&mut VirtualNode<H>> {
        self.nodes.get_mut(&at)
    }

    /// The time of the network.
    #[must_use]
    pub fn now(&self) -> LaneTime {
        self.now
    }

    /// Datagrams sent so far, lost ones included.
    #[must_use]
    pub fn datagrams_sent(&self) -> u64 {
        self.sent
    }

    /// Lets time pass until `until`.
    pub fn run_until(&mut self, until: LaneTime) {
        loop {
            let next_arrival = self.flying.peek().map(|flying| flying.0.arrives);
            let next_wake = self.nodes.values().filter_map(VirtualNode::next_wake).min();
            let step = LaneTime(self.now.0 + 1000);
            let next = [next_arrival, next_wake, Some(step)].into_iter().flatten().min().unwrap_or(step);
            self.now = next.max(self.now).min(until);
            while self.flying.peek().is_some_and(|flying| flying.0.arrives <= self.now) {
                let Some(std::cmp::Reverse(mut flying)) = self.flying.pop() else { break };
                if let Some(node) = self.nodes.get_mut(&flying.to) {
                    node.now = node.now.max(self.now);
                    node.datagram(flying.from, &mut flying.bytes);
                }
            }
            let now = self.now;
            let mut sent = Vec::new();
            for (address, node) in &mut self.nodes {
                node.run_until(now);
                sent.extend(node.take_outgoing().into_iter().map(|(to, bytes)| (*address, to, bytes)));
            }
            for (from, to, bytes) in sent {
                self.fly(from, to, bytes);
            }
            if self.now >= until {
                break;
            }
        }
    }

    fn fly(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.sent += 1;
        let mut copies = 1;
        if self.rng.next_u64() % 1000 < u64::from(self.config.loss_permille) {
            copies = 0;
        } else if self.rng.next_u64() % 1000 < u64::from(self.config.duplicate_permille) {
            copies = 2;
        }
        let spread = micros(self.config.delay_max.saturating_sub(self.config.delay_min)) + 1;
        for _ in 0..copies {
            let delay = micros(self.config.delay_min) + self.rng.next_u64() % spread;
            let arrives = LaneTime(self.now.0 + delay);
            let sequence = self.rng.next_u64();
            self.flying.push(std::cmp::Reverse(Flying { arrives, sequence, from, to, bytes: bytes.clone() }));
        }
    }
}
