//! Lanes that hang in a command: their callers learn that they were given up while they still hang.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::runtime::{CommandRefused, RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::{Context, Handler};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug)]
enum Ask {
    /// Says that it hangs, and does until it is told to go on.
    Hang(Sender<()>, Receiver<()>),
    Answer(Sender<LaneIndex>),
    /// Is never asked, only dropped; with it goes a whole runtime.
    Own(#[expect(dead_code, reason = "it is there to be dropped")] Box<Runtime<Ask>>),
}

struct Asked;

impl Handler for Asked {
    type Command = Ask;

    fn on_command(&mut self, cx: &mut Context, ask: Ask) {
        match ask {
            Ask::Hang(hangs, until) => {
                hangs.send(()).unwrap();
                let _ = until.recv();
            }
            Ask::Answer(to) => drop(to.send(cx.lane())),
            Ask::Own(_) => {}
        }
    }
}

fn config(lanes: usize, share_threads: bool) -> RuntimeConfig {
    RuntimeConfig {
        lanes,
        spin: Duration::ZERO,
        pin: false,
        share_threads,
        stall_bound: Duration::from_millis(300),
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        ..RuntimeConfig::default()
    }
}

fn start(lanes: usize, share_threads: bool) -> Runtime<Ask> {
    Runtime::start(config(lanes, share_threads), |_| Asked).unwrap()
}

/// Makes a lane hang until the returned sender is dropped.
fn hang(runtime: &Runtime<Ask>, lane: LaneIndex) -> Sender<()> {
    let ((says, hangs), (go_on, until)) = (channel(), channel());
    runtime.command(lane, Ask::Hang(says, until)).unwrap();
    hangs.recv_timeout(PATIENCE).unwrap();
    go_on
}

fn ask(runtime: &Runtime<Ask>, lane: LaneIndex) -> Result<Receiver<LaneIndex>, CommandRefused<Ask>> {
    let (to, answer) = channel();
    runtime.command(lane, Ask::Answer(to)).map(|()| answer)
}

/// Asks until a lane answers, as a caller with idempotent commands does.
fn answered(runtime: &Runtime<Ask>, lane: LaneIndex) {
    let deadline = Instant::now() + PATIENCE;
    while !ask(runtime, lane).is_ok_and(|answer| answer.recv_timeout(PATIENCE) == Ok(lane)) {
        assert!(Instant::now() < deadline, "no answer for lane {}", lane.0);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_caller_behind_a_hung_command_is_told_while_it_hangs_and_the_successor_answers() {
    for share_threads in [false, true] {
        let runtime = start(2, share_threads);
        let lane = LaneIndex(0);
        let hung = hang(&runtime, lane);
        // More than a lane takes in a turn, so that some of them are in every place where commands wait.
        let waiting: Vec<_> = (0..200).map(|_| ask(&runtime, lane).unwrap()).collect();
        for answer in &waiting {
            assert_eq!(answer.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected), "shared: {share_threads}");
        }
        let events = runtime.take_events();
        assert!(
            events.iter().any(|event| event.lane == Some(lane) && event.what.contains("stalled for more than 300 ms")),
            "told while it hangs: {events:?}"
        );
        answered(&runtime, lane);
        answered(&runtime, LaneIndex(1));
        drop(hung);
    }
}

#[test]
fn a_caller_of_a_lane_that_shares_a_thread_with_a_hung_one_is_told_too() {
    // As many as there are threads at most, so that one has two; this process has no others.
    let runtimes: Vec<_> = (0..8).map(|_| start(1, true)).collect();
    let lane = LaneIndex(0);
    for runtime in &runtimes {
        answered(runtime, lane);
    }
    let _hung = hang(&runtimes[0], lane);
    let waiting: Vec<_> = runtimes[1..].iter().filter_map(|runtime| ask(runtime, lane).ok()).collect();
    let told = waiting.iter().filter(|answer| answer.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Disconnected));
    assert!(told.count() > 0, "some share its thread");
    for runtime in &runtimes {
        answered(runtime, lane);
    }
}

#[test]
fn a_runtime_with_a_lane_that_hangs_stops_within_its_bound_and_ends_all_waits() {
    // The lane is not given up before the runtime stops.
    let patient = RuntimeConfig { stall_bound: Duration::from_secs(3600), ..config(1, false) };
    let runtime = Runtime::start(patient, |_| Asked).unwrap();
    let _hung = hang(&runtime, LaneIndex(0));
    let waiting = ask(&runtime, LaneIndex(0)).unwrap();
    // It returns although the lane hangs, which goes on only when this test has ended.
    runtime.shutdown();
    assert_eq!(waiting.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_command_that_owns_a_runtime_is_dropped_without_holding_up_the_supervisors() {
    let (runtime, owned) = (start(1, false), start(1, false));
    let lane = LaneIndex(0);
    let _hung = hang(&runtime, lane);
    let behind = ask(&owned, lane).unwrap();
    assert_eq!(behind.recv_timeout(PATIENCE), Ok(lane));
    runtime.command(lane, Ask::Own(Box::new(owned))).unwrap();
    let waiting = ask(&runtime, lane).unwrap();
    assert_eq!(waiting.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    answered(&runtime, lane);
}
