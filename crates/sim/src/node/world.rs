//! A few nodes, their callers and their trouble.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tessera_contracts::point::ContentId;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Selector, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::PublicKey;
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Answer, Command, CommandId, Privacy};
use tessera_dht::record::{RecordView, immutable_record};
use tessera_dht::store::records::Class;
use tessera_dht::time::Now;
use tessera_dht_node::simulated;
use tessera_dht_node::simulated::{Asked, Heard, ask, lane_config};
use tessera_lanes::LaneTime;
use tessera_lanes::simulated::{NetworkConfig, VirtualConfig, VirtualNetwork, VirtualNode};
use tessera_lanes::wal::faulty::FaultyDirectory;
use tessera_lanes::wal::{Durability, LogConfig};

use super::broken::{Defect, Lane};
use crate::coordination::dice::Dice;
use crate::dht::{SimCrypto, node_config};

/// The configuration of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Its seed.
    pub seed: u64,
    /// Steps before its trouble stops.
    pub steps: u64,
    /// Kinds of trouble that are switched off.
    pub without: Vec<String>,
}

/// Kinds of trouble.
pub const KINDS: [&str; 7] = ["deaths", "stalls", "resizes", "loans", "power", "loss", "misrouted"];

/// A property that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its name.
    pub property: &'static str,
    /// The observation.
    pub what: String,
}

/// What happened in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Values that a quorum said it holds.
    pub stored: u64,
    /// Lookups that came to an end.
    pub lookups: u64,
    /// Lanes started, beside those a node begins with.
    pub births: u64,
    /// Lanes that died.
    pub deaths: u64,
    /// Changes of the map of slots: of the number of lanes, or by a loan.
    pub changes: u64,
    /// Nodes that lost their power, and came back from their logs.
    pub power_failures: u64,
    /// Values that a node held before and after a change of its lanes in the calm, each counted for each node and change.
    pub kept: u64,
    /// Datagrams sent.
    pub datagrams: u64,
}

impl Report {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            stored: self.stored + other.stored,
            lookups: self.lookups + other.lookups,
            births: self.births + other.births,
            deaths: self.deaths + other.deaths,
            changes: self.changes + other.changes,
            power_failures: self.power_failures + other.power_failures,
            kept: self.kept + other.kept,
            datagrams: self.datagrams + other.datagrams,
        }
    }
}

/// Time zero.
const ZERO: Now = Now { mono_ms: 10_000_000, unix_ms: 1_800_000_000_000 };
const STEP_MS: u64 = 100;
/// Between two questions about the same.
const AGAIN_MS: u64 = 250;
/// Nodes find each other in this time.
const JOINING_MS: u64 = 15_000;
/// After the trouble, all is well again in this time.
const CALM_MS: u64 = 60_000;
/// So long may what is asked in the calm take.
const ANSWER_MS: u64 = 60_000;
/// A change of the number of lanes in the calm ends in this time.
const CHANGE_MS: u64 = 5_000;
const LANES_MAX: u64 = 5;
const TTL_SECS: u32 = 24 * 3_600;

/// How often what happens, in a million steps.
#[derive(Debug)]
struct Rates {
    death: u32,
    stall: u32,
    resize: u32,
    loan: u32,
    power: u32,
}

/// A node, also while its power is off.
struct Home {
    addr: SocketAddr,
    seed: [u8; 32],
    contact: Contact,
    /// Whom it joins by.
    seeds: Vec<Contact>,
    /// Lanes that are down, and when they come back.
    down: BTreeMap<u8, u64>,
    /// Its disk while its power is off, and when it comes back.
    off: Option<(FaultyDirectory, u64)>,
}

/// A caller that waits.
struct Caller {
    home: usize,
    goal: Goal,
    asked: Option<Asked>,
    asks_at: u64,
    /// What it heard last.
    heard: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Put { value: u64, keep_alive: bool },
    Get { value: u64, must_be_there: bool },
}

struct World {
    dice: Dice,
    defect: Defect,
    rates: Rates,
    network: VirtualNetwork<Lane>,
    misroute_permille: u32,
    homes: Vec<Home>,
    /// The time that lanes are made at.
    now: Rc<Cell<LaneTime>>,
    callers: Vec<Caller>,
    commands: u64,
    values: u64,
    stored: Vec<u64>,
    report: Report,
    secret: [u8; 32],
}

/// Runs one world.
pub fn simulate(config: &Config, defect: Defect) -> Result<Report, Violation> {
    let mut world = World::new(config, defect);
    world.pass(JOINING_MS)?;
    for _ in 0..config.steps {
        world.call();
        world.trouble();
        world.pass(STEP_MS)?;
    }
    world.calm_down();
    world.pass(CALM_MS)?;
    world.changes_have_ended()?;
    for lanes in [LANES_MAX as usize, 1, 3] {
        world.move_everything(lanes)?;
    }
    world.ask_for_everything();
    for _ in 0..ANSWER_MS / STEP_MS {
        if !world.callers.is_empty() {
            world.pass(STEP_MS)?;
        }
    }
    if let Some(caller) = world.callers.first() {
        let what =
            format!("{:?} of {} was not done in a calm minute; heard last: {}", caller.goal, caller.home, caller.heard);
        let property = match caller.goal {
            Goal::Put { .. } => "CommandsEnd",
            Goal::Get { .. } => "AcknowledgedIsFound",
        };
        return Err(Violation { property, what });
    }
    world.report.datagrams = world.network.datagrams_sent();
    Ok(world.report)
}

/// The bytes of a value, which are its number's.
fn bytes_of(value: u64) -> Vec<u8> {
    let mut dice = Dice::new(value);
    let length = 8 + dice.below(300) as usize;
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize_with(length, || dice.roll() as u8);
    bytes
}

fn record_of(value: u64) -> Vec<u8> {
    immutable_record(&bytes_of(value), TTL_SECS).expect("a short value")
}

fn id_of(value: u64) -> ContentId {
    RecordView::read(&record_of(value)).expect("it was just written").id()
}

impl World {
    fn new(config: &Config, defect: Defect) -> Self {
        let mut dice = Dice::new(config.seed);
        // Switched off or not, the same is drawn.
        let mut rate = |kind: &str, most: u64| {
            let drawn = if dice.happens(250_000) { 0 } else { dice.between(0, most) as u32 };
            if config.without.iter().any(|without| without == kind) { 0 } else { drawn }
        };
        let rates = Rates {
            death: rate("deaths", 60_000),
            stall: rate("stalls", 40_000),
            resize: rate("resizes", 60_000),
            loan: rate("loans", 60_000),
            power: rate("power", 15_000),
        };
        let network = NetworkConfig { loss_permille: rate("loss", 30), seed: config.seed, ..NetworkConfig::default() };
        let misroute_permille = rate("misrouted", 300);
        let mut secret = [0; 32];
        secret.fill_with(|| dice.roll() as u8);
        let mut world = Self {
            defect,
            rates,
            network: VirtualNetwork::new(network),
            misroute_permille,
            homes: Vec::new(),
            now: Rc::default(),
            callers: Vec::new(),
            commands: 0,
            values: 0,
            stored: Vec::new(),
            report: Report::default(),
            secret,
            dice,
        };
        for number in 0..world.dice.between(5, 9) as u8 {
            world.settle_in(number);
        }
        world
    }

    /// Another node, which joins by the first.
    fn settle_in(&mut self, number: u8) {
        let mut seed = [0; 32];
        seed.fill_with(|| self.dice.roll() as u8);
        // Each in a network of its own, as the rules on addresses would have it.
        let addr = SocketAddr::from(([20 + number, 1, 1, 1], 4_000));
        let contact = Contact { key: PublicKey(seed), addr: Addr::from(addr) };
        let seeds = self.homes.first().map(|home| home.contact).into_iter().collect();
        self.homes.push(Home { addr, seed, contact, seeds, down: BTreeMap::new(), off: None });
        let lanes = self.dice.between(1, LANES_MAX);
        self.switch_on(usize::from(number), FaultyDirectory::default(), lanes);
    }

    fn switch_on(&mut self, home: usize, disk: FaultyDirectory, lanes: u64) {
        let Home { addr, seed, seeds, .. } = &self.homes[home];
        let (addr, seed, seeds, secret) = (*addr, *seed, seeds.clone(), self.secret);
        let log =
            LogConfig { durability: Durability::Group { delay: Duration::from_millis(2) }, ..LogConfig::default() };
        let config =
            VirtualConfig { lanes: lanes as usize, lane: lane_config(), log: Some(log), seed: self.dice.roll() };
        let (clock, mut chances, defect) = (Rc::clone(&self.now), Dice::new(self.dice.roll()), self.defect);
        let make = move |index: LaneIndex| {
            // A lane learns the true map when it starts.
            let map = PrefixMap::new(Selector::default(), usize::from(index.0) + 1).expect("few lanes");
            let mut fresh = [0; 32];
            fresh.fill_with(|| chances.roll() as u8);
            let lane = simulated::lane(ZERO, clock.get(), seeds.clone(), |now| {
                LaneNode::new(node_config(), SimCrypto::new(seed, secret, false), map, index, fresh, now)
            });
            Lane { lane, defect, imported: 0 }
        };
        self.now.set(self.network.now());
        let mut node = VirtualNode::on_disk(config, disk, self.network.now(), make).expect("few lanes");
        node.misroute_permille = self.misroute_permille;
        self.network.insert(addr, node);
    }

    fn now_ms(&self) -> u64 {
        self.network.now().millis()
    }

    /// Lets time pass; callers ask and hear.
    fn pass(&mut self, ms: u64) -> Result<(), Violation> {
        let until = self.now_ms() + ms;
        while self.now_ms() < until {
            self.come_back();
            self.ask();
            self.network.run_until(LaneTime((self.now_ms() + STEP_MS.min(ms)) * 1_000));
            self.now.set(self.network.now());
            self.hear()?;
        }
        Ok(())
    }

    // --- callers

    fn call(&mut self) {
        if self.dice.happens(300_000) && self.callers.len() < 40 {
            let value = self.values;
            self.values += 1;
            let keep_alive = self.dice.happens(500_000);
            self.expect(Goal::Put { value, keep_alive });
        }
        if self.dice.happens(300_000) && !self.stored.is_empty() {
            let value = self.stored[self.dice.below(self.stored.len() as u64) as usize];
            self.expect(Goal::Get { value, must_be_there: false });
        }
    }

    fn expect(&mut self, goal: Goal) {
        let home = self.dice.below(self.homes.len() as u64) as usize;
        self.callers.push(Caller { home, goal, asked: None, asks_at: 0, heard: "nothing".to_owned() });
    }

    fn ask_for_everything(&mut self) {
        for value in self.stored.clone() {
            for _ in 0..3 {
                self.expect(Goal::Get { value, must_be_there: true });
            }
        }
    }

    fn ask(&mut self) {
        let now = self.now_ms();
        for caller in &mut self.callers {
            let home = &self.homes[caller.home];
            let Some(node) = self.network.node(home.addr).filter(|_| caller.asked.is_none() && caller.asks_at <= now)
            else {
                continue;
            };
            let (value, command) = match caller.goal {
                Goal::Put { value, keep_alive } => (value, Command::Put { record: record_of(value), keep_alive }),
                Goal::Get { value, .. } => {
                    (value, Command::Get { id: id_of(value), mutable: false, privacy: Privacy::default() })
                }
            };
            self.commands += 1;
            let lane = node.map().lane(&home.contact.id(), &id_of(value));
            let (command, asked) = ask(CommandId(self.commands), command);
            if node.command(lane, command) {
                caller.asked = Some(asked);
            } else {
                (caller.asks_at, caller.heard) = (now + AGAIN_MS, "no such lane".to_owned());
            }
        }
    }

    fn hear(&mut self) -> Result<(), Violation> {
        let now = self.now_ms();
        let mut waiting = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            let heard = caller.asked.as_mut().map_or(Heard::Nothing, Asked::hear);
            match heard {
                Heard::Nothing => waiting.push(caller),
                Heard::Outcome(outcome) if self.is_done(caller.goal, &outcome.answer)? => {}
                heard => {
                    caller.heard = match heard {
                        Heard::Outcome(outcome) => format!("{:?}", outcome.answer),
                        _ => "that the lane went down".to_owned(),
                    };
                    (caller.asked, caller.asks_at) = (None, now + AGAIN_MS);
                    waiting.push(caller);
                }
            }
        }
        self.callers = waiting;
        Ok(())
    }

    /// Whether a caller has what it wanted.
    fn is_done(&mut self, goal: Goal, answer: &Answer) -> Result<bool, Violation> {
        match (goal, answer) {
            (Goal::Put { value, .. }, Answer::Written(written)) if written.has_quorum() => {
                self.stored.push(value);
                self.report.stored += 1;
                Ok(true)
            }
            (Goal::Get { value, .. }, Answer::Record(record)) => {
                let is_it = RecordView::read(record).is_ok_and(|view| view.value == bytes_of(value).as_slice());
                self.report.lookups += 1;
                if is_it {
                    Ok(true)
                } else {
                    Err(broken("RecordsAreTrue", format!("value {value} came back as another")))
                }
            }
            // Its holders may be down, or changing.
            (Goal::Get { must_be_there, .. }, Answer::NoRecord | Answer::Inconclusive) => {
                self.report.lookups += u64::from(!must_be_there);
                Ok(!must_be_there)
            }
            (_, Answer::Written(_) | Answer::TooBusy | Answer::WrongLane | Answer::NotLogged | Answer::NoRoom) => {
                Ok(false)
            }
            (goal, answer) => Err(broken("AnswersFit", format!("{goal:?} is answered by {answer:?}"))),
        }
    }

    // --- trouble

    fn trouble(&mut self) {
        let (now, at) = (self.now_ms(), self.dice.below(self.homes.len() as u64) as usize);
        let is_any_off = self.homes.iter().any(|home| home.off.is_some());
        let Self { homes, network, dice, rates, report, .. } = self;
        let home = &mut homes[at];
        let Some(node) = network.node(home.addr) else { return };
        let lane = LaneIndex(dice.below(node.map().lanes() as u64) as u8);
        let has_changed = !is_changing(node) && home.down.is_empty();
        if dice.happens(rates.death) && node.handler(lane).is_some() {
            node.kill_lane(lane);
            home.down.insert(lane.0, now + dice.below(2_000));
            report.deaths += 1;
        } else if dice.happens(rates.stall) {
            node.stall_lane(lane, LaneTime((now + dice.between(1, 3_000)) * 1_000));
        } else if dice.happens(rates.resize) && has_changed {
            let (lanes, before) = (dice.between(1, LANES_MAX), node.lanes() as u64);
            node.resize(lanes as usize).expect("few lanes");
            (report.changes, report.births) = (report.changes + 1, report.births + lanes.saturating_sub(before));
        } else if dice.happens(rates.loan) && has_changed {
            if dice.happens(300_000) {
                node.return_all();
            } else {
                node.lend(Slot(dice.roll() as u8), lane).expect("there is such a lane");
            }
            report.changes += 1;
        } else if dice.happens(rates.power) && !is_any_off {
            let comes_back = now + dice.between(0, 5_000);
            let node = network.remove(home.addr).expect("it was just looked at");
            home.off = Some((node.power_failure(), comes_back));
            home.down.clear();
            report.power_failures += 1;
        }
    }

    /// What was down long enough starts again.
    fn come_back(&mut self) {
        let now = self.now_ms();
        for at in 0..self.homes.len() {
            let home = &mut self.homes[at];
            if let Some((disk, _)) = home.off.take_if(|(_, comes_back)| *comes_back <= now) {
                let lanes = self.dice.between(1, LANES_MAX);
                self.switch_on(at, disk, lanes);
            }
            let home = &mut self.homes[at];
            let Some(node) = self.network.node(home.addr) else { continue };
            while let Some((&lane, _)) = home.down.iter().find(|(_, comes_back)| **comes_back <= now) {
                home.down.remove(&lane);
                node.restart_lane(LaneIndex(lane));
                self.report.births += 1;
            }
            node.retire_idle_lanes();
        }
    }

    /// Nothing fails any more, and what is down comes back.
    fn calm_down(&mut self) {
        let now = self.now_ms();
        for home in &mut self.homes {
            home.down.values_mut().for_each(|comes_back| *comes_back = now);
            home.off.iter_mut().for_each(|(_, comes_back)| *comes_back = now);
        }
    }

    /// Lets every node go on with so many lanes. All that a node held it still holds, where its map says.
    fn move_everything(&mut self, lanes: usize) -> Result<(), Violation> {
        let values = self.stored.clone();
        let mut before = Vec::new();
        for home in &self.homes {
            let node = self.network.node(home.addr).expect("every node came back");
            let is_held = |value: &u64| (0..LANES_MAX as u8).any(|lane| holds(node, LaneIndex(lane), *value));
            before.push(values.iter().copied().filter(is_held).collect::<Vec<u64>>());
            node.resize(lanes).expect("few lanes");
        }
        self.report.changes += self.homes.len() as u64;
        self.pass(CHANGE_MS)?;
        self.changes_have_ended()?;
        for (home, before) in self.homes.iter().zip(before) {
            let node = self.network.node(home.addr).expect("every node is there");
            for value in before {
                let owner = node.map().lane(&home.contact.id(), &id_of(value));
                if !holds(node, owner, value) {
                    let what = format!("{} held value {value}; with {lanes} lanes it is not at {owner:?}", home.addr);
                    return Err(broken("HandOversKeepRecords", what));
                }
                self.report.kept += 1;
            }
        }
        Ok(())
    }

    fn changes_have_ended(&mut self) -> Result<(), Violation> {
        for home in &self.homes {
            let node = self.network.node(home.addr).expect("every node came back");
            let (lanes, wanted) = (node.lanes(), node.map().lanes());
            if is_changing(node) || lanes != wanted {
                let what =
                    format!("{} has {lanes} lanes of {wanted}, and hand-overs under way, in the calm", home.addr);
                return Err(broken("ChangesEnd", what));
            }
        }
        Ok(())
    }
}

/// Whether a node's last change has not come to its end.
fn is_changing(node: &VirtualNode<Lane>) -> bool {
    let pending = |lane: u8| node.counters(LaneIndex(lane)).map_or(0, |counters| counters.handoffs_pending.get());
    let is_handing_over = (0..LANES_MAX as u8).any(|lane| pending(lane) > 0);
    is_handing_over || node.lanes() != node.map().lanes()
}

/// Whether a lane holds a value. A copy that it keeps from a lookup may go at any time.
fn holds(node: &VirtualNode<Lane>, lane: LaneIndex, value: u64) -> bool {
    let Some(Lane { lane, .. }) = node.handler(lane) else { return false };
    lane.node().records().peek(&id_of(value)).is_some_and(|kept| kept.class == Class::Held)
}

fn broken(property: &'static str, what: String) -> Violation {
    Violation { property, what }
}
