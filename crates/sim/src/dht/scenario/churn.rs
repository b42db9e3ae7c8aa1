//! Thirty per cent of the nodes are replaced every minute, without goodbye, while others put and get.

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

const MINUTES: u64 = 5;

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage = Stage::new(setup, "churn", format!("Churn of 30 % a minute, {} nodes", setup.nodes));
    // Who expects such churn listens more closely for silence.
    stage.config.ping_idle_ms = 20_000;
    stage.grow(setup.nodes);
    let mut ignored = Tally::default();
    stage.wait(60_000, &mut ignored);
    stage.say("settled; churn begins");

    let mut gets = Tally::default();
    let mut puts = Tally::default();
    let mut records: Vec<(u64, tessera_contracts::point::ContentId)> = Vec::new();
    let replaced_per_sec = setup.nodes as f64 * 0.3 / 60.0;
    let (mut due, mut number, mut replaced) = (0.0, 0, 0);
    for second in 0..MINUTES * 60 {
        due += replaced_per_sec;
        while due >= 1.0 {
            due -= 1.0;
            replaced += 1;
            let victim = stage.world.random_honest();
            stage.world.kill(victim);
            let seeds: Vec<_> = (0..3).filter_map(|_| stage.world.random_contact()).collect();
            let config = stage.config.clone();
            stage.world.add_node(&config, 1, replaced % 10 == 3, &seeds);
        }
        number += 1;
        let writer = elder(&mut stage);
        records.push((second, stage.put_immutable(writer, &format!("churned {number}"))));
        stage.wait(500, &mut puts);
        // Readers are nodes that have lived for a while; records are up to two minutes old.
        records.retain(|(at, _)| second - at <= 120);
        for _ in 0..4 {
            let settled: Vec<_> = records.iter().filter(|(at, _)| second - at >= 5).map(|(_, id)| *id).collect();
            if settled.is_empty() {
                continue;
            }
            let id = settled[stage.world.pick(settled.len())];
            let reader = elder(&mut stage);
            stage.get(reader, &id, false, 0);
        }
        stage.wait(500, &mut gets);
        if second % 60 == 59 {
            stage.checks.survey(&stage.world);
            stage.say(&format!("minute {}: {} of {} lookups right", second / 60 + 1, gets.right, gets.asked));
        }
    }
    let mut rest = Tally::default();
    stage.wait_all(10_000, &mut rest);
    for wrong in gets.wrong.iter() {
        stage.say(wrong);
    }
    // Puts and gets complete in whichever half second; both tallies hold both kinds.
    let asked = gets.asked + puts.asked + rest.asked;
    let right = gets.right + puts.right + rest.right;
    let share = right as f64 / asked.max(1) as f64;
    gets.elapsed_ms.extend(puts.elapsed_ms.iter().chain(&rest.elapsed_ms));
    let (p50, p95, p99) = (gets.p(0.5), gets.p(0.95), gets.p(0.99));
    let f = &mut stage.findings;
    f.note("nodes replaced", replaced);
    f.aim("operations right", percent(right, asked), "≥ 95 %", share >= 0.95);
    f.note("lookup p50 / p99", format!("{p50} / {p99} ms"));
    f.aim("lookup p95", format!("{p95} ms"), "≤ 1000 ms", p95 <= 1000);
    f.note("requests per lookup, mean", format!("{:.1}", gets.mean_requests()));
    stage.finish()
}

/// A node that has lived for at least twenty seconds: one that has joined.
fn elder(stage: &mut Stage) -> usize {
    loop {
        let at = stage.world.random_honest();
        if stage.world.elapsed_ms() - stage.world.nodes[at].born_ms >= 20_000 {
            return at;
        }
    }
}
