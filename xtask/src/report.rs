//! The output for people: one line per step while it runs, a table at the end, noise only where something failed.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Lines of a failed step's output shown on the screen; the log has the rest.
const OUTPUT_LINES_MAX: usize = 150;

/// The result of a step that passed, in a few words, and how many tests stood behind it.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    pub(crate) said: String,
    pub(crate) tests: u64,
    /// Tests that could not run on this machine: they have shown nothing.
    pub(crate) tests_skipped: u64,
}

impl Proof {
    pub(crate) fn of(said: impl Into<String>) -> Self {
        Self { said: said.into(), ..Self::default() }
    }
}

/// Why a step did not hold: one line for the table, and everything a person needs to act on it.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    pub(crate) said: String,
    pub(crate) output: String,
    pub(crate) tests_passed: u64,
    pub(crate) tests_failed: u64,
    pub(crate) tests_skipped: u64,
}

impl Failure {
    pub(crate) fn of(said: impl Into<String>, output: impl Into<String>) -> Self {
        Self { said: said.into(), output: output.into(), ..Self::default() }
    }
}

/// An error of our own surroundings (a file we cannot write) is a failure of the step like any other.
impl From<String> for Failure {
    fn from(problem: String) -> Self {
        Self::of(problem.lines().next().unwrap_or_default().to_string(), problem)
    }
}

pub(crate) type StepResult = Result<Proof, Failure>;

/// The line of the step that is running.
#[derive(Debug)]
pub(crate) struct Progress {
    name: &'static str,
    head: String,
    begun: Instant,
    terminal: bool,
    drawn: AtomicU64,
}

impl Progress {
    pub(crate) fn start(name: &'static str, number: usize, of: usize) -> Self {
        let head = format!("[{number:>2}/{of}] {name:<11}");
        let terminal = std::io::stdout().is_terminal();
        print!("{head}");
        let _ = std::io::stdout().flush();
        Self { name, head, begun: Instant::now(), terminal, drawn: AtomicU64::new(0) }
    }

    /// Redraws the elapsed seconds on a terminal, at most once a second; `doing` names the work under way.
    pub(crate) fn tick(&self, doing: &str) {
        let seconds = self.begun.elapsed().as_secs();
        if self.terminal && seconds > self.drawn.fetch_max(seconds, Relaxed) {
            let doing: String = doing.chars().take(60).collect();
            print!("\r\x1b[K{} {seconds:>6} s  {doing}", self.head);
            let _ = std::io::stdout().flush();
        }
    }

    /// Ends the line, and shows the error of a failed step.
    pub(crate) fn finish(self, result: StepResult) -> StepResult {
        let seconds = self.begun.elapsed();
        let back = if self.terminal { "\r\x1b[K" } else { "" };
        let head = if self.terminal { self.head.as_str() } else { "" };
        match &result {
            Ok(proof) => println!("{back}{head} ok     {:>7} s  {}", tenths(seconds), proof.said),
            Err(failure) => {
                println!("{back}{head} FAILED {:>7} s  {}", tenths(seconds), failure.said);
                show(self.name, &failure.output);
            }
        }
        result
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

fn show(name: &str, output: &str) {
    if output.trim().is_empty() {
        return;
    }
    let lines: Vec<&str> = output.lines().filter(|line| !is_chatter(line)).collect();
    println!("------ {name}: what it said ------");
    if lines.len() > OUTPUT_LINES_MAX {
        println!("({} lines before these are in the log)", lines.len() - OUTPUT_LINES_MAX);
    }
    for line in &lines[lines.len().saturating_sub(OUTPUT_LINES_MAX)..] {
        println!("{line}");
    }
    println!("------ end of {name} ------");
}

/// Cargo's account of what it builds: a hundred lines of it would push the error off the screen, or out of a log that is cut.
fn is_chatter(line: &str) -> bool {
    const CHATTER: [&str; 7] =
        ["Compiling ", "Checking ", "Documenting ", "Downloading ", "Downloaded ", "Fresh ", "Locking "];
    line.starts_with(' ') && CHATTER.iter().any(|word| line.trim_start().starts_with(word))
}

/// One line of the final table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) result: StepResult,
}

/// The table and the sum. A step counts as one, and every test inside it as one.
pub(crate) fn summary(rows: &[Row]) -> (String, bool) {
    let mut text = format!("\n{:<11} {:<6} {:>8}  what it proved\n", "step", "result", "seconds");
    let (mut passed, mut failed, mut skipped) = (0_u64, 0_u64, 0_u64);
    for row in rows {
        let (word, said) = match &row.result {
            Ok(proof) => {
                passed += 1 + proof.tests;
                skipped += proof.tests_skipped;
                ("ok", &proof.said)
            }
            Err(failure) => {
                passed += failure.tests_passed;
                failed += 1 + failure.tests_failed;
                skipped += failure.tests_skipped;
                ("FAILED", &failure.said)
            }
        };
        text += &format!("{:<11} {word:<6} {:>8}  {said}\n", row.name, tenths(row.took));
    }
    let total: Duration = rows.iter().map(|row| row.took).sum();
    let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
    text += &format!("{:<11} {:<6} {:>8}\n\n{passed} passed, {failed} failed{skipped}\n", "total", "", tenths(total));
    (text, failed == 0)
}

fn tenths(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(result: StepResult) -> Row {
        Row { name: "step", took: Duration::from_millis(1500), result }
    }

    #[test]
    fn the_last_line_sums_steps_and_their_tests() {
        let tests = Proof { said: "12 tests".to_string(), tests: 12, tests_skipped: 0 };
        let (text, held) = summary(&[row(Ok(Proof::of("formatted"))), row(Ok(tests))]);
        assert!(held);
        assert_eq!(text.lines().last(), Some("14 passed, 0 failed"));
    }

    #[test]
    fn tests_that_could_not_run_stand_in_the_last_line_and_fail_nothing() {
        let tests = Proof { said: "12 tests".to_string(), tests: 12, tests_skipped: 2 };
        let failure = Failure { tests_failed: 1, tests_skipped: 3, ..Failure::of("1 tests failed", "") };
        let (text, held) = summary(&[row(Ok(tests))]);
        assert_eq!((text.lines().last(), held), (Some("13 passed, 0 failed, 2 skipped"), true));
        let (text, held) = summary(&[row(Err(failure))]);
        assert_eq!((text.lines().last(), held), (Some("0 passed, 2 failed, 3 skipped"), false));
    }

    #[test]
    fn an_error_is_shown_without_the_crates_that_were_built_before_it() {
        assert!(is_chatter("   Compiling tokio v1.54.1"));
        assert!(is_chatter("    Checking tessera-stdx v0.1.0 (crates/stdx)"));
        assert!(!is_chatter("error: could not compile `tessera-sim` (test \"dht\")"));
        assert!(!is_chatter("  = note: /usr/bin/ld: final link failed: No space left on device"));
        assert!(!is_chatter("Compiling is what the test printed"));
    }

    #[test]
    fn one_failed_test_fails_its_step_and_the_whole() {
        let failure = Failure { tests_passed: 9, tests_failed: 2, ..Failure::of("2 tests failed", "") };
        let (text, held) = summary(&[row(Ok(Proof::default())), row(Err(failure))]);
        assert!(!held);
        assert_eq!(text.lines().last(), Some("10 passed, 3 failed"));
    }
}
