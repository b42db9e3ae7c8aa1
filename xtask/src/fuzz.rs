//! Coverage-guided fuzzing with libFuzzer on the stable toolchain, a few seconds a target.
//!
//! `fuzz/` is a workspace of its own, because it is compiled with coverage instrumentation; every file in
//! `fuzz/src/bin` is a target. New inputs of a run go to the target folder; `fuzz/corpus/<target>` holds the committed
//! inputs and is only read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Run, each_of};
use crate::repo::Repo;
use crate::report::{Failure, Progress, Proof, StepResult};

const SECONDS_DEFAULT: u64 = 3;

/// The flags of cargo-fuzz, spelt with stable options only.
const INSTRUMENT: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on -Dwarnings";

const LOCK_IS_OLD: &str = "fuzz/Cargo.lock is old: run `cargo update --workspace --manifest-path fuzz/Cargo.toml`";

/// The request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    seconds: u64,
    target: Option<String>,
    replay: Option<PathBuf>,
}

impl Request {
    /// Every target, a few seconds each.
    pub(crate) fn all() -> Self {
        Self { seconds: SECONDS_DEFAULT, target: None, replay: None }
    }

    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut request = Self::all();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--seconds" => {
                    let value = args.next().ok_or("--seconds needs a number")?;
                    request.seconds =
                        value.parse().map_err(|_| format!("--seconds takes a whole number, not `{value}`"))?;
                    if request.seconds == 0 {
                        // libFuzzer reads 0 as "for ever".
                        return Err("--seconds must be at least 1".to_string());
                    }
                }
                flag if flag.starts_with('-') => return Err(format!("`cargo xtask fuzz` does not take `{flag}`")),
                name if request.target.is_none() => request.target = Some(name.to_string()),
                name if request.replay.is_none() => request.replay = Some(PathBuf::from(name)),
                extra => return Err(format!("one target and one file at most; `{extra}` is too much")),
            }
        }
        Ok(request)
    }
}

/// Whether there are targets.
pub(crate) fn exists(repo: &Repo) -> bool {
    repo.root.join("fuzz/Cargo.toml").is_file()
}

/// Clippy over the targets, in the folder of the other crates: without instrumentation their compiled parts are the same.
pub(crate) fn lint(repo: &Repo, progress: &Progress) -> Result<(), Failure> {
    let args = ["clippy", "--manifest-path", "fuzz/Cargo.toml", "--bins", "--locked", "--target-dir"];
    let run = Run::cargo("clippy-fuzz", &args).args([&repo.target]).args(["--", "-D", "warnings"]);
    run.must(repo, progress).map_err(explain_an_old_lock)?;
    Ok(())
}

pub(crate) fn run(repo: &Repo, progress: &Progress, request: &Request) -> StepResult {
    let all = targets(repo)?;
    let chosen: Vec<&String> = match &request.target {
        None => all.iter().collect(),
        Some(name) if all.contains(name) => vec![name],
        Some(name) => return Err(format!("there is no fuzz target `{name}`; there are: {}", all.join(", ")).into()),
    };
    let programs = build(repo, progress)?;
    if let (Some(input), Some(name)) = (&request.replay, &request.target) {
        let input = std::path::absolute(input).map_err(|error| format!("cannot find {}: {error}", input.display()))?;
        Run::new(programs.join(name), "fuzz").args([&input]).must(repo, progress)?;
        return Ok(Proof::of(format!("{name} survives {}", input.display())));
    }
    let executions = each_of(&chosen, |name| {
        let learned = repo.scratch(&format!("fuzz/corpus/{name}"))?;
        let artifacts = repo.scratch(&format!("fuzz/artifacts/{name}"))?;
        let mut run = Run::new(programs.join(name), format!("fuzz-{name}"))
            .args([
                format!("-max_total_time={}", request.seconds),
                "-timeout=120".to_string(),
                "-rss_limit_mb=1024".to_string(),
                "-print_final_stats=1".to_string(),
                format!("-artifact_prefix={}/", artifacts.display()),
            ])
            .args([&learned]);
        let committed = repo.root.join("fuzz/corpus").join(name);
        if committed.is_dir() {
            run = run.args([&committed]);
        }
        let ended = run.doing(name.as_str()).end(repo, progress)?;
        if !ended.success {
            return Err(crashed(name, &ended.output));
        }
        Ok(final_stat(&ended.output, "number_of_executed_units"))
    })?;
    let said = format!("{} targets, {} inputs, no crash", chosen.len(), executions.iter().sum::<u64>());
    Ok(Proof { said, tests: chosen.len() as u64, tests_skipped: 0 })
}

fn crashed(name: &str, output: &str) -> Failure {
    let input =
        output.lines().find_map(|line| line.split("Test unit written to ").nth(1)).unwrap_or("(see the output)");
    Failure::of(
        format!("{name} crashed on {input}"),
        format!("{output}\ncrashing input: {input}\nreplay: cargo xtask fuzz {name} {input}"),
    )
}

/// Builds all targets; returns the folder of the programs.
fn build(repo: &Repo, progress: &Progress) -> Result<PathBuf, Failure> {
    let version = Run::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()), "rustc").args(["-vV"]);
    let version = version.must(repo, progress)?.output;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .ok_or_else(|| "rustc -vV names no host".to_string())?
        .to_string();
    let target_dir = repo.target.join("fuzz");
    // With --target the flags reach only fuzzed code, not build scripts, which could not be linked with them.
    Run::cargo("fuzz-build", &["build", "--locked", "--bins", "--target", &host, "--target-dir"])
        .args([&target_dir])
        .folder(repo.root.join("fuzz"))
        .env("RUSTFLAGS", INSTRUMENT)
        .must(repo, progress)
        .map_err(explain_an_old_lock)?;
    Ok(target_dir.join(host).join("debug"))
}

fn explain_an_old_lock(failure: Failure) -> Failure {
    if failure.output.contains("lock file") {
        return Failure { said: LOCK_IS_OLD.to_string(), ..failure };
    }
    failure
}

fn targets(repo: &Repo) -> Result<Vec<String>, String> {
    let folder = repo.root.join("fuzz/src/bin");
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().extension() == Some("rs".as_ref()))
        .filter_map(|entry| Path::new(&entry.file_name()).file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn final_stat(output: &str, name: &str) -> u64 {
    let line = output.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_target_a_file_and_a_time() {
        let request = Request::parse(&["--seconds", "9", "ids", "crash-1"]).unwrap();
        assert_eq!(request, Request { seconds: 9, target: Some("ids".into()), replay: Some("crash-1".into()) });
    }

    #[test]
    fn an_endless_or_unknown_request_is_refused() {
        assert!(Request::parse(&["--seconds", "0"]).is_err());
        assert!(Request::parse(&["--second", "1"]).is_err());
        assert!(Request::parse(&["a", "b", "c"]).is_err());
    }

    #[test]
    fn a_crash_names_its_input_and_how_to_replay_it() {
        let failure = crashed("ids", "x\nartifact_prefix='./'; Test unit written to ./crash-1\n");
        assert!(failure.output.ends_with("replay: cargo xtask fuzz ids ./crash-1"), "{}", failure.output);
    }
}
