//! A network at rest: everybody can find what anybody put.

use super::{Setup, Stage, Tally};
use crate::dht::measure::{Findings, percent, percentile};

pub(super) fn run(setup: &Setup) -> Findings {
    let mut stage = Stage::new(setup, "steady", title(setup));
    stage.grow(setup.nodes);
    let mut ignored = Tally::default();
    stage.wait(if setup.nodes > 1500 { 10_000 } else { 120_000 }, &mut ignored);
    stage.say("settled");

    let mut puts = Tally::default();
    let mut immutable = Vec::new();
    let mut mutable = Vec::new();
    for n in 0..100 {
        let writer = stage.world.random_honest();
        immutable.push(stage.put_immutable(writer, &format!("value {n}")));
        let owner = stage.world.random_honest();
        mutable.push((owner, stage.put_mutable(owner, n, 1), n));
        stage.wait(50, &mut puts);
    }
    stage.wait_all(10_000, &mut puts);
    for (owner, _, salt) in &mutable {
        stage.put_mutable(*owner, *salt, 2);
        stage.wait(50, &mut puts);
    }
    stage.wait_all(10_000, &mut puts);
    stage.say("records are stored");

    let mut gets = Tally::default();
    let mut mutable_gets = Tally::default();
    for n in 0..1000 {
        let reader = stage.world.random_honest();
        let id = immutable[n % immutable.len()];
        stage.get(reader, &id, false, 0);
        stage.wait(20, &mut gets);
    }
    stage.wait_all(10_000, &mut gets);
    for n in 0..500 {
        let reader = stage.world.random_honest();
        let (_, id, _) = mutable[n % mutable.len()];
        stage.get(reader, &id, true, 2);
        stage.wait(20, &mut mutable_gets);
    }
    stage.wait_all(10_000, &mut mutable_gets);
    for wrong in gets.wrong.iter().chain(&mutable_gets.wrong).chain(&puts.wrong) {
        stage.say(wrong);
    }

    let sizes: Vec<f64> =
        stage.world.honest().take(50).map(|at| stage.world.nodes[at].lanes()[0].node.network_size()).collect();
    let estimate = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
    let mean_acks = puts.put_acknowledged.iter().sum::<u64>() as f64 / puts.put_acknowledged.len().max(1) as f64;
    // Each answer names peers that share about log2(k) more bits with the target than the one asked, so a walk takes
    // log2(N / k) / log2(k / 2) steps beyond the first answer; the usual bound is log2 N over b with b about 3.3.
    let theory = (setup.nodes as f64).log2() / 3.3;
    let f = &mut stage.findings;
    f.aim("puts acknowledged by a quorum", percent(puts.right, puts.asked), "≥ 99.5 %", puts.right_share() >= 0.995);
    f.note("holders that acknowledged a put, mean", format!("{mean_acks:.1}"));
    let (put_p50, put_p95) = (percentile(&mut puts.put_elapsed_ms, 0.5), percentile(&mut puts.put_elapsed_ms, 0.95));
    f.note("put p50 / p95", format!("{put_p50} / {put_p95} ms"));
    f.beside("IPFS publishing: 6 to 7 s in the median, below 1 s with optimistic provide (ProbeLab 2023)");
    f.aim("immutable lookups right", percent(gets.right, gets.asked), "≥ 99.5 %", gets.right_share() >= 0.995);
    f.aim(
        "mutable lookups right",
        percent(mutable_gets.right, mutable_gets.asked),
        "≥ 99.5 %",
        mutable_gets.right_share() >= 0.995,
    );
    f.note("immutable lookup p50 / p95 / p99", format!("{} / {} / {} ms", gets.p(0.5), gets.p(0.95), gets.p(0.99)));
    f.beside("mainline, tuned client: median 100 to 200 ms, below 1 s (Jimenez et al. 2011)");
    f.aim("immutable lookup p95", format!("{} ms", gets.p(0.95)), "≤ 1000 ms", gets.p(0.95) <= 1000);
    f.beside("IPFS: 80 % of European lookups below 500 ms (IETF 118)");
    f.note("mutable lookup p50 / p95", format!("{} / {} ms", mutable_gets.p(0.5), mutable_gets.p(0.95)));
    f.note("requests per immutable lookup, mean", format!("{:.1}", gets.mean_requests()));
    f.note("requests per mutable lookup, mean", format!("{:.1}", mutable_gets.mean_requests()));
    f.aim(
        "hops, mean",
        format!("{:.2}", gets.mean_hops()),
        &format!("≤ log2 N / 3.3 = {theory:.2}"),
        gets.mean_hops() <= theory,
    );
    f.note("estimated network size, mean", format!("{estimate:.0}"));
    stage.finish()
}

fn title(setup: &Setup) -> String {
    let keys = if setup.real_crypto { ", every agreement and signature computed" } else { "" };
    format!("Steady state, {} nodes{keys}", setup.nodes)
}
