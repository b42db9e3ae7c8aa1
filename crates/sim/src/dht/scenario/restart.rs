//! Every node stops at once and starts again within a minute from its log: nothing but contacts and records survives.

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage = Stage::new(setup, "restart", format!("Mass restart, {} nodes", setup.nodes));
    stage.grow(setup.nodes);
    for node in &mut stage.world.nodes {
        node.keeps_log = true;
    }
    let mut ignored = Tally::default();
    stage.wait(60_000, &mut ignored);
    let mut records = Vec::new();
    for n in 0..100 {
        let writer = stage.world.random_honest();
        records.push(stage.put_immutable(writer, &format!("survives {n}")));
        stage.wait(50, &mut ignored);
    }
    stage.wait_all(20_000, &mut ignored);
    // What a snapshot would have: the log began after the contacts were made.
    let now = stage.world.now();
    for at in 0..stage.world.nodes.len() {
        let mut snapshot = Vec::new();
        for lane in stage.world.nodes[at].lanes() {
            lane.node.export(None, now, |kind, slot, payload| {
                snapshot.push((kind, slot, payload.to_vec()));
                true
            });
        }
        stage.world.replace_log(at, snapshot);
    }
    for at in 0..stage.world.nodes.len() {
        stage.world.kill(at);
    }
    stage.say("everybody is down");
    stage.wait(10_000, &mut ignored);
    let announced_before = stage.world.datagrams;
    for at in 0..stage.world.nodes.len() {
        stage.world.start(at, &[]);
        stage.world.run_for(60_000 / setup.nodes as u64 + 1);
    }
    stage.say("everybody is up");
    let up_at = stage.world.elapsed_ms();
    let mut last = Tally::default();
    let mut ready_after = None;
    for _ in 0..20 {
        let mut round = Tally::default();
        for n in 0..100 {
            let reader = stage.world.random_honest();
            let id = records[n % records.len()];
            stage.get(reader, &id, false, 0);
            stage.wait(20, &mut round);
        }
        stage.wait_all(5000, &mut round);
        if round.right_share() >= 0.99 && ready_after.is_none() {
            ready_after = Some(stage.world.elapsed_ms() - up_at);
        }
        last = round;
        if ready_after.is_some() {
            break;
        }
        stage.wait(3000, &mut ignored);
    }
    for wrong in &last.wrong {
        stage.say(wrong);
    }
    // Who started first found nobody and waits out its growing pauses, the longest a minute.
    stage.wait(90_000, &mut ignored);
    let up = stage
        .world
        .honest()
        .filter(|at| stage.world.nodes[*at].lanes()[0].node.health(stage.world.now()).joined)
        .count();
    for at in stage.world.honest() {
        let health = stage.world.nodes[at].lanes()[0].node.health(stage.world.now());
        if !health.joined {
            stage.say(&format!(
                "node {at} has not joined: {health:?}, behind a NAT: {}",
                stage.world.nodes[at].is_natted()
            ));
        }
    }
    let datagrams = stage.world.datagrams - announced_before;
    let f = &mut stage.findings;
    f.aim(
        "time from the last start until 99 % of lookups are right",
        ready_after.map_or("never".into(), |ms| format!("{:.1} s", ms as f64 / 1000.0)),
        "≤ 60 s",
        ready_after.is_some_and(|ms| ms <= 60_000),
    );
    f.aim("lookups right", percent(last.right, last.asked), "≥ 99 %", last.right_share() >= 0.99);
    f.aim("nodes that joined again", percent(up, setup.nodes), "≥ 99 %", up * 100 >= setup.nodes * 99);
    f.note("datagrams per node while restarting", datagrams / setup.nodes as u64);
    stage.finish()
}
