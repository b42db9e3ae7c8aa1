//! The one check: a list of steps, all of them run, one table at the end.
//!
//! Order matters for the time, not for the truth: what is cheap and often wrong comes first, and what shares compiled
//! artefacts stands together. A failed step does not stop the later ones: one run should tell everything that is wrong.
//!
//! Tests wait for clocks, servers and sockets and leave processors idle. What only computes, and comes to the same result
//! however slowly it gets there, is done beside them at the lowest priority: it takes what they leave, and is told in its turn.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::Run;
use crate::repo::Repo;
use crate::report::{self, Failure, Progress, Proof, Row, StepResult};
use crate::{fuzz, hygiene, models, setup, simulate, test_run};

type StepFn = Box<dyn Fn(&Repo, &Progress) -> StepResult + Sync>;

struct Step {
    name: &'static str,
    /// Whether it begins together with the nearest step before it that is not beside another, instead of after it. Those beside
    /// the same step run one after another.
    beside: bool,
    run: StepFn,
}

/// Runs every step that applies; returns whether all held.
pub(crate) fn run(repo: &Repo, quick: bool) -> bool {
    let begun = Instant::now();
    let before = repo.tree_state();
    let mut steps = steps(repo, quick);
    steps.push(step("tree", move |repo, _| match (&before, repo.tree_state()) {
        (Some(before), Some(after)) if *before == after => Ok(Proof::of("the check changed nothing")),
        (Some(before), Some(after)) => {
            let changes = after.changes_since(before).join("\n");
            Err(Failure::of("files changed while the check ran", changes))
        }
        _ => Ok(Proof::of("not a git checkout: nothing to compare with")),
    }));
    let rows = run_all(repo, &steps);
    let (text, held) = report::summary(&rows, begun.elapsed());
    print!("{text}");
    held
}

fn run_all(repo: &Repo, steps: &[Step]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut rest = steps;
    while let [first, after @ ..] = rest {
        let (others, after) = after.split_at(after.iter().take_while(|step| step.beside).count());
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                for other in others {
                    let progress = Progress::beside(other.name);
                    let result = (other.run)(repo, &progress);
                    // Nobody listens any more only when the first step has panicked, which ends the check.
                    let _ = tell.send((progress.elapsed(), result));
                }
            });
            let progress = Progress::start(first.name, rows.len() + 1, steps.len());
            let result = (first.run)(repo, &progress);
            let took = progress.elapsed();
            rows.push(progress.finish(took, result));
            for other in others {
                let progress = Progress::start(other.name, rows.len() + 1, steps.len());
                let (took, result) = wait_for(&told, &progress);
                rows.push(progress.finish(took, result));
            }
        });
        rest = after;
    }
    rows
}

/// How long the next step beside took, and how it ended.
fn wait_for(told: &Receiver<(Duration, StepResult)>, progress: &Progress) -> (Duration, StepResult) {
    loop {
        match told.recv_timeout(Duration::from_millis(200)) {
            Ok(ended) => return ended,
            Err(RecvTimeoutError::Timeout) => progress.tick("begun beside the step before"),
            Err(RecvTimeoutError::Disconnected) => {
                return (progress.elapsed(), Err(Failure::of("it ended without a result", "")));
            }
        }
    }
}

fn step(name: &'static str, run: impl Fn(&Repo, &Progress) -> StepResult + Sync + 'static) -> Step {
    Step { name, beside: false, run: Box::new(run) }
}

fn beside(name: &'static str, run: impl Fn(&Repo, &Progress) -> StepResult + Sync + 'static) -> Step {
    Step { beside: true, ..step(name, run) }
}

fn steps(repo: &Repo, quick: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    if !quick {
        steps.push(step("setup", setup::run));
    }
    steps.push(step("format", format));
    steps.push(step("hygiene", hygiene::run));
    steps.push(step("clippy", clippy));
    if !quick {
        // A step of its own, because what is beside the tests may need what it builds, and would keep it waiting.
        steps.push(step("build", test_run::build));
    }
    steps.push(step("tests", move |repo, progress| test_run::run(repo, progress, quick)));
    if !quick {
        if fuzz::exists(repo) {
            steps.push(beside("fuzz-build", fuzz::build_all));
        }
        steps.push(beside("docs", docs));
        steps.push(beside("doctests", test_run::doctests));
        // An unreadable list of models is shown by the step that needs it.
        if models::configs(repo).map_or(true, |configs| !configs.is_empty()) {
            steps.push(beside("models", |repo, progress| models::run(repo, progress, false, &[])));
        }
        // Not beside the tests: what it proves depends on how much it gets done in its seconds.
        if fuzz::exists(repo) {
            steps.push(step("fuzz", |repo, progress| fuzz::run(repo, progress, &fuzz::Request::all())));
        }
        if simulate::exists(repo) {
            steps.push(step("simulate", simulate::run));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> Repo {
        Repo { root: ".".into(), target: "target".into() }
    }

    #[test]
    fn a_step_beside_begins_with_the_one_before_and_is_told_after_it() {
        let (begun, has_begun) = mpsc::channel();
        let has_begun = std::sync::Mutex::new(has_begun);
        let steps = [
            step("tests", move |_, _| {
                // Would wait in vain if the other came after it.
                let begun = has_begun.lock().unwrap().recv_timeout(Duration::from_secs(60));
                begun.map(|()| Proof::of("tested")).map_err(|error| Failure::from(error.to_string()))
            }),
            beside("models", move |_, _| {
                begun.send(()).unwrap();
                Err(Failure::of("a model is wrong", ""))
            }),
            beside("docs", |_, _| Ok(Proof::of("documented"))),
            step("fuzz", |_, _| Ok(Proof::of("fuzzed"))),
        ];
        let rows = run_all(&repo(), &steps);
        let told: Vec<_> = rows.iter().map(|row| (row.name, row.result.is_ok())).collect();
        assert_eq!(told, [("tests", true), ("models", false), ("docs", true), ("fuzz", true)]);
        assert!(!report::summary(&rows, Duration::ZERO).1, "it fails the check like any other");
    }

    #[test]
    fn a_step_that_is_not_beside_waits_for_all_before_it() {
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = done.clone();
        let steps = [
            step("tests", |_, _| Ok(Proof::default())),
            beside("models", move |_, _| {
                thread::sleep(Duration::from_millis(50));
                done.store(true, std::sync::atomic::Ordering::SeqCst);
                Ok(Proof::default())
            }),
            step("fuzz", move |_, _| match seen.load(std::sync::atomic::Ordering::SeqCst) {
                true => Ok(Proof::default()),
                false => Err(Failure::of("too early", "")),
            }),
        ];
        assert!(run_all(&repo(), &steps).iter().all(|row| row.result.is_ok()));
    }
}
