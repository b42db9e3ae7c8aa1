//! Trees and repositories whose scan is interrupted at a known place, and what a report says.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod fleet;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tessera_detect::template;
use tessera_scan::findings::tally::Tally;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{Control, ExitStatus, Keeping, Progress, ScanReport, scan};
use tessera_scan::source::identity::SETTLED_AFTER;

/// A token that the built-in rules find.
pub(crate) fn token(seed: u64) -> String {
    template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap()
}

/// Writes a file, with the directories above it.
pub(crate) fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Runs git in `dir`.
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The last file of a tree, or the last blob of a history: while a worker reads it, the scan is stopped.
pub(crate) const LARGE: &str = "zz-large.txt";

/// Text that takes a worker far longer than the longest pause between two looks at its progress.
pub(crate) fn large_text() -> Vec<u8> {
    b"github gitlab slack token key secret password = none\n".repeat(48 << 14)
}

/// A target and the folder in which its runs are kept.
pub(crate) struct Stage {
    pub(crate) target: tempfile::TempDir,
    pub(crate) state: tempfile::TempDir,
    pub(crate) scope: ScanScope,
}

/// What must not depend on how often a scan was interrupted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Essence {
    /// Secret, path and line.
    pub(crate) places: BTreeSet<(String, String, u64)>,
    pub(crate) tally: Tally,
    pub(crate) is_complete: bool,
    pub(crate) exit: ExitStatus,
}

impl Essence {
    pub(crate) fn of(report: &ScanReport) -> Self {
        let mut places = BTreeSet::new();
        for finding in &report.findings {
            for location in &finding.locations {
                let at = &location.occurrence;
                let path = String::from_utf8_lossy(&at.path).into_owned();
                places.insert((finding.secret_id.to_string(), path, at.start.line));
            }
        }
        let (tally, is_complete) = (report.receipt.tally.clone(), report.receipt.is_complete());
        Self { places, tally, is_complete, exit: report.exit_status() }
    }

    pub(crate) fn paths(&self) -> BTreeSet<&str> {
        self.places.iter().map(|(_, path, _)| path.as_str()).collect()
    }
}

impl Stage {
    /// A tree of so many small files in two directories, and a large one behind them.
    pub(crate) fn tree(files: usize) -> Self {
        let stage = Self::empty(ScanScope::Files);
        for i in 0..files {
            write(stage.root(), &Self::file(i), format!("file {i}\n"));
        }
        write(stage.root(), LARGE, large_text());
        stage
    }

    pub(crate) fn empty(scope: ScanScope) -> Self {
        Self { target: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap(), scope }
    }

    /// The path of a small file.
    pub(crate) fn file(number: usize) -> String {
        format!("{}/f{number:03}.txt", ["a", "b"][number % 2])
    }

    pub(crate) fn root(&self) -> &Path {
        self.target.path()
    }

    pub(crate) fn request(&self) -> ScanRequest {
        let paths = vec![self.root().to_path_buf()];
        ScanRequest { workers: 1, scope: self.scope, ..ScanRequest::of_paths(paths) }
    }

    pub(crate) fn keeping(&self, fresh: bool) -> Keeping {
        Keeping::In { state_dir: self.state.path().to_path_buf(), fresh }
    }

    /// Scans until `items` were met, and stops.
    pub(crate) fn interrupt_after(&self, items: u64) -> ScanReport {
        self.interrupt_of(&self.request(), items)
    }

    /// Scans what `request` says until `items` were met, and stops.
    pub(crate) fn interrupt_of(&self, request: &ScanRequest, items: u64) -> ScanReport {
        let stop = AtomicBool::new(false);
        let mut stop_then = |progress: &Progress| {
            if progress.items >= items {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let report = scan(request, &self.keeping(false), &mut Control { stop: &stop, progress: &mut stop_then });
        let report = report.unwrap();
        assert!(report.receipt.shards.active > 0, "the scan ended before it was stopped");
        assert!(report.receipt.tally.enumerated() >= items, "{:?}", report.receipt.tally);
        report
    }

    /// The same command again.
    pub(crate) fn again(&self) -> ScanReport {
        run(&self.request(), &self.keeping(false))
    }

    /// What a scan that never was interrupted says of the target as it is now.
    pub(crate) fn fresh(&self) -> ScanReport {
        run(&self.request(), &Keeping::Nothing)
    }

    /// The same command again, stopped before it does anything.
    pub(crate) fn stopped_at_once(&self) -> ScanReport {
        let stop = AtomicBool::new(true);
        scan(&self.request(), &self.keeping(false), &mut Control { stop: &stop, progress: &mut |_| {} }).unwrap()
    }

    /// Makes a file as young as every look at it, however slow the machine is: it is dated ahead.
    pub(crate) fn make_young(&self, path: &str) {
        let file = std::fs::File::options().write(true).open(self.root().join(path)).unwrap();
        file.set_modified(SystemTime::now() + std::time::Duration::from_secs(24 * 3600)).unwrap();
    }

    /// Waits until no file is so young that its stamp proves nothing.
    pub(crate) fn settle(&self) {
        let now = SystemTime::now();
        while SystemTime::now() <= now + SETTLED_AFTER {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Begins anew, whatever is known.
    pub(crate) fn anew(&self) -> ScanReport {
        run(&self.request(), &self.keeping(true))
    }
}

/// The folder of findings of the only run below `dir`.
pub(crate) fn findings_below(dir: &Path) -> PathBuf {
    let (mut open, mut found) = (vec![dir.to_path_buf()], Vec::new());
    while let Some(dir) = open.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
            if path.ends_with("findings") { found.push(path) } else { open.push(path) }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Scans without an end in between.
pub(crate) fn run(request: &ScanRequest, keeping: &Keeping) -> ScanReport {
    scan(request, keeping, &mut Control { stop: &AtomicBool::new(false), progress: &mut |_| {} }).unwrap()
}
