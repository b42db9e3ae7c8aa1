//! The project's own commands: `cargo xtask check` proves everything, its relatives prove one part.
//!
//! No dependency at all: this is compiled first on a fresh machine, and a check that needs a download to start
//! cannot say what is missing. Each step is a file; `check.rs` is the list of them.

#![forbid(unsafe_code)]

mod check;
mod command;
mod coverage;
mod fuzz;
mod hygiene;
mod models;
mod repo;
mod report;
mod setup;
mod simulate;
mod test_run;
mod tlc;
mod traces;

use std::process::ExitCode;

use repo::Repo;
use report::Progress;

const HELP: &str = "\
cargo xtask: the project's own commands

USAGE
  cargo xtask check [--quick]            prove everything; changes nothing in the tree
  cargo xtask setup                      fetch what the tests need (etcd, Java, TLC) into the target folder
  cargo xtask hygiene                    look for leftovers, dead links, drifted numbers and untrue coverage rows
  cargo xtask coverage                   count docs/SPEC_COVERAGE.md by status and list the open rows
  cargo xtask models [--large] [NAME..]  model-check specs/*/MC_*.cfg with TLC (NAME selects by substring), and traces
                                         of the simulator (`traces`)
  cargo xtask fuzz [--seconds N] [TARGET [FILE]]
                                         fuzz all targets or one; with FILE, replay that input
  cargo xtask help                       this text

`check --quick` is for the inner loop: it skips installs, docs, doctests, TLC, fuzzing, simulation, and the test programs
named real_* (they start real servers) and slow_*. Tests that cannot run on this machine (they need root, or mounts) are
counted as skipped and named. Run by hand, such a test fails unless TESSERA_MAY_SKIP is set.

ENVIRONMENT (each is found or fetched by itself when unset)
  TESSERA_ETCD      path of an etcd server binary for the tests
  TESSERA_ETCDCTL   path of etcdctl
  TESSERA_TLA_JAR   path of tla2tools.jar
";

const VERBS: [&str; 7] = ["check", "setup", "hygiene", "coverage", "models", "fuzz", "help"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether the steps passed; an error is a request we could not serve at all.
fn run(args: &[&str]) -> Result<bool, String> {
    let (verb, rest) = match args {
        [] | ["help" | "--help" | "-h", ..] => {
            print!("{HELP}");
            return Ok(true);
        }
        [verb, rest @ ..] => (*verb, rest),
    };
    let repo = Repo::find()?;
    match verb {
        "check" => {
            let quick = match rest {
                [] => false,
                ["--quick"] => true,
                _ => return Err(unknown_argument("check", rest, &["--quick"])),
            };
            Ok(check::run(&repo, quick))
        }
        "setup" => {
            no_arguments("setup", rest)?;
            report_one(&repo, "setup", setup::run)
        }
        "hygiene" => {
            no_arguments("hygiene", rest)?;
            report_one(&repo, "hygiene", hygiene::run)
        }
        "coverage" => {
            no_arguments("coverage", rest)?;
            coverage::print(&repo)
        }
        "models" => {
            let large = rest.contains(&"--large");
            let names: Vec<&str> = rest.iter().copied().filter(|arg| *arg != "--large").collect();
            if names.iter().any(|name| name.starts_with('-')) {
                return Err(unknown_argument("models", &names, &["--large", "NAME"]));
            }
            report_one(&repo, "models", |repo, progress| models::run(repo, progress, large, &names))
        }
        "fuzz" => {
            let request = fuzz::Request::parse(rest)
                .map_err(|problem| format!("{problem}\n  usage: cargo xtask fuzz [--seconds N] [TARGET [FILE]]"))?;
            report_one(&repo, "fuzz", |repo, progress| fuzz::run(repo, progress, &request))
        }
        other => Err(format!(
            "there is no `cargo xtask {other}`{}\n  commands: {}",
            nearest(other, &VERBS),
            VERBS.join(", ")
        )),
    }
}

fn report_one(
    repo: &Repo,
    name: &'static str,
    step: impl FnOnce(&Repo, &Progress) -> report::StepResult,
) -> Result<bool, String> {
    let progress = Progress::start(name, 1, 1);
    let result = step(repo, &progress);
    Ok(progress.finish(result).is_ok())
}

fn no_arguments(verb: &str, rest: &[&str]) -> Result<(), String> {
    if rest.is_empty() { Ok(()) } else { Err(unknown_argument(verb, rest, &[])) }
}

fn unknown_argument(verb: &str, seen: &[&str], known: &[&str]) -> String {
    let takes = if known.is_empty() { "no arguments".to_string() } else { known.join(", ") };
    let hint = seen.iter().map(|arg| nearest(arg, known)).find(|hint| !hint.is_empty()).unwrap_or_default();
    format!(
        "`cargo xtask {verb}` does not take `{}`{hint}\n  it takes: {takes}\n  see: cargo xtask help",
        seen.join(" ")
    )
}

/// `; did you mean ...?` when a known word is at most two edits away.
fn nearest(seen: &str, known: &[&str]) -> String {
    known
        .iter()
        .map(|word| (edits_between(seen, word), word))
        .filter(|(edits, _)| *edits <= 2)
        .min()
        .map(|(_, word)| format!("; did you mean `{word}`?"))
        .unwrap_or_default()
}

fn edits_between(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_command_is_answered_with_the_nearest_one() {
        assert_eq!(nearest("chekc", &["check", "setup"]), "; did you mean `check`?");
        assert_eq!(nearest("frobnicate", &["check", "setup"]), "");
    }

    #[test]
    fn an_unknown_argument_is_refused_with_what_is_taken() {
        let problem = unknown_argument("check", &["--quik"], &["--quick"]);
        assert!(problem.contains("did you mean `--quick`?"), "{problem}");
        assert!(problem.contains("it takes: --quick"), "{problem}");
    }
}
