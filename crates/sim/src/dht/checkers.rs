//! One checker per property. They watch what comes out of the nodes and know what went in.
//!
//! - `RecordsValid`: no record or provider is returned that does not hold for its id.
//! - `NoAmplification`: an address that proved nothing is sent no more bytes than came in its name.
//! - `BoundsHold`: no table, cache or queue is ever above its bound.
//! - `SequenceMonotonic`: one reader never sees a mutable record's sequence go back.
//! - `QuorumDurable`: what a quorum acknowledged is found while a quorum of those holders lives.

use std::collections::BTreeMap;

use tessera_contracts::point::{ContentId, NodeId};
use tessera_dht::node::command::Answer;
use tessera_dht::record::{RecordView, check_provider};
use tessera_dht::seal::keys::NetworkKey;

use super::world::{Completed, World};

/// A property that did not hold.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) property: &'static str,
    pub(crate) what: String,
}

#[derive(Default)]
pub(crate) struct Checkers {
    pub(crate) violations: Vec<Violation>,
    /// Highest sequence returned, by reader and id.
    sequences: BTreeMap<(usize, ContentId), u64>,
    /// Who acknowledged an id's newest put.
    acknowledged: BTreeMap<ContentId, Vec<NodeId>>,
    pub(crate) checks: u64,
    /// Set while a healed network has yet to find itself: "lives" means nothing for who cannot be reached.
    pub(crate) healing: bool,
}

impl Checkers {
    fn violated(&mut self, property: &'static str, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(Violation { property, what });
        }
    }

    /// A put of `id` has completed.
    pub(crate) fn put_done(&mut self, world: &World, id: &ContentId, completed: &Completed) {
        self.checks += 1;
        if let Answer::Written(written) = &completed.outcome.answer
            && written.has_quorum()
        {
            let holders = completed.outcome.asked.iter().filter(|asked| asked.useful).map(|asked| asked.id);
            // Acknowledgements of hostile nodes are worth nothing: the property speaks of honest holders.
            let honest = holders.filter(|id| world.node_of(id).is_some_and(|at| world.nodes[at].is_honest()));
            self.acknowledged.insert(*id, honest.collect());
        }
    }

    /// A get of `id` has completed.
    pub(crate) fn get_done(&mut self, world: &World, network: &str, id: &ContentId, completed: &Completed) {
        self.checks += 1;
        let crypto = world.crypto([0; 32]);
        let network = NetworkKey::of_name(network);
        let secs = world.now().unix_secs();
        match &completed.outcome.answer {
            Answer::Record(bytes) => {
                let valid = RecordView::read(bytes).is_ok_and(|view| view.check(id, &crypto, &network, secs).is_ok());
                if !valid {
                    self.violated(
                        "RecordsValid",
                        format!("node {} returned an invalid record for {id}", completed.node),
                    );
                }
                let sequence = RecordView::read(bytes).map_or(0, |view| view.sequence());
                let seen = self.sequences.entry((completed.node, *id)).or_insert(sequence);
                if sequence < *seen {
                    let what = format!("node {} went back from {seen} to {sequence} for {id}", completed.node);
                    self.violated("SequenceMonotonic", what);
                } else {
                    *seen = sequence;
                }
            }
            Answer::Providers(providers)
                if providers.iter().any(|provider| check_provider(provider, id, &crypto, &network, secs).is_err()) =>
            {
                self.violated("RecordsValid", format!("node {} returned an invalid provider of {id}", completed.node));
            }
            _ => {}
        }
    }

    /// A get of `id` found nothing. Fair only if too few of its holders live, and can be reached by the reader.
    pub(crate) fn get_missed(&mut self, world: &World, id: &ContentId, reader: usize) {
        let Some(holders) = self.acknowledged.get(id).filter(|_| !self.healing) else { return };
        let island = world.nodes[reader].island;
        let alive = holders.iter().filter(|holder| {
            world.node_of(holder).is_some_and(|at| {
                world.nodes[at].is_alive() && (!world.partitioned || world.nodes[at].island == island)
            })
        });
        let alive = alive.count();
        if alive * 2 > holders.len() {
            let what = format!("{id} not found by node {reader} though {alive} of {} holders live", holders.len());
            self.violated("QuorumDurable", what);
        }
    }

    /// Looks at every node and every watched address.
    pub(crate) fn survey(&mut self, world: &World) {
        self.checks += 1;
        for at in world.honest() {
            for (lane, slot) in world.nodes[at].lanes().iter().enumerate() {
                for (what, seen, max) in slot.node.bounds() {
                    if seen > max {
                        self.violated("BoundsHold", format!("node {at} lane {lane}: {what} {seen} above {max}"));
                    }
                }
                let over = slot.node.counters().amplified_bytes;
                if over > 0 {
                    self.violated("NoAmplification", format!("node {at} lane {lane} sent {over} bytes too many"));
                }
            }
        }
        for ((at, addr), traffic) in &world.spoofed {
            if traffic.answered_bytes > traffic.claimed_bytes {
                let what = format!(
                    "node {at} sent {} bytes to {addr}, in whose name {} came",
                    traffic.answered_bytes, traffic.claimed_bytes
                );
                self.violated("NoAmplification", what);
            }
        }
    }
}
