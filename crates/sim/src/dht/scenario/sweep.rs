//! One node announces very many ids; others find it as their provider.

use tessera_contracts::point::ContentId;
use tessera_dht::node::command::Command;
use tessera_dht::node::config::NodeConfig;
use tessera_dht::store::providers::ProviderLimits;

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

/// Ids announced per node of the network: a hundred thousand over a thousand nodes.
const IDS_PER_NODE: usize = 100;

pub(super) fn run(setup: &Setup) -> Findings {
    let ids = setup.nodes * IDS_PER_NODE;
    let mut stage = Stage::new(setup, "sweep", format!("Sweep: {ids} ids over {} nodes", setup.nodes));
    stage.config.providers = ProviderLimits { entries_max: 16_384, per_id_max: 64, per_provider_max: 16_384 };
    stage.grow(setup.nodes - 1);
    let config = NodeConfig { announces_per_sec: 2000, ..stage.config.clone() };
    let seeds: Vec<_> = (0..3).filter_map(|_| stage.world.random_contact()).collect();
    let provider = stage.world.add_node(&config, 1, false, &seeds);
    let mut tally = Tally::default();
    stage.wait(90_000, &mut tally);
    let all: Vec<ContentId> = (0..ids).map(|_| ContentId::from_bytes(stage.world.rng.bytes())).collect();
    let before = *stage.world.nodes[provider].lanes()[0].node.counters();
    let bytes_before = before.bytes_out;
    stage.world.command(provider, None, Command::Provide { ids: all.clone() });
    stage.say("announcing");
    let (mut waited, mut peak, mut last) = (0, 0, before.announces_sent);
    loop {
        stage.wait(1000, &mut tally);
        waited += 1;
        let sent = stage.world.nodes[provider].lanes()[0].node.counters().announces_sent;
        peak = peak.max(sent - last);
        if (sent == last && waited > 10) || waited >= 900 {
            break;
        }
        last = sent;
        if waited % 30 == 0 {
            stage.say(&format!("{sent} announcement datagrams"));
        }
    }
    let after = *stage.world.nodes[provider].lanes()[0].node.counters();
    let lookups = after.lookups_for_sweeps - before.lookups_for_sweeps;
    let held: usize = all.iter().step_by(ids / 300).map(|id| holders(&stage, id)).sum();
    let sampled = all.iter().step_by(ids / 300).count();
    stage.say("looking for providers");
    let mut found = Tally::default();
    for n in 0..300 {
        let reader = stage.world.random_honest();
        let id = all[n * (ids / 300)];
        if reader != provider {
            stage.find_providers(reader, &id, 1);
        }
        stage.wait(30, &mut found);
    }
    stage.wait_all(10_000, &mut found);
    for wrong in &found.wrong {
        stage.say(wrong);
    }
    let share = lookups as f64 / ids as f64;
    let f = &mut stage.findings;
    f.aim("lookups, of one per id", format!("{lookups} ({:.3} %)", share * 100.0), "≤ 5 %", share <= 0.05);
    f.beside("IPFS: 3 % for 100,000 keys; about 3000 lookups in 10,000 peers (Shipyard)");
    f.note("announcement datagrams", after.announces_sent - before.announces_sent);
    f.note(
        "of them refused / unanswered; ids not kept",
        format!("{} / {}; {}", after.announces_refused, after.announces_unanswered, after.announces_not_kept),
    );
    f.aim("most announcements in a second", peak, "≤ 2500, the pace and a tick's jitter", peak <= 2500);
    f.note("holders of an id, mean", format!("{:.1}", held as f64 / sampled as f64));
    f.note("bytes sent per id", (after.bytes_out - bytes_before) / ids as u64);
    f.note("time to announce all", format!("{waited} s"));
    f.aim("ids whose provider is found", percent(found.right, found.asked), "≥ 99 %", found.right_share() >= 0.99);
    stage.finish()
}

/// How many nodes hold a provider of `id`.
fn holders(stage: &Stage, id: &ContentId) -> usize {
    stage.world.honest().filter(|at| stage.world.nodes[*at].lanes()[0].node.providers().count(id) > 0).count()
}
