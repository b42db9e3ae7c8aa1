//! `tessera completions SHELL`: a completion script on standard output.

use std::process::ExitCode;

use clap::CommandFactory;
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
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "tessera", &mut script);
    match print(script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {error}");
            ExitCode::from(2)
        }
    }
}
