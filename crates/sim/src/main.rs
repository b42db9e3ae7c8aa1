//! Simulations, by name. Each runs the code that ships, in virtual time, from one seed, and prints the command that
//! repeats it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "tessera-sim", about = "Deterministic simulations of Tessera's protocols")]
struct Cli {
    #[command(subcommand)]
    simulation: Simulation,
}

#[derive(Subcommand)]
enum Simulation {
    /// Workers and an operator on a coordination backend that ships, over a network that fails.
    Coordination(tessera_sim::coordination::Args),
    /// Workers that scan, on machines and a disk that fail, held against planted secrets.
    Sweep(tessera_sim::sweep::Args),
    /// Whole DHT nodes whose lanes are born, die, change and lose power, held against what they acknowledged.
    Node(tessera_sim::node::Args),
    /// A network of DHT nodes under churn, partitions, restarts and attack.
    Dht(tessera_sim::dht::Args),
}

fn main() -> ExitCode {
    match Cli::parse().simulation {
        Simulation::Coordination(args) => tessera_sim::coordination::run(&args),
        Simulation::Sweep(args) => tessera_sim::sweep::run(&args),
        Simulation::Node(args) => tessera_sim::node::run(&args),
        Simulation::Dht(args) => tessera_sim::dht::run(&args),
    }
}
