//! Nodes of many lanes: balance, misrouted datagrams, the death of a lane, and changes of their number under load.

use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::node::command::Command;

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent};

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage = Stage::new(setup, "lanes", format!("Lanes, {} nodes", setup.nodes));
    stage.grow(setup.nodes.saturating_sub(3).max(30));
    // Three nodes of two, four and eight lanes among the others.
    let mut wide = Vec::new();
    for lanes in [2, 4, 8] {
        let seeds: Vec<_> = (0..3).filter_map(|_| stage.world.random_contact()).collect();
        let config = stage.config.clone();
        let at = stage.world.add_node(&config, lanes, false, &seeds);
        stage.world.nodes[at].keeps_log = true;
        wide.push((lanes, at));
    }
    let mut ignored = Tally::default();
    stage.wait(90_000, &mut ignored);
    stage.say("settled");

    // Balance: lookups for random points near each wide node, as all others would ask it.
    let bits = ((setup.nodes as f64 / 20.0).log2().max(0.0)) as usize + 1;
    let mut figures = Vec::new();
    for (lanes, at) in wide.clone() {
        let before: Vec<u64> = served(&stage, at);
        for n in 0..4000 {
            let mut target: [u8; 32] = stage.world.rng.bytes();
            let own = *stage.world.nodes[at].id.as_bytes();
            for bit in 0..bits {
                let mask = 0x80 >> (bit % 8);
                target[bit / 8] = target[bit / 8] & !mask | own[bit / 8] & mask;
            }
            let reader = stage.world.random_honest();
            let id = ContentId::from_bytes(target);
            stage.world.command(
                reader,
                Some(id.as_bytes()),
                Command::Get { id, mutable: false, privacy: tessera_dht::node::command::Privacy::None },
            );
            if n % 10 == 9 {
                stage.wait(100, &mut ignored);
            }
        }
        stage.wait(3000, &mut ignored);
        let load: Vec<u64> = served(&stage, at).iter().zip(&before).map(|(after, before)| after - before).collect();
        let mean = load.iter().sum::<u64>() as f64 / lanes as f64;
        let most = load.iter().max().copied().unwrap_or(0) as f64;
        figures.push((lanes, load, most / mean.max(1.0)));
        stage.say(&format!("{lanes} lanes: {:.3}", most / mean.max(1.0)));
    }

    // Records on the wide nodes survive a lane's death and changes of the number of lanes, and every misrouting.
    stage.world.weather.misrouted = 0.5;
    let mut puts = Tally::default();
    let mut records = Vec::new();
    for n in 0..200 {
        let writer = stage.world.random_honest();
        records.push(stage.put_immutable(writer, &format!("laned {n}")));
        stage.wait(30, &mut puts);
    }
    stage.wait_all(10_000, &mut puts);
    let held_before: Vec<usize> = wide.iter().map(|(_, at)| held(&stage, *at)).collect();
    let mut gets = Tally::default();
    let mut moved = 0;
    for (round, (_, at)) in wide.clone().into_iter().enumerate() {
        let lanes = stage.world.nodes[at].lanes().len();
        stage.world.restart_lane(at, round % lanes);
        load(&mut stage, &records, &mut gets);
        for target in [lanes + 2, lanes.max(2) - 1, lanes] {
            moved += stage.world.resize(at, target);
            load(&mut stage, &records, &mut gets);
        }
    }
    stage.wait_all(10_000, &mut gets);
    let held_after: Vec<usize> = wide.iter().map(|(_, at)| held(&stage, *at)).collect();
    let forwarded: u64 =
        wide.iter().flat_map(|(_, at)| stage.world.nodes[*at].lanes()).map(|l| l.node.counters().forwarded).sum();
    for wrong in &gets.wrong {
        stage.say(wrong);
    }
    let f = &mut stage.findings;
    for (lanes, load, ratio) in figures {
        f.aim(
            &format!("busiest of {lanes} lanes, of the mean ({} requests)", load.iter().sum::<u64>()),
            format!("{ratio:.3}"),
            "≤ 1.15",
            ratio <= 1.15,
        );
    }
    f.aim(
        "lookups right during lane deaths and resizes, half of all datagrams misrouted",
        percent(gets.right, gets.asked),
        "≥ 99 %",
        gets.right_share() >= 0.99,
    );
    f.aim(
        "records held by the wide nodes before and after",
        format!("{held_before:?} and {held_after:?}"),
        "none lost",
        held_after.iter().zip(&held_before).all(|(after, before)| after >= before),
    );
    f.note("slots moved", moved);
    f.note("datagrams forwarded between lanes", forwarded);
    stage.finish()
}

/// Requests that needed the owner of an id, by lane.
fn served(stage: &Stage, at: usize) -> Vec<u64> {
    stage.world.nodes[at].lanes().iter().map(|lane| lane.node.counters().requests_served).collect()
}

fn held(stage: &Stage, at: usize) -> usize {
    use tessera_dht::store::records::Class;
    let lanes = stage.world.nodes[at].lanes();
    lanes.iter().map(|lane| lane.node.records().iter().filter(|(_, kept)| kept.class == Class::Held).count()).sum()
}

fn load(stage: &mut Stage, records: &[ContentId], gets: &mut Tally) {
    for _ in 0..40 {
        let reader = stage.world.random_honest();
        let id = records[stage.world.pick(records.len())];
        stage.get(reader, &id, false, 0);
        stage.wait(25, gets);
    }
}
