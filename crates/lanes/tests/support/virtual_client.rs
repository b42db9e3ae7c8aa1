//! A client of a ledger on virtual lanes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::simulated::VirtualNode;

use super::{Ledger, Order, slot_of};

/// Raises keys of a virtual ledger and remembers its orders and the answers.
pub struct Client {
    done: Sender<(u64, u64)>,
    answers: Receiver<(u64, u64)>,
    pub acked: BTreeMap<u64, u64>,
    pub asked: BTreeMap<u64, u64>,
    random: u64,
}

impl Client {
    pub fn new(seed: u64) -> Self {
        let (done, answers) = channel();
        Self { done, answers, acked: BTreeMap::new(), asked: BTreeMap::new(), random: seed | 1 }
    }

    pub fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn ask(&mut self, node: &mut VirtualNode<Ledger>, orders: usize) {
        for _ in 0..orders {
            let lane = LaneIndex((self.next() % node.lanes() as u64) as u8);
            self.ask_of(node, lane, 1);
        }
    }

    /// Gives `orders` to one lane.
    pub fn ask_of(&mut self, node: &mut VirtualNode<Ledger>, lane: LaneIndex, orders: usize) {
        for _ in 0..orders {
            let key = self.next() % 2000;
            let version = self.asked.get(&key).copied().unwrap_or(0) + 1;
            self.asked.insert(key, version);
            node.command(lane, Order::Raise { key, version, done: self.done.clone() });
        }
    }

    pub fn collect(&mut self) {
        while let Ok((key, version)) = self.answers.try_recv() {
            let held = self.acked.entry(key).or_insert(version);
            *held = (*held).max(version);
        }
    }

    /// Every answered order is with the owner of its slot, and nothing is there that was not asked for.
    pub fn check(&mut self, node: &VirtualNode<Ledger>, at: &str) {
        self.collect();
        let mut held = BTreeMap::new();
        for lane in 0..node.map().lanes() {
            let lane = LaneIndex(lane as u8);
            let ledger = node.handler(lane).unwrap();
            held.extend(ledger.versions.iter().filter(|(key, _)| node.map().lane_of_slot(slot_of(**key)) == lane));
        }
        for (key, version) in &self.acked {
            let have = held.get(key).copied().unwrap_or(0);
            assert!(have >= *version, "{at}: key {key} was answered at version {version}, its owner has {have}");
        }
        for (key, version) in held {
            assert!(
                self.asked.get(&key).is_some_and(|asked| version <= *asked),
                "{at}: key {key} at {version} was never asked for"
            );
        }
    }
}

/// Lets so many milliseconds pass.
pub fn pass(node: &mut VirtualNode<Ledger>, millis: u64) {
    let until = node.now().after(Duration::from_millis(millis));
    node.run_until(until);
}
