//! Traces of the simulator, judged by TLC against the model: the model must allow every step of the code.
//!
//! A few worlds with a fresh seed are exported and must be accepted. One of them is then corrupted, a different way each
//! time, and must be refused: a judge that accepts everything judges nothing. So must be worlds around a coordinator that
//! breaks a rule: the steps of broken code are no behaviour of the model.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Run, each_of};
use crate::repo::Repo;
use crate::report::{Failure, Progress};
use crate::simulate::{fresh_seed, simulator};
use crate::tlc::{Length, tlc};

const FOLDER: &str = "specs/coordination";
/// How many fresh worlds are judged.
const WORLDS: u64 = 3;
/// How many worlds are tried, at most, for one in which there is everything to corrupt.
const ATTEMPTS: u64 = 20;

/// A way to make a true trace false: its name, the first text it looks for, and the change of that line.
type Corruption = (&'static str, &'static str, fn(&str) -> String);

const CORRUPTIONS: [Corruption; 7] = [
    ("an executed request is called refused", "fate |-> \"executed\", heard", |line| {
        line.replacen("\"executed\"", "\"refused\"", 1)
    }),
    ("a fence epoch is one too high", "do |-> \"acquire\"", |line| {
        line.replacen("\"Active\", 2,", "\"Active\", 3,", 1)
    }),
    ("a new owner has the old fence", "do |-> \"acquire\"", |line| {
        line.replacen("\"Active\", 2,", "\"Active\", 1,", 1).replacen("told |-> <<2,", "told |-> <<1,", 1)
    }),
    ("a retry is called new", "fate |-> \"replayed\", heard", |line| line.replacen("\"replayed\"", "\"executed\"", 1)),
    ("a shard that was given back keeps its owner", "fate |-> \"executed\", heard", |line| {
        line.replacen("\"none\", 0,", "\"w1\", 1,", 1)
    }),
    ("an op-log forgets at once", "fate |-> \"executed\", heard", |line| line.replacen(", <<1>>,", ", <<>>,", 1)),
    ("a request was never sent", "do |-> \"send\"", |_| String::new()),
];

/// Rules that the exporter breaks, in `tessera_sim::coordination::broken`: its steps must be refused.
const BROKEN: [&str; 5] = ["fence-unchecked", "expiry-unchecked", "op-log-forgotten", "run-ignored", "sink-unfenced"];

/// Whether there is anything to judge.
pub(crate) fn exists(repo: &Repo) -> bool {
    repo.root.join(FOLDER).join("Trace.cfg").is_file()
}

/// How many traces were accepted and how many corrupted ones refused.
pub(crate) fn run(repo: &Repo, progress: &Progress) -> Result<(u64, u64), Failure> {
    let seed = fresh_seed();
    let simulator = simulator(repo, progress)?;
    let mut claims = worlds(repo, progress, &simulator, seed)?;
    for rule in BROKEN {
        let what = format!("a world from seed {seed} on with {rule}");
        claims.push(Claim { what, trace: export(repo, progress, &simulator, seed, rule)?, is_true: false });
    }
    let numbered: Vec<_> = claims.iter().enumerate().collect();
    each_of(&numbered, |(n, claim)| judge(repo, progress, *n, claim))?;
    let accepted = claims.iter().filter(|claim| claim.is_true).count() as u64;
    Ok((accepted, claims.len() as u64 - accepted))
}

/// The verdict expected of TLC on a trace.
struct Claim {
    what: String,
    trace: String,
    is_true: bool,
}

/// Fresh worlds as they were, and one of them corrupted in every way.
fn worlds(repo: &Repo, progress: &Progress, simulator: &Path, seed: u64) -> Result<Vec<Claim>, Failure> {
    let mut claims = Vec::new();
    let mut corrupted = false;
    for world in seed..seed + ATTEMPTS {
        let trace = export(repo, progress, simulator, world, "none")?;
        let falsehoods: Vec<(&str, String)> =
            CORRUPTIONS.iter().filter_map(|corruption| Some((corruption.0, corrupt(&trace, corruption)?))).collect();
        if world - seed < WORLDS {
            claims.push(Claim { what: format!("the world of seed {world}"), trace, is_true: true });
        }
        if !corrupted && falsehoods.len() == CORRUPTIONS.len() {
            claims.extend(falsehoods.into_iter().map(|(what, trace)| {
                let what = format!("the world of seed {world} in which {what}");
                Claim { what, trace, is_true: false }
            }));
            corrupted = true;
        }
        if corrupted && world - seed + 1 >= WORLDS {
            return Ok(claims);
        }
    }
    Err(format!("of {ATTEMPTS} worlds from seed {seed} none has all that is to be corrupted").into())
}

/// The trace of a world.
fn export(repo: &Repo, progress: &Progress, simulator: &Path, seed: u64, broken: &str) -> Result<String, Failure> {
    let (seed, path) = (seed.to_string(), repo.scratch("traces")?.join("Exported.tla"));
    let args = ["coordination", "--seed", &seed, "--broken", broken, "--export-trace"];
    Run::new(simulator, "trace").args(args).args([&path]).must(repo, progress)?;
    Ok(fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?)
}

/// The same trace with the first line that can be corrupted so; none if there is no such line.
fn corrupt(text: &str, (_, mark, change): &Corruption) -> Option<String> {
    let line = text.lines().find(|line| line.contains(mark) && change(line) != **line)?;
    let changed = change(line);
    Some(if changed.is_empty() { text.replacen(&format!("{line}\n"), "", 1) } else { text.replacen(line, &changed, 1) })
}

fn judge(repo: &Repo, progress: &Progress, n: usize, claim: &Claim) -> Result<(), Failure> {
    let Claim { what, trace, is_true } = claim;
    let (models, scratch) = (repo.root.join(FOLDER), repo.scratch(&format!("traces/{n}"))?);
    let path = scratch.join("Exported.tla");
    fs::write(&path, trace).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    // Without `-deadlock`, TLC reports a behaviour that ends: here, a step that the model cannot take.
    let ended = tlc(repo, &format!("tlc-trace-{n}"), Length::Short, &scratch, Some(&models))?
        .args(["-workers", "1", "-config"])
        .args([models.join("Trace.cfg"), PathBuf::from("Exported")])
        .doing(what)
        .folder(&scratch)
        .end(repo, progress)?;
    let verdict = verdict(&ended.output);
    if verdict == Some(*is_true) {
        let _ = fs::remove_dir_all(&scratch);
        return Ok(());
    }
    let said = match verdict {
        Some(true) => format!("TLC accepts {what}, which is not true"),
        Some(false) => format!("the model has no such behaviour: {what}"),
        None => format!("TLC could not judge {what}"),
    };
    Err(Failure::of(said, ended.output))
}

/// Whether TLC took the trace for a behaviour of the model; `None` if something else went wrong.
fn verdict(output: &str) -> Option<bool> {
    if output.contains("Deadlock reached") {
        Some(false)
    } else {
        output.contains("No error has been found").then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "TheSteps == <<\n\
        [do |-> \"acquire\", told |-> <<2, 0, 4, 0>>, seen |-> <<<<\"Active\", 2, \"w1\", 5, 0, 4, 0, <<>>, 0>>>>],\n\
        [do |-> \"send\", op |-> 1],\n\
        [do |-> \"deliver\", op |-> 1, fate |-> \"executed\", heard |-> TRUE, \
         seen |-> <<<<\"Active\", 2, \"none\", 0, 0, 4, 1, <<1>>, 0>>>>],\n\
        [do |-> \"deliver\", op |-> 1, fate |-> \"replayed\", heard |-> TRUE, seen |-> <<>>]\n>>\n";

    #[test]
    fn every_corruption_changes_one_line() {
        for corruption in &CORRUPTIONS {
            let corrupted = corrupt(TRACE, corruption).unwrap();
            let kept = corrupted.lines().filter(|line| TRACE.lines().any(|other| other == *line)).count();
            assert_eq!(kept, TRACE.lines().count() - 1, "{}:\n{corrupted}", corruption.0);
        }
    }

    #[test]
    fn a_trace_without_the_line_cannot_be_corrupted_so() {
        assert!(CORRUPTIONS.iter().all(|corruption| corrupt("TheSteps == <<\n>>\n", corruption).is_none()));
    }

    #[test]
    fn an_output_that_says_neither_is_no_verdict() {
        assert_eq!(verdict("Error: Deadlock reached."), Some(false));
        assert_eq!(verdict("Model checking completed. No error has been found."), Some(true));
        assert_eq!(verdict("Parse error"), None);
    }
}
