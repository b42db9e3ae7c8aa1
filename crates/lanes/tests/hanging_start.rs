//! Lanes that hang or fail before they serve: they are replaced like any other, and nothing they were to take over is lost.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::handler::Record;
use tessera_lanes::runtime::{ChangeRefused, RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::telemetry::alarms::Alarm;
use tessera_lanes::wal::{Importance, LogConfig};
use tessera_lanes::{Context, Handler};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where lane 1 gets stuck, and for how long: until the test opens it.
#[derive(Default)]
struct Gate {
    opened: Mutex<bool>,
    changed: Condvar,
    reached: AtomicU32,
}

impl Gate {
    /// The first to come waits; the others pass.
    fn pass(&self) {
        if self.reached.fetch_add(1, Ordering::Relaxed) == 0 {
            drop(self.changed.wait_while(self.opened.lock().unwrap(), |opened| !*opened).unwrap());
        }
    }

    fn open(&self) {
        *self.opened.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Making,
    Recovering,
    Importing,
    Starting,
    Nowhere,
}

enum Ask {
    Keep(u8, Sender<()>),
    List(Sender<BTreeSet<u8>>),
}

struct Keeper {
    stuck: Where,
    gate: Arc<Gate>,
    kept: BTreeSet<u8>,
}

impl Keeper {
    fn maybe_hang(&self, at: Where) {
        if self.stuck == at {
            self.gate.pass();
        }
    }
}

impl Handler for Keeper {
    type Command = Ask;

    fn on_recovered(&mut self, record: Record<'_>) {
        self.maybe_hang(Where::Recovering);
        self.kept.insert(record.payload[0]);
    }

    fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
        self.maybe_hang(Where::Importing);
        self.kept.insert(record.payload[0]);
        let _ = cx.log(1, record.slot, record.payload, Importance::Hard);
    }

    fn on_start(&mut self, _: &mut Context) {
        self.maybe_hang(Where::Starting);
    }

    fn on_command(&mut self, cx: &mut Context, ask: Ask) {
        match ask {
            Ask::Keep(what, done) => {
                self.kept.insert(what);
                cx.log(1, Slot(what), &[what], Importance::Hard).unwrap();
                done.send(()).unwrap();
            }
            Ask::List(to) => drop(to.send(self.kept.clone())),
        }
    }
}

fn start(folder: &str, lanes: usize, stuck: Where, gate: &Arc<Gate>) -> Runtime<Ask> {
    let path = PathBuf::from(folder);
    let config = RuntimeConfig {
        lanes,
        spin: Duration::ZERO,
        stall_bound: Duration::from_millis(300),
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        log: Some((path, LogConfig::default())),
        ..RuntimeConfig::default()
    };
    let gate = gate.clone();
    let last = LaneIndex(lanes as u8 - 1);
    Runtime::start(config, move |lane| {
        let keeper = Keeper {
            stuck: if lane == last { stuck } else { Where::Nowhere },
            gate: gate.clone(),
            kept: BTreeSet::new(),
        };
        keeper.maybe_hang(Where::Making);
        keeper
    })
    .unwrap()
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_alarm(runtime: &Runtime<Ask>) -> bool {
    runtime.alarms() == [Alarm::DiskHangs { lane: LaneIndex(1) }]
}

fn kept(runtime: &Runtime<Ask>, lane: u8) -> BTreeSet<u8> {
    let (to, from) = channel();
    let mut answer = None;
    wait_for("a lane that lists", || {
        let _ = runtime.command(LaneIndex(lane), Ask::List(to.clone()));
        answer = from.recv_timeout(Duration::from_millis(200)).ok();
        answer.is_some()
    });
    answer.unwrap()
}

fn folder(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("tessera-lanes-hanging-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path.to_str().unwrap().to_owned()
}

/// A log in which the last of `lanes` lanes keeps one record of a slot of its own.
fn with_a_record(folder: &str, lanes: usize) -> u8 {
    let runtime = start(folder, lanes, Where::Nowhere, &Arc::default());
    let last = LaneIndex(lanes as u8 - 1);
    let own = (0..=255).find(|slot| runtime.map().lane_of_slot(Slot(*slot)) == last).unwrap();
    let (done, kept) = channel();
    assert!(runtime.command(last, Ask::Keep(own, done)).is_ok());
    kept.recv_timeout(PATIENCE).unwrap();
    runtime.shutdown();
    own
}

#[test]
fn a_lane_that_hangs_before_its_first_turn_is_replaced_like_any_other() {
    for stuck in [Where::Making, Where::Recovering, Where::Starting] {
        let folder = folder("turn");
        let own = with_a_record(&folder, 2);
        let gate = Arc::new(Gate::default());
        let runtime = start(&folder, 2, stuck, &gate);
        assert_eq!(kept(&runtime, 0), BTreeSet::new(), "the other serves");
        assert_eq!(kept(&runtime, 1), BTreeSet::from([own]), "{stuck:?}: its replacement serves what it had logged");
        let mut events = runtime.take_events();
        assert!(events.iter().any(|event| event.what.contains("stalled for more than 300 ms")), "{events:?}");
        gate.open();
        wait_for("the ghost's return", || {
            events.extend(runtime.take_events());
            events.iter().any(|event| event.what.contains("came back and left"))
        });
        assert_eq!(kept(&runtime, 1), BTreeSet::from([own]));
        drop(runtime);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn slots_that_a_lane_was_to_take_over_when_it_hung_go_to_its_replacement() {
    let folder = folder("orphan");
    let own = with_a_record(&folder, 2);
    let gate = Arc::new(Gate::default());
    let runtime = start(&folder, 1, Where::Importing, &gate);
    wait_for("the hang", || gate.reached.load(Ordering::Relaxed) == 1);
    assert_eq!(
        runtime.resize(2),
        Err(ChangeRefused::InProgress),
        "lane 1 would write to the log that lane 0 takes over"
    );
    assert_eq!(kept(&runtime, 0), BTreeSet::from([own]));
    gate.open();
    wait_for("two lanes", || runtime.resize(2).is_ok());
    drop(runtime);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_disk_that_hangs_while_a_log_is_opened_is_announced_and_the_lane_serves_when_it_answers() {
    let folder = folder("disk");
    std::fs::create_dir_all(&folder).unwrap();
    // Reading a pipe waits for a writer, as reading from a disk that hangs waits for the disk.
    let pipe = format!("{folder}/lane-001.0000000001.log");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let runtime = start(&folder, 2, Where::Nowhere, &Arc::default());
    assert_eq!(kept(&runtime, 0), BTreeSet::new(), "the other serves");
    wait_for("an alarm", || has_alarm(&runtime));
    assert_eq!(runtime.waiting_for_disk(), [LaneIndex(1)]);
    let mut events = runtime.take_events();
    assert_eq!(events.len(), 1, "told once, and the lane is not replaced: {events:?}");
    assert!(events[0].what.contains("its disk has not answered for more than 300 ms"), "{events:?}");
    assert!(!runtime.is_settled());
    drop(std::fs::File::options().write(true).open(&pipe).unwrap());
    assert_eq!(kept(&runtime, 1), BTreeSet::new(), "it serves");
    wait_for("the end of the alarm", || runtime.alarms().is_empty() && runtime.waiting_for_disk().is_empty());
    events.extend(runtime.take_events());
    assert!(events.iter().any(|event| event.what == "its disk answers again"), "{events:?}");
    drop(runtime);
    std::fs::remove_dir_all(folder).unwrap();
}
