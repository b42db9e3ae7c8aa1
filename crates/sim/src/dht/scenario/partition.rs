//! The network falls into three islands for two minutes, and heals.

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage = Stage::new(setup, "partition", format!("Three islands and healing, {} nodes", setup.nodes));
    stage.grow(setup.nodes);
    let mut ignored = Tally::default();
    stage.wait(60_000, &mut ignored);
    for at in 0..stage.world.nodes.len() {
        stage.world.nodes[at].island = stage.world.rng.below(3) as u8;
    }
    stage.world.partitioned = true;
    stage.say("three islands");
    stage.wait(30_000, &mut ignored);

    let mut inside = Tally::default();
    let mut records = Vec::new();
    for n in 0..60 {
        let writer = stage.world.random_honest();
        records.push((stage.world.nodes[writer].island, stage.put_immutable(writer, &format!("island {n}"))));
        stage.wait(200, &mut ignored);
    }
    stage.wait_all(20_000, &mut ignored);
    for n in 0..300 {
        let (island, id) = records[n % records.len()];
        let reader = loop {
            let at = stage.world.random_honest();
            if stage.world.nodes[at].island == island {
                break at;
            }
        };
        stage.get(reader, &id, false, 0);
        stage.wait(50, &mut inside);
    }
    stage.wait_all(20_000, &mut inside);
    stage.wait(60_000, &mut ignored);
    stage.world.partitioned = false;
    stage.checks.healing = true;
    stage.say("healing");

    // Healed when nineteen of twenty lookups across the former borders are right.
    let healing_from = stage.world.elapsed_ms();
    let mut healed_after = None;
    let mut across = Tally::default();
    for _ in 0..40 {
        let mut round = Tally::default();
        for n in 0..60 {
            let (island, id) = records[n % records.len()];
            let reader = loop {
                let at = stage.world.random_honest();
                if stage.world.nodes[at].island != island {
                    break at;
                }
            };
            stage.get(reader, &id, false, 0);
            stage.wait(20, &mut round);
        }
        stage.wait_all(4000, &mut round);
        if round.right_share() >= 0.95 && healed_after.is_none() {
            healed_after = Some(stage.world.elapsed_ms() - healing_from);
            stage.checks.healing = false;
        }
        across = round;
        if across.right_share() >= 0.99 {
            break;
        }
        stage.wait(5000, &mut ignored);
    }
    for wrong in inside.wrong.iter().chain(&across.wrong) {
        stage.say(wrong);
    }
    let (f, asked_again) = (&mut stage.findings, stage.asked_again);
    f.aim(
        "lookups right inside an island",
        percent(inside.right, inside.asked),
        "≥ 95 %",
        inside.right_share() >= 0.95,
    );
    f.note("of the wrong ones out of time, and asked again before the record counts as lost", asked_again);
    f.aim(
        "time until 95 % of lookups across former borders are right",
        healed_after.map_or("never".into(), |ms| format!("{:.1} s", ms as f64 / 1000.0)),
        "≤ 120 s",
        healed_after.is_some_and(|ms| ms <= 120_000),
    );
    f.aim(
        "lookups right across former borders, at last",
        percent(across.right, across.asked),
        "≥ 99 %",
        across.right_share() >= 0.99,
    );
    stage.finish()
}
