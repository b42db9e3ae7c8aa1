//! A coordinator that denies access: every command ends at once, with the cause and what to do about it.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tessera_coordination_etcd::test_support::{Certificates, ClusterOptions, EtcdCluster};

/// Far longer than any of these tests waits: a command that retries is ended by [`end_of`] and fails the test.
const GIVE_UP_AFTER: &str = "3600";

fn tessera(verb: &[&str], url: &str, place: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.args(verb).args(["--coordinator", url, "--give-up-after", GIVE_UP_AFTER, "--findings"]).arg(place.path());
    command.env_remove("TESSERA_COORDINATOR").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end, but not for ever.
fn end_of(mut command: Command) -> Output {
    let child = command.spawn().unwrap();
    let (id, (ended, watched)) = (child.id().to_string(), std::sync::mpsc::channel::<()>());
    let watch = std::thread::spawn(move || {
        if watched.recv_timeout(Duration::from_secs(600)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-KILL", &id]).status().unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watch.join().unwrap();
    output
}

/// Every command that asks the coordinator.
fn verbs(tree: &str) -> Vec<Vec<&str>> {
    let run = "00c0ffee00c0ffee";
    vec![
        vec!["worker", "-j", "2"],
        vec!["scan", tree],
        vec!["runs"],
        vec!["runs", "show", run],
        vec!["runs", "cancel", run],
        vec!["runs", "retire", "--older-than", "1"],
        vec!["shards", run],
        vec!["shards", "explain", run],
    ]
}

fn all_refused(url: &str, cause: &str, advice: &str, flags: &[&str]) {
    let (tree, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(tree.path().join("x"), "nothing").unwrap();
    for verb in verbs(tree.path().to_str().unwrap()) {
        let mut command = tessera(&verb, url, &place);
        command.args(flags);
        let output = end_of(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{verb:?}: {said}");
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(cause) && error.contains(advice), "{verb:?}: {said}");
        assert!(!said.contains("gave up") && !said.contains("sesame"), "{verb:?}: {said}");
        assert!(output.stdout.is_empty(), "{verb:?}");
    }
}

#[test]
fn a_wrong_password_ends_every_command_at_once() {
    let etcd = EtcdCluster::start(1);
    etcd.enable_users();
    let url = format!("{}/fleet", etcd.endpoints()[0].replace("http://", "etcd://fleet:sesame@"));
    all_refused(&url, "etcd did not accept the user or the password", "check the login", &[]);
}

#[test]
fn a_missing_password_ends_every_command_at_once() {
    let etcd = EtcdCluster::start(1);
    etcd.enable_users();
    let url = format!("{}/fleet", etcd.endpoints()[0].replace("http://", "etcd://"));
    all_refused(&url, "etcd did not accept the user or the password", "check the login", &[]);
}

#[test]
fn a_role_without_the_namespace_ends_every_command_at_once() {
    let etcd = EtcdCluster::start(1);
    etcd.enable_users();
    let url = format!("{}/elsewhere", etcd.endpoints()[0].replace("http://", "etcd://fleet:f@"));
    all_refused(&url, "the etcd user may not touch these keys", "grant its role the namespace", &[]);
}

#[test]
fn a_certificate_of_another_authority_ends_every_command_at_once() {
    let certificates = Certificates::new();
    let options = ClusterOptions { flags: certificates.server_flags(), tls: true, ..ClusterOptions::default() };
    let etcd = EtcdCluster::start_with(1, &options);
    let place = tempfile::tempdir().unwrap();
    let authority = place.path().join("ca.pem");
    std::fs::write(&authority, certificates.stranger()).unwrap();
    let url = format!("{}/fleet", etcd.endpoints()[0].replace("https://", "etcds://"));
    let flags = ["--coordinator-ca", authority.to_str().unwrap()];
    all_refused(&url, "TLS with etcd failed", "check the certificates", &flags);
}
