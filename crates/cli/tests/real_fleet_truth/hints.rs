//! Commands that a message tells the user to give: they are complete, and have the effect that the message says when they are pasted.

use tessera_coordination_etcd::test_support::EtcdCluster;

use super::fleet::{Fleet, paste, quoted_commands, until};
use super::truth::cases;
use super::truth::compare::compare;
use super::truth::{large, oracle};

fn statuses(fleet: &Fleet) -> String {
    fleet.run(&["runs"]).printed()
}

#[test]
fn the_command_that_ends_an_interrupted_fleet_scan_ends_that_run_and_no_other() {
    let etcd = EtcdCluster::start(1);
    cases::run(2, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let fleet = Fleet::new(case, &etcd);
        // A run of this machine, of the same path, that is not over.
        let local = fleet.tessera.scan(&["-j1".as_ref(), "--max-time".as_ref(), "1ms".as_ref(), root.as_os_str()])?;
        let follower = fleet.submit(&[], &[&root]);
        let run = until("the run is submitted", || fleet.runs().pop());
        if run == local.run {
            return Err(format!("the local run and the run of the fleet have the same id, {run}"));
        }
        until("the run goes on", || statuses(&fleet).contains("waiting").then_some(()));
        follower.signal("-INT");
        let ended = follower.end();
        let commands = quoted_commands(&ended.stderr);
        let cancel = commands
            .iter()
            .find(|line| line.contains("cancel"))
            .ok_or_else(|| format!("no hint in {}", ended.stderr))?;
        let pasted = paste(&fleet, cancel);
        let (ours, theirs) = (statuses(&fleet), fleet.tessera.run(&["runs"]).printed());
        if pasted.code != Some(0) || !ours.contains("cancelled") || theirs.contains("cancelled") {
            return Err(format!("{cancel}: exit {:?} {}\nfleet: {ours}\nlocal: {theirs}", pasted.code, pasted.shown()));
        }
        Ok(())
    });
}

#[test]
fn a_submitter_that_stops_before_a_worker_joins_says_so_and_the_same_command_goes_on() {
    let etcd = EtcdCluster::start(1);
    cases::run(2, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let fleet = Fleet::new(case, &etcd);
        let follower = fleet.submit(&[], &[&root]);
        until("the run goes on", || statuses(&fleet).contains("waiting").then_some(()));
        follower.signal("-INT");
        let ended = follower.end();
        if ended.code != Some(3) || ended.stderr.contains("error") {
            return Err(format!("exit {:?}: {}", ended.code, ended.stderr));
        }
        compare(&fleet.scan(&[], &[&root])?, &oracle::tree(&root))
    });
}

#[test]
fn the_hint_to_start_a_worker_is_a_complete_command() {
    let etcd = EtcdCluster::start(1);
    cases::run(1, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let fleet = Fleet::new(case, &etcd);
        let mut follower = fleet.submit(&[], &[&root]);
        let said = follower.says("tessera worker");
        follower.signal("-INT");
        follower.end();
        let commands = quoted_commands(&said);
        let start = commands
            .iter()
            .find(|line| line.starts_with("tessera worker"))
            .ok_or_else(|| format!("no hint in {said}"))?;
        let pasted = paste(&fleet, &format!("{start} --until-done -j1"));
        if pasted.code != Some(0) || !statuses(&fleet).contains("done") {
            return Err(format!("{start}: exit {:?}: {}", pasted.code, pasted.shown()));
        }
        Ok(())
    });
}

/// A finished run is reported again while its input is as it was, and scanned again when it is not.
#[test]
fn a_finished_run_is_reported_again_until_its_input_changes() {
    let etcd = EtcdCluster::start(1);
    cases::run(2, |case| {
        let root = case.folder("input");
        let is_history = case.number == 1;
        if is_history {
            large::history(&mut case.random, &root);
        } else {
            large::tree(&mut case.random, &root);
        }
        let scope: &[&str] = if is_history { &["--history"] } else { &[] };
        let truth = || if is_history { oracle::history(&root, oracle::ALL) } else { oracle::tree(&root) };
        // A file that was written a moment ago may change without a trace, so that nothing can be said of it later.
        std::thread::sleep(std::time::Duration::from_secs(4));
        let fleet = Fleet::new(case, &etcd);
        let first = fleet.scan(scope, &[&root])?;
        compare(&first, &truth())?;
        // No worker is there: only the finished run can answer.
        let again = fleet.submit(scope, &[&root]).end().report()?;
        compare(&again, &truth())?;
        if again.run != first.run {
            return Err(format!("run {} was finished, and run {} was begun", first.run, again.run));
        }
        let shown = fleet.run(&["runs", "report", &first.run, "--format", "json"]);
        compare(&shown.report()?, &truth())?;
        if is_history {
            large::HistoryChange::NewCommits.make(&mut case.random, &root);
        } else {
            large::Change::Append.make(&mut case.random, &root);
        }
        let third = fleet.scan(scope, &[&root])?;
        compare(&third, &truth())?;
        let fresh = fleet.scan(&[scope, &["--fresh"]].concat(), &[&root])?;
        if fresh.run == third.run {
            return Err("--fresh reported the finished run".into());
        }
        compare(&fresh, &truth())
    });
}
