//! The less usual: slow and stalling nodes, relays, blind lookups, stems, disjoint paths.

use tessera_contracts::point::ContentId;
use tessera_dht::node::command::{Command, Privacy};
use tessera_dht::node::config::NodeConfig;

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage =
        Stage::new(setup, "odd", format!("Slow nodes, relays, blinding, stems, paths; {} nodes", setup.nodes));
    stage.grow(setup.nodes);
    let seeds: Vec<_> = (0..3).filter_map(|_| stage.world.random_contact()).collect();
    let stemming = NodeConfig { stem_hops: 3, ..stage.config.clone() };
    let provider = stage.world.add_node(&stemming, 1, false, &seeds);
    let mut by_paths = NodeConfig { ..stage.config.clone() };
    by_paths.lookup.paths = 4;
    let walker = stage.world.add_node(&by_paths, 1, false, &seeds);
    let mut ignored = Tally::default();
    stage.wait(120_000, &mut ignored);
    let mut records = Vec::new();
    for n in 0..50 {
        let writer = stage.world.random_honest();
        records.push(stage.put_immutable(writer, &format!("odd {n}")));
        stage.wait(50, &mut ignored);
    }
    stage.wait_all(20_000, &mut ignored);

    // A tenth answers late, a twentieth not at all.
    for at in 0..setup.nodes {
        stage.world.nodes[at].slow_ms = match at % 20 {
            7 | 13 => 300,
            17 => 60_000,
            _ => 0,
        };
    }
    let mut slow = Tally::default();
    for n in 0..300 {
        let reader = stage.world.random_honest();
        if stage.world.nodes[reader].slow_ms == 0 {
            stage.get(reader, &records[n % records.len()], false, 0);
        }
        stage.wait(30, &mut slow);
    }
    stage.wait_all(10_000, &mut slow);
    for at in 0..setup.nodes {
        stage.world.nodes[at].slow_ms = 0;
    }
    stage.say("slow nodes done");

    let (mut relayed, mut blind, mut paths) = (Tally::default(), Tally::default(), Tally::default());
    for n in 0..100 {
        let reader = stage.world.random_honest();
        stage.get_privately(reader, &records[n % records.len()], false, 0, Privacy::Relay);
        stage.wait(50, &mut relayed);
    }
    stage.wait_all(10_000, &mut relayed);
    for n in 0..100 {
        let reader = stage.world.random_honest();
        stage.get_privately(reader, &records[n % records.len()], false, 0, Privacy::Blind);
        stage.wait(50, &mut blind);
    }
    stage.wait_all(10_000, &mut blind);
    for id in records.iter().take(50) {
        stage.get(walker, id, false, 0);
        stage.wait(50, &mut paths);
    }
    stage.wait_all(10_000, &mut paths);
    stage.say("private lookups done");

    let ids: Vec<ContentId> = (0..20).map(|_| ContentId::from_bytes(stage.world.rng.bytes())).collect();
    stage.world.command(provider, None, Command::Provide { ids: ids.clone() });
    stage.wait(30_000, &mut ignored);
    let direct = stage.world.nodes[provider].lanes()[0].node.counters().announces_sent;
    let mut stems = Tally::default();
    for id in &ids {
        let reader = stage.world.random_honest();
        stage.find_providers(reader, id, 1);
        stage.wait(100, &mut stems);
    }
    stage.wait_all(10_000, &mut stems);
    for wrong in slow.wrong.iter().chain(&relayed.wrong).chain(&blind.wrong).chain(&paths.wrong).chain(&stems.wrong) {
        stage.say(wrong);
    }
    let f = &mut stage.findings;
    f.aim(
        "lookups right, 10 % slow and 5 % stalled nodes",
        percent(slow.right, slow.asked),
        "≥ 99 %",
        slow.right_share() >= 0.99,
    );
    f.aim("the same, p95", format!("{} ms", slow.p(0.95)), "≤ 1000 ms", slow.p(0.95) <= 1000);
    f.aim("lookups by relay right", percent(relayed.right, relayed.asked), "≥ 99 %", relayed.right_share() >= 0.99);
    f.note("the same, p50 / p95", format!("{} / {} ms", relayed.p(0.5), relayed.p(0.95)));
    f.aim("blind lookups right", percent(blind.right, blind.asked), "≥ 99 %", blind.right_share() >= 0.99);
    f.note("the same, p50 / p95", format!("{} / {} ms", blind.p(0.5), blind.p(0.95)));
    f.aim(
        "lookups by four disjoint paths right",
        percent(paths.right, paths.asked),
        "≥ 99 %",
        paths.right_share() >= 0.99,
    );
    f.note("the same, requests", format!("{:.1}", paths.mean_requests()));
    f.aim(
        "providers found that were announced by stem",
        percent(stems.right, stems.asked),
        "≥ 95 %",
        stems.right_share() >= 0.95,
    );
    f.note("announcements sent by the provider itself", direct);
    stage.finish()
}
