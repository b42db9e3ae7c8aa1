//! A whole node beside others, in one run.
//!
//! ```text
//! cargo run --release --manifest-path bench/rivals/Cargo.toml            all figures: ours, a bare echo, mainline
//! cargo run --release --manifest-path bench/rivals/Cargo.toml -- get     those whose name contains a text
//! ```
//!
//! CPU time is that of the whole process, wall time stands beside it. The sender of the flood is a process of its own, so that
//! its work is not counted. Rounds alternate between ours and the others, and the median round is printed.

mod clock;
mod flood;
mod mainline_dht;
mod ours;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "send-flood") {
        return flood::send(&args[1..]);
    }
    let wanted = |name: &str| args.is_empty() || args.iter().any(|arg| name.contains(arg.as_str()));
    if wanted("find-node") {
        flood::compare()?;
    }
    if wanted("get") || wanted("put") {
        lookups()?;
    }
    if wanted("memory") {
        ours::memory(256)?;
    }
    Ok(())
}

/// CPU of a put and of a get in a network of 64 nodes in this process.
fn lookups() -> Result<(), Box<dyn Error>> {
    const NODES: usize = 64;
    const ROUNDS: usize = 5;
    const EACH: usize = 60;
    let ours = ours::Network::start(NODES)?;
    let mainline = mainline_dht::Network::start(NODES)?;
    let mut table = clock::Table::default();
    for round in 0..ROUNDS {
        ours.round(round, EACH, &mut table)?;
        mainline.round(round, EACH, &mut table)?;
    }
    println!("{NODES} nodes in one process, microseconds of CPU (wall) for one, median of {ROUNDS} rounds of {EACH}:");
    table.print("ours");
    Ok(())
}
