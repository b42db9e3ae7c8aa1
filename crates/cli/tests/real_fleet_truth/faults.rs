//! Workers are killed, put to sleep and drained, and etcd is restarted: the report is the truth.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tessera_coordination_etcd::test_support::EtcdCluster;

use super::fleet::{Fleet, drain};
use super::truth::cases::{self, Case};
use super::truth::command::Running;
use super::truth::compare::{Truth, compare};
use super::truth::git::{commit_all, init};
use super::truth::history::{self, Size};
use super::truth::token::token;
use super::truth::{large, oracle, tree};

/// Workers of one fleet, with their faults.
struct Workers {
    awake: Vec<Running>,
    asleep: Vec<Running>,
}

impl Workers {
    /// Something bad happens, after a while.
    fn disturb(&mut self, case: &mut Case, fleet: &Fleet, etcd: &mut EtcdCluster) {
        std::thread::sleep(Duration::from_millis(case.random.below(1_200) as u64));
        let random = &mut case.random;
        let worker = if self.awake.is_empty() { None } else { Some(self.awake.remove(random.below(self.awake.len()))) };
        match (random.below(5), worker) {
            (0 | 1, Some(worker)) => {
                worker.signal("-KILL");
                worker.end();
            }
            (2, Some(worker)) => {
                worker.signal("-STOP");
                self.asleep.push(worker);
            }
            (3, Some(worker)) => drop(drain(worker)),
            (_, worker) => {
                self.awake.extend(worker);
                etcd.kill(0);
                std::thread::sleep(Duration::from_millis(random.below(1_000) as u64));
                etcd.restart(0);
            }
        }
        if self.awake.is_empty() || random.percent(30) {
            self.awake.push(fleet.worker());
        }
    }

    fn stop(self) {
        for worker in self.awake.into_iter().chain(self.asleep) {
            drain(worker);
        }
    }
}

/// Submits, disturbs, and compares what the follower reports with the truth.
fn run_disturbed(
    case: &mut Case,
    etcd: &mut EtcdCluster,
    scope: &[&str],
    targets: &[PathBuf],
    truth: &Truth,
) -> cases::Outcome {
    let fleet = Fleet::new(case, etcd);
    let mut follower = fleet.submit(scope, targets);
    // The same command, given by another user at about the same time.
    let other = case.random.percent(40).then(|| fleet.submit(scope, targets));
    let mut workers =
        Workers { awake: (0..case.random.within(1..4)).map(|_| fleet.worker()).collect(), asleep: Vec::new() };
    for _ in 0..case.random.within(1..5) {
        if follower.is_running() {
            workers.disturb(case, &fleet, etcd);
        }
    }
    for worker in &workers.asleep {
        worker.signal("-CONT");
    }
    let ended = follower.end();
    let others = other.map(Running::end);
    workers.stop();
    for ended in [Some(ended), others].into_iter().flatten() {
        let report = ended.report().map_err(|problem| format!("{problem}\nstderr: {}", ended.stderr))?;
        compare(&report, truth)?;
    }
    Ok(())
}

/// Repositories with much in common: clones, an empty one, and one with a file at many paths.
fn repositories(case: &mut Case) -> Vec<PathBuf> {
    let mut targets = vec![case.folder("large"), case.folder("small"), case.folder("many"), case.folder("empty")];
    large::history(&mut case.random, &targets[0]);
    history::grow(&mut case.random, &targets[1], Size::default());
    at_many_paths(case, &targets[2].clone());
    init(&targets[3], &[]);
    for number in 0..3 {
        let from = targets[case.random.below(3)].clone();
        let to = case.dir().join(format!("clone-{number}"));
        history::clone(&mut case.random, &from, &to);
        targets.push(to);
    }
    case.random.shuffle(&mut targets);
    targets
}

fn at_many_paths(case: &mut Case, dir: &Path) {
    init(dir, &[]);
    let text = format!("token: {}\n", token(&mut case.random));
    for number in 0..case.random.within(20..80) {
        let path = dir.join(format!("d{}/e{}/same{number}", number % 3, number % 5));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &text).unwrap();
    }
    commit_all(dir, "many");
}

#[test]
fn a_fleet_under_faults_reports_every_place_of_many_histories() {
    let etcd = std::cell::RefCell::new(EtcdCluster::start(1));
    cases::run(4, |case| {
        let targets = repositories(case);
        let mut truth = Truth::counted();
        for target in &targets {
            truth.join(oracle::history(target, oracle::ALL));
        }
        run_disturbed(case, &mut etcd.borrow_mut(), &["--history"], &targets, &truth)
    });
}

#[test]
fn a_fleet_under_faults_reports_every_place_of_many_trees() {
    let etcd = std::cell::RefCell::new(EtcdCluster::start(1));
    cases::run(4, |case| {
        let mut targets = vec![case.folder("large"), case.folder("field"), case.folder("many"), case.folder("empty")];
        large::tree(&mut case.random, &targets[0]);
        tree::grow(&mut case.random, &targets[1]);
        at_many_paths(case, &targets[2].clone());
        std::fs::write(targets[3].join("nothing"), "").unwrap();
        case.random.shuffle(&mut targets);
        let mut truth = Truth::counted();
        for target in &targets {
            truth.join(oracle::tree(target));
        }
        run_disturbed(case, &mut etcd.borrow_mut(), &[], &targets, &truth)
    });
}
