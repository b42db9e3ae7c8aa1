//! Bounds broken on purpose: in a world that presses against them, `BoundsHold` sees each, and no other checker does.
//!
//! Nodes are told of less room than the load needs. Faithful ones fill it and stay within; then all of them are told, behind
//! the checkers' back, of more. The scenarios have room to spare, so only here do the stores have to refuse and evict.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::point::ContentId;
use tessera_dht::node::command::Command;
use tessera_dht::node::config::NodeConfig;

use super::checkers::BOUNDS_HOLD;
use super::scenario::{HOSTILE, Setup, Stage, Tally};

const NODES: usize = 40;

/// A bound that the load presses against, how to tell a node of less room, and how to tell it of more than that.
struct Bound {
    what: &'static str,
    tighten: fn(&mut NodeConfig),
    breaks: fn(&mut NodeConfig),
}

const BOUNDS: [Bound; 6] = [
    Bound { what: "agreements", tighten: |c| c.seal.agreements_max = 12, breaks: |c| c.seal.agreements_max = 24 },
    Bound { what: "streams", tighten: |c| c.seal.streams_max = 12, breaks: |c| c.seal.streams_max = 24 },
    Bound { what: "table peers", tighten: |c| c.table.peers_max = 10, breaks: |c| c.table.peers_max = 20 },
    Bound { what: "records", tighten: |c| c.records.records_max = 8, breaks: |c| c.records.records_max = 16 },
    Bound { what: "record bytes", tighten: |c| c.records.bytes_max = 4096, breaks: |c| c.records.bytes_max = 16_384 },
    Bound { what: "providers", tighten: |c| c.providers.entries_max = 10, breaks: |c| c.providers.entries_max = 20 },
];

/// What was violated, and the most that any node used of each bound, when forty nodes are given more to keep than they have room
/// for.
fn pressed(
    tighten: fn(&mut NodeConfig),
    breaks: Option<fn(&mut NodeConfig)>,
) -> (BTreeSet<&'static str>, BTreeMap<&'static str, (usize, usize)>) {
    let setup = Setup { nodes: NODES, seed: 3, real_crypto: false, loss: None, hostile: HOSTILE, quiet: true };
    let mut stage = Stage::new(&setup, "bounds", String::new());
    tighten(&mut stage.config);
    stage.world.breaks = breaks;
    stage.grow(NODES);
    let mut tally = Tally::default();
    stage.wait(5_000, &mut tally);
    for n in 0..30 {
        let writer = stage.world.random_honest();
        stage.put_immutable(writer, &format!("record {n} of many, long enough for its bytes to count: {n:0400}"));
        stage.wait(100, &mut tally);
    }
    let provider = stage.world.random_honest();
    let ids = (0..40_u8).map(|n| ContentId::of_immutable(&[n])).collect();
    stage.world.command(provider, None, Command::Provide { ids });
    stage.wait(15_000, &mut tally);
    let mut fullest = BTreeMap::new();
    for (what, used, most) in stage.world.honest().flat_map(|at| stage.world.bounds(at, 0)) {
        let seen = fullest.entry(what).or_insert((used, most));
        *seen = (*seen).max((used, most));
    }
    (stage.finish().violations.iter().map(|violation| violation.property).collect(), fullest)
}

#[test]
fn every_broken_bound_is_caught_by_the_checker_that_is_there_for_it_and_by_no_other() {
    for Bound { what, tighten, breaks } in BOUNDS {
        let (violated, fullest) = pressed(tighten, None);
        assert_eq!(violated, BTreeSet::new(), "{what}, kept");
        let (used, most) = fullest[what];
        assert!(used * 2 > most, "{what} is pressed against: {used} of {most}");
        let (violated, fullest) = pressed(tighten, Some(breaks));
        assert_eq!(violated, BTreeSet::from([BOUNDS_HOLD]), "{what}, broken: {:?}", fullest[what]);
    }
}
