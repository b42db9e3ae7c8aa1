//! A share of the nodes, one in five unless told otherwise, is hostile and crowds around a few targets, nearer than any honest
//! node.
//!
//! They rent addresses in few networks, name only each other, acknowledge writes and keep nothing, forge immutable records,
//! serve old versions of mutable ones, and replay what they see. To get into tables they knock on doors: at random ones, and at
//! those of the honest nodes nearest to their target, which every lookup for it comes by and which anybody can look up. The same
//! attack runs once with the defences that ship and once without address diversity and without the widened end of
//! lookups: there it must succeed, or the test would prove nothing. Even there nobody may be given what is not valid, and who
//! has seen a version may not be given an older one.

use std::cell::RefCell;
use std::rc::Rc;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::Crypto as _;
use tessera_dht::seal::keys::PERIOD_SECS;

use super::{NETWORK, Setup, Stage, Tally};
use crate::dht::checkers::QUORUM_DURABLE;
use crate::dht::measure::{Findings, percent};
use crate::dht::sybil::{Ring, Sybil};
use crate::dht::world::Being;

/// Networks (/24) the attacker rents.
const HOSTILE_PREFIXES: usize = 16;

/// Honest nodes each Sybil introduces itself to: those nearest to its target, and as many at random.
const DOORS_NEAR: usize = 20;
const DOORS_ANYWHERE: usize = 20;

const TARGETS: usize = 2;

/// Nodes that have read the mutable targets before the attack.
const EARLY_READERS: usize = 30;

pub(super) fn run(setup: &Setup) -> Findings {
    let guarded = attack(setup, true);
    let bare = attack(setup, false);
    let mut findings = guarded.findings;
    // That what is stored is found is what the defences are for; the rest holds without them.
    findings.violations.extend(bare.findings.violations.into_iter().filter(|v| v.property != QUORUM_DURABLE));
    findings.checks += bare.findings.checks;
    let (immutable, mutable) = (guarded.immutable, guarded.mutable);
    findings.aim(
        "immutable lookups right",
        percent(immutable.right, immutable.asked),
        "≥ 99 %",
        immutable.right_share() >= 0.99,
    );
    findings.beside("S/Kademlia, 20 % hostile, eight disjoint paths: about 99 % (Baumgart and Mies 2007)");
    findings.aim(
        "mutable lookups right",
        percent(mutable.right, mutable.asked),
        "≥ 95 %",
        mutable.right_share() >= 0.95,
    );
    findings.note(
        "requests per lookup, mean",
        format!("{:.1} immutable, {:.1} mutable", immutable.mean_requests(), mutable.mean_requests()),
    );
    findings.aim(
        "the same without defences: immutable",
        percent(bare.immutable.right, bare.immutable.asked),
        "the attack succeeds: < 99 %",
        bare.immutable.right_share() < 0.99,
    );
    findings.aim(
        "the same without defences: mutable",
        percent(bare.mutable.right, bare.mutable.asked),
        "the attack succeeds: < 95 %",
        bare.mutable.right_share() < 0.95,
    );
    findings.note("replayed and forged datagrams refused", guarded.refused);
    findings
}

/// Shares of hostile nodes in the matrix.
const SHARES: [f64; 2] = [0.2, 0.3];

/// Seeds of the matrix, from that of the run on.
const SEEDS: u64 = 3;

/// The attack at several shares of hostile nodes and with several seeds: lost wherever there are defences, and won wherever there
/// are none. One run tells little, because what decides it is a few lookups of the writers.
pub(super) fn matrix(setup: &Setup) -> Findings {
    let title = format!("Sybils: shares and seeds, {} nodes around {TARGETS} targets each", setup.nodes);
    let mut findings = Stage::new(setup, "sybils", title).finish();
    findings.figures.clear();
    for hostile in SHARES {
        for seed in setup.seed..setup.seed + SEEDS {
            let setup = Setup { hostile, seed, ..setup.clone() };
            let (guarded, bare) = (attack(&setup, true), attack(&setup, false));
            let percents = |of: &Attacked| {
                let [immutable, mutable] = [&of.immutable, &of.mutable].map(|tally| percent(tally.right, tally.asked));
                format!("{immutable} immutable, {mutable} mutable right")
            };
            let right = [&guarded, &bare].map(|of| (of.immutable.right_share(), of.mutable.right_share()));
            let name = format!("{:.0} % hostile, seed {seed}", hostile * 100.0);
            findings.aim(&name, percents(&guarded), "≥ 99 % and ≥ 95 %", right[0].0 >= 0.99 && right[0].1 >= 0.95);
            let name = format!("{name}, without defences");
            findings.aim(&name, percents(&bare), "< 50 % of each", right[1].0 < 0.5 && right[1].1 < 0.5);
            let bare = bare.findings.violations.into_iter().filter(|v| v.property != QUORUM_DURABLE);
            findings.violations.extend(guarded.findings.violations.into_iter().chain(bare));
            findings.checks += guarded.findings.checks;
        }
    }
    findings
}

struct Attacked {
    findings: Findings,
    immutable: Tally,
    mutable: Tally,
    refused: u64,
}

fn attack(setup: &Setup, defended: bool) -> Attacked {
    let title = format!("Sybils: {:.0} % of {} nodes around {TARGETS} targets", setup.hostile * 100.0, setup.nodes);
    let mut stage = Stage::new(setup, "sybil", title);
    stage.say(if defended { "with defences" } else { "without defences" });
    if !defended {
        stage.config.lookup.widen = false;
        stage.config.lookup.per_prefix_max = usize::MAX;
        stage.config.table.per_prefix_in_bucket = usize::MAX;
        stage.config.table.per_prefix_in_table = usize::MAX;
    }
    let honest = setup.nodes - (setup.nodes as f64 * setup.hostile).round() as usize;
    stage.grow(honest);
    let mut ignored = Tally::default();
    // Tokens from joining name holders from before the attack, which would be a defence by itself: they have ended by then.
    stage.wait(60_000 + PERIOD_SECS * 1000, &mut ignored);

    // The targets: an immutable record and a mutable one. The attacker knows them before they are stored.
    let owner = stage.world.random_honest();
    let texts: Vec<String> = (0..TARGETS / 2).map(|n| format!("target {n} of {}", setup.seed)).collect();
    let immutable: Vec<ContentId> = texts.iter().map(|text| ContentId::of_immutable(text.as_bytes())).collect();
    let mutable: Vec<ContentId> = (0..TARGETS as u64 / 2)
        .map(|salt| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&salt.to_le_bytes());
            tessera_dht::record::mutable_id(&stage.world.key(owner), &bytes)
        })
        .collect();
    let ring = Rc::new(RefCell::new(Ring::default()));
    for (salt, id) in mutable.iter().enumerate() {
        ring.borrow_mut().stale.insert(*id, stage.mutable(owner, salt as u64, 1));
    }

    // Some have read the second version before the attack; the attackers will offer them the first.
    let mut before = Tally::default();
    for sequence in [1, 2] {
        for salt in 0..mutable.len() as u64 {
            stage.put_mutable(owner, salt, sequence);
        }
        stage.wait_all(20_000, &mut before);
    }
    let mut readers: Vec<usize> = (0..EARLY_READERS).map(|_| stage.world.random_honest()).collect();
    for reader in &readers {
        mutable.iter().for_each(|id| stage.get(*reader, id, true, 2));
        stage.wait(50, &mut before);
    }
    stage.wait_all(10_000, &mut before);

    // Identities near the targets are made by trying keys until the id shares enough bits and is nearer than any honest one: a
    // single honest node among the nearest would keep the record, and be found.
    let bits = (honest as f64).log2().ceil() as u32 + 2;
    let sybils = setup.nodes - honest;
    let now = stage.world.now();
    let mut doors = Vec::with_capacity(sybils);
    for n in 0..sybils {
        let target = if n % 2 == 0 { immutable[n / 2 % immutable.len()] } else { mutable[n / 2 % mutable.len()] };
        let mut of_this = nearest_honest(&stage, honest, &target);
        let nearest = stage.world.nodes[of_this[0]].id.distance_to(&target);
        let seed = loop {
            let seed: [u8; 32] = stage.world.rng.bytes();
            let id: NodeId = stage.world.crypto(seed).public_key().node_id();
            let distance = id.distance_to(&target);
            if distance.leading_zeros() >= bits && distance < nearest {
                break seed;
            }
        };
        let addr = Addr::v4([200, 0, (n % HOSTILE_PREFIXES) as u8, (n / HOSTILE_PREFIXES + 1) as u8], 4000);
        let (rng_seed, of_ring) = (stage.world.rng.bytes(), ring.clone());
        let at = stage.world.add_sybil(seed, addr, |crypto| Sybil::new(crypto, NETWORK, of_ring, rng_seed, now));
        ring.borrow_mut().members.push((stage.world.nodes[at].id, stage.world.nodes[at].contact));
        of_this.extend((0..DOORS_ANYWHERE).map(|_| stage.world.pick(honest)));
        doors.push(of_this);
    }
    // The first knock earns a cookie, the second proves the address; then the victims verify and admit.
    for _ in 0..3 {
        knock(&mut stage, honest, &doors);
        stage.wait(10_000, &mut ignored);
    }
    stage.say("the crowd is in place");

    // Written from devices that leave afterwards, so that what counts is what the network holds. None is one that wrote or read
    // before, or knows all true holders: it has tokens of theirs and needs to look for nobody.
    let newcomer = |stage: &mut Stage, target: &ContentId| {
        let holders = nearest_honest(stage, honest, target);
        loop {
            let at = stage.world.random_honest();
            let table = stage.world.nodes[at].lanes()[0].node.table();
            let knows_all = holders.iter().all(|holder| table.get(&stage.world.nodes[*holder].id).is_some());
            if at != owner && !readers.contains(&at) && !knows_all {
                return at;
            }
        }
    };
    let mut puts = Tally::default();
    let mut devices = Vec::new();
    for (text, target) in texts.iter().zip(&immutable) {
        devices.push(newcomer(&mut stage, target));
        stage.put_immutable(devices[devices.len() - 1], text);
    }
    for (salt, target) in mutable.iter().enumerate() {
        devices.push(newcomer(&mut stage, target));
        stage.put_mutable_from(devices[devices.len() - 1], owner, salt as u64, 3);
    }
    stage.wait_all(20_000, &mut puts);
    devices.iter().for_each(|at| stage.world.kill(*at));
    readers.retain(|at| stage.world.nodes[*at].is_honest());
    knock(&mut stage, honest, &doors);
    replay(&mut stage);
    stage.wait(10_000, &mut ignored);

    let (mut right_immutable, mut right_mutable) = (Tally::default(), Tally::default());
    for n in 0..300 {
        let reader = stage.world.random_honest();
        stage.get(reader, &immutable[n % immutable.len()], false, 0);
        stage.wait(50, &mut right_immutable);
    }
    stage.wait_all(10_000, &mut right_immutable);
    for n in 0..300 {
        let reader = stage.world.random_honest();
        stage.get(reader, &mutable[n % mutable.len()], true, 3);
        stage.wait(50, &mut right_mutable);
    }
    stage.wait_all(10_000, &mut right_mutable);
    for reader in &readers {
        mutable.iter().for_each(|id| stage.get(*reader, id, true, 3));
        stage.wait(50, &mut ignored);
    }
    stage.wait_all(10_000, &mut ignored);
    for wrong in right_immutable.wrong.iter().chain(&right_mutable.wrong) {
        stage.say(wrong);
    }
    let refused = stage
        .world
        .honest()
        .map(|at| {
            let counters = stage.world.nodes[at].lanes()[0].node.counters();
            counters.refused_replay + counters.refused_forged
        })
        .sum();
    Attacked { findings: stage.finish(), immutable: right_immutable, mutable: right_mutable, refused }
}

/// The honest nodes to which a record of `target` would go.
pub(super) fn nearest_honest(stage: &Stage, honest: usize, target: &ContentId) -> Vec<usize> {
    let mut near: Vec<usize> = (0..honest).collect();
    near.sort_by_key(|at| stage.world.nodes[*at].id.distance_to(target));
    near.truncate(DOORS_NEAR);
    near
}

/// Every Sybil asks its honest victims something, to be noticed and put into their tables.
pub(super) fn knock(stage: &mut Stage, honest: usize, doors: &[Vec<usize>]) {
    let now = stage.world.now();
    for at in honest..stage.world.nodes.len() {
        for victim in doors[at - honest].iter().copied() {
            let to: Contact = stage.world.nodes[victim].contact;
            let from = stage.world.nodes[at].contact.addr;
            if let Being::Sybil(sybil) = &mut stage.world.nodes[at].being
                && let Some(bytes) = sybil.knock(now, &to)
            {
                stage.world.transmit(at, from, to.addr, bytes);
            }
        }
    }
}

/// What flew by flies by again, as it was and with a bit changed.
fn replay(stage: &mut Stage) {
    for (to, from, mut bytes) in std::mem::take(&mut stage.world.captured) {
        stage.world.inject(to, from, bytes.clone(), 10);
        let bit = stage.world.pick(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        stage.world.inject(to, from, bytes, 20);
    }
}
