//! Many runtimes in one process: one thread supervises all of them, and none waits for another.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::runtime::{RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::{Context, Handler};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);

/// Answers, panics, or waits until it is told to go on.
struct Told;

#[derive(Debug)]
enum Tell {
    Answer(Sender<()>),
    Panic,
    Wait(Receiver<()>),
}

impl Handler for Told {
    type Command = Tell;

    fn on_command(&mut self, _: &mut Context, tell: Tell) {
        match tell {
            Tell::Answer(to) => to.send(()).unwrap(),
            Tell::Panic => panic!("a lane was told to panic"),
            Tell::Wait(until) => drop(until.recv()),
        }
    }
}

fn config(lanes: usize) -> RuntimeConfig {
    RuntimeConfig {
        lanes,
        spin: Duration::ZERO,
        stall_bound: Duration::from_secs(3600),
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        ..RuntimeConfig::default()
    }
}

/// How often its first lane was started.
fn starts(runtime: &Runtime<Tell>) -> u64 {
    runtime.snapshot().lanes[0].total("incarnations")
}

fn answers(runtime: &Runtime<Tell>) -> bool {
    let (to, from) = channel();
    runtime.command(LaneIndex(0), Tell::Answer(to)).is_ok() && from.recv_timeout(PATIENCE).is_ok()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many threads of this process are called so.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
}

#[test]
fn one_thread_supervises_all_of_them_and_lanes_that_panic_at_once_are_all_restarted() {
    let runtimes: Vec<Runtime<Tell>> = (0..24).map(|_| Runtime::start(config(1), |_| Told).unwrap()).collect();
    assert_eq!(threads_named("lanes"), 1);
    for round in 2..5 {
        for runtime in &runtimes {
            wait_for("a lane", || runtime.is_settled());
            assert!(runtime.command(LaneIndex(0), Tell::Panic).is_ok());
        }
        for runtime in &runtimes {
            wait_for("a restart", || starts(runtime) == round && answers(runtime));
        }
    }
    // From several threads at once, as an application may.
    std::thread::scope(|scope| {
        for runtime in runtimes {
            scope.spawn(move || runtime.shutdown());
        }
        for _ in 0..8 {
            scope.spawn(|| {
                let runtime = Runtime::start(config(2), |_| Told).unwrap();
                assert!(answers(&runtime) && runtime.resize(1).is_ok() && answers(&runtime));
            });
        }
    });
}

#[test]
fn a_runtime_that_is_long_in_stopping_holds_no_other_up() {
    let (slow, quick) = (Runtime::start(config(1), |_| Told).unwrap(), Runtime::start(config(1), |_| Told).unwrap());
    let (go_on, until) = channel();
    slow.command(LaneIndex(0), Tell::Wait(until)).unwrap();
    let stopping = std::thread::spawn(move || slow.shutdown());
    for round in 2..5 {
        wait_for("a lane", || quick.is_settled());
        quick.command(LaneIndex(0), Tell::Panic).unwrap();
        wait_for("a restart", || starts(&quick) == round && answers(&quick));
        if round == 2 {
            // It is patient with its lane for five seconds. A caller that waited for it would come here after it.
            assert!(!stopping.is_finished(), "the other restarted only when this one had stopped");
        }
        assert_eq!(quick.resize(3), Ok(()));
        assert_eq!(quick.resize(1), Ok(()));
        let late = Runtime::start(config(1), |_| Told).unwrap();
        assert!(answers(&late));
        late.shutdown();
    }
    drop(go_on);
    stopping.join().unwrap();
}

#[test]
fn the_handler_factory_of_a_runtime_may_own_another_runtime() {
    let inner = Arc::new(Mutex::new(Runtime::start(config(1), |_| Told).unwrap()));
    let owned = inner.clone();
    let outer = Runtime::start(config(1), move |_| {
        assert!(answers(&owned.lock().unwrap()));
        Told
    });
    let outer = outer.unwrap();
    drop(inner);
    outer.command(LaneIndex(0), Tell::Panic).unwrap();
    wait_for("a restart", || starts(&outer) == 2 && answers(&outer));
    outer.shutdown();
}
