//! Several targets in one run of a fleet on a real etcd: each has its own rules, suppressions and places.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::path::Path;
use std::process::{Command, Stdio};

use scan_support::{Scanned, commit_all, git, scan, tessera, token, write};
use tessera_coordination_etcd::test_support::EtcdCluster;

const OWN_RULES: &str = "[[rules]]\nid = 'own'\nregex = 'own_[a-z]{12}'\n[[allowlists]]\npaths = ['^tests/']\n";

/// An origin with rules of its own and a suppression, a clone that has neither, and a third with other rules.
fn stage() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one");
    for (path, seed) in [("a.env", 1), ("tests/b.env", 2), ("c/d.env", 1)] {
        write(&one, path, format!("own_abcdefghijkl\nTOKEN={}\n", token(seed)));
    }
    git(dir.path(), &["init", "-q", "-b", "main", "one"]);
    let commit = commit_all(&one, "all");
    git(dir.path(), &["clone", "-q", "one", "clone"]);
    git(dir.path(), &["clone", "-q", "one", "third"]);
    write(&one, ".gitleaksignore", format!("{commit}:a.env:github-pat:2\n"));
    write(dir.path(), "third/.gitleaks.toml", OWN_RULES);
    dir
}

fn at(command: &mut Command, url: &str, findings: &Path) {
    command.args(["--coordinator", url, "--findings"]).arg(findings).args(["--give-up-after", "20"]);
}

#[test]
fn a_fleet_finds_in_each_target_what_one_machine_finds_there() {
    let (dir, findings, etcd) = (stage(), tempfile::tempdir().unwrap(), EtcdCluster::start(1));
    let url = format!("{}/targets", etcd.endpoints()[0].replace("http://", "etcd://"));
    let targets = ["--history", "one", "third", "clone"];
    let expected = scan(dir.path(), &targets).places();
    assert_eq!(
        expected,
        [
            "clone a.env:2",
            "clone c/d.env:2",
            "clone tests/b.env:2",
            "one c/d.env:2",
            "one tests/b.env:2",
            "third a.env:1",
            "third c/d.env:1"
        ]
    );
    let mut submit = tessera();
    submit.current_dir(dir.path()).args(["scan", "--format", "json", "--quiet"]).args(targets);
    at(&mut submit, &url, findings.path());
    let submitted = submit.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut worker = tessera();
    worker.args(["worker", "-j", "2"]).stdout(Stdio::null()).stderr(Stdio::null());
    at(&mut worker, &url, findings.path());
    let mut worker = worker.spawn().unwrap();
    let output = submitted.wait_with_output().unwrap();
    worker.kill().unwrap();
    worker.wait().unwrap();
    let scanned = Scanned::of(&output);
    assert_eq!((scanned.places(), scanned.code), (expected, 1));
    assert_eq!(scanned.report["receipt"]["complete"], true);
}
