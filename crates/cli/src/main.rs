//! The `tessera` command: flags in, words and exit codes out. Every subcommand is a file in `commands/`.
//!
//! Exit codes: 0 done, 2 refused or failed; `scan` adds 1 (findings) and 3 (incomplete), `dht` adds 1 (not found).

#![forbid(unsafe_code)]
// They panic when the writing fails; the functions of `tell` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod tell;

mod commands;
mod config;
mod fleet;
mod hint;
mod login;
mod piped;
mod progress;
mod redrawn;
mod report;
mod repositories;
mod signals;
mod state_dir;
mod table;
mod whole_file;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A secret scanner for directories, git histories and fleets of machines: what it could not read, it says.
#[derive(Debug, Parser)]
#[command(
    name = "tessera",
    version,
    disable_help_subcommand = true,
    after_help = "EXAMPLES
  tessera scan ./my-repository          look for leaked secrets in a directory
  tessera hook install                  look before every commit
  tessera worker --coordinator URL      take part in the scans of a fleet
  tessera runs                          finished and unfinished scans of this machine
  tessera node                          run a node of a DHT
  tessera dht put FILE                  store a value with it
  tessera rules list                    the rules
  tessera completions bash              print a completion script for a shell"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Scan(Box<commands::scan::Args>),
    Worker(commands::worker::Args),
    Runs(commands::runs::Args),
    Shards(commands::shards::Args),
    Node(commands::node::Args),
    Dht(commands::dht::Args),
    Rules(commands::rules::Args),
    Hook(commands::hook::Args),
    Completions(commands::completions::Args),
}

fn main() -> ExitCode {
    login::hide_password();
    match config::parse().command {
        Command::Scan(args) => commands::scan::run(&args),
        Command::Worker(args) => commands::worker::run(&args),
        Command::Runs(args) => commands::runs::run(&args),
        Command::Shards(args) => commands::shards::run(&args),
        Command::Node(args) => commands::node::run(&args),
        Command::Dht(args) => commands::dht::run(&args),
        Command::Rules(args) => commands::rules::run(&args),
        Command::Hook(args) => commands::hook::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
