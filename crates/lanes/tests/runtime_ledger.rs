//! The ledger on real lanes: threads, sockets, logs on disk; lanes that panic, stall, come and go.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use support::{Ledger, Order};
use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::config::LaneConfig;
use tessera_lanes::runtime::{ChangeRefused, CommandRefused, RestartPolicy, Runtime, RuntimeConfig, StartError};
use tessera_lanes::wal::{Durability, LogConfig};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);

struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("tessera-lanes-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
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

/// Lanes share threads where these tests are a module of others.
const SHARED: bool = !matches!(module_path!().as_bytes(), b"runtime_ledger");

fn config(lanes: usize) -> RuntimeConfig {
    RuntimeConfig {
        lanes,
        lane: LaneConfig { steer_offset: Some(0), trace_every: 1, ..LaneConfig::default() },
        spin: Duration::ZERO, // Tests share two cores.
        pin: !SHARED,
        share_threads: SHARED,
        stall_bound: Duration::from_millis(700),
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        ..RuntimeConfig::default()
    }
}

fn logged(lanes: usize, dir: &TempDir) -> RuntimeConfig {
    let log = LogConfig {
        durability: Durability::Group { delay: Duration::from_micros(200) },
        compact_bytes_min: 8192,
        ..LogConfig::default()
    };
    RuntimeConfig { log: Some((dir.0.clone(), log)), ..config(lanes) }
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

struct Client {
    done: Sender<(u64, u64)>,
    answers: Receiver<(u64, u64)>,
    asked: BTreeMap<u64, u64>,
    acked: BTreeMap<u64, u64>,
    random: u64,
}

impl Client {
    fn new(seed: u64) -> Self {
        let (done, answers) = channel();
        Self { done, answers, asked: BTreeMap::new(), acked: BTreeMap::new(), random: seed * 2 + 1 }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn ask(&mut self, runtime: &Runtime<Order>, orders: usize) {
        for _ in 0..orders {
            let key = self.next() % 3000;
            let version = self.asked.get(&key).copied().unwrap_or(0) + 1;
            self.asked.insert(key, version);
            let lane = LaneIndex((self.next() % runtime.map().lanes() as u64) as u8);
            let _ = runtime.command(lane, Order::Raise { key, version, done: self.done.clone() });
        }
        self.collect();
    }

    fn collect(&mut self) {
        while let Ok((key, version)) = self.answers.try_recv() {
            let held = self.acked.entry(key).or_insert(version);
            *held = (*held).max(version);
        }
    }

    /// The owners' records, asked of every lane until all answer.
    fn list(&self, runtime: &Runtime<Order>) -> BTreeMap<u64, u64> {
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

    fn check(&mut self, runtime: &Runtime<Order>, at: &str) {
        wait_for("every slot with its owner", || runtime.is_settled());
        self.collect();
        let acked = self.acked.clone();
        let held = self.list(runtime);
        for (key, version) in acked {
            let have = held.get(&key).copied().unwrap_or(0);
            assert!(have >= version, "{at}: key {key} was answered at {version}, its owner has {have}");
        }
        for (key, version) in held {
            assert!(self.asked.get(&key).is_some_and(|asked| version <= *asked), "{at}: key {key} at {version}");
        }
    }
}

#[test]
fn orders_survive_a_restart_of_the_process_with_another_number_of_lanes() {
    let dir = TempDir::new();
    let mut client = Client::new(1);
    for lanes in [3, 1, 4, 2] {
        let runtime = start(logged(lanes, &dir));
        client.check(&runtime, &format!("started with {lanes}"));
        client.ask(&runtime, 500);
        wait_for("every order answered", || {
            client.collect();
            client.acked == client.asked
        });
        client.check(&runtime, &format!("running with {lanes}"));
        runtime.shutdown();
    }
    let runtime = start(logged(2, &dir));
    client.check(&runtime, "the end");
    assert_eq!(client.list(&runtime), client.asked);
}

#[test]
fn a_lane_that_panics_is_restarted_from_its_log_while_the_others_serve() {
    let dir = TempDir::new();
    let runtime = start(logged(3, &dir));
    let mut client = Client::new(2);
    for round in 0..5 {
        client.ask(&runtime, 200);
        let lane = LaneIndex(round % 3);
        let before = runtime.counters()[usize::from(lane.0)].incarnations.get();
        wait_for("a lane to break", || runtime.command(lane, Order::Panic).is_ok());
        client.ask(&runtime, 200);
        wait_for("the lane's return", || runtime.counters()[usize::from(lane.0)].incarnations.get() > before);
        client.check(&runtime, &format!("round {round}"));
    }
    assert!(client.acked.len() > 100, "lanes did serve: {}", client.acked.len());
    let events = runtime.take_events();
    assert!(events.iter().any(|event| event.what.contains("panicked: a lane was told to panic")), "{events:?}");
}

#[test]
fn a_lane_that_stalls_is_replaced_and_its_ghost_touches_nothing() {
    let dir = TempDir::new();
    let runtime = start(logged(2, &dir));
    let mut client = Client::new(3);
    client.ask(&runtime, 300);
    let counted = runtime.counters()[1].clone();
    wait_for("a lane to block", || runtime.command(LaneIndex(1), Order::Block(2500)).is_ok());
    wait_for("its replacement", || {
        client.ask(&runtime, 5);
        runtime.counters()[1].incarnations.get() == 2
    });
    client.check(&runtime, "the replacement serves while the ghost sleeps");
    let mut events = Vec::new();
    wait_for("the ghost's return", || {
        client.ask(&runtime, 5);
        events.extend(runtime.take_events());
        events.iter().any(|event| event.what.contains("came back and left"))
    });
    assert!(events.iter().any(|event| event.what.contains("stalled for more than 700 ms")), "{events:?}");
    client.check(&runtime, "after the ghost");
    let counters = runtime.counters()[1].clone();
    assert!(!std::sync::Arc::ptr_eq(&counted, &counters), "a ghost's counters are not read");
    assert!(counters.commands.get() >= counted.commands.get().max(100), "and its successor counts on from there");
}

#[test]
fn lanes_come_and_go_under_load_and_nothing_acknowledged_is_lost() {
    let dir = TempDir::new();
    let runtime = start(logged(2, &dir));
    let mut client = Client::new(4);
    for lanes in [4, 1, 3, 2] {
        std::thread::scope(|scope| {
            let change = scope.spawn(|| runtime.resize(lanes));
            while !change.is_finished() {
                client.ask(&runtime, 20);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(change.join().unwrap(), Ok(()));
        });
        assert_eq!(runtime.map().lanes(), lanes);
        client.check(&runtime, &format!("{lanes} lanes"));
    }
    runtime.relieve(LaneIndex(0), LaneIndex(1)).unwrap();
    assert_eq!(runtime.map().load(LaneIndex(0)), 64);
    client.ask(&runtime, 200);
    client.check(&runtime, "relieved");
    runtime.merge_back().unwrap();
    assert_eq!(runtime.map().load(LaneIndex(0)), 128);
    client.check(&runtime, "merged back");
    assert!(matches!(runtime.resize(0), Err(ChangeRefused::Map(_))));
    drop(runtime);
    client.check(&start(logged(2, &dir)), "started again");
}

/// Sends a datagram about every slot and returns how many forwards each answer tells of.
fn echo(runtime: &Runtime<Order>, claim: impl Fn(u8) -> u8) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], runtime.address().unwrap().port()));
    let map = runtime.map();
    (0..=255u8)
        .map(|slot| {
            socket.send_to(&[claim(slot), slot, 42], to).unwrap();
            let mut answer = [0; 64];
            let (len, _) = socket.recv_from(&mut answer).unwrap();
            assert_eq!(answer[..3], [claim(slot), slot, 42]);
            assert_eq!(
                LaneIndex(answer[len - 2]),
                map.lane_of_slot(Slot(slot)),
                "slot {slot} is answered by its owner"
            );
            answer[len - 1]
        })
        .collect()
}

#[test]
fn datagrams_reach_their_owner_through_the_kernel_or_over_rings() {
    for kernel_steering in [true, false] {
        let bind = Some("[::]:0".parse().unwrap());
        let runtime = start(RuntimeConfig { bind, kernel_steering, ..config(4) });
        assert_eq!(runtime.is_kernel_steered(), kernel_steering);
        let hops = echo(&runtime, |slot| slot);
        let forwarded = hops.iter().filter(|hops| **hops > 0).count();
        if kernel_steering {
            assert_eq!(forwarded, 0, "the kernel finds the owner");
        } else {
            assert!(forwarded > 100, "{forwarded} of 256 were passed on");
        }
        assert_eq!(runtime.snapshot().total("misrouted"), forwarded as u64);
        let lied = echo(&runtime, |slot| slot ^ 0x80);
        assert!(
            lied.iter().all(|hops| (1..=2).contains(hops)),
            "a lying byte costs a forward, never the answer: {lied:?}"
        );
    }
}

#[test]
fn steering_is_exact_after_a_lane_dies_and_after_every_change() {
    let runtime = start(RuntimeConfig { bind: Some("127.0.0.1:0".parse().unwrap()), ..config(3) });
    for round in 0..3u8 {
        runtime.command(LaneIndex(round), Order::Panic).unwrap();
        wait_for("its return", || runtime.counters()[usize::from(round)].incarnations.get() == 2);
        let (to, from) = channel();
        wait_for("a listing", || {
            let _ = runtime.command(LaneIndex(round), Order::List(to.clone()));
            from.recv_timeout(Duration::from_millis(100)).is_ok()
        });
        assert!(echo(&runtime, |slot| slot).iter().all(|hops| *hops == 0), "after lane {round} died");
    }
    for lanes in [5, 2, 4] {
        runtime.resize(lanes).unwrap();
        assert!(echo(&runtime, |slot| slot).iter().all(|hops| *hops == 0), "{lanes} lanes");
    }
}

#[test]
fn without_steering_no_datagram_goes_to_a_lane_that_has_retired() {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let runtime = start(RuntimeConfig { bind, kernel_steering: false, ..config(4) });
    for lanes in [1, 3, 2] {
        runtime.resize(lanes).unwrap();
        for _ in 0..32 {
            // A port of its own each: the kernel spreads over sockets by address.
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.send_to(&[7, 7], runtime.address().unwrap()).unwrap();
            client.recv(&mut [0; 8]).unwrap();
        }
    }
}

#[test]
fn datagrams_sent_while_a_lane_is_down_wait_for_its_successor() {
    let slow = RestartPolicy { delay_min: Duration::from_millis(300), ..RestartPolicy::default() };
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let runtime = start(RuntimeConfig { bind, restart: slow, ..config(2) });
    runtime.command(LaneIndex(1), Order::Panic).unwrap();
    wait_for("the failure", || runtime.command(LaneIndex(1), Order::Block(0)).is_err());
    assert!(echo(&runtime, |slot| slot).iter().all(|hops| *hops == 0));
    assert_eq!(runtime.snapshot().total("misrouted"), 0, "no other lane saw them");
}

#[test]
fn a_lane_that_always_fails_stops_the_runtime_only_if_the_policy_says_so() {
    let policy =
        RestartPolicy { delay_min: Duration::from_millis(1), failures_max: Some(3), ..RestartPolicy::default() };
    let runtime = start(RuntimeConfig { restart: policy, ..config(2) });
    wait_for("the runtime giving up", || {
        let _ = runtime.command(LaneIndex(0), Order::Panic);
        runtime.has_given_up()
    });
    // A panic whose backtrace takes longer than the bound counts as a stall: a failure all the same.
    let failures = runtime.take_events().iter().filter(|event| event.what.contains("restarts in")).count();
    assert_eq!(failures, 4, "three are forgiven");
    wait_for("closed doors", || matches!(runtime.command(LaneIndex(1), Order::Block(0)), Err(CommandRefused::Down(_))));
}

#[test]
fn a_second_runtime_on_the_same_logs_is_refused() {
    let dir = TempDir::new();
    let _first = start(logged(1, &dir));
    let second = Runtime::start(logged(1, &dir), |_| Ledger::default());
    assert!(matches!(second, Err(StartError::Io { doing, .. }) if doing.contains("another process")));
}

#[test]
fn an_idle_lane_sleeps_and_a_command_wakes_it() {
    let runtime = start(config(2));
    let counters = runtime.counters();
    wait_for("sleep", || counters[0].sleeps.get() > 0);
    let (turns, begun) = (counters[0].turns.get(), Instant::now());
    std::thread::sleep(Duration::from_millis(200));
    let turns = counters[0].turns.get() - turns;
    // On a busy machine the pause is longer than it should be.
    let pause = begun.elapsed();
    assert!(turns < 20 + pause.as_millis() as u64 / 20, "an idle lane turned {turns} times in {pause:?}");
    let (to, from) = channel();
    runtime.command(LaneIndex(0), Order::List(to)).unwrap();
    assert!(from.recv_timeout(PATIENCE).is_ok());
}

#[test]
fn metrics_are_served_and_traces_can_be_taken() {
    let runtime = start(RuntimeConfig { metrics: Some("127.0.0.1:0".parse().unwrap()), ..config(2) });
    let mut client = Client::new(5);
    client.ask(&runtime, 50);
    wait_for("answers", || {
        client.collect();
        client.acked == client.asked
    });
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(runtime.metrics_address().unwrap()).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let text = ask("/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    let drained: u64 = text
        .lines()
        .filter(|line| line.starts_with("tessera_lane_drained_total") && line.contains("coordination"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert_eq!(drained, 100, "50 orders and 50 answers");
    assert!(ask("/").starts_with("HTTP/1.1 404"));
    assert!(!runtime.take_traces().is_empty());
    assert_eq!(runtime.alarms(), []);
}
