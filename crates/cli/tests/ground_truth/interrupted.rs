//! Scans that are interrupted: the same command, given again after the input has changed, reports what a fresh scan would.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::truth::cases::{self, Case, Outcome};
use super::truth::command::{Ended, Tessera, scan_args};
use super::truth::compare::{Truth, compare};
use super::truth::large::{self, Change, HistoryChange, Kind};
use super::truth::oracle;
use super::truth::random::Random;
use super::truth::report::Place;

/// How a scan is interrupted.
#[derive(Debug, Clone, Copy)]
enum Interruption {
    /// Ctrl-C.
    Signal,
    /// As a power cut does it.
    Kill,
    /// `--max-time`, which is not part of a run's identity.
    Time,
}

impl Interruption {
    const ALL: [Self; 3] = [Self::Signal, Self::Kill, Self::Time];

    /// Gives the command and interrupts it after a time below `span`. It may end by itself before that.
    fn interrupt(self, tessera: &Tessera, args: &[&OsStr], random: &mut Random, span: Duration) -> Ended {
        let after = Duration::from_micros(1 + random.below(span.as_micros().max(2) as usize) as u64);
        if matches!(self, Self::Time) {
            let time = format!("{}ms", after.as_millis().max(1));
            return tessera.run(&scan_args(&[args, &["--max-time".as_ref(), time.as_ref()]].concat()));
        }
        let running = tessera.start(&scan_args(args));
        std::thread::sleep(after);
        running.signal(if matches!(self, Self::Kill) { "-KILL" } else { "-INT" });
        running.end()
    }
}

/// An interrupted scan never claims to be complete. It lists the secrets of now, and those of the time of reading if its receipt counts items
/// that were not compared since.
fn judge_interrupted(ended: &Ended, truth: &Truth, earlier: &[Truth]) -> Outcome {
    if ended.code.is_none() || ended.stdout.is_empty() {
        // Killed, or stopped before it began.
        return Ok(());
    }
    let report = ended.report()?;
    if report.receipt.complete {
        return compare(&report, truth);
    }
    let uncompared = report.json["receipt"]["planned"]["uncompared"].as_u64().unwrap_or(0);
    let was_there = |place: &Place| uncompared > 0 && earlier.iter().any(|truth| truth.places.contains_key(place));
    let mut places = report.places.keys();
    if let Some(wrong) = places.find(|place| !truth.places.contains_key(place) && !was_there(place)) {
        let problem =
            format!("an interrupted scan lists {wrong}, which is not there; {uncompared} items were not compared");
        return Err(format!("{}\n  {problem}", report.line));
    }
    let code = if report.places.is_empty() { 3 } else { 1 };
    if report.code != Some(code) {
        return Err(format!(
            "{}\n  an interrupted scan ended with {:?}, and must with {code}",
            report.line, report.code
        ));
    }
    Ok(())
}

/// Interrupts a scan, changes its input, and so on; then lets it finish.
fn interrupt_and_change(
    case: &mut Case,
    args: &[&OsStr],
    truth: &dyn Fn() -> Truth,
    change: &mut dyn FnMut(&mut Random),
) -> Outcome {
    let tessera = Tessera::of(case);
    let started = Instant::now();
    let fresh = tessera.scan(&[args, &["--no-resume".as_ref()]].concat())?;
    let span = started.elapsed();
    compare(&fresh, &truth())?;
    let mut earlier = Vec::new();
    for _ in 0..case.random.within(1..4) {
        let known = truth();
        let interruption = *case.random.pick(&Interruption::ALL);
        let ended = interruption.interrupt(&tessera, args, &mut case.random, span);
        judge_interrupted(&ended, &known, &earlier)?;
        earlier.push(known);
        if case.random.percent(85) {
            change(&mut case.random);
        }
    }
    let mut last = tessera.scan(args)?;
    // A shard that was begun ten times in a row without progress is set aside; the same command tries it again.
    if last.receipt.complete != truth().is_complete() && last.json["receipt"]["shards"]["parked"] != 0 {
        last = tessera.scan(args)?;
    }
    compare(&last, &truth())
}

fn args<'a>(words: &[&'a str], target: &'a Path) -> Vec<&'a OsStr> {
    words.iter().copied().map(OsStr::new).chain([target.as_os_str()]).collect()
}

#[test]
fn a_tree_that_changes_during_an_interruption_is_reported_as_it_is() {
    cases::run(10, |case| {
        let root = case.folder("tree");
        let kind = *case.random.pick(&[Kind::Plain, Kind::Repository]);
        large::tree_of(&mut case.random, &root, kind);
        let mut made = Vec::new();
        let outcome = interrupt_and_change(case, &args(&["-j1"], &root), &|| oracle::tree(&root), &mut |random| {
            let change = *random.pick(Change::of(kind));
            made.push(change);
            change.make(random, &root);
        });
        outcome.map_err(|problem| format!("after {made:?}: {problem}"))
    });
}

#[test]
fn a_history_that_changes_during_an_interruption_is_reported_as_it_is() {
    cases::run(12, |case| {
        let repository = case.folder("repository");
        large::history(&mut case.random, &repository);
        let truth = || oracle::history(&repository, oracle::ALL);
        let mut made = Vec::new();
        let outcome = interrupt_and_change(case, &args(&["-j1", "--history"], &repository), &truth, &mut |random| {
            let change = *random.pick(&HistoryChange::ALL);
            made.push(change);
            change.make(random, &repository);
        });
        outcome.map_err(|problem| format!("after {made:?}: {problem}"))
    });
}

/// Changes that a cursor alone cannot notice, each after an interruption in the middle.
#[test]
fn each_kind_of_change_is_noticed_by_itself() {
    let changes = Change::of(Kind::Repository);
    cases::run(changes.len() as u64, |case| {
        let root = case.folder("tree");
        large::tree_of(&mut case.random, &root, Kind::Repository);
        let tessera = Tessera::of(case);
        let args = args(&["-j1"], &root);
        stop_in_the_middle(&tessera, &args)?;
        let change = changes[case.number as usize % changes.len()];
        change.make(&mut case.random, &root);
        let report = tessera.scan(&args)?;
        compare(&report, &oracle::tree(&root)).map_err(|problem| format!("after {change:?}: {problem}"))
    });
}

#[test]
fn each_kind_of_change_of_a_history_is_noticed_by_itself() {
    cases::run(HistoryChange::ALL.len() as u64, |case| {
        let repository = case.folder("repository");
        large::history(&mut case.random, &repository);
        let tessera = Tessera::of(case);
        let args = args(&["-j1", "--history"], &repository);
        stop_in_the_middle(&tessera, &args)?;
        let change = HistoryChange::ALL[case.number as usize % HistoryChange::ALL.len()];
        change.make(&mut case.random, &repository);
        let report = tessera.scan(&args)?;
        compare(&report, &oracle::history(&repository, oracle::ALL))
            .map_err(|problem| format!("after {change:?}: {problem}"))
    });
}

/// Stops a scan after it has read something and before it has read everything.
fn stop_in_the_middle(tessera: &Tessera, args: &[&OsStr]) -> Outcome {
    for milliseconds in (0..14).map(|power| 1_u64 << power) {
        let time = format!("{milliseconds}ms");
        let report = tessera.scan(&[args, &["--max-time".as_ref(), time.as_ref()]].concat())?;
        if report.receipt.complete {
            return Err("the scan was over before it could be interrupted".into());
        }
        if report.receipt.scanned > 0 {
            return Ok(());
        }
    }
    Err("nothing was read in sixteen seconds".into())
}
