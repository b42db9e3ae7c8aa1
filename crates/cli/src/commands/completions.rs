//! `tessera completions SHELL`: a completion script on standard output.

use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::tell::print;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera completions bash > ~/.local/share/bash-completion/completions/tessera
  tessera completions zsh > \"${fpath[1]}/_tessera\"
  tessera completions fish > ~/.config/fish/completions/tessera.fish")]
pub(crate) struct Args {
    /// The shell to write for
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(&crate::Cli::command()), "tessera", &mut script);
    match print(script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The commands and flags that are not hidden. The generators would offer all.
fn visible(command: &Command) -> Command {
    // A name must outlive the program, which ends in a moment.
    let name: &'static str = command.get_name().to_owned().leak();
    let mut shown = Command::new(name)
        .disable_help_subcommand(command.is_disable_help_subcommand_set())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(visible));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if command.get_version().is_some() {
        shown = shown.version(env!("CARGO_PKG_VERSION"));
    }
    shown
}
