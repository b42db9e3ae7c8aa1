//! What all scenarios share: growing a network, asking it things, and judging the answers.

pub(crate) mod admission;
mod churn;
mod flood;
mod lanes;
pub(crate) mod minority;
mod odd;
mod partition;
mod restart;
mod steady;
mod sweep;
mod sybil;

use std::collections::BTreeMap;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_dht::abuse::AbuseLimits;
use tessera_dht::contact::Contact;
use tessera_dht::lookup::Finish;
use tessera_dht::node::command::{Answer, Command, CommandId, Outcome, Privacy};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::message_kind;
use tessera_dht::record::{MutableDraft, RecordView, immutable_record, mutable_id, mutable_record};
use tessera_dht::seal::SealLimits;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::store::providers::ProviderLimits;
use tessera_dht::store::records::RecordLimits;

use super::Scenario;
use super::checkers::Checkers;
use super::measure::{Findings, cpu_secs, percentile};
use super::world::World;

/// The size and the seed of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) nodes: usize,
    pub(crate) seed: u64,
    pub(crate) real_crypto: bool,
    /// Share of datagrams lost, if not as many as usual.
    pub(crate) loss: Option<f64>,
    /// Share of hostile nodes, where there are any.
    pub(crate) hostile: f64,
    pub(crate) quiet: bool,
}

pub(crate) fn run(scenario: Scenario, setup: &Setup) -> Findings {
    match scenario {
        Scenario::Steady => steady::run(setup),
        Scenario::Churn => churn::run(setup),
        Scenario::Partition => partition::run(setup),
        Scenario::Restart => restart::run(setup),
        Scenario::Sybil => sybil::run(setup),
        Scenario::Sybils => sybil::matrix(setup),
        Scenario::Minority => minority::run(setup),
        Scenario::Matrix => minority::matrix(setup),
        Scenario::Flood => flood::run(setup),
        Scenario::Admission => admission::run(setup),
        Scenario::Lanes => lanes::run(setup),
        Scenario::Sweep => sweep::run(setup),
        Scenario::Odd => odd::run(setup),
    }
}

pub(crate) const NETWORK: &str = "simulated";

/// Share of hostile nodes unless told otherwise.
pub(crate) const HOSTILE: f64 = 0.2;

/// Networks above this size start with filled tables instead of joining one by one.
const JOIN_MAX: usize = 1500;

enum Pending {
    Put(ContentId),
    Get {
        id: ContentId,
        reader: usize,
        mutable: bool,
        sequence_min: u64,
        privacy: Privacy,
    },
    /// A get that ran out of time among islands, where two thirds of every table are out of reach: it spent its two seconds on
    /// silence and says so, which is no claim that there is nothing. It counts as wrong, and is asked once more for the checkers
    /// alone; how many are is printed. In a network that is whole, a lookup that finds nothing has lost the record, whatever
    /// its reason.
    GetAgain {
        id: ContentId,
        reader: usize,
    },
    Providers {
        id: ContentId,
    },
}

/// How a batch of commands went.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) asked: usize,
    pub(crate) right: usize,
    pub(crate) elapsed_ms: Vec<u64>,
    pub(crate) hops: Vec<u64>,
    pub(crate) requests: Vec<u64>,
    pub(crate) put_acknowledged: Vec<u64>,
    pub(crate) put_elapsed_ms: Vec<u64>,
    /// Reads that were told that there is nothing.
    pub(crate) not_found: usize,
    /// The first few that went wrong, in words.
    pub(crate) wrong: Vec<String>,
}

impl Tally {
    pub(crate) fn right_share(&self) -> f64 {
        self.right as f64 / self.asked.max(1) as f64
    }

    pub(crate) fn p(&mut self, share: f64) -> u64 {
        percentile(&mut self.elapsed_ms, share)
    }

    pub(crate) fn mean_hops(&self) -> f64 {
        self.hops.iter().sum::<u64>() as f64 / self.hops.len().max(1) as f64
    }

    pub(crate) fn mean_requests(&self) -> f64 {
        self.requests.iter().sum::<u64>() as f64 / self.requests.len().max(1) as f64
    }
}

/// A world with a purpose.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) checks: Checkers,
    pub(crate) config: NodeConfig,
    pending: BTreeMap<CommandId, Pending>,
    pub(crate) findings: Findings,
    /// Lookups out of time that were asked once more for the checkers.
    pub(crate) asked_again: usize,
    /// When all nodes were last looked at.
    surveyed_ms: u64,
    quiet: bool,
    started: std::time::Instant,
    cpu_started: Option<f64>,
}

impl Stage {
    pub(crate) fn new(setup: &Setup, name: &str, title: String) -> Self {
        let real = if setup.real_crypto { " --real-crypto" } else { "" };
        let loss = setup.loss.map_or(String::new(), |loss| format!(" --loss {loss}"));
        let hostile = if setup.hostile == HOSTILE { String::new() } else { format!(" --hostile {}", setup.hostile) };
        let replay = format!(
            "cargo run --release -p tessera-sim -- dht --nodes {} --scenario {name} --seed {}{real}{loss}{hostile}",
            setup.nodes, setup.seed
        );
        let mut world = World::new(setup.seed, setup.real_crypto);
        world.weather.loss = setup.loss.unwrap_or(world.weather.loss);
        Self {
            world,
            checks: Checkers::default(),
            config: node_config(),
            pending: BTreeMap::new(),
            findings: Findings { title, replay, figures: Vec::new(), violations: Vec::new(), checks: 0 },
            asked_again: 0,
            surveyed_ms: 0,
            quiet: setup.quiet,
            started: std::time::Instant::now(),
            cpu_started: cpu_secs(),
        }
    }

    pub(crate) fn say(&self, what: &str) {
        if !self.quiet {
            let virtual_secs = self.world.elapsed_ms() / 1000;
            eprintln!("[{:>6.1} s, virtual {virtual_secs:>5} s] {what}", self.started.elapsed().as_secs_f64());
        }
    }

    /// Lets nodes join, a few at a time; one in ten is behind a NAT, half of those without knowing it.
    pub(crate) fn grow(&mut self, count: usize) {
        let warm = count > JOIN_MAX;
        for i in 0..count {
            let natted = i > 20 && i % 10 == 3;
            let config = NodeConfig { client: natted && i % 20 == 3, ..self.config.clone() };
            let seeds: Vec<Contact> = (0..3).filter_map(|_| self.some_contact()).collect();
            self.world.add_node(&config, 1, natted, if warm { &[] } else { &seeds });
            if !warm {
                self.world.run_for(if i < 50 { 500 } else { 30 });
            }
            if i % 1000 == 999 {
                self.say(&format!("{} of {count} nodes", i + 1));
            }
        }
        if warm {
            self.fill_tables();
        }
    }

    fn some_contact(&mut self) -> Option<Contact> {
        if self.world.nodes.is_empty() { None } else { self.world.random_contact() }
    }

    /// Gives every node the table it would have after a long life: up to K random nodes per bucket.
    fn fill_tables(&mut self) {
        let mut sorted: Vec<(NodeId, usize)> =
            self.world.nodes.iter().enumerate().filter(|(_, n)| !n.is_natted()).map(|(at, n)| (n.id, at)).collect();
        sorted.sort();
        let now = self.world.now();
        for at in 0..self.world.nodes.len() {
            let own = *self.world.nodes[at].id.as_bytes();
            for bucket in 0..40_usize {
                let (mut low, mut high) = (own, own);
                low[bucket / 8] ^= 0x80 >> (bucket % 8);
                high[bucket / 8] ^= 0x80 >> (bucket % 8);
                for bit in bucket + 1..256 {
                    low[bit / 8] &= !(0x80 >> (bit % 8));
                    high[bit / 8] |= 0x80 >> (bit % 8);
                }
                let from = sorted.partition_point(|(id, _)| *id.as_bytes() < low);
                let to = sorted.partition_point(|(id, _)| *id.as_bytes() <= high);
                if from == to {
                    continue;
                }
                let mut chosen: Vec<usize> = (from..to).collect();
                while chosen.len() > 20 {
                    let pick = self.world.pick(chosen.len());
                    chosen.swap_remove(pick);
                }
                for i in chosen {
                    let mut payload = [0xff; 54];
                    payload[..50].copy_from_slice(&self.world.nodes[sorted[i].1].contact.to_wire());
                    self.world.call(at, 0, |node, out| node.on_message(now, message_kind::CONTACT, &payload, out));
                }
            }
        }
        self.say("tables are filled");
    }

    /// Lets time pass, in steps, collecting what completes into `tally`.
    pub(crate) fn wait(&mut self, ms: u64, tally: &mut Tally) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(1000);
            self.world.run_for(step);
            self.collect(tally);
            self.survey();
            left -= step;
        }
    }

    /// Waits until every command has completed, but not longer than `ms_max`.
    pub(crate) fn wait_all(&mut self, ms_max: u64, tally: &mut Tally) {
        let mut left = ms_max;
        while left > 0 && !self.pending.is_empty() {
            let step = left.min(250);
            self.world.run_for(step);
            self.collect(tally);
            self.survey();
            left -= step;
        }
    }

    /// Looks at every node once a second: what was above its bound in between is not seen at the end.
    fn survey(&mut self) {
        if self.world.elapsed_ms() - self.surveyed_ms >= 1000 {
            self.surveyed_ms = self.world.elapsed_ms();
            self.checks.survey(&self.world);
        }
    }

    fn collect(&mut self, tally: &mut Tally) {
        for completed in std::mem::take(&mut self.world.completed) {
            let Some(pending) = self.pending.remove(&completed.command) else { continue };
            let stats = completed.outcome.stats;
            tally.asked += usize::from(!matches!(pending, Pending::GetAgain { .. }));
            match pending {
                Pending::Put(id) => {
                    self.checks.put_done(&self.world, &id, &completed);
                    if let Answer::Written(written) = &completed.outcome.answer {
                        tally.put_acknowledged.push(u64::from(written.acknowledged));
                        tally.put_elapsed_ms.push(stats.elapsed_ms);
                        if written.has_quorum() {
                            tally.right += 1;
                            continue;
                        }
                    }
                    note_wrong(tally, "put", &completed.outcome);
                }
                Pending::Get { id, reader, mutable, sequence_min, privacy } => {
                    self.checks.get_done(&self.world, NETWORK, &id, &completed);
                    // What was answered from the reader's own store is no lookup.
                    if completed.outcome.finish.is_some() {
                        tally.elapsed_ms.push(stats.elapsed_ms);
                        tally.hops.push(u64::from(stats.hops));
                        tally.requests.push(u64::from(stats.requests));
                    }
                    match &completed.outcome.answer {
                        Answer::Record(bytes)
                            if RecordView::read(bytes).is_ok_and(|view| view.sequence() >= sequence_min) =>
                        {
                            tally.right += 1;
                        }
                        answer => {
                            tally.not_found += usize::from(matches!(answer, Answer::NoRecord));
                            if matches!(answer, Answer::NoRecord) && self.world.nodes[reader].is_alive() {
                                let out_of_time = completed.outcome.finish == Some(Finish::OutOfTime);
                                if out_of_time && self.world.partitioned {
                                    self.asked_again += 1;
                                    let command = Command::Get { id, mutable, privacy };
                                    let command = self.world.command(reader, Some(id.as_bytes()), command);
                                    self.pending.insert(command, Pending::GetAgain { id, reader });
                                } else {
                                    self.checks.get_missed(&self.world, &id, reader);
                                }
                            }
                            note_wrong(tally, "get", &completed.outcome);
                        }
                    }
                }
                Pending::GetAgain { id, reader } => {
                    self.checks.get_done(&self.world, NETWORK, &id, &completed);
                    if matches!(completed.outcome.answer, Answer::NoRecord) && self.world.nodes[reader].is_alive() {
                        self.checks.get_missed(&self.world, &id, reader);
                    }
                }
                Pending::Providers { id } => {
                    self.checks.get_done(&self.world, NETWORK, &id, &completed);
                    tally.elapsed_ms.push(stats.elapsed_ms);
                    tally.hops.push(u64::from(stats.hops));
                    tally.requests.push(u64::from(stats.requests));
                    if matches!(&completed.outcome.answer, Answer::Providers(found) if !found.is_empty()) {
                        tally.right += 1;
                    } else {
                        note_wrong(tally, "providers", &completed.outcome);
                    }
                }
            }
        }
    }

    /// Puts a small immutable value from a node and returns its id.
    pub(crate) fn put_immutable(&mut self, from: usize, text: &str) -> ContentId {
        let record = immutable_record(text.as_bytes(), 24 * 3600).expect("a short value");
        let id = ContentId::of_immutable(text.as_bytes());
        let command = self.world.command(from, Some(id.as_bytes()), Command::Put { record, keep_alive: false });
        self.pending.insert(command, Pending::Put(id));
        id
    }

    /// The record a node signs under a salt.
    pub(crate) fn mutable(&self, owner: usize, salt: u64, sequence: u64) -> Vec<u8> {
        let crypto = self.world.crypto(self.world.nodes[owner].seed);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&salt.to_le_bytes());
        let value = format!("version {sequence}");
        let draft = MutableDraft {
            salt: bytes,
            sequence,
            issued_secs: self.world.now().unix_secs(),
            ttl_secs: 24 * 3600,
            value: Some(value.as_bytes()),
        };
        mutable_record(&draft, &crypto, &NetworkKey::of_name(NETWORK)).expect("a short value")
    }

    /// Puts a mutable record of a node and returns its id.
    pub(crate) fn put_mutable(&mut self, owner: usize, salt: u64, sequence: u64) -> ContentId {
        self.put_mutable_from(owner, owner, salt, sequence)
    }

    /// The same from another node that has the owner's key.
    pub(crate) fn put_mutable_from(&mut self, from: usize, owner: usize, salt: u64, sequence: u64) -> ContentId {
        let record = self.mutable(owner, salt, sequence);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&salt.to_le_bytes());
        let id = mutable_id(&self.world.key(owner), &bytes);
        let command = self.world.command(from, Some(id.as_bytes()), Command::Put { record, keep_alive: false });
        self.pending.insert(command, Pending::Put(id));
        id
    }

    /// Asks a node for a record; a mutable one counts as right from `sequence_min` on.
    pub(crate) fn get(&mut self, reader: usize, id: &ContentId, mutable: bool, sequence_min: u64) {
        self.get_privately(reader, id, mutable, sequence_min, Privacy::None);
    }

    pub(crate) fn get_privately(
        &mut self,
        reader: usize,
        id: &ContentId,
        mutable: bool,
        sequence_min: u64,
        privacy: Privacy,
    ) {
        let command = Command::Get { id: *id, mutable, privacy };
        let command = self.world.command(reader, Some(id.as_bytes()), command);
        self.pending.insert(command, Pending::Get { id: *id, reader, mutable, sequence_min, privacy });
    }

    pub(crate) fn find_providers(&mut self, reader: usize, id: &ContentId, limit: usize) {
        let command = self.world.command(reader, Some(id.as_bytes()), Command::FindProviders { id: *id, limit });
        self.pending.insert(command, Pending::Providers { id: *id });
    }

    /// Ends the run: the last survey, and the checkers' verdicts.
    pub(crate) fn finish(mut self) -> Findings {
        self.checks.survey(&self.world);
        self.findings.violations = self.checks.violations;
        self.findings.checks = self.checks.checks;
        let datagrams = self.world.datagrams;
        self.findings.note("virtual time", format!("{} s", self.world.elapsed_ms() / 1000));
        let wall = format!("{:.0} s of real time", self.started.elapsed().as_secs_f64());
        let cost = match (self.cpu_started, cpu_secs()) {
            (Some(before), Some(now)) => format!("{:.0} s of processor time, {wall}", now - before),
            _ => wall,
        };
        self.findings.note("datagrams", format!("{datagrams} in {cost}"));
        self.findings
    }
}

fn note_wrong(tally: &mut Tally, what: &str, outcome: &Outcome) {
    if tally.wrong.len() < 5 {
        let answer = match &outcome.answer {
            Answer::Record(bytes) => format!("a record of {} bytes", bytes.len()),
            other => format!("{other:?}"),
        };
        tally.wrong.push(format!("{what}: {answer}, ended by {:?}, {:?}", outcome.finish, outcome.stats));
    }
}

/// The shipped configuration with smaller bounds, so that ten thousand nodes fit one machine, and livelier upkeep.
pub(crate) fn node_config() -> NodeConfig {
    let shipped = NodeConfig::default();
    NodeConfig {
        network: NETWORK.into(),
        seal: SealLimits { agreements_max: 512, streams_max: 512, ..SealLimits::default() },
        table: tessera_dht::routing::TableLimits { peers_max: 400, ..shipped.table },
        records: RecordLimits {
            records_max: 1024,
            bytes_max: 256 << 10,
            bytes_per_giver_max: 128 << 10,
            ..shipped.records
        },
        providers: ProviderLimits { entries_max: 8192, per_id_max: 64, per_provider_max: 8192 },
        abuse: AbuseLimits { remembered_max: 256, ..AbuseLimits::default() },
        operations_max: 32,
        requests_max: 256,
        sequences_max: 256,
        ..shipped
    }
}
