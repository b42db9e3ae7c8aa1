//! Changes of lanes that cannot be made, or not now: nothing moves before all lanes are open, and no caller waits for ever.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{Ledger, Order};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::handler::{Datagram, Message, Notice, Record, RecordSink, Walk};
use tessera_lanes::runtime::{ChangeRefused, RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::wal::LogConfig;
use tessera_lanes::{Context, Handler};
use test_support::skipped;

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);
const FOREVER: Duration = Duration::from_secs(3600);

struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("tessera-lane-changes-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(lanes: usize, folder: &Path) -> RuntimeConfig {
    RuntimeConfig {
        lanes,
        spin: Duration::ZERO,
        // On a machine with much to do, to print where a lane panicked may take longer than a lane may hang.
        stall_bound: PATIENCE,
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        bind: Some("127.0.0.1:0".parse().unwrap()),
        log: Some((folder.to_owned(), LogConfig::default())),
        ..RuntimeConfig::default()
    }
}

/// A lane that hangs is given up soon.
fn watchful(config: RuntimeConfig) -> RuntimeConfig {
    RuntimeConfig { stall_bound: Duration::from_millis(500), ..config }
}

fn start(config: RuntimeConfig) -> Runtime<Order> {
    Runtime::start(config, |_| Ledger::default()).unwrap()
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Raises so many keys, a slot each, and waits until they are safe.
fn raise(runtime: &Runtime<Order>, keys: std::ops::Range<u64>) {
    let (done, answers) = channel();
    for key in keys.clone() {
        let order = Order::Raise { key, version: key + 1, done: done.clone() };
        assert!(runtime.command(LaneIndex(0), order).is_ok());
    }
    for _ in keys {
        answers.recv_timeout(PATIENCE).unwrap();
    }
}

/// The owners' records, by the map.
fn held(runtime: &Runtime<Order>) -> BTreeMap<u64, u64> {
    let mut held = BTreeMap::new();
    for lane in 0..runtime.map().lanes() {
        let (to, from) = channel();
        let mut answer = None;
        wait_for("a lane that lists", || {
            let _ = runtime.command(LaneIndex(lane as u8), Order::List(to.clone()));
            answer = from.recv_timeout(Duration::from_millis(200)).ok();
            answer.is_some()
        });
        held.extend(answer.unwrap().1);
    }
    held
}

fn all(keys: std::ops::Range<u64>) -> BTreeMap<u64, u64> {
    keys.map(|key| (key, key + 1)).collect()
}

/// Asks for a change on a thread of its own, so that a test outlives one that does not come back.
fn changed<R: Send + 'static>(
    runtime: &Arc<Runtime<Order>>,
    change: impl FnOnce(&Runtime<Order>) -> R + Send + 'static,
) -> R {
    let (says, said) = channel();
    let runtime = runtime.clone();
    std::thread::spawn(move || {
        let answer = change(&runtime);
        drop(runtime); // The caller that has the answer may drop the last reference.
        says.send(answer)
    });
    said.recv_timeout(PATIENCE).expect("a change of lanes gets an answer")
}

/// The log that a lane would start with.
fn log_of(folder: &Path, lane: u8) -> PathBuf {
    folder.join(format!("lane-{lane:03}.0000000001.log"))
}

#[test]
fn a_lane_whose_log_cannot_be_opened_is_let_go_and_every_key_keeps_its_owner() {
    for share_threads in [false, true] {
        let dir = TempDir::new();
        let shared = RuntimeConfig { share_threads, pin: !share_threads, ..config(1, &dir.0) };
        let runtime = Arc::new(start(shared));
        raise(&runtime, 0..256);
        let before = runtime.map();
        // A folder is no log. Lanes 1 and 3 could start.
        std::fs::create_dir(log_of(&dir.0, 2)).unwrap();
        for _ in 0..2 {
            let refused = changed(&runtime, |runtime| runtime.resize(4)).unwrap_err();
            assert!(matches!(refused, ChangeRefused::NoLane(_)), "{refused:?}");
            assert!(refused.to_string().contains("lane 2: failed: Is a directory"), "{refused}");
            assert_eq!(runtime.map(), before, "no lane has heard of another map");
            assert_eq!(held(&runtime), all(0..256), "nothing has moved");
            assert!(runtime.command(LaneIndex(1), Order::Block(0)).is_err(), "those that could start are gone, too");
            let files = tessera_lanes::wal::log::lanes_with_files(
                &tessera_lanes::wal::storage::Directory::open(&dir.0).unwrap(),
            );
            assert_eq!(files.unwrap(), [LaneIndex(0), LaneIndex(2)], "and what they wrote");
        }
        assert_eq!(changed(&runtime, |runtime| runtime.resize(2)), Ok(()), "fewer are no trouble");
        assert_eq!(held(&runtime), all(0..256));
        std::fs::remove_dir(log_of(&dir.0, 2)).unwrap();
        assert_eq!(changed(&runtime, |runtime| runtime.resize(4)), Ok(()));
        assert_eq!((runtime.map().lanes(), held(&runtime)), (4, all(0..256)));
        let events: Vec<String> = runtime.take_events().into_iter().map(|event| event.what).collect();
        assert!(events.iter().any(|what| what.contains("so it is let go and no slot moves")), "{events:?}");
        assert!(!events.iter().any(|what| what.contains("restarts in")), "{events:?}");
    }
}

#[test]
fn a_lane_that_waits_for_its_disk_is_given_up_in_time_and_leaves_when_the_disk_answers() {
    let dir = TempDir::new();
    let runtime = Arc::new(start(RuntimeConfig { change_patience: Duration::from_secs(1), ..config(1, &dir.0) }));
    raise(&runtime, 0..256);
    // Reading a pipe waits for a writer, as reading from a disk that hangs waits for the disk.
    let pipe = log_of(&dir.0, 1);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = changed(&runtime, |runtime| runtime.resize(2)).unwrap_err();
    assert!(refused.to_string().contains("lane 1: its disk has not answered yet"), "{refused}");
    assert!(matches!(refused, ChangeRefused::NoLane(_)), "{refused:?}");
    assert_eq!((runtime.map().lanes(), held(&runtime)), (1, all(0..256)));
    assert_eq!(
        changed(&runtime, |runtime| runtime.resize(2)),
        Err(ChangeRefused::InProgress),
        "two must not open one log"
    );
    drop(std::fs::File::options().write(true).open(&pipe).unwrap());
    wait_for("the lane to leave", || runtime.resize(2) != Err(ChangeRefused::InProgress));
    assert_eq!((runtime.map().lanes(), held(&runtime)), (2, all(0..256)));
}

#[test]
fn a_caller_that_waits_for_a_change_is_told_at_once_when_the_runtime_stops() {
    let dir = TempDir::new();
    // Neither the change nor the end is given up: as long as the disk hangs, a caller that is not told at once waits.
    let config = RuntimeConfig { change_patience: FOREVER, stop_patience: FOREVER, ..watchful(config(1, &dir.0)) };
    let runtime = Arc::new(start(config));
    let pipe = log_of(&dir.0, 1);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (says, said) = channel();
    let waiting = runtime.clone();
    std::thread::spawn(move || says.send(waiting.resize(2)).unwrap());
    wait_for("the new lane at its disk", || runtime.waiting_for_disk() == [LaneIndex(1)]);
    runtime.begin_stop();
    let told = said.recv_timeout(PATIENCE);
    // Before anything is judged: the end waits for it.
    drop(std::fs::File::options().write(true).open(&pipe).unwrap());
    assert_eq!(told, Ok(Err(ChangeRefused::Stopped)));
    assert_eq!(runtime.resize(3), Err(ChangeRefused::Stopped));
}

/// A ledger that its test makes fail.
struct Frail(Ledger, Arc<Frailty>);

#[derive(Default)]
struct Frailty {
    /// Which lane, plus one.
    panics_as_it_starts: AtomicU8,
    panics_as_it_is_made: AtomicU8,
    hangs_as_it_is_made: Mutex<()>,
}

fn is_meant(lane: LaneIndex, who: &AtomicU8) -> bool {
    who.load(Ordering::Relaxed) == lane.0 + 1
}

impl Handler for Frail {
    type Command = Order;

    fn on_start(&mut self, cx: &mut Context) {
        assert!(!is_meant(cx.lane(), &self.1.panics_as_it_starts), "it does not want to start");
        self.0.on_start(cx);
    }

    fn on_recovered(&mut self, record: Record<'_>) {
        self.0.on_recovered(record);
    }

    fn on_command(&mut self, cx: &mut Context, order: Order) {
        self.0.on_command(cx, order);
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        self.0.on_message(cx, message);
    }

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        self.0.on_datagram(cx, datagram);
    }

    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        self.0.on_notice(cx, notice);
    }

    fn on_snapshot(&mut self, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        self.0.on_snapshot(from, sink)
    }

    fn on_export(&mut self, slot: tessera_contracts::prefix_map::Slot, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        self.0.on_export(slot, from, sink)
    }

    fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
        self.0.on_import(cx, record);
    }
}

fn start_frail(config: RuntimeConfig) -> (Arc<Runtime<Order>>, Arc<Frailty>) {
    let frailty = Arc::new(Frailty::default());
    let given = frailty.clone();
    let runtime = Runtime::start(config, move |lane| {
        assert!(!is_meant(lane, &given.panics_as_it_is_made), "it does not want to be made");
        if lane == LaneIndex(1) {
            drop(given.hangs_as_it_is_made.lock());
        }
        Frail(Ledger::default(), given.clone())
    });
    (Arc::new(runtime.unwrap()), frailty)
}

#[test]
fn a_new_lane_that_panics_before_it_is_open_undoes_the_change() {
    let dir = TempDir::new();
    let (runtime, frailty) = start_frail(config(1, &dir.0));
    raise(&runtime, 0..256);
    frailty.panics_as_it_is_made.store(2, Ordering::Relaxed);
    let refused = changed(&runtime, |runtime| runtime.resize(2)).unwrap_err();
    assert!(refused.to_string().contains("lane 1: panicked: it does not want to be made"), "{refused}");
    assert_eq!((runtime.map().lanes(), held(&runtime)), (1, all(0..256)));
    frailty.panics_as_it_is_made.store(0, Ordering::Relaxed);
    assert_eq!(changed(&runtime, |runtime| runtime.resize(2)), Ok(()));
    assert_eq!(held(&runtime), all(0..256));
}

#[test]
fn a_new_lane_that_hangs_before_it_is_open_undoes_the_change() {
    let dir = TempDir::new();
    let (runtime, frailty) = start_frail(watchful(config(1, &dir.0)));
    raise(&runtime, 0..256);
    let hangs = frailty.hangs_as_it_is_made.lock().unwrap();
    let refused = changed(&runtime, |runtime| runtime.resize(2)).unwrap_err();
    assert!(refused.to_string().contains("lane 1: stalled for more than 500 ms"), "{refused}");
    assert_eq!((runtime.map().lanes(), held(&runtime)), (1, all(0..256)));
    drop(hangs);
    assert_eq!(changed(&runtime, |runtime| runtime.resize(2)), Ok(()));
    assert_eq!(held(&runtime), all(0..256));
}

#[test]
fn a_caller_that_waits_for_a_change_is_told_which_lane_holds_it_up_and_it_ends_when_the_lane_is_well() {
    let dir = TempDir::new();
    let patient = RuntimeConfig { change_patience: Duration::from_secs(1), ..config(1, &dir.0) };
    // However often it fails, it is back soon.
    let restart = RestartPolicy { delay_max: Duration::from_millis(20), ..patient.restart };
    let (runtime, frailty) = start_frail(RuntimeConfig { restart, ..patient });
    raise(&runtime, 0..256);
    frailty.panics_as_it_starts.store(2, Ordering::Relaxed);
    let unfinished = changed(&runtime, |runtime| runtime.resize(2)).unwrap_err();
    assert!(matches!(unfinished, ChangeRefused::Unfinished(_)), "{unfinished:?}");
    assert!(unfinished.to_string().contains("lane 1: panicked: it does not want to start"), "{unfinished}");
    assert_eq!(changed(&runtime, |runtime| runtime.resize(1)), Err(ChangeRefused::InProgress));
    frailty.panics_as_it_starts.store(0, Ordering::Relaxed);
    let mut events = Vec::new();
    wait_for("the end of the change", || {
        events.extend(runtime.take_events().into_iter().map(|event| event.what));
        events.iter().any(|what| what.contains("has come to its end"))
    });
    assert!(events.iter().any(|what| what.contains("a change of lanes is held up: lane")), "{events:?}");
    wait_for("every slot with its owner", || runtime.is_settled());
    assert_eq!((runtime.map().lanes(), held(&runtime)), (2, all(0..256)));
    assert_eq!(changed(&runtime, |runtime| runtime.resize(1)), Ok(()));
    assert_eq!(held(&runtime), all(0..256));
}

type Changing = fn(&Runtime<Order>) -> Result<(), ChangeRefused>;

#[test]
fn nothing_moves_while_a_lane_that_has_something_to_give_is_down() {
    let dir = TempDir::new();
    let patient = RuntimeConfig { change_patience: Duration::from_secs(1), ..config(2, &dir.0) };
    let restart = RestartPolicy { delay_max: Duration::from_millis(20), ..patient.restart };
    let (runtime, frailty) = start_frail(RuntimeConfig { restart, ..patient });
    raise(&runtime, 0..256);
    frailty.panics_as_it_is_made.store(2, Ordering::Relaxed);
    assert!(runtime.command(LaneIndex(1), Order::Panic).is_ok());
    wait_for("a lane that does not come back", || {
        runtime.take_events().iter().any(|event| event.what.contains("it does not want to be made"))
    });
    let before = runtime.map();
    let changes: [Changing; 3] = [
        |runtime| runtime.resize(1),
        |runtime| runtime.relieve(LaneIndex(0), LaneIndex(1)),
        |runtime| runtime.relieve(LaneIndex(1), LaneIndex(0)),
    ];
    for change in changes {
        let refused = changed(&runtime, change).unwrap_err();
        assert!(refused.to_string().contains("lane 1: panicked: it does not want to be made"), "{refused}");
        assert_eq!(runtime.map(), before);
    }
    frailty.panics_as_it_is_made.store(0, Ordering::Relaxed);
    for change in changes.into_iter().skip(1).chain([changes[0]]) {
        assert_eq!(changed(&runtime, change), Ok(()));
        assert_eq!(held(&runtime), all(0..256));
    }
    assert_eq!(runtime.map().lanes(), 1);
}

const CHILD: &str = "TESSERA_LANES_FULL_DISK";

/// Runs in a process that may mount something for itself alone.
fn on_a_full_disk(folder: &Path) {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder).status().unwrap();
    assert!(mounted.success());
    let logs = folder.join("logs");
    let runtime = Arc::new(start(config(1, &logs)));
    raise(&runtime, 0..256);
    let filler = folder.join("filler");
    assert!(std::fs::write(&filler, vec![7; 2 << 20]).is_err(), "the disk is full");
    let refused = changed(&runtime, |runtime| runtime.resize(2)).unwrap_err();
    assert!(refused.to_string().contains("lane 1: failed: No space left on device"), "{refused}");
    assert!(matches!(refused, ChangeRefused::NoLane(_)), "{refused:?}");
    assert_eq!((runtime.map().lanes(), held(&runtime)), (1, all(0..256)));
    assert_eq!(changed(&runtime, |runtime| runtime.resize(1)), Ok(()), "as it is");
    // The lane that was let go has left nothing that would have to be taken over, for which there is no room.
    drop(runtime);
    let runtime = Arc::new(start(config(1, &logs)));
    assert_eq!(held(&runtime), all(0..256));
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(changed(&runtime, |runtime| runtime.resize(2)), Ok(()));
    assert_eq!((runtime.map().lanes(), held(&runtime)), (2, all(0..256)));
}

/// Runs its arguments in a mount namespace of its own, without being root.
fn with_mounts_of_its_own() -> Command {
    let mut alone = Command::new("unshare");
    alone.args(["--user", "--map-root-user", "--mount"]);
    alone
}

#[test]
fn a_full_disk_refuses_a_new_lane_and_takes_nothing_from_the_old() {
    // This very test, started by itself where it may mount.
    if let Some(folder) = std::env::var_os(CHILD) {
        return on_a_full_disk(Path::new(&folder));
    }
    let dir = TempDir::new();
    let mounts = with_mounts_of_its_own().args(["mount", "-t", "tmpfs", "none"]).arg(&dir.0).output();
    if !mounts.is_ok_and(|output| output.status.success()) {
        return skipped("it needs a small disk that it may mount for itself");
    }
    let mut child = with_mounts_of_its_own();
    child.arg(std::env::current_exe().unwrap());
    let this = "a_full_disk_refuses_a_new_lane_and_takes_nothing_from_the_old";
    let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, &dir.0).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
