//! The Sybils' attack fails against the defences at every share and with every seed tried, and succeeds at every one without them.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::process::Command;

#[test]
fn sybils_lose_everywhere_against_the_defences_and_win_everywhere_without() {
    let arguments = ["dht", "--scenario", "sybils", "--nodes", "300", "--seed", "11", "--quiet"];
    let output = Command::new(env!("CARGO_BIN_EXE_tessera-sim")).args(arguments).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    let rows = |what| table.lines().filter(|line| line.contains("hostile") && line.contains(what)).count();
    assert_eq!((rows("without defences"), rows("| met |")), (6, 12), "{table}");
}
