//! One node is flooded: new identities from forged addresses, garbage, forgeries and replays. It must go on serving, and
//! must not become a weapon against those whose addresses are forged.

use tessera_contracts::point::ContentId;
use tessera_dht::addr::Addr;
use tessera_dht::node::steering_slot;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Envelope, Message};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};

use super::{NETWORK, Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

const SECONDS: u64 = 10;
const STRANGERS_PER_SEC: u64 = 2000;

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage = Stage::new(setup, "flood", format!("Flood of one of {} nodes", setup.nodes));
    stage.grow(setup.nodes);
    let mut ignored = Tally::default();
    stage.wait(60_000, &mut ignored);
    let victim = 0;
    let mut records = Vec::new();
    for n in 0..40 {
        let writer = stage.world.random_honest();
        records.push(stage.put_immutable(writer, &format!("flooded {n}")));
        stage.wait(50, &mut ignored);
    }
    stage.wait_all(20_000, &mut ignored);

    let mut before = Tally::default();
    serve(&mut stage, victim, &mut before, &records, 0);
    stage.say("flood begins");
    let mut during = Tally::default();
    serve(&mut stage, victim, &mut during, &records, STRANGERS_PER_SEC);
    for wrong in &during.wrong {
        stage.say(wrong);
    }
    stage.checks.survey(&stage.world);
    let counters = *stage.world.nodes[victim].lanes()[0].node.counters();
    let (claimed, answered) = stage
        .world
        .spoofed
        .values()
        .fold((0, 0), |(claimed, answered), t| (claimed + t.claimed_bytes, answered + t.answered_bytes));
    let kept = during.right as f64 / before.right.max(1) as f64;
    let f = &mut stage.findings;
    f.note("strangers per second", STRANGERS_PER_SEC);
    f.aim("the victim's own lookups, of the number before", percent(during.right, before.right), "≥ 80 %", kept >= 0.8);
    f.note("lookup p95 before / during", format!("{} / {} ms", before.p(0.95), during.p(0.95)));
    f.note("strangers refused before an agreement", counters.refused_stranger);
    f.note("forgeries and replays refused", counters.refused_forged + counters.refused_replay);
    f.aim(
        "bytes sent to forged addresses, of those received in their name",
        format!("{:.2} x", answered as f64 / claimed.max(1) as f64),
        "≤ 1 x",
        answered <= claimed,
    );
    stage.finish()
}

/// The victim looks things up for ten seconds, while strangers knock.
fn serve(stage: &mut Stage, victim: usize, tally: &mut Tally, records: &[ContentId], strangers: u64) {
    let contact = stage.world.nodes[victim].contact;
    let id = stage.world.nodes[victim].id;
    for tick in 0..SECONDS * 10 {
        let now = stage.world.now();
        for n in 0..strangers / 10 {
            // A new identity for every datagram, well sealed, from an address at which nobody lives.
            let seed: [u8; 32] = stage.world.rng.bytes();
            let crypto = stage.world.crypto(seed);
            let limits = SealLimits { agreements_max: 2, streams_max: 2, ..SealLimits::default() };
            let network = NetworkKey::of_name(NETWORK);
            let mut sealer = Sealer::new(crypto, network, Suite::Aes256Gcm, &limits, &mut LaneRng::new(seed), now);
            let target: [u8; 32] = stage.world.rng.bytes();
            let envelope = Envelope {
                flags: 0,
                correlation: stage.world.rng.u64(),
                cookie: [0; 8],
                message: Message::FindNode { target, scope: Scope::EXACT },
            };
            let mut buffer = [0; DATAGRAM_BYTES_MAX];
            let Ok(len) = envelope.write(&mut buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]) else { continue };
            let slot = steering_slot(&id, &target);
            let Ok(len) = sealer.seal(now, &contact.key, slot, &mut buffer, len) else { continue };
            let from = Addr::v4([230 - (n % 20) as u8, tick as u8, n as u8, 9], 1000 + n as u16);
            stage.world.spoofed.entry((victim, from)).or_default();
            let mut bytes = buffer[..len].to_vec();
            if n % 10 == 0 {
                let bit = stage.world.pick(len * 8);
                bytes[bit / 8] ^= 1 << (bit % 8); // A forgery.
            }
            stage.world.inject(victim, from, bytes.clone(), 1);
            if n % 10 == 1 {
                stage.world.inject(victim, from, bytes, 5); // A replay.
            }
        }
        // Asked for the highest sequence, so that the victim cannot answer from its own store.
        let at = stage.world.pick(records.len());
        stage.get(victim, &records[at], true, 0);
        stage.wait(100, tally);
    }
    stage.wait_all(5000, tally);
}
