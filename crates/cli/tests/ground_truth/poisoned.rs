//! A file on which the process dies: the file is named, and everything else is reported.
//!
//! The kernel tells when the file is opened, and the process is killed at that moment, again and again.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use super::truth::cases;
use super::truth::command::{Tessera, scan_args};
use super::truth::compare::{Truth, compare_findings};
use super::truth::token::token;
use super::truth::{large, oracle};

/// Kills the process with the number in `victim` whenever it opens a file.
struct Poison {
    victim: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Poison {
    fn in_file(file: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, file, inotify::WatchFlags::OPEN).unwrap();
        let (victim, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (watched, over) = (Arc::clone(&victim), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let mut events = [std::mem::MaybeUninit::uninit(); 4_096];
            while !over.load(Ordering::Relaxed) {
                let a_while = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&a_while)).unwrap();
                let mut reader = inotify::Reader::new(&watch, &mut events);
                let process = watched.load(Ordering::Relaxed);
                if reader.next().is_ok() && process != 0 {
                    let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
                }
            }
        });
        Self { victim, is_over, thread: Some(thread) }
    }
}

impl Drop for Poison {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_file_that_kills_the_process_costs_itself_alone_and_is_named() {
    cases::run(2, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let name = format!("d{:02}/killer", case.random.below(17));
        let file = root.join(&name);
        // Large, so that the process is killed before it has read everything.
        std::fs::write(&file, format!("{}token: {}\n", "fn main() {}\n".repeat(4_000_000), token(&mut case.random)))
            .unwrap();
        let mut truth = oracle::tree(&root);
        truth.places.retain(|place, _| place.path != name);
        let tessera = Tessera::of(case);
        let poison = Poison::in_file(&file);
        let args = scan_args(&["-j1".as_ref(), root.as_os_str()]);
        let (mut deaths, mut reported) = (0, None);
        while reported.is_none() && deaths < 60 {
            let running = tessera.start(&args);
            poison.victim.store(running.id(), Ordering::Relaxed);
            let ended = running.end();
            poison.victim.store(0, Ordering::Relaxed);
            match ended.code {
                None => deaths += 1,
                Some(_) => reported = Some(ended),
            }
        }
        drop(poison);
        let ended = reported.ok_or_else(|| format!("no report after {deaths} deaths"))?;
        judge(&ended.report()?, &truth, &name).map_err(|problem| format!("after {deaths} deaths: {problem}"))
    });
}

fn judge(report: &super::truth::report::Report, truth: &Truth, name: &str) -> cases::Outcome {
    compare_findings(report, truth)?;
    if report.receipt.complete {
        return Err("the report is complete although a file could not be read".into());
    }
    if !report.shown.contains(name) {
        return Err(format!("the file is not named: {}", report.json["receipt"]));
    }
    Ok(())
}
