//! Settings of an operator and refusals of a system: cores, batches of datagrams, traces on disk.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::handler::{Datagram, Message};
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::telemetry::trace_file::{TRACE_FILE, TRACE_FILE_OLD, TraceFiles};
use tessera_lanes::{Class, Context, Envelope, Handler, Kind};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);

/// Echoes datagrams; says on which cores it may run; sends hints to the other lane.
struct Simple;

enum Ask {
    Cores(Sender<Vec<usize>>),
    Hints(u32, Sender<()>),
}

impl Handler for Simple {
    type Command = Ask;

    fn on_command(&mut self, cx: &mut Context, ask: Ask) {
        match ask {
            Ask::Cores(to) => to.send(cores_of_this_thread()).unwrap(),
            Ask::Hints(count, done) => {
                for n in 0..count {
                    let to = LaneIndex(1 - cx.lane().0);
                    let hint = Envelope { key_prefix: n.into(), ..Envelope::to_lane(to, Class::Hints, Kind::new(9)) };
                    assert!(cx.send(hint, &[]).is_accepted());
                }
                done.send(()).unwrap();
            }
        }
    }

    fn on_message(&mut self, _: &mut Context, _: Message<'_>) {}

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        cx.send_datagram(datagram.from, datagram.bytes).unwrap();
    }
}

fn cores_of_this_thread() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

fn config() -> RuntimeConfig {
    RuntimeConfig { lanes: 2, spin: Duration::ZERO, ..RuntimeConfig::default() }
}

fn cores_of(runtime: &Runtime<Ask>, lane: u8) -> Vec<usize> {
    let (to, from) = channel();
    assert!(runtime.command(LaneIndex(lane), Ask::Cores(to)).is_ok());
    from.recv_timeout(PATIENCE).unwrap()
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_lane_is_pinned_to_one_core_of_those_it_may_use() {
    let allowed = cores_of_this_thread();
    let runtime = Runtime::start(config(), |_| Simple).unwrap();
    let [first, second] = [0, 1].map(|lane| cores_of(&runtime, lane));
    assert!(first.len() == 1 && second.len() == 1, "{first:?} {second:?}");
    assert!(allowed.contains(&first[0]) && allowed.contains(&second[0]));
    assert!(allowed.len() == 1 || first != second, "each has its own: {first:?} {second:?}");
    assert_eq!(runtime.take_events(), [], "nothing to complain about");
    let unpinned = Runtime::start(RuntimeConfig { pin: false, ..config() }, |_| Simple).unwrap();
    assert_eq!(cores_of(&unpinned, 0), allowed, "not if it is not to be");
}

/// The niceness of the threads of this process with that name.
fn niceness_of(name: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let told = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let told = told.filter_map(|stat| {
        let (head, tail) = stat.rsplit_once(')').unwrap();
        head.ends_with(&format!("({name}")).then(|| tail.split_whitespace().nth(16).unwrap().parse().unwrap())
    });
    told.collect()
}

#[test]
fn the_observer_gives_way_to_the_lanes() {
    // Only a runtime that serves metrics or writes traces has an observer of its own.
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let _runtime = Runtime::start(RuntimeConfig { metrics, ..config() }, |_| Simple).unwrap();
    let ours = niceness_of(std::thread::current().name().unwrap().get(..15).unwrap())[0];
    // A thread has its name only once it runs. Other tests of this process have lanes and observers of their own.
    wait_for("threads", || !niceness_of("lane-0").is_empty() && !niceness_of("lanes-observer").is_empty());
    wait_for("a nicer observer", || niceness_of("lanes-observer").iter().all(|nice| *nice == (ours + 10).min(19)));
    assert!(niceness_of("lane-0").iter().all(|nice| *nice == ours));
}

#[test]
fn a_lane_whose_core_is_refused_says_so_and_serves_unpinned() {
    let allowed = cores_of_this_thread();
    let forbidden = CpuSet::MAX_CPU - 1;
    assert!(!allowed.contains(&forbidden));
    let cores = Some(vec![allowed[0], forbidden]);
    let runtime = Runtime::start(RuntimeConfig { cores, ..config() }, |_| Simple).unwrap();
    assert_eq!((cores_of(&runtime, 0), cores_of(&runtime, 1)), (vec![allowed[0]], allowed));
    let mut events = Vec::new();
    wait_for("the notice", || {
        events.extend(runtime.take_events());
        !events.is_empty()
    });
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].lane, Some(LaneIndex(1)));
    let what = &events[0].what;
    assert!(what.contains(&format!("could not be pinned to core {forbidden}")), "{what}");
    assert!(what.contains("cpuset") && what.contains("pinning off"), "what to do about it: {what}");
}

#[test]
fn without_batches_a_lane_serves_a_datagram_a_call() {
    for batched_calls in [true, false] {
        let bind = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let runtime = Runtime::start(RuntimeConfig { lanes: 1, bind, batched_calls, ..config() }, |_| Simple).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        for round in 0..4u8 {
            for n in 0..32u8 {
                client.send_to(&[round, n, 7], runtime.address().unwrap()).unwrap();
            }
            for n in 0..32u8 {
                let mut answer = [0; 8];
                let len = client.recv(&mut answer).unwrap();
                assert_eq!(answer[..len], [round, n, 7], "in order");
            }
        }
        wait_for("the count", || runtime.snapshot().total("datagrams_out") == 128);
        assert_eq!(runtime.snapshot().total("datagrams_in"), 128);
    }
}

#[test]
fn traces_are_written_to_bounded_files_that_a_user_can_read() {
    let folder = std::env::temp_dir().join(format!("tessera-lanes-traces-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let files = TraceFiles { folder: folder.clone(), bytes_max: 64 << 10 };
    let lane = tessera_lanes::config::LaneConfig { trace_every: 10, ..Default::default() };
    let runtime =
        Runtime::start(RuntimeConfig { trace_files: Some(files.clone()), lane, ..config() }, |_| Simple).unwrap();
    let (to, done) = channel();
    assert!(runtime.command(LaneIndex(0), Ask::Hints(1000, to)).is_ok());
    done.recv_timeout(PATIENCE).unwrap();
    let read = || std::fs::read_to_string(folder.join(TRACE_FILE)).unwrap();
    wait_for("one in ten of a thousand messages", || read().lines().count() == 100);
    for line in read().lines() {
        let told = r#""lane":1,"event":"message","class":"hints","kind":9,"from":0,"waited_us":"#;
        assert!(line.starts_with(r#"{"at_us":"#) && line.contains(told) && line.ends_with('}'), "{line}");
    }
    assert_eq!(runtime.take_traces(), [], "the files have them");

    // Many more than the files may hold; the last word is there after the runtime has stopped.
    for _ in 0..30 {
        let (to, done) = channel();
        assert!(runtime.command(LaneIndex(0), Ask::Hints(1000, to)).is_ok());
        done.recv_timeout(PATIENCE).unwrap();
        let sent = runtime.counters()[0].class(Class::Hints).enqueued.get();
        wait_for("the hints taken", || runtime.counters()[1].class(Class::Hints).drained.get() == sent);
    }
    runtime.shutdown();
    let len = |name: &str| std::fs::metadata(folder.join(name)).unwrap().len();
    assert!(len(TRACE_FILE) + len(TRACE_FILE_OLD) <= files.bytes_max);
    assert!(len(TRACE_FILE_OLD) > files.bytes_max / 4, "the older file is full");
    std::fs::remove_dir_all(folder).unwrap();
}
