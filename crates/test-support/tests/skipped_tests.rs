//! A test that cannot run on a machine is not taken for one that passed.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::process::Command;

use test_support::skipped;

#[test]
fn a_test_that_cannot_run_is_counted_or_allowed_or_fails() {
    const CHILD: &str = "TESSERA_TEST_SKIPS";
    // This very test, started by itself as one that cannot run.
    if std::env::var_os(CHILD).is_some() {
        return skipped("it needs\nwhat is not here");
    }
    let this = "a_test_that_cannot_run_is_counted_or_allowed_or_fails";
    let skips = |name: &str, value: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", this, "--test-threads=1"]).env(CHILD, "1");
        child.env_remove("TESSERA_SKIPPED").env_remove("TESSERA_MAY_SKIP").env(name, value);
        child.output().unwrap()
    };
    let failed = skips("NOTHING", "1");
    let said = String::from_utf8_lossy(&failed.stdout);
    assert!(!failed.status.success() && said.contains("only with TESSERA_MAY_SKIP=1: it needs"), "{said}");
    assert!(skips("TESSERA_MAY_SKIP", "1").status.success());
    let folder = tempfile::tempdir().unwrap();
    let counted = folder.path().join("skipped");
    for _ in 0..2 {
        assert!(skips("TESSERA_SKIPPED", counted.to_str().unwrap()).status.success());
    }
    assert_eq!(std::fs::read_to_string(&counted).unwrap(), format!("{this}: it needs what is not here\n").repeat(2));
}
