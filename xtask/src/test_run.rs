//! Every test of the workspace: cargo-nextest where it is installed, cargo's own runner elsewhere; doctests after.
//!
//! The counts come from the runners' output, because the exit code is 0 also when no test was found.
//! A test that cannot run on this machine leaves a line in the file that `TESSERA_SKIPPED` names; the runners count it as passed, we do not.
//! Tests that start a real server live in test programs named `real_*`, long ones in `slow_*`; `--quick` leaves both out.

use std::fs;

use crate::command::{Run, on_path};
use crate::repo::Repo;
use crate::report::{Failure, Progress, Proof, StepResult};
use crate::setup::Tools;

/// Unit and integration tests.
pub(crate) fn run(repo: &Repo, progress: &Progress, quick: bool) -> StepResult {
    let nextest = on_path("cargo-nextest").is_some();
    let mut args = if nextest {
        vec!["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--no-tests=pass", "--status-level=fail"]
    } else {
        vec!["test", "--workspace", "--locked", "--no-fail-fast"]
    };
    let left_out = left_out(&repo.files()?);
    match (quick, nextest) {
        (true, true) if !left_out.is_empty() => args.extend(["-E", &left_out]),
        // Cargo's runner cannot leave programs out by name: the unit tests are the quick part.
        (true, false) => args.extend(["--lib", "--bins"]),
        (false, false) => args.extend(["--lib", "--bins", "--tests", "--examples"]),
        (_, true) => {}
    }
    judge(repo, progress, Run::cargo("tests", &args), "tests", &args)
}

/// A filter without the `real_*` and `slow_*` programs; each is named, because nextest refuses a pattern that matches none.
fn left_out(files: &[String]) -> String {
    let programs = files.iter().filter_map(|path| {
        let (folder, name) =
            path.strip_suffix(".rs")?.strip_suffix("/main").unwrap_or(path.strip_suffix(".rs")?).rsplit_once('/')?;
        let chosen = folder.ends_with("/tests") && (name.starts_with("real_") || name.starts_with("slow_"));
        chosen.then(|| format!("binary(={name})"))
    });
    let programs: Vec<String> = programs.collect();
    if programs.is_empty() { String::new() } else { format!("not ({})", programs.join(" | ")) }
}

/// The examples in the documentation.
pub(crate) fn doctests(repo: &Repo, progress: &Progress) -> StepResult {
    let args = ["test", "--workspace", "--doc", "--locked", "--no-fail-fast"];
    judge(repo, progress, Run::cargo("doctests", &args), "doctests", &args)
}

fn judge(repo: &Repo, progress: &Progress, mut run: Run, what: &str, args: &[&str]) -> StepResult {
    let tools = Tools::found(repo);
    for (name, path) in tools.env() {
        run = run.env(name, path);
    }
    let told_in = repo.scratch("skipped")?.join(format!("{what}.txt"));
    fs::write(&told_in, "").map_err(|error| format!("cannot write {}: {error}", told_in.display()))?;
    let ended = run.env("TESSERA_SKIPPED", &told_in).end(repo, progress)?;
    let skipped = Skipped::of(&String::from_utf8_lossy(&fs::read(&told_in).unwrap_or_default()));
    let counts = Counts::of(&ended.output);
    let passed = counts.passed.saturating_sub(skipped.tests);
    if ended.success && counts.failed == 0 {
        let left_out = if counts.left_out == 0 { String::new() } else { format!(", {} left out", counts.left_out) };
        let said = format!("{passed} {what}{left_out}{}", skipped.said);
        return Ok(Proof { said, tests: passed, tests_skipped: skipped.tests });
    }
    let failure = ended.failure(&format!("cargo {}", args.join(" ")));
    let said =
        if counts.failed == 0 { failure.said } else { format!("{} {what} failed{}", counts.failed, skipped.said) };
    let (tests_failed, tests_skipped) = (counts.failed, skipped.tests);
    Err(Failure { said, output: failure.output, tests_passed: passed, tests_failed, tests_skipped })
}

/// Tests that could not run on this machine, and why.
#[derive(Debug, Default, PartialEq, Eq)]
struct Skipped {
    tests: u64,
    said: String,
}

impl Skipped {
    /// Reads `NAME: WHY` lines.
    fn of(lines: &str) -> Self {
        let lines: Vec<&str> = lines.lines().filter(|line| !line.trim().is_empty()).collect();
        let said =
            if lines.is_empty() { String::new() } else { format!(", {} skipped: {}", lines.len(), lines.join("; ")) };
        Self { tests: lines.len() as u64, said }
    }
}

/// How many tests passed, failed and were left out, summed over all programs of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    left_out: u64,
}

impl Counts {
    /// Reads libtest's `test result:` lines and nextest's `Summary` line.
    fn of(output: &str) -> Self {
        let mut counts = Self::default();
        // Under nextest, a `test result:` line is the output of one failed test, and the summary has counted it already.
        let summed = output.lines().any(|line| is_summary(line.trim()));
        for line in output.lines().map(str::trim).filter(|line| !summed || is_summary(line)) {
            let result = line.strip_prefix("test result:").and_then(|rest| rest.split_once(". ").map(|(_, rest)| rest));
            let summary = is_summary(line).then(|| line.split_once(" run: ").map(|(_, rest)| rest)).flatten();
            for part in result.or(summary).unwrap_or_default().split([';', ',', '(']) {
                let Some((number, word)) = part.trim().split_once(' ') else { continue };
                let Ok(number) = number.parse::<u64>() else { continue };
                match word.split(' ').next().unwrap_or_default() {
                    "passed" => counts.passed += number,
                    "failed" | "timed" | "exec" => counts.failed += number,
                    "ignored" | "skipped" => counts.left_out += number,
                    _ => {}
                }
            }
        }
        counts
    }
}

fn is_summary(line: &str) -> bool {
    line.starts_with("Summary [")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_results_are_summed_over_programs() {
        let output = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\
                      noise\n\
                      test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(Counts::of(output), Counts { passed: 7, failed: 2, left_out: 1 });
    }

    #[test]
    fn a_nextest_summary_counts_time_outs_as_failures_and_slow_ones_once() {
        let output =
            "     Summary [   1.2s] 12 tests run: 9 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 5 skipped\n";
        assert_eq!(Counts::of(output), Counts { passed: 9, failed: 3, left_out: 5 });
    }

    #[test]
    fn tests_that_could_not_run_are_counted_and_named_with_the_reason() {
        assert_eq!(Skipped::of(""), Skipped::default());
        let two = Skipped::of("a_cut_heals: it needs root\na_full_disk_refuses: no mounts\n");
        assert_eq!(two.tests, 2);
        assert_eq!(two.said, ", 2 skipped: a_cut_heals: it needs root; a_full_disk_refuses: no mounts");
    }

    #[test]
    fn quick_leaves_out_the_programs_that_start_servers_or_take_long() {
        let files = ["crates/a/tests/real_etcd.rs", "crates/a/tests/slow_soak/main.rs", "crates/a/tests/plain.rs"];
        let files = files.map(str::to_string);
        assert_eq!(left_out(&files), "not (binary(=real_etcd) | binary(=slow_soak))");
        assert_eq!(left_out(&["crates/a/src/real_thing.rs".to_string()]), "");
    }

    #[test]
    fn a_failed_test_is_not_counted_again_by_what_it_printed() {
        let output = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 56 filtered out\n\
                      Summary [  40.783s] 609 tests run: 608 passed, 1 failed, 0 skipped\n";
        assert_eq!(Counts::of(output), Counts { passed: 608, failed: 1, left_out: 0 });
    }

    #[test]
    fn a_single_test_is_counted_too() {
        assert_eq!(Counts::of("Summary [ 0.0s] 1 test run: 1 passed, 0 skipped").passed, 1);
    }

    #[test]
    fn output_without_a_summary_counts_nothing() {
        assert_eq!(Counts::of("error: could not compile `x`\n7 passed, 1 failed\n"), Counts::default());
    }
}
