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

pub(crate) const QUORUM_DURABLE: &str = "QuorumDurable";
pub(crate) const BOUNDS_HOLD: &str = "BoundsHold";

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
        // A few of each are enough, and many of one must not hide another.
        if self.violations.iter().filter(|violation| violation.property == property).count() < 5 {
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
            self.violated(QUORUM_DURABLE, what);
        }
    }

    fn judge_bounds(&mut self, at: usize, lane: usize, bounds: impl Iterator<Item = (&'static str, usize, usize)>) {
        for (what, used, most) in bounds {
            if used > most {
                self.violated(BOUNDS_HOLD, format!("node {at} lane {lane}: {what} {used} above {most}"));
            }
        }
    }

    /// Looks at every node and every watched address.
    pub(crate) fn survey(&mut self, world: &World) {
        self.checks += 1;
        for at in world.honest() {
            for (lane, slot) in world.nodes[at].lanes().iter().enumerate() {
                self.judge_bounds(at, lane, world.bounds(at, lane));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dht::scenario::{NETWORK, node_config};
    use crate::dht::world::Traffic;
    use tessera_dht::addr::Addr;
    use tessera_dht::lookup::Standing;
    use tessera_dht::node::command::{Asked, CommandId, Outcome, Written};
    use tessera_dht::record::{MutableDraft, immutable_record, mutable_id, mutable_record};

    /// A world of ten nodes that know nobody.
    fn world() -> World {
        let mut world = World::new(1, false);
        for _ in 0..10 {
            world.add_node(&node_config(), 1, false, &[]);
        }
        world
    }

    fn completed(answer: Answer) -> Completed {
        Completed { node: 0, command: CommandId(1), outcome: Outcome::local(answer) }
    }

    fn broken(checks: &Checkers) -> Vec<&'static str> {
        checks.violations.iter().map(|violation| violation.property).collect()
    }

    #[test]
    fn a_record_of_another_id_is_seen() {
        let (world, mut checks) = (world(), Checkers::default());
        let record = immutable_record(b"one", 60).expect("short");
        let answer = || completed(Answer::Record(record.clone()));
        checks.get_done(&world, NETWORK, &ContentId::of_immutable(b"one"), &answer());
        assert_eq!(broken(&checks), [""; 0]);
        checks.get_done(&world, NETWORK, &ContentId::of_immutable(b"two"), &answer());
        assert_eq!(broken(&checks), ["RecordsValid"]);
    }

    #[test]
    fn a_sequence_that_goes_back_is_seen_at_the_same_reader_only() {
        let (world, mut checks) = (world(), Checkers::default());
        let crypto = world.crypto(world.nodes[3].seed);
        let id = mutable_id(&world.key(3), &[0; 32]);
        let mut read = |reader, sequence| {
            let issued_secs = world.now().unix_secs();
            let draft = MutableDraft { salt: [0; 32], sequence, issued_secs, ttl_secs: 60, value: Some(b"v") };
            let record = mutable_record(&draft, &crypto, &NetworkKey::of_name(NETWORK)).expect("short");
            let completed = Completed { node: reader, ..completed(Answer::Record(record)) };
            checks.get_done(&world, NETWORK, &id, &completed);
            broken(&checks)
        };
        assert_eq!(read(1, 2), [""; 0]);
        assert_eq!(read(2, 1), [""; 0], "another reader may be behind");
        assert_eq!(read(1, 2), [""; 0]);
        assert_eq!(read(1, 1), ["SequenceMonotonic"]);
    }

    #[test]
    fn a_lost_record_is_seen_while_a_quorum_of_its_holders_lives_and_not_after() {
        let (mut world, mut checks) = (world(), Checkers::default());
        let id = ContentId::of_immutable(b"held");
        let asked = |at: usize| Asked {
            id: world.nodes[at].id,
            addr: world.nodes[at].contact.addr,
            standing: Standing::Answered,
            hops: 1,
            useful: true,
            via: None,
            asked_after_ms: 0,
            took_ms: None,
        };
        let holders = (1..4).map(asked).collect();
        let written = Written { holders: 3, acknowledged: 3, ..Written::default() };
        let outcome = Outcome { asked: holders, ..Outcome::local(Answer::Written(written)) };
        checks.put_done(&world, &id, &Completed { node: 0, command: CommandId(1), outcome });
        world.kill(1);
        checks.get_missed(&world, &id, 9);
        assert_eq!(broken(&checks), ["QuorumDurable"]);
        world.kill(2);
        checks.get_missed(&world, &id, 9);
        assert_eq!(broken(&checks), ["QuorumDurable"], "one of three is no quorum");
    }

    #[test]
    fn more_bytes_than_came_are_seen() {
        let (mut world, mut checks) = (world(), Checkers::default());
        let victim = (0, Addr::v4([9, 9, 9, 9], 9));
        world.spoofed.insert(victim, Traffic { claimed_bytes: 100, answered_bytes: 100 });
        checks.survey(&world);
        assert_eq!(broken(&checks), [""; 0]);
        world.spoofed.insert(victim, Traffic { claimed_bytes: 100, answered_bytes: 101 });
        checks.survey(&world);
        assert_eq!(broken(&checks), ["NoAmplification"]);
    }

    #[test]
    fn a_table_above_its_bound_is_seen() {
        let mut checks = Checkers::default();
        checks.judge_bounds(0, 0, [("full", 5, 5)].into_iter());
        assert_eq!(broken(&checks), [""; 0]);
        checks.judge_bounds(0, 0, [("full", 5, 5), ("overfull", 6, 5)].into_iter());
        assert_eq!(broken(&checks), ["BoundsHold"]);
    }
}
