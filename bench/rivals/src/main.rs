//! A whole node beside others, in one run.
//!
//! ```text
//! cargo run --release --manifest-path bench/rivals/Cargo.toml              all figures: ours, libp2p, mainline, and their floors
//! cargo run --release --manifest-path bench/rivals/Cargo.toml -- --json    the same, an object a line
//! cargo run --release --manifest-path bench/rivals/Cargo.toml -- get put   figures whose name contains a text
//! cargo run --release --manifest-path bench/rivals/Cargo.toml --no-default-features -- put get --before PROGRAM
//!                                                              our own nodes beside those of a former build of this program
//! ```
//!
//! CPU time is that of the whole process that serves, wall time stands beside it. The sender of the flood is a process of its
//! own, and so is each network; rounds alternate between them, and the median round is printed.

mod bare;
mod datagrams;
mod figures;
mod flood;
#[cfg(feature = "libp2p")]
mod libp2p_kad;
#[cfg(feature = "mainline")]
mod mainline_dht;
mod network;
mod ours;
mod process;
mod sealed;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use figures::{Aim, Cost, Question, Rounds};
use network::Driven;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Nodes of a network that is read and written, and of one whose memory is looked at.
const NODES: usize = 64;
const NODES_FOR_MEMORY: usize = 256;
/// Rivals that cannot have so many for want of sockets are looked at among fewer, and it is said.
const FEWER_NODES: [usize; 2] = [128, 64];
/// Two for each pair of nodes, and some.
const SOCKETS: u64 = 3 * (NODES_FOR_MEMORY * NODES_FOR_MEMORY) as u64;
const ROUNDS: usize = 5;
/// Rounds before those that count, for all: the figure is the cost of a node that runs. Every two nodes that will talk
/// should have met, which costs ours a key agreement on either side once; the thousands of puts of a round see to that.
const ROUNDS_TO_WARM_UP: usize = 1;

/// The least cost of the datagrams of a put and of a get, between threads that sleep, and sealed and on lanes.
const DATAGRAMS: &str = "datagrams";
const BARE: &str = "bare";
const SEALED: &str = "sealed";

/// Our own nodes as they were when another program was built from this one's source.
const BEFORE: &str = "before";

/// Everybody there is, ours first.
const EVERYBODY: &[&str] = &[
    "ours",
    #[cfg(feature = "libp2p")]
    "libp2p",
    #[cfg(feature = "mainline")]
    "mainline",
];

fn main() -> Result<(), Box<dyn Error>> {
    // A network of 256 nodes has more sockets than a process may have by default, and where every two keep a connection more
    // than most may ask for: the bound is raised where that is allowed.
    let files = getrlimit(Resource::Nofile);
    let many = Rlimit { current: Some(SOCKETS), maximum: Some(SOCKETS) };
    setrlimit(Resource::Nofile, many)
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }))?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["serve-flood", who] => return flood::serve(who),
        ["send-flood", who, target] => return flood::send(who, target),
        ["serve", DATAGRAMS, count] => return network::serve::<datagrams::Datagrams>(count.parse()?),
        ["serve", BARE, count] => return network::serve::<bare::Bare>(count.parse()?),
        ["serve", SEALED, count] => return network::serve::<sealed::Sealed>(count.parse()?),
        ["serve", "ours", count] => return network::serve::<ours::Ours>(count.parse()?),
        #[cfg(feature = "libp2p")]
        ["serve", "libp2p", count] => return network::serve::<libp2p_kad::Libp2p>(count.parse()?),
        #[cfg(feature = "mainline")]
        ["serve", "mainline", count] => return network::serve::<mainline_dht::Mainline>(count.parse()?),
        _ => {}
    }
    let json = words.contains(&"--json");
    let mut texts: Vec<&str> = words.into_iter().filter(|word| *word != "--json").collect();
    let before = texts.iter().position(|word| *word == "--before").map(|at| {
        texts.remove(at);
        if at < texts.len() { Ok(Path::new(texts.remove(at))) } else { Err("--before wants a program") }
    });
    let before = before.transpose()?;
    let wanted = |name: &str| texts.is_empty() || texts.iter().any(|text| name.contains(text));
    if let Some(unknown) =
        texts.iter().find(|text| !["find-node", "get", "put", "memory"].iter().any(|f| f.contains(*text)))
    {
        return Err(format!("no figure has `{unknown}` in its name: there are find-node, get, put and memory").into());
    }
    if wanted("find-node") {
        let question = Question { name: "find-node", unit: "us CPU/request", aim: Aim::Times(1.6, "echo") };
        flood::compare()?.print(&question, json);
    }
    if wanted("get") || wanted("put") {
        let Lookups { get, put, busy_get, busy_put } = Lookups::compare(before)?;
        let (of_get, of_put) = (Aim::Ours(150.0), Aim::Ours(400.0));
        for (name, rounds, unit, aim) in [
            ("get", get, "us CPU/get", of_get),
            ("get, sixteen under way", busy_get, "us CPU/get", of_get),
            ("put", put, "us CPU/put", of_put),
            ("put, sixteen under way", busy_put, "us CPU/put", of_put),
        ] {
            if wanted(name) {
                rounds.print(&Question { name, unit, aim }, json);
            }
        }
    }
    if wanted("memory") {
        memory()?.print(&Question { name: "memory", unit: "kB/node", aim: Aim::Ours(200.0) }, json);
    }
    Ok(())
}

/// The cost of a get and a put in networks of 64 nodes, each in one process: one after the other, and sixteen under way.
#[derive(Default)]
struct Lookups {
    get: Rounds,
    put: Rounds,
    busy_get: Rounds,
    busy_put: Rounds,
}

impl Lookups {
    fn compare(before: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let mut lookups = Self::default();
        let here = EVERYBODY.iter().chain(&[DATAGRAMS, BARE, SEALED]).map(|who| (*who, Driven::start(who, NODES)));
        let mut networks = here
            .chain(before.map(|program| (BEFORE, Driven::start_build(program, NODES))))
            .map(|(who, network)| {
                let network = network?;
                network.stand_still()?;
                Ok((who, network))
            })
            .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        for round in 0..ROUNDS_TO_WARM_UP + ROUNDS {
            for (who, network) in &mut networks {
                eprintln!("{who}: round {} of {}", round + 1, ROUNDS_TO_WARM_UP + ROUNDS);
                let costs = network.round()?;
                if round >= ROUNDS_TO_WARM_UP {
                    lookups.get.add(who, costs.get);
                    lookups.put.add(who, costs.put);
                    lookups.busy_get.add(who, costs.busy_get);
                    lookups.busy_put.add(who, costs.busy_put);
                }
            }
        }
        Ok(lookups)
    }
}

/// The memory of a node of 256 in one process, a while after they met.
fn memory() -> Result<Rounds, Box<dyn Error>> {
    let mut rounds = Rounds::default();
    for who in EVERYBODY {
        let fewer: &[usize] = if *who == "ours" { &[] } else { &FEWER_NODES };
        for (at, count) in [NODES_FOR_MEMORY].iter().chain(fewer).enumerate() {
            let memory = Driven::start(who, *count).and_then(|mut network| {
                std::thread::sleep(Duration::from_secs(3));
                network.memory()
            });
            match memory {
                Ok(kilobytes) => {
                    let name = if at == 0 { (*who).to_owned() } else { format!("{who} of {count}") };
                    rounds.add(&name, Cost { cpu: kilobytes, wall: 0.0 });
                    break;
                }
                Err(why) if *who == "ours" => return Err(why),
                Err(why) => eprintln!("{who}: no figure of the memory of {count}: {why}"),
            }
        }
    }
    Ok(rounds)
}
