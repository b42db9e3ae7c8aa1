//! A minority that steers lookups: what it does, what each defence against it is worth, and how much of it is withstood.
//!
//! Attackers are there before what they attack is stored, and answer like anybody else in all but one respect. *Uniform* ones are a share of
//! all nodes, with ids as they come. *Targeted* ones have ground ids nearer to the target than any honest node. Each lives in a network (/24) of
//! its own, which is the worst case: what limits by address prefix bring is measured by the scenario `sybil`. Each has met the nodes around its
//! target and as many at random.

use std::cell::RefCell;
use std::rc::Rc;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, PublicKey};
use tessera_dht::lookup::FRONTIER_MAX;
use tessera_dht::node::config::NodeConfig;

use super::admission::{say_good_bye_for_contacts, stranger};
use super::sybil::{knock, nearest_honest};
use super::{NETWORK, Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};
use crate::dht::sybil::{Conduct, Ring, Sybil};

/// Honest nodes that each attacker introduces itself to besides its neighbours.
const DOORS_ANYWHERE: usize = 20;

/// Made-up contacts around each target.
const MADE_UP: usize = 200;

const READS: usize = 150;

/// So many ids near a target are no crowd.
const NEAR_BY_CHANCE: usize = 6;

/// Strangers that knock at each holder between two reads.
const KNOCKS: usize = 20;

/// Who attacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Crowd {
    /// A share of all nodes.
    Uniform(f64),
    /// So many ground ids around each target, nearer than any honest node.
    Targeted(usize),
    /// So many ground ids in the region of each target, of which no more are near than may be there by chance.
    Spread(usize),
}

impl Crowd {
    fn says(self) -> String {
        match self {
            Self::Uniform(share) => format!("{:.0} % of all nodes", share * 100.0),
            Self::Targeted(count) => format!("{count} ground ids around each target"),
            Self::Spread(count) => format!("{count} ground ids all over the region of each target"),
        }
    }
}

/// An attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) crowd: Crowd,
    pub(crate) conduct: Conduct,
    /// They behave until what they attack is stored.
    pub(crate) lies_late: bool,
    /// Strangers knock at the holders all the time, and forged good-byes come in the name of their contacts.
    pub(crate) floods: bool,
}

impl Attack {
    /// One of those that leave least to the honest nodes.
    #[cfg(test)]
    pub(crate) fn is_hard(&self) -> bool {
        self.floods || matches!(self.crowd, Crowd::Spread(_)) || self.crowd == Crowd::Targeted(40)
    }
}

const FORGES: Conduct = Conduct { behaves: false, names_made_up: false, denies: false, is_silent_about_values: false };
const DENIES: Conduct = Conduct { denies: true, ..FORGES };
const MAKES_UP: Conduct = Conduct { names_made_up: true, ..FORGES };
const SILENT: Conduct = Conduct { is_silent_about_values: true, ..FORGES };
const ALL: Conduct = Conduct { names_made_up: true, is_silent_about_values: true, ..FORGES };

const fn attack(name: &'static str, crowd: Crowd, conduct: Conduct) -> Attack {
    Attack { name, crowd, conduct, lies_late: false, floods: false }
}

const fn late(name: &'static str, crowd: Crowd, conduct: Conduct) -> Attack {
    Attack { lies_late: true, ..attack(name, crowd, conduct) }
}

const fn everything(crowd: Crowd) -> Attack {
    Attack {
        floods: true,
        ..late("late lies, made-up contacts, silence, floods and forged good-byes at once", crowd, ALL)
    }
}

/// Attacks of the report.
pub(crate) const ATTACKS: [Attack; 20] = [
    attack("forgeries and lies", Crowd::Uniform(0.05), FORGES),
    attack("forgeries and lies", Crowd::Uniform(0.1), FORGES),
    attack("forgeries and lies", Crowd::Uniform(0.2), FORGES),
    attack("forgeries and lies", Crowd::Uniform(0.3), FORGES),
    attack("made-up contacts", Crowd::Uniform(0.2), MAKES_UP),
    attack("made-up contacts and silence", Crowd::Uniform(0.3), ALL),
    late("late lies, forgeries", Crowd::Uniform(0.3), FORGES),
    attack("made-up contacts", Crowd::Targeted(12), MAKES_UP),
    attack("selective silence", Crowd::Targeted(20), SILENT),
    attack("made-up contacts", Crowd::Targeted(20), MAKES_UP),
    late("late lies, made-up contacts", Crowd::Targeted(20), ALL),
    attack("made-up contacts", Crowd::Targeted(40), MAKES_UP),
    attack("made-up contacts and silence", Crowd::Targeted(40), ALL),
    attack("denials", Crowd::Targeted(12), DENIES),
    attack("denials", Crowd::Targeted(20), DENIES),
    attack("denials", Crowd::Targeted(40), DENIES),
    attack("denials", Crowd::Spread(20), DENIES),
    attack("denials", Crowd::Spread(40), DENIES),
    everything(Crowd::Uniform(0.2)),
    everything(Crowd::Targeted(20)),
];

/// What came of an attack.
#[derive(Debug, Default)]
pub(crate) struct Fought {
    pub(crate) immutable: Tally,
    pub(crate) mutable: Tally,
    /// Of the twenty honest nodes nearest to each target, those that hold it: the fewer.
    pub(crate) held: usize,
    pub(crate) puts: Tally,
}

impl Fought {
    /// The share of reads that was right, of the two kinds together.
    pub(crate) fn right_share(&self) -> f64 {
        let (right, asked) = (self.immutable.right + self.mutable.right, self.immutable.asked + self.mutable.asked);
        right as f64 / asked.max(1) as f64
    }

    pub(crate) fn false_not_found(&self) -> usize {
        self.immutable.not_found + self.mutable.not_found
    }

    pub(crate) fn says(&self) -> String {
        let Self { immutable, mutable, held, .. } = self;
        format!(
            "{} immutable and {} mutable right, {} false *not found*, {held} of 20 hold it, {:.1} and {:.1} requests",
            percent(immutable.right, immutable.asked),
            percent(mutable.right, mutable.asked),
            self.false_not_found(),
            immutable.mean_requests(),
            mutable.mean_requests()
        )
    }

    fn is_held(&self, crowd: Crowd) -> bool {
        let (immutable, mutable) = (self.immutable.right_share(), self.mutable.right_share());
        match crowd {
            Crowd::Uniform(share) if share <= 0.2 => immutable >= 0.99 && mutable >= 0.97,
            Crowd::Targeted(count) | Crowd::Spread(count) if count > 20 => self.false_not_found() == 0,
            _ => immutable >= 0.95 && mutable >= 0.95,
        }
    }
}

fn aim(crowd: Crowd) -> &'static str {
    match crowd {
        Crowd::Uniform(share) if share <= 0.2 => "≥ 99 % and ≥ 97 % right",
        Crowd::Targeted(count) | Crowd::Spread(count) if count > 20 => "no false *not found*",
        _ => "≥ 95 % right",
    }
}

pub(super) fn run(setup: &Setup) -> Findings {
    let mut findings = Stage::new(setup, "minority", format!("A minority among {} nodes", setup.nodes)).finish();
    findings.figures.clear();
    for attack in ATTACKS {
        let fought = fight(setup, &attack, |_| {});
        let says = fought.says();
        findings.aim(
            &format!("{}: {}", attack.crowd.says(), attack.name),
            says,
            aim(attack.crowd),
            fought.is_held(attack.crowd),
        );
    }
    for defence in DEFENCES {
        let fought = fight(setup, &defence.attack, defence.off);
        let Defence { name, attack, holds, .. } = defence;
        let verdict = if holds(&fought) { "withstood all the same" } else { "the attack succeeds" };
        let name = format!("{}: {}, without {name}", attack.crowd.says(), attack.name);
        findings.note(&name, format!("{verdict}: {}", fought.says()));
    }
    findings
}

/// Every switch of the lookups' defences against the attacks that tell them apart.
pub(super) fn matrix(setup: &Setup) -> Findings {
    let title = format!("A minority among {} nodes: what each defence of lookups is worth", setup.nodes);
    let mut findings = Stage::new(setup, "matrix", title).finish();
    findings.figures.clear();
    for attack in MATRIX {
        let attacked = format!("{}: {}", attack.crowd.says(), attack.name);
        findings.note(&attacked, fight(setup, &attack, |_| {}).says());
        for (name, off) in SWITCHES {
            findings.note(&format!("the same without {name}"), fight(setup, &attack, off).says());
        }
    }
    findings
}

/// Switches a defence off.
type Switch = fn(&mut NodeConfig);

/// The switches, each by itself and all at once.
const SWITCHES: [(&str, Switch); 6] = [
    ("silent candidates first", |config| config.lookup.evict_silent_first = false),
    ("shares of namers", |config| config.lookup.per_namer_max = FRONTIER_MAX),
    ("doubt about namers", |config| config.lookup.doubt_namers = false),
    ("the region as the holders", |config| config.lookup.widen = false),
    ("another walk by way of the region", |config| config.lookup.retry_by_region = false),
    ("any of these", all_off),
];

fn all_off(config: &mut NodeConfig) {
    config.lookup.evict_silent_first = false;
    config.lookup.per_namer_max = FRONTIER_MAX;
    config.lookup.doubt_namers = false;
    config.lookup.widen = false;
    config.lookup.retry_by_region = false;
}

/// The attacks of the matrix.
const MATRIX: [Attack; 7] = [
    attack("made-up contacts and silence", Crowd::Uniform(0.3), ALL),
    attack("made-up contacts", Crowd::Targeted(12), MAKES_UP),
    attack("made-up contacts", Crowd::Targeted(20), MAKES_UP),
    late("late lies, made-up contacts", Crowd::Targeted(20), ALL),
    attack("made-up contacts and silence", Crowd::Targeted(40), ALL),
    attack("denials", Crowd::Targeted(40), DENIES),
    attack("denials", Crowd::Spread(40), DENIES),
];

/// Grows a network with attackers in it, stores a record of each kind, and reads them.
pub(crate) fn fight(setup: &Setup, attack: &Attack, configure: fn(&mut NodeConfig)) -> Fought {
    let mut stage = Stage::new(setup, "minority", String::new());
    // Every read is to meet the attack: copies that earlier readers keep, or give to others, would answer most of them.
    (stage.config.cache_ttl_secs, stage.config.cache_hints) = (1, false);
    configure(&mut stage.config);
    let honest = match attack.crowd {
        Crowd::Uniform(share) => setup.nodes - (setup.nodes as f64 * share).round() as usize,
        Crowd::Targeted(_) | Crowd::Spread(_) => setup.nodes,
    };
    stage.grow(honest);
    let mut ignored = Tally::default();
    stage.wait(30_000, &mut ignored);
    let owner = stage.world.random_honest();
    let text = format!("target of {}", setup.seed);
    let targets =
        [ContentId::of_immutable(text.as_bytes()), tessera_dht::record::mutable_id(&stage.world.key(owner), &[0; 32])];

    let ring = Rc::new(RefCell::new(Ring { conduct: attack.conduct, ..Ring::default() }));
    ring.borrow_mut().honest =
        (0..honest).map(|at| (stage.world.nodes[at].id, stage.world.nodes[at].contact)).collect();
    ring.borrow_mut().conduct.behaves = attack.lies_late;
    let doors = join(&mut stage, honest, setup.nodes, attack, &targets, &ring);
    for _ in 0..3 {
        knock(&mut stage, honest, &doors);
        stage.wait(10_000, &mut ignored);
    }

    // Written from nodes that leave afterwards: what counts is what the network holds.
    let mut fought = Fought::default();
    let ring_stale = stage.mutable(owner, 0, 1);
    ring.borrow_mut().stale.insert(targets[1], ring_stale);
    let writers = [(); 2].map(|()| {
        loop {
            let at = stage.world.random_honest();
            if at != owner {
                break at;
            }
        }
    });
    stage.put_immutable(writers[0], &text);
    stage.put_mutable_from(writers[1], owner, 0, 3);
    stage.wait_all(20_000, &mut fought.puts);
    writers.iter().for_each(|at| stage.world.kill(*at));
    ring.borrow_mut().conduct.behaves = false;
    fought.held = targets.iter().map(|target| held(&stage, honest, target)).min().unwrap_or(0);

    let holders: Vec<usize> = targets.iter().flat_map(|target| nearest_honest(&stage, honest, target)).collect();
    for n in 0..READS {
        let reader = stage.world.random_honest();
        if attack.floods {
            flood(&mut stage, &holders, n);
        }
        stage.get(reader, &targets[0], false, 0);
        stage.wait(100, &mut fought.immutable);
        if n == READS - 1 {
            stage.wait_all(20_000, &mut fought.immutable);
        }
    }
    for n in 0..READS {
        let reader = stage.world.random_honest();
        if attack.floods {
            flood(&mut stage, &holders, n);
        }
        stage.get(reader, &targets[1], true, 3);
        stage.wait(100, &mut fought.mutable);
    }
    stage.wait_all(20_000, &mut fought.mutable);
    for wrong in fought.puts.wrong.iter().chain(&fought.immutable.wrong).chain(&fought.mutable.wrong) {
        stage.say(wrong);
    }
    fought
}

/// Adds the attackers, and what they make up. Returns whom each introduces itself to.
fn join(
    stage: &mut Stage,
    honest: usize,
    nodes: usize,
    attack: &Attack,
    targets: &[ContentId; 2],
    ring: &Rc<RefCell<Ring>>,
) -> Vec<Vec<usize>> {
    let now = stage.world.now();
    let around = targets.map(|target| nearest_honest(stage, honest, &target));
    let nearer_than = [0, 1].map(|n| stage.world.nodes[around[n][0]].id.distance_to(&targets[n]));
    let region_bits = [0, 1].map(|n| {
        let farthest = around[n].last().expect("a network has nodes");
        stage.world.nodes[*farthest].id.distance_to(&targets[n]).leading_zeros()
    });
    let count = match attack.crowd {
        Crowd::Uniform(_) => nodes - honest,
        Crowd::Targeted(count) | Crowd::Spread(count) => 2 * count,
    };
    let mut doors = Vec::with_capacity(count);
    for n in 0..count {
        let (seed, mut met) = match attack.crowd {
            Crowd::Uniform(_) => {
                let seed: [u8; 32] = stage.world.rng.bytes();
                let id = ContentId::from_bytes(*stage.world.crypto(seed).public_key().node_id().as_bytes());
                (seed, nearest_honest(stage, honest, &id))
            }
            Crowd::Targeted(_) | Crowd::Spread(_) => {
                let is_near = |id: &NodeId| {
                    let distance = id.distance_to(&targets[n % 2]);
                    match attack.crowd {
                        // Six, where seven are a crowd; the others are not in that part.
                        Crowd::Spread(_) if n / 2 >= NEAR_BY_CHANCE => {
                            let bits = region_bits[n % 2];
                            (bits..bits + 4).contains(&distance.leading_zeros())
                        }
                        _ => distance < nearer_than[n % 2],
                    }
                };
                let seed = loop {
                    let seed: [u8; 32] = stage.world.rng.bytes();
                    if is_near(&stage.world.crypto(seed).public_key().node_id()) {
                        break seed;
                    }
                };
                (seed, around[n % 2].clone())
            }
        };
        let [_, _, high, low] = (n as u32).to_be_bytes();
        let addr = Addr::v4([200, high, low, 1], 4000);
        let (rng_seed, of_ring) = (stage.world.rng.bytes(), ring.clone());
        let at = stage.world.add_sybil(seed, addr, |crypto| Sybil::new(crypto, NETWORK, of_ring, rng_seed, now));
        ring.borrow_mut().members.push((stage.world.nodes[at].id, stage.world.nodes[at].contact));
        met.extend((0..DOORS_ANYWHERE).map(|_| stage.world.pick(honest)));
        doors.push(met);
    }
    if attack.conduct.names_made_up {
        for (target, nearer_than) in targets.iter().zip(nearer_than) {
            let made_up = (0..MADE_UP).map(|n| make_up(stage, target, nearer_than, n));
            let made_up: Vec<_> = made_up.collect();
            ring.borrow_mut().made_up.extend(made_up);
        }
    }
    doors
}

/// Strangers knock at every holder, and one of them is told in the name of its contacts that they leave.
fn flood(stage: &mut Stage, holders: &[usize], round: usize) {
    for victim in holders.iter().copied().filter(|at| stage.world.nodes[*at].is_alive()).collect::<Vec<_>>() {
        for _ in 0..KNOCKS {
            let (from, datagram) = stranger(stage);
            let after_ms = stage.world.rng.below(100);
            stage.world.inject(victim, from, datagram, after_ms);
        }
    }
    let victim = holders[round % holders.len()];
    if stage.world.nodes[victim].is_alive() {
        say_good_bye_for_contacts(stage, victim);
    }
}

/// A key nearer to the target than any honest node, in a network of its own where nothing listens.
fn make_up(stage: &mut Stage, target: &ContentId, nearer_than: Distance, n: usize) -> (NodeId, Contact) {
    loop {
        let contact =
            Contact { key: PublicKey(stage.world.rng.bytes()), addr: Addr::v4([201, (n >> 8) as u8, n as u8, 9], 9) };
        if contact.id().distance_to(target) < nearer_than {
            return (contact.id(), contact);
        }
    }
}

/// How many of the honest nodes nearest to a target hold it.
fn held(stage: &Stage, honest: usize, target: &ContentId) -> usize {
    let near = nearest_honest(stage, honest, target);
    let holds =
        |at: &&usize| stage.world.nodes[**at].lanes().iter().any(|lane| lane.node.records().peek(target).is_some());
    near.iter().filter(holds).count()
}

/// A defence, how it is switched off, and an attack that it is worth something against.
pub(crate) struct Defence {
    pub(crate) name: &'static str,
    pub(crate) off: Switch,
    pub(crate) attack: Attack,
    pub(crate) holds: fn(&Fought) -> bool,
}

/// What every read needs, and what a switched-off defence has to fail.
fn reads(fought: &Fought) -> bool {
    fought.right_share() >= 0.95 && fought.false_not_found() == 0
}

/// Defences, each with the attack that it is there for. Several of them stand behind each other: what names made-up contacts meets three, of which
/// any two are enough, as the matrix shows. They are switched off together.
pub(crate) const DEFENCES: [Defence; 2] = [
    Defence {
        name: "the region as the holders",
        off: |config| config.lookup.widen = false,
        attack: attack("denials", Crowd::Targeted(40), DENIES),
        holds: reads,
    },
    Defence {
        name: "shares and doubt of namers, silent candidates first, the region, another walk",
        off: all_off,
        attack: attack("made-up contacts and silence", Crowd::Targeted(40), ALL),
        holds: reads,
    },
];
