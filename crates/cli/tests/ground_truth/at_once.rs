//! Two scans of the same target at the same time: both report the truth, or the second names the process in its way.

use std::ffi::OsStr;
use std::time::Duration;

use super::truth::cases;
use super::truth::command::{Ended, Tessera, scan_args};
use super::truth::compare::{Truth, compare};
use super::truth::{large, oracle};

/// A report of the whole truth, or a refusal that names the process and the lock file.
fn judge(ended: &Ended, truth: &Truth, processes: &[u32]) -> cases::Outcome {
    if ended.code == Some(2) && ended.stdout.is_empty() {
        let names_process = processes.iter().any(|process| ended.stderr.contains(&process.to_string()));
        let names_lock = ended.stderr.contains("lock");
        return match names_process && names_lock {
            true => Ok(()),
            false => Err(format!("{} is refused without the process and its lock file: {}", ended.line, ended.stderr)),
        };
    }
    compare(&ended.report()?, truth)
}

#[test]
fn several_scans_of_one_target_at_the_same_time_report_the_same() {
    cases::run(8, |case| {
        let root = case.folder("input");
        let is_history = case.random.percent(40);
        if is_history {
            large::history(&mut case.random, &root);
        } else {
            large::tree(&mut case.random, &root);
        }
        let truth = if is_history { oracle::history(&root, oracle::ALL) } else { oracle::tree(&root) };
        let mut words = vec![OsStr::new("-j1")];
        words.extend(is_history.then_some(OsStr::new("--history")));
        words.push(root.as_os_str());
        let tessera = Tessera::of(case);
        let mut running = Vec::new();
        for _ in 0..case.random.within(2..5) {
            running.push(tessera.start(&scan_args(&words)));
            std::thread::sleep(Duration::from_micros(case.random.below(300_000) as u64));
        }
        let processes: Vec<u32> = running.iter().map(|running| running.id()).collect();
        let ends: Vec<Ended> = running.into_iter().map(|running| running.end()).collect();
        let reported = ends.iter().filter(|ended| ended.code == Some(1)).count();
        for ended in &ends {
            judge(ended, &truth, &processes)?;
        }
        if reported == 0 {
            return Err("no scan reported anything".into());
        }
        Ok(())
    });
}

/// The process that scans is killed; the one that waits for it takes over or advises what to do.
#[test]
fn a_scan_whose_partner_is_killed_still_reports_everything() {
    cases::run(8, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let truth = oracle::tree(&root);
        let words = scan_args(&[OsStr::new("-j1"), root.as_os_str()]);
        let tessera = Tessera::of(case);
        let first = tessera.start(&words);
        std::thread::sleep(Duration::from_micros(case.random.below(200_000) as u64));
        let second = tessera.start(&words);
        std::thread::sleep(Duration::from_micros(case.random.below(200_000) as u64));
        let processes = [first.id(), second.id()];
        first.signal("-KILL");
        first.end();
        judge(&second.end(), &truth, &processes)?;
        compare(&tessera.run(&words).report()?, &truth)
    });
}
