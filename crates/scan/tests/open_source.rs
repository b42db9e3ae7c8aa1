//! A source that the scanner does not know, swept by a fleet's workers; and what a worker's death means under either kind of
//! cursor. The source is that of the example `log_lines`.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

#[allow(dead_code, unreachable_pub, reason = "a program of its own")]
#[path = "../examples/log_lines.rs"]
mod log_lines;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use log_lines::{Line, Log, Outbox, handed_on};
use tessera_contracts::source_family::{SourceError, SourceFamily, SourceItem};
use tessera_contracts::{CursorSemantics, RestoredShardState};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::{InMemoryCoordinator, RunManagement};
use tessera_detect::{Detector, IdKey, RuleSet, Source, template};
use tessera_scan::findings::Draft;
use tessera_scan::findings::occurrence::{Occurrence, Place};
use tessera_scan::fleet::{Connect, OpenFleet};
use tessera_scan::plan::target::Target;
use tessera_scan::report::receipt::Receipt;
use tessera_scan::run::folder::RunFolder;
use tessera_scan::run::locked::Locked;
use tessera_scan::source::item::SkipReason;
use tessera_scan::source::open::{Connector, Handled, Handler, HandlerError};

const LINES: u64 = 5_000;
const SECRETS: u64 = 50;

/// A log with a secret in some lines, and what its consumer is to get.
struct Stage {
    dir: tempfile::TempDir,
    log: Log,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Log(dir.path().join("log"));
        let text: String = (0..LINES).map(line).collect();
        std::fs::write(&log.0, text).unwrap();
        Self { dir, log }
    }

    /// A fleet whose leases end soon after their owner's death.
    fn fleet(&self) -> OpenFleet<Locked<InMemoryCoordinator>> {
        OpenFleet { lease_duration: 300, ..OpenFleet::in_memory(self.dir.path().join("findings")) }
    }
}

fn line(number: u64) -> String {
    if number.is_multiple_of(LINES / SECRETS) {
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(number)).unwrap();
        format!("{number} login with {token}\n")
    } else {
        format!("{number} nothing of note\n")
    }
}

/// The same log, with workers that do as `new` says, and of which the first dies between what it makes durable and the cursor.
struct Dying<'l, H> {
    log: &'l Log,
    name: &'static str,
    new: fn(&Log, &Path) -> io::Result<H>,
    deaths_left: AtomicU32,
}

impl<'l, H> Dying<'l, H> {
    fn new(log: &'l Log, new: fn(&Log, &Path) -> io::Result<H>) -> Self {
        Self { log, name: log.name(), new, deaths_left: AtomicU32::new(0) }
    }
}

struct Mortal<H> {
    handler: H,
    dies: bool,
}

impl<H> SourceFamily for Dying<'_, H> {
    type Item = Line;
    type Pages<'f>
        = <Log as SourceFamily>::Pages<'f>
    where
        Self: 'f;

    fn name(&self) -> &'static str {
        self.name
    }

    fn open<'f>(&'f self, state: &RestoredShardState) -> Result<Self::Pages<'f>, SourceError> {
        self.log.open(state)
    }
}

impl<H: Handler<Line>> Connector for Dying<'_, H> {
    type Handler = Mortal<H>;

    fn locate(&self, target: &Target) -> Result<(), SourceError> {
        self.log.locate(target)
    }

    fn handler(&self, dir: &Path) -> io::Result<Mortal<H>> {
        let dies = self.deaths_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        Ok(Mortal { handler: (self.new)(self.log, dir)?, dies: dies.is_ok() })
    }
}

impl<H: Handler<Line>> Handler<Line> for Mortal<H> {
    fn handle(&mut self, item: &Line, draft: &mut Draft) -> Result<Handled, HandlerError> {
        self.handler.handle(item, draft)
    }

    fn make_durable(&mut self) -> io::Result<()> {
        self.handler.make_durable()?;
        if self.dies { Err(io::Error::other("the worker is gone")) } else { Ok(()) }
    }

    fn abandon(&mut self) {
        self.handler.abandon();
    }
}

/// Searches lines itself.
struct Searcher(Box<Detector>);

impl Handler<Line> for Searcher {
    fn handle(&mut self, item: &Line, draft: &mut Draft) -> Result<Handled, HandlerError> {
        let (path, mut found) = (format!("{:?}", item.key()), Vec::new());
        let text = &item.1;
        if text.starts_with(b"7 ") {
            return Ok(Handled::Skipped(SkipReason::Excluded));
        }
        self.0.scan_bytes(Source::path("log"), text, |finding| {
            let place = Place::of_item(0, path.as_bytes(), None);
            found.push(Occurrence::new(finding, &IdKey::new([0; 32]), &place, false));
        });
        found.iter().try_for_each(|occurrence| draft.found(occurrence))?;
        Ok(Handled::Done)
    }
}

fn searcher(_: &Log, _: &Path) -> io::Result<Searcher> {
    Ok(Searcher(Box::new(Detector::new(&RuleSet::builtin()).unwrap())))
}

fn outbox(log: &Log, dir: &Path) -> io::Result<Outbox> {
    log.handler(dir)
}

fn receipt_of_all(receipt: &Receipt) {
    assert!(receipt.is_complete(), "{receipt:?}");
    assert_eq!((receipt.tally.enumerated(), receipt.plan.met, receipt.plan.planned), (LINES, LINES, LINES));
    assert!(receipt.shards_short == 0 && receipt.damage.is_empty());
}

/// How many lines the outboxes of a run hold, and how many of them more than once.
fn lines_in(run: &RunFolder) -> (u64, u64) {
    let lines = handed_on(run.path()).unwrap();
    (lines.len() as u64, lines.values().filter(|times| **times > 1).count() as u64)
}

#[test]
fn the_example_takes_less_than_150_lines_and_hands_on_each_line_of_a_log() {
    let source = include_str!("../examples/log_lines.rs");
    assert!(source.lines().count() < 150, "{} lines", source.lines().count());
    let stage = Stage::new();
    assert_eq!(log_lines::hand_on(&stage.log).unwrap(), (LINES, true, LINES as usize));
}

#[test]
fn a_dispatcher_that_dies_leaves_lines_that_are_handed_on_twice_and_none_that_is_not() {
    let stage = Stage::new();
    let (fleet, log) = (stage.fleet(), Dying::new(&stage.log, outbox));
    let run = fleet.submit(&log, &stage.log.0, CursorSemantics::Dispatched).unwrap();
    log.deaths_left.store(1, Ordering::Relaxed);
    let one = OpenFleet { workers: 1, ..fleet };
    let died = one.work(&log, &AtomicBool::new(false)).unwrap_err();
    assert!(died.to_string().contains("the worker is gone"), "{died}");
    let (before, twice) = lines_in(&run);
    assert!(before > 0 && twice == 0);
    let (_, receipt) = one.conclude(&run).unwrap();
    assert!(!receipt.is_complete() && receipt.tally.enumerated() == 0, "no segment tells of them: {receipt:?}");
    one.work(&log, &AtomicBool::new(false)).unwrap();
    assert_eq!(lines_in(&run), (LINES, before), "what the dead worker handed on came again, and everything came");
    receipt_of_all(&one.conclude(&run).unwrap().1);
}

#[test]
fn a_complete_receipt_of_dispatched_lines_does_not_bring_back_what_their_consumer_loses() {
    let stage = Stage::new();
    let fleet = stage.fleet();
    let run = fleet.submit(&stage.log, &stage.log.0, CursorSemantics::Dispatched).unwrap();
    fleet.work(&stage.log, &AtomicBool::new(false)).unwrap();
    assert_eq!(lines_in(&run), (LINES, 0));
    for entry in std::fs::read_dir(run.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "outbox") {
            std::fs::remove_file(path).unwrap();
        }
    }
    fleet.work(&stage.log, &AtomicBool::new(false)).unwrap();
    assert_eq!(lines_in(&run), (0, 0), "no worker does it again");
    receipt_of_all(&fleet.conclude(&run).unwrap().1);
    let mut backend = fleet.connect.connect().unwrap();
    let record = backend.get_run(fleet.tenant, run.key().run).unwrap();
    assert_eq!((record.status, record.config.cursor_semantics), (RunStatus::Done, CursorSemantics::Dispatched));
}

#[test]
fn a_searcher_that_dies_finds_each_secret_once_under_completed_cursors() {
    let stage = Stage::new();
    let (fleet, log) = (stage.fleet(), Dying::new(&stage.log, searcher));
    let run = fleet.submit(&log, &stage.log.0, CursorSemantics::Completed).unwrap();
    log.deaths_left.store(2, Ordering::Relaxed);
    while fleet.work(&log, &AtomicBool::new(false)).is_err() {}
    let (findings, receipt) = fleet.conclude(&run).unwrap();
    receipt_of_all(&receipt);
    assert_eq!(receipt.tally.skipped_total(), 1);
    assert_eq!(findings.len() as u64, SECRETS);
    assert!(findings.iter().all(|finding| finding.locations.len() == 1));
}

#[test]
fn a_machine_without_the_connector_says_what_it_cannot_read_and_leaves_the_run_as_it_was() {
    let stage = Stage::new();
    let fleet = OpenFleet { workers: 1, ..stage.fleet() };
    let run = fleet.submit(&stage.log, &stage.log.0, CursorSemantics::Dispatched).unwrap();
    let stranger = Dying { name: "table rows", ..Dying::new(&stage.log, outbox) };
    fleet.work(&stranger, &AtomicBool::new(false)).unwrap();
    let (_, receipt) = fleet.conclude(&run).unwrap();
    assert!(!receipt.is_complete() && receipt.tally.enumerated() == 0, "{receipt:?}");
    // It is the only one there is, so nothing is left to wait for another.
    let said = "holds log lines, which this program does not read";
    assert!(receipt.shards.parked > 0 && receipt.parked.iter().all(|line| line.contains(said)), "{:?}", receipt.parked);
}
