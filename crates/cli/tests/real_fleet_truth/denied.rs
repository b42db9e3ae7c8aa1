//! Coordinators that refuse a worker, and ones that are away for a while.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tessera_coordination_etcd::test_support::{EtcdCluster, etcd_binary};

use super::fleet::{Fleet, drain};
use super::truth::cases;
use super::truth::compare::compare;
use super::truth::{large, oracle};

/// The `etcdctl` that is named, or that lies beside the etcd of these tests, or that is on the path.
fn etcdctl() -> PathBuf {
    let beside = || etcd_binary().map(|etcd| etcd.with_file_name("etcdctl")).filter(|path| path.is_file());
    std::env::var_os("TESSERA_ETCDCTL").map(PathBuf::from).or_else(beside).unwrap_or_else(|| "etcdctl".into())
}

/// Turns on passwords in an etcd. `etcdctl` comes with etcd.
fn protect(etcd: &EtcdCluster) -> Result<(), String> {
    let ctl = |args: &[&str]| {
        let output = Command::new(etcdctl())
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &etcd.endpoints()[0]])
            .args(args)
            .output();
        let output = output.map_err(|error| format!("etcdctl: {error}"))?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    };
    ctl(&["user", "add", "root:right"])?;
    ctl(&["user", "grant-role", "root", "root"])?;
    ctl(&["user", "add", "guest:guest"])?;
    ctl(&["auth", "enable"])
}

#[test]
fn a_worker_that_is_denied_ends_at_once() {
    let etcd = EtcdCluster::start(1);
    if let Err(why) = protect(&etcd) {
        return test_support::skipped(&format!("passwords cannot be turned on in etcd: {why}"));
    }
    cases::run(1, |case| {
        let fleet = Fleet { give_up_after: "3600", ..Fleet::new(case, &etcd) };
        // A wrong password, none at all, and a user without permission. Retries would go on for an hour.
        for user in ["root:wrong@", "", "guest:guest@"] {
            let fleet = Fleet { url: fleet.url.replace("etcd://", &format!("etcd://{user}")), ..fleet.clone() };
            for verb in [&["worker"][..], &["scan", "--format", "json", "."], &["runs"]] {
                let ended = fleet.run(verb);
                if ended.hung || ended.code != Some(2) || !ended.stderr.contains("error") {
                    return Err(format!(
                        "{verb:?} as {user:?}: exit {:?}, hung: {}: {}",
                        ended.code, ended.hung, ended.stderr
                    ));
                }
            }
        }
        Ok(())
    });
}

/// `--give-up-after` counts from the first request on, also before the run is submitted.
#[test]
fn a_scan_waits_for_a_coordinator_that_is_away_at_its_start() {
    let etcd = std::cell::RefCell::new(EtcdCluster::start(1));
    cases::run(1, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let fleet = Fleet { give_up_after: "600", ..Fleet::new(case, &etcd.borrow()) };
        etcd.borrow_mut().kill(0);
        let (follower, worker) = (fleet.submit(&[], &[&root]), fleet.worker());
        // Long enough for a scan that does not wait to give up.
        std::thread::sleep(Duration::from_secs(8));
        etcd.borrow_mut().restart(0);
        let ended = follower.end();
        let stopped = drain(worker);
        if stopped.code != Some(0) {
            return Err(format!("the worker ended with {:?}: {}", stopped.code, stopped.stderr));
        }
        compare(&ended.report()?, &oracle::tree(&root))
    });
}

#[test]
fn times_are_shown_as_times() {
    let etcd = EtcdCluster::start(1);
    cases::run(1, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let fleet = Fleet::new(case, &etcd);
        let report = fleet.scan(&[], &[&root])?;
        let shown = fleet.run(&["shards", "history", &report.run, "0000000000000001"]).shown();
        let is_long_number = |word: &str| word.len() == 13 && word.bytes().all(|byte| byte.is_ascii_digit());
        if shown.split(|char: char| !char.is_ascii_alphanumeric()).any(is_long_number) { Err(shown) } else { Ok(()) }
    });
}
