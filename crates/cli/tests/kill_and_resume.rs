//! `tessera scan`, killed at random moments and started again.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn tessera(state: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.args(args).env("TESSERA_STATE_DIR", state).stdin(Stdio::null());
    command
}

fn finished(output: Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The part of a report that must not depend on interruptions.
fn essence(report: &Value) -> (BTreeSet<String>, Vec<Value>) {
    let findings = report["findings"].as_array().unwrap();
    let places = findings.iter().flat_map(|finding| {
        let locations = finding["locations"].as_array().unwrap();
        locations.iter().map(move |at| format!("{} {} {}", finding["secret_id"], at["path"], at["start"]))
    });
    let receipt = &report["receipt"];
    let counts = ["enumerated", "scanned", "scanned_bytes", "skipped", "unreadable", "complete"];
    (places.collect(), counts.map(|name| receipt[name].clone()).to_vec())
}

fn tree(root: &Path) {
    for i in 0..1_500_u64 {
        let dir = root.join(format!("d{:02}", i % 23));
        std::fs::create_dir_all(&dir).unwrap();
        let token =
            tessera_detect::template::expand("ghp_<<github 30>>", &mut tessera_detect::template::Seed::new(i)).unwrap();
        let secret = if i % 50 == 0 { format!("token: {token}\n") } else { String::new() };
        let text = format!("{}{secret}", "fn main() { println!(\"hello, world\"); }\n".repeat(600));
        std::fs::write(dir.join(format!("f{i:04}.rs")), text).unwrap();
    }
}

#[test]
fn killed_fifty_times_a_scan_reports_what_an_undisturbed_one_does() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(dir.path());
    let path = dir.path().to_str().unwrap();
    let expected =
        finished(tessera(state.path(), &["scan", path, "--no-resume", "--format", "json"]).output().unwrap());
    assert_eq!(expected["findings"].as_array().unwrap().len(), 30);
    // Kills come at any time of a scan, however long one takes on this machine: one that can be resumed, which waits for the disk.
    let elsewhere = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let undisturbed =
        finished(tessera(elsewhere.path(), &["scan", path, "--format", "json", "-j", "2"]).output().unwrap());
    assert_eq!(essence(&undisturbed), essence(&expected));
    let mut span = u64::try_from(started.elapsed().as_micros()).unwrap();

    let (mut kills, mut resumed, mut random) = (0, 0, 0x5eed_u64);
    // The same command after a finished scan prints its report again, and no kill would find it at work.
    let mut is_over = false;
    while kills < 50 {
        let fresh: &[&str] = if is_over { &["--fresh"] } else { &[] };
        let mut child = tessera(state.path(), &["scan", path, "--format", "json", "-j", "2"])
            .args(fresh)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((random >> 33) % (span * 3 / 2)));
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            kills += 1;
            // A machine that has become slower since a scan was timed leaves a scan time to finish all the same.
            span += span / 8;
        }
        let output = child.wait_with_output().unwrap();
        is_over = false;
        if output.status.code().is_some() {
            let report = finished(output);
            if report["receipt"]["complete"] == true {
                assert_eq!(essence(&report), essence(&expected), "after {kills} kills");
                is_over = true;
                span -= span / 3;
            }
            resumed += u32::from(report["resumed"] == true);
        }
    }
    let scan = || finished(tessera(state.path(), &["scan", path, "--format", "json"]).output().unwrap());
    let mut last = scan();
    resumed += u32::from(last["resumed"] == true);
    // An item begun ten times in a row without progress is set aside, as a file that kills its reader has to be, and the report is
    // not complete. On a slow machine these kills do that. The same command tries it again.
    if last["receipt"]["complete"] == false {
        last = scan();
    }
    assert_eq!(essence(&last), essence(&expected));
    assert!(resumed > 0, "no run was ever continued: the kills came too early or too late");
}

/// Whether a process has a handler for SIGINT, as the kernel says.
fn catches_interrupts(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // Signal 2 is the second bit.
    u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
}

#[test]
fn an_interrupted_scan_hands_back_and_says_so() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(dir.path());
    let path = dir.path().to_str().unwrap();
    let mut child =
        tessera(state.path(), &["scan", path]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !catches_interrupts(child.id()) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it could be interrupted");
        std::thread::sleep(Duration::from_millis(1));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    // Stopped before the end it is never "clean"; found something or not, a report was written.
    assert!(matches!(output.status.code(), Some(1 | 3)), "{:?}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("receipt"));
}

#[test]
fn a_scan_whose_time_is_up_says_so_and_the_same_command_finishes_it() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(dir.path());
    let path = dir.path().to_str().unwrap();
    let whole = finished(tessera(state.path(), &["scan", path, "--no-resume", "--format", "json"]).output().unwrap());
    let scan = ["scan", path, "--format", "json", "-j", "1"];
    let cut = tessera(state.path(), &scan).args(["--max-time", "1ms"]).output().unwrap();
    assert!(matches!(cut.status.code(), Some(1 | 3)), "{:?}", cut.status);
    let said = String::from_utf8_lossy(&cut.stderr);
    assert!(said.contains("stopped by --max-time; the same command goes on from there"), "{said}");
    let report: Value = serde_json::from_slice(&cut.stdout).unwrap();
    assert_eq!(report["receipt"]["complete"], false);
    let rest = finished(tessera(state.path(), &scan).output().unwrap());
    assert_eq!(rest["resumed"], true);
    assert_eq!(essence(&rest), essence(&whole));
}
