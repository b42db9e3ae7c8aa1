//! Attacks on what a node remembers and whom it serves, each with the defences that ship and with the one switched off that is there for it.
//!
//! Without its defence an attack must succeed, or the scenario would prove nothing.

use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::node::config::NodeConfig;
use tessera_dht::record::{immutable_record, sign_provider};
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::{NetworkKey, period_at};
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::{Header, Suite};
use tessera_dht::wire::message::{Announcement, Message, Token, kind};

use super::{NETWORK, Setup, Stage, Tally};
use crate::dht::measure::Findings;
use crate::dht::outsider::Outsider;

/// The node that is attacked.
const VICTIM: usize = 0;

/// An attack, what it does to the victim, and the defence that is there for it.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// How much is left of what the attack is after, in how many tries.
    run: fn(&mut Stage) -> (usize, usize),
    /// What is left at least if the defence holds, in per cent.
    held_percent: usize,
    switch_off: fn(&mut NodeConfig),
}

pub(crate) const ATTACKS: [Attack; 6] = [
    Attack {
        name: "replays refused after one identity wipes windows with new incarnations",
        run: wipe_windows,
        held_percent: 100,
        switch_off: |config| (config.seal.streams_per_peer_max, config.seal.prefix_share) = (u32::MAX, 1),
    },
    Attack {
        name: "newcomers that join and put within 6 s while 50,000 strangers a second knock at their seed",
        run: flood_with_strangers,
        held_percent: 90,
        switch_off: |config| config.abuse.unproven_strangers_per_sec = u32::MAX,
    },
    Attack {
        name: "contacts kept in spite of forged good-byes",
        run: forge_leaving,
        held_percent: 100,
        switch_off: |config| config.defences.leaving_from_proven = false,
    },
    Attack {
        name: "records kept while 64 identities of two networks store what is nearer",
        run: flood_store,
        held_percent: 100,
        switch_off: |config| config.defences.shares_by_origin = false,
    },
    Attack {
        name: "providers taken though 64 identities of two networks came first",
        run: flood_providers,
        held_percent: 100,
        switch_off: |config| config.defences.shares_by_origin = false,
    },
    Attack {
        name: "requests relayed for others while one asker wants all relays",
        run: hog_relays,
        held_percent: 100,
        switch_off: |config| (config.relay_asker_share, config.relay_prefix_share) = (1, 1),
    },
];

pub(super) fn run(setup: &Setup) -> Findings {
    let title = format!("Admission: attacks on one of {} nodes", setup.nodes);
    let mut findings = Stage::new(setup, "admission", title).finish();
    findings.figures.clear();
    for attack in ATTACKS {
        let (guarded, bare) = (fight(setup, &attack, true), fight(setup, &attack, false));
        let aim = format!("≥ {} %", attack.held_percent);
        findings.aim(attack.name, guarded.says(), &aim, guarded.is_held(&attack));
        findings.aim(
            "the same without its defence",
            bare.says(),
            &format!("the attack succeeds: < {} %", attack.held_percent),
            !bare.is_held(&attack),
        );
        findings.violations.extend(guarded.violations);
        findings.checks += guarded.checks;
    }
    findings
}

/// What an attack has left.
pub(crate) struct Fought {
    left: usize,
    of: usize,
    violations: Vec<crate::dht::checkers::Violation>,
    checks: u64,
}

impl Fought {
    pub(crate) fn is_held(&self, attack: &Attack) -> bool {
        self.left * 100 >= self.of * attack.held_percent
    }

    pub(crate) fn says(&self) -> String {
        format!("{} of {}", self.left, self.of)
    }
}

/// Runs one attack in a network of its own.
pub(crate) fn fight(setup: &Setup, attack: &Attack, is_defended: bool) -> Fought {
    let mut stage = Stage::new(setup, "admission", String::new());
    stage.say(&format!("{}{}", attack.name, if is_defended { "" } else { ", without its defence" }));
    stage.config.records.records_max = 256;
    if !is_defended {
        (attack.switch_off)(&mut stage.config);
    }
    stage.world.weather.loss = 0.0;
    stage.grow(setup.nodes);
    stage.wait(30_000, &mut Tally::default());
    let (left, of) = (attack.run)(&mut stage);
    let findings = stage.finish();
    Fought { left, of, violations: findings.violations, checks: findings.checks }
}

/// An outsider with fresh keys.
fn outsider(stage: &mut Stage, addr: Addr) -> Outsider {
    let seed = stage.world.rng.bytes();
    Outsider::new(&mut stage.world, seed, addr)
}

/// Ten peers have sent something that can be recorded; then one identity at one address sends as many incarnations as the victim could remember
/// three times over. How many of the ten replays are refused.
fn wipe_windows(stage: &mut Stage) -> (usize, usize) {
    let mut recorded = Vec::new();
    for n in 0..10 {
        let mut peer = outsider(stage, Addr::v4([192, 1, n, 7], 9));
        peer.prove(&mut stage.world, VICTIM);
        let datagram = peer.datagram(&stage.world, VICTIM, Message::Ping);
        assert_eq!(peer.send(&mut stage.world, VICTIM, datagram.clone()), 1, "it is answered once");
        recorded.push((peer, datagram));
    }
    let mut attacker = outsider(stage, Addr::v4([203, 0, 113, 5], 9));
    attacker.prove(&mut stage.world, VICTIM);
    let incarnations = 3 * stage.config.seal.streams_max;
    for n in 0..incarnations {
        attacker.reincarnate(&mut stage.world);
        let datagram = attacker.datagram(&stage.world, VICTIM, Message::Ping);
        stage.world.inject(VICTIM, attacker.addr, datagram, 1);
        // Within its rate limit.
        if n % 20 == 0 {
            stage.world.run_for(100);
        }
    }
    stage.world.run_for(1000);
    let refused = recorded.into_iter().map(|(mut peer, datagram)| peer.send(&mut stage.world, VICTIM, datagram) == 0);
    let refused: Vec<bool> = refused.collect();
    (refused.iter().filter(|refused| **refused).count(), refused.len())
}

/// Datagrams of strangers per second.
const STRANGERS_PER_SEC: u64 = 50_000;

/// Newcomers know only the victim, at which datagrams of new keys arrive from made-up addresses all the time. How many have joined and stored a
/// record within six seconds. Round trips are up to half a second here, and joining and storing take a dozen of them: without a flood three to five
/// seconds. What an agreement costs is not simulated; that their number is limited is.
fn flood_with_strangers(stage: &mut Stage) -> (usize, usize) {
    const TRIES: usize = 10;
    const IN_TIME_MS: u64 = 6000;
    let seed = stage.world.nodes[VICTIM].contact;
    for _ in 0..1000 / TICK_MS {
        knock(stage, &mut Tally::default());
    }
    let mut done = 0;
    for n in 0..TRIES {
        let config = stage.config.clone();
        let newcomer = stage.world.add_node(&config, 1, false, &[seed]);
        let (mut tally, mut has_put) = (Tally::default(), false);
        for tick in 0..IN_TIME_MS / TICK_MS {
            knock(stage, &mut tally);
            let health = stage.world.nodes[newcomer].lanes()[0].node.health(stage.world.now());
            if health.joined && health.live_peers > 0 && !has_put {
                has_put = true;
                stage.put_immutable(newcomer, &format!("put by newcomer {n}"));
            }
            if tally.right > 0 {
                stage.say(&format!("newcomer {n} is done after {} ms", tick * TICK_MS));
                break;
            }
        }
        done += tally.right;
    }
    stage.wait_all(10_000, &mut Tally::default());
    (done, TRIES)
}

/// How long strangers knock at a time.
const TICK_MS: u64 = 10;

/// Strangers knock, and time passes. They are on their way as long as others are, so that none is always in front of another.
fn knock(stage: &mut Stage, tally: &mut Tally) {
    for _ in 0..STRANGERS_PER_SEC * TICK_MS / 1000 {
        let (from, datagram) = stranger(stage);
        let after_ms = 50 + stage.world.rng.below(450);
        stage.world.inject(VICTIM, from, datagram, after_ms);
    }
    stage.wait(TICK_MS, tally);
}

/// A datagram of a key that has never been seen, from anywhere. It is not sealed: that shows only after an agreement.
pub(super) fn stranger(stage: &mut Stage) -> (Addr, Vec<u8>) {
    let rng = &mut stage.world.rng;
    let [a, b, c, d, ..] = rng.u64().to_le_bytes();
    let from = Addr::v4([60 + a % 100, b, c, d], 1000);
    let header = Header {
        slot: a,
        reply_slot: b,
        suite: Suite::Aes256Gcm,
        period: 0,
        counter: rng.u64() >> 1,
        incarnation: rng.bytes(),
        sender: tessera_dht::identity::PublicKey(rng.bytes()),
    };
    let header = Header { period: period_at(stage.world.now().unix_secs()), ..header };
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    header.write(datagram.first_chunk_mut().expect("a header fits"));
    (from, datagram)
}

/// Good-byes in the name of the victim's contacts, from elsewhere and without a cookie. How many contacts are left.
fn forge_leaving(stage: &mut Stage) -> (usize, usize) {
    let contacts = say_good_bye_for_contacts(stage, VICTIM);
    stage.world.run_for(10);
    let table = stage.world.nodes[VICTIM].lanes()[0].node.table();
    (contacts.iter().filter(|contact| table.get(&contact.id()).is_some()).count(), contacts.len())
}

/// Tells the victim in the name of twenty of its contacts that they leave, from elsewhere and as if from where they are. Returns the contacts.
pub(super) fn say_good_bye_for_contacts(stage: &mut Stage, victim: usize) -> Vec<Contact> {
    let live = stage.world.nodes[victim].lanes()[0].node.table().iter_live();
    let contacts: Vec<Contact> = live.map(|peer| peer.contact).take(20).collect();
    for (n, contact) in contacts.iter().enumerate() {
        let Some(at) = stage.world.node_of(&contact.id()) else { continue };
        let seed = stage.world.nodes[at].seed;
        let mut forger = Outsider::new(&mut stage.world, seed, Addr::v4([203, 0, n as u8, 5], 9));
        for from in [forger.addr, contact.addr] {
            let good_bye = forger.datagram(&stage.world, victim, Message::Leaving);
            stage.world.inject(victim, from, good_bye, 1);
        }
    }
    contacts
}

fn token_for(stage: &mut Stage, asker: &mut Outsider, id: &ContentId) -> Token {
    let mut token = [0; 16];
    let question = Message::FindNode { target: *id.as_bytes(), scope: Scope::EXACT };
    asker.say(&mut stage.world, VICTIM, question, |reply| {
        if let Message::Nodes { token: given, .. } = reply {
            token = *given;
        }
    });
    token
}

fn store(stage: &mut Stage, giver: &mut Outsider, value: &[u8]) -> ContentId {
    let id = ContentId::of_immutable(value);
    let token = token_for(stage, giver, &id);
    let record = immutable_record(value, 24 * 3600).expect("a short value");
    giver.say(&mut stage.world, VICTIM, Message::Store { token, closer_max: 0, record: &record }, |_| {});
    id
}

/// Ten givers store two records each; then 64 identities of two networks store what is nearer to the victim, until its store is full three times
/// over. How many of the twenty are left.
fn flood_store(stage: &mut Stage) -> (usize, usize) {
    let mut given = Vec::new();
    for n in 0..10 {
        let mut giver = outsider(stage, Addr::v4([192, 1, n, 7], 9));
        for m in 0..2 {
            given.push(store(stage, &mut giver, &[n, m]));
        }
    }
    let own = stage.world.nodes[VICTIM].id;
    let mut distances: Vec<_> = given.iter().map(|id| own.distance_to(id)).collect();
    distances.sort();
    // Nearer than most of them: that is enough to displace them by distance, and quickly tried.
    let near = distances[2];
    let mut ground =
        (0..u64::MAX).map(u64::to_le_bytes).filter(|value| own.distance_to(&ContentId::of_immutable(value)) < near);
    for n in 0..64 {
        let mut attacker = outsider(stage, Addr::v4([203, 0, n % 2, 7 + n], 9));
        attacker.prove(&mut stage.world, VICTIM);
        for _ in 0..3 * stage.config.records.records_max / 64 {
            let value = ground.next().expect("there are always more");
            store(stage, &mut attacker, &value);
        }
    }
    let records = stage.world.nodes[VICTIM].lanes()[0].node.records();
    (given.iter().filter(|id| records.peek(id).is_some()).count(), given.len())
}

fn announce(stage: &mut Stage, provider: &mut Outsider, id: &ContentId, ttl_secs: u32) -> bool {
    let token = token_for(stage, provider, id);
    let (crypto, network) = (stage.world.crypto(provider.seed()), NetworkKey::of_name(NETWORK));
    let issued_secs = stage.world.now().unix_secs();
    let signature = sign_provider(&crypto, &network, id, &provider.addr, issued_secs, ttl_secs);
    let entry = [&id.as_bytes()[..], &signature].concat();
    let contact = Contact { key: tessera_dht::identity::Crypto::public_key(&crypto), addr: provider.addr };
    let announcement = Announcement::over(contact, issued_secs, ttl_secs, &entry);
    let mut is_kept = false;
    provider.say(&mut stage.world, VICTIM, Message::Announce { token, announcement }, |reply| {
        is_kept |= matches!(reply, Message::Announced { kept: 1 });
    });
    is_kept
}

/// 64 identities of two networks announce an id, for as long as may be; then ten others do. How many of the ten are taken.
fn flood_providers(stage: &mut Stage) -> (usize, usize) {
    let id = ContentId::of_immutable(b"popular");
    for n in 0..64 {
        let mut attacker = outsider(stage, Addr::v4([203, 0, n % 2, 7 + n], 9));
        announce(stage, &mut attacker, &id, 48 * 3600);
    }
    let taken = (0..10).filter(|n| {
        let mut provider = outsider(stage, Addr::v4([192, 1, *n, 7], 9));
        announce(stage, &mut provider, &id, 3600)
    });
    (taken.count(), 10)
}

/// One asker has as many requests relayed as it can, to where nobody answers, again and again. For how many of ten others one is relayed meanwhile.
fn hog_relays(stage: &mut Stage) -> (usize, usize) {
    let (nowhere, target) = (Addr::v4([203, 9, 9, 9], 9), stage.world.nodes[5].contact);
    let relay_to = |to| Message::Relay { to, kind: kind::FIND_NODE, payload: &[0xff; 33] };
    let mut greedy = outsider(stage, Addr::v4([203, 0, 113, 7], 9));
    greedy.prove(&mut stage.world, VICTIM);
    let mut relayed = 0;
    for n in 0..10 {
        let mut asker = outsider(stage, Addr::v4([192, 1, n, 7], 9));
        asker.prove(&mut stage.world, VICTIM);
        for _ in 0..2 * stage.config.relays_max {
            let to = Contact { addr: nowhere, ..target };
            let datagram = greedy.datagram(&stage.world, VICTIM, relay_to(to));
            stage.world.inject(VICTIM, greedy.addr, datagram, 0);
        }
        stage.world.run_for(1);
        asker.say(&mut stage.world, VICTIM, relay_to(target), |reply| {
            relayed += usize::from(matches!(reply, Message::Relayed { .. }));
        });
    }
    (relayed, 10)
}
