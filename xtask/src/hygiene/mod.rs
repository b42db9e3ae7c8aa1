//! Faults that a compiler does not see: leftovers, paths of a developer's machine, dead links, numbers that drifted, arrows that
//! point the wrong way, words that hide who acts, code that ships and is not simulated.

mod arrows;
mod crate_map;
mod leftovers;
mod links;
mod lock;
mod numbers;
mod simulated;
mod words;

use crate::coverage;
use crate::repo::Repo;
use crate::report::{Failure, Progress, Proof, StepResult};

pub(crate) fn run(repo: &Repo, _: &Progress) -> StepResult {
    let files = repo.files()?;
    let mut problems = Vec::new();
    let mut texts = Vec::new();
    for name in files.iter().filter(|name| is_text(name)) {
        let text = repo.read(name)?;
        problems.extend(leftovers::problems(name, &text));
        problems.extend(words::problems(name, &text));
        if name.ends_with(".md") {
            problems.extend(links::problems(repo, name, &text));
            problems.extend(numbers::problems(repo, name, &text));
        }
        if name.ends_with("Cargo.lock") {
            problems.extend(lock::problems(name, &text));
        }
        if let Some(krate) = name.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) {
            problems.extend(arrows::problems(repo, krate, &text));
            problems.extend(crate_map::problem(repo, krate));
        }
        texts.push((name.as_str(), text));
    }
    problems.extend(simulated::problems(texts.iter().map(|(name, text)| (*name, text.as_str()))));
    let (rows, wrong) = coverage::problems(repo)?;
    problems.extend(wrong);
    if problems.is_empty() {
        let said = format!("{} files without leftovers; links, arrows and {rows} coverage rows are true", files.len());
        Ok(Proof::of(said))
    } else {
        Err(Failure::of(format!("{} places to mend", problems.len()), problems.join("\n")))
    }
}

fn is_text(name: &str) -> bool {
    let known = [".rs", ".toml", ".md", ".txt", ".tla", ".cfg", ".sh", ".yml", ".yaml", ".json", ".lock"];
    known.iter().any(|suffix| name.ends_with(suffix)) || name == ".ci/run"
}
