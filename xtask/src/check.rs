//! The one check: a list of steps, all of them run, one table at the end.
//!
//! Order matters for the time, not for the truth: cheap steps that fail often come first, and steps that share compiled
//! artefacts stand together. A failed step does not stop the later ones: one run should tell everything that is wrong.

use crate::command::Run;
use crate::repo::Repo;
use crate::report::{self, Failure, Progress, Proof, Row, StepResult};
use crate::{fuzz, hygiene, models, setup, simulate, test_run};

type StepFn = Box<dyn Fn(&Repo, &Progress) -> StepResult>;

/// Runs every step that applies; returns whether all held.
pub(crate) fn run(repo: &Repo, quick: bool) -> bool {
    let before = repo.tree_state();
    let steps = steps(repo, quick);
    let count = steps.len() + 1;
    let mut rows = Vec::new();
    let mut step = |name: &'static str, run: &dyn Fn(&Progress) -> StepResult| {
        let progress = Progress::start(name, rows.len() + 1, count);
        let result = run(&progress);
        let took = progress.elapsed();
        rows.push(Row { name, took, result: progress.finish(result) });
    };
    for (name, run) in &steps {
        step(name, &|progress| run(repo, progress));
    }
    step("tree", &|_| match (&before, repo.tree_state()) {
        (Some(before), Some(after)) if *before == after => Ok(Proof::of("the check changed nothing")),
        (Some(before), Some(after)) => {
            let changes = after.changes_since(before).join("\n");
            Err(Failure::of("files changed while the check ran", changes))
        }
        _ => Ok(Proof::of("not a git checkout: nothing to compare with")),
    });
    let (text, held) = report::summary(&rows);
    print!("{text}");
    held
}

fn steps(repo: &Repo, quick: bool) -> Vec<(&'static str, StepFn)> {
    let mut steps: Vec<(&'static str, StepFn)> = Vec::new();
    if !quick {
        steps.push(("setup", Box::new(setup::run)));
    }
    steps.push(("format", Box::new(format)));
    steps.push(("hygiene", Box::new(hygiene::run)));
    steps.push(("clippy", Box::new(clippy)));
    if !quick {
        steps.push(("docs", Box::new(docs)));
    }
    steps.push(("tests", Box::new(move |repo, progress| test_run::run(repo, progress, quick))));
    if !quick {
        steps.push(("doctests", Box::new(test_run::doctests)));
        // An unreadable list of models is shown by the step that needs it.
        if models::configs(repo).map_or(true, |configs| !configs.is_empty()) {
            steps.push(("models", Box::new(|repo, progress| models::run(repo, progress, false, &[]))));
        }
        if fuzz::exists(repo) {
            steps.push(("fuzz", Box::new(|repo, progress| fuzz::run(repo, progress, &fuzz::Request::all()))));
        }
        if simulate::exists(repo) {
            steps.push(("simulate", Box::new(simulate::run)));
        }
    }
    steps
}

/// A workspace of its own: rivals are no dependency of the default members.
const RIVALS: &str = "bench/rivals/Cargo.toml";

fn format(repo: &Repo, progress: &Progress) -> StepResult {
    Run::cargo("format", &["fmt", "--all", "--check"]).must(repo, progress)?;
    if fuzz::exists(repo) {
        Run::cargo("format-fuzz", &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]).must(repo, progress)?;
    }
    if repo.root.join(RIVALS).is_file() {
        Run::cargo("format-rivals", &["fmt", "--manifest-path", RIVALS, "--check"]).must(repo, progress)?;
    }
    Ok(Proof::of("every file is as rustfmt writes it"))
}

fn clippy(repo: &Repo, progress: &Progress) -> StepResult {
    let args = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    Run::cargo("clippy", &args).must(repo, progress)?;
    if fuzz::exists(repo) {
        fuzz::lint(repo, progress)?;
    }
    if repo.root.join(RIVALS).is_file() {
        // Without the rivals themselves, which take as long to compile as everything else together.
        let args = ["clippy", "--manifest-path", RIVALS, "--no-default-features", "--locked", "--target-dir"];
        let run = Run::cargo("clippy-rivals", &args).args([&repo.target]).args(["--", "-D", "warnings"]);
        run.must(repo, progress)?;
    }
    Ok(Proof::of("no warning in any crate, test, example or fuzz target"))
}

fn docs(repo: &Repo, progress: &Progress) -> StepResult {
    let args = ["doc", "--workspace", "--no-deps", "--locked"];
    Run::cargo("docs", &args).env("RUSTDOCFLAGS", "-D warnings").must(repo, progress)?;
    Ok(Proof::of("documentation builds without a warning"))
}
