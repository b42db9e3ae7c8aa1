//! A file that kills every process that opens it: it costs itself alone, and the report names it.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod poison;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Commands after which a report is due: each file that kills may take a few.
const COMMANDS_MAX: usize = 30;

/// Gives the same command until it ends with a report; how often it died before.
fn scan_until_reported(library: &Path, state: &Path, args: &[&str]) -> (Value, i32, usize) {
    for deaths in 0..COMMANDS_MAX {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["scan", "--format", "json"]).args(args);
        command.env("TESSERA_STATE_DIR", state).env("LD_PRELOAD", library).stdin(Stdio::null());
        let output = command.output().unwrap();
        if let Some(code) = output.status.code() {
            let said = String::from_utf8_lossy(&output.stderr);
            let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {said}"));
            return (report, code, deaths);
        }
    }
    panic!("no report after {COMMANDS_MAX} deaths")
}

fn assert_isolated(report: &Value, places: &BTreeSet<String>, killers: &[String]) {
    assert_eq!(&poison::places(report), places, "{:#}", report["receipt"]);
    assert_eq!(poison::named(report), killers.iter().cloned().collect(), "{:#}", report["receipt"]);
    assert_eq!(report["receipt"]["complete"], false);
    assert_eq!(report["receipt"]["shards"]["parked"], 0, "{:#}", report["receipt"]);
    assert_eq!(report["receipt"]["unreadable"]["scanner failed on it"], killers.len());
}

#[test]
fn one_that_kills_is_named_and_all_other_places_are_reported() {
    for threads in ["1", "4"] {
        let (dir, state, tree) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let library = poison::library(dir.path());
        let places = poison::tree(tree.path(), 1_200);
        let killer = poison::killer(tree.path(), "d11/f0500-killer");
        let args = [tree.path().to_str().unwrap(), "-j", threads];
        let (report, code, deaths) = scan_until_reported(&library, state.path(), &args);
        assert_isolated(&report, &places, &[killer]);
        assert_eq!(code, 1);
        assert!((2..=6).contains(&deaths), "{deaths} deaths with {threads} threads");
    }
}

#[test]
fn several_in_a_row_and_the_very_first_and_last_are_all_named() {
    let (dir, state, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let library = poison::library(dir.path());
    let places = poison::tree(tree.path(), 300);
    let killers = ["d00/a-killer", "d07/f0100-killer-1", "d07/f0100-killer-2", "d07/f0100-killer-3", "d22/z-killer"];
    let killers = killers.map(|path| poison::killer(tree.path(), path));
    let args = [tree.path().to_str().unwrap(), "-j", "2"];
    let (report, code, _) = scan_until_reported(&library, state.path(), &args);
    assert_isolated(&report, &places, &killers);
    assert_eq!(code, 1);
}

#[test]
fn without_findings_the_run_is_incomplete_and_never_clean() {
    let (dir, state, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let library = poison::library(dir.path());
    std::fs::write(tree.path().join("plain"), "nothing\n").unwrap();
    let killer = poison::killer(tree.path(), "only-killer");
    let args = [tree.path().to_str().unwrap()];
    let (report, code, _) = scan_until_reported(&library, state.path(), &args);
    assert_isolated(&report, &BTreeSet::new(), &[killer]);
    assert_eq!(code, 3);
}
