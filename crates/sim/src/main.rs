//! Simulations, by name. Each runs the code that ships, in virtual time, from one seed, and prints the command that
//! repeats it.

#![forbid(unsafe_code)]

mod dht;

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
    /// A network of DHT nodes under churn, partitions, restarts and attack.
    Dht(dht::Args),
}

fn main() -> ExitCode {
    match Cli::parse().simulation {
        Simulation::Dht(args) => dht::run(&args),
    }
}
