//! Lanes of many runtimes on a few threads: they share those and nothing else.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::handler::Datagram;
use tessera_lanes::runtime::{RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::{Context, Handler};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);
const LANE: LaneIndex = LaneIndex(0);

/// Threads are counted, and a thread is held up: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says on which thread it is, panics, waits until it is told to go on, or sends a datagram.
struct Told(Option<Sender<Vec<u8>>>);

#[derive(Debug)]
enum Tell {
    Answer(Sender<ThreadId>),
    Panic,
    Wait(Receiver<()>),
    Pause(Duration),
    /// Waits, and then sends.
    WaitAndSend(Receiver<()>, std::net::SocketAddr),
    SendAndPanic(std::net::SocketAddr),
    /// Says that it waits for a value to drop, and that it has dropped it.
    Drop(Receiver<Box<dyn std::any::Any + Send>>, Sender<()>),
    Send(std::net::SocketAddr, Vec<u8>),
    Hear(Sender<Vec<u8>>),
    Later(Sender<ThreadId>),
    WakeCaller(Waker),
    WakeAndPanic(Waker),
    /// Reports the number of messages so far.
    Relay(Receiver<()>, Sender<usize>),
}

impl Handler for Told {
    type Command = Tell;

    fn on_command(&mut self, cx: &mut Context, tell: Tell) {
        match tell {
            Tell::Answer(to) => drop(to.send(std::thread::current().id())),
            Tell::Panic => panic!("a lane was told to panic"),
            Tell::Wait(until) => drop(until.recv()),
            Tell::Pause(time) => std::thread::sleep(time),
            Tell::WaitAndSend(until, to) => {
                let _ = until.recv();
                cx.send_datagram(to, b"ghost").unwrap();
            }
            Tell::SendAndPanic(to) => {
                cx.send_datagram(to, b"ghost").unwrap();
                panic!("a lane was told to panic");
            }
            Tell::Drop(what, says) => {
                says.send(()).unwrap();
                drop(what.recv().unwrap());
                says.send(()).unwrap();
            }
            Tell::Send(to, bytes) => cx.send_datagram(to, &bytes).unwrap(),
            Tell::Hear(heard) => self.0 = Some(heard),
            Tell::WakeCaller(waker) => cx.wake_caller(waker),
            Tell::WakeAndPanic(waker) => {
                cx.wake_caller(waker);
                panic!("a lane was told to panic");
            }
            Tell::Relay(heard, to) => to.send(heard.try_iter().count()).unwrap(),
            Tell::Later(to) => {
                cx.set_timer(Duration::from_millis(20), 7).unwrap();
                let (heard, by_timer) = channel();
                self.0 = Some(heard);
                std::thread::spawn(move || {
                    assert_eq!(by_timer.recv().unwrap(), b"timer");
                    let _ = to.send(std::thread::current().id());
                });
            }
        }
    }

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        match &self.0 {
            Some(heard) => drop(heard.send(datagram.bytes.to_vec())),
            None => cx.send_datagram(datagram.from, datagram.bytes).unwrap(),
        }
    }

    fn on_timer(&mut self, _: &mut Context, _: u64) {
        if let Some(heard) = &self.0 {
            let _ = heard.send(b"timer".to_vec());
        }
    }
}

fn config() -> RuntimeConfig {
    RuntimeConfig {
        lanes: 1,
        pin: false,
        share_threads: true,
        bind: Some("127.0.0.1:0".parse().unwrap()),
        stall_bound: Duration::from_secs(3600),
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        ..RuntimeConfig::default()
    }
}

fn start(config: RuntimeConfig) -> Runtime<Tell> {
    Runtime::start(config, |_| Told(None)).unwrap()
}

/// The thread on which its lane has its turns.
fn thread_of(runtime: &Runtime<Tell>) -> Option<ThreadId> {
    thread_of_lane(runtime, LANE)
}

fn thread_of_lane(runtime: &Runtime<Tell>, lane: LaneIndex) -> Option<ThreadId> {
    let (to, from) = channel();
    runtime.command(lane, Tell::Answer(to)).ok()?;
    from.recv_timeout(PATIENCE).ok()
}

fn starts(runtime: &Runtime<Tell>) -> u64 {
    runtime.snapshot().lanes[0].total("incarnations")
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All answer, and no lane sends anything else.
fn echoed_by_all(client: &UdpSocket, runtimes: &[Runtime<Tell>]) {
    for runtime in runtimes {
        let mut bytes = [0; 32];
        client.send_to(b"are you there?", runtime.address().unwrap()).unwrap();
        let (len, from) = client.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], Some(from)), (&b"are you there?"[..], runtime.address()));
    }
}

/// Threads that carry lanes, and those that carry one of their own.
fn threads() -> (usize, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.fold((0, 0), |(shared, own), name| {
        (shared + usize::from(name.starts_with("lanes-")), own + usize::from(name.starts_with("lane-")))
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn many_small_runtimes_have_one_thread_until_it_is_busy_and_none_when_they_are_gone() {
    let _alone = alone();
    let runtimes: Vec<_> = (0..24).map(|_| start(config())).collect();
    let on = thread_of(&runtimes[0]);
    assert!(runtimes.iter().all(|runtime| thread_of(runtime) == on));
    wait_for("lanes to have been opened", || threads() == (1, 0));
    // A datagram from each to each, and back.
    for (n, from) in runtimes.iter().enumerate() {
        let (heard, hears) = channel();
        from.command(LANE, Tell::Hear(heard)).unwrap();
        for to in runtimes.iter().skip(n + 1) {
            from.command(LANE, Tell::Send(to.address().unwrap(), vec![n as u8; 100])).unwrap();
            assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), [n as u8; 100]);
        }
    }
    let (to, from) = channel();
    runtimes[0].command(LANE, Tell::Later(to)).unwrap();
    from.recv_timeout(PATIENCE).unwrap();
    // Where the others leave a newcomer no time, it is put elsewhere.
    if cores() > 1 {
        wait_for("a thread for later lanes", || {
            let _ = runtimes[1].command(LANE, Tell::Pause(Duration::from_millis(50)));
            thread_of(&start(config())) != on
        });
    }
    drop(runtimes);
    wait_for("the threads to end", || threads() == (0, 0));
    let late = start(config());
    assert!(thread_of(&late).is_some());
    assert_eq!(threads().0, 1);
}

#[test]
fn a_socket_that_is_watched_is_asked_when_it_has_something_only() {
    let _alone = alone();
    let (runtime, client) = (start(config()), UdpSocket::bind("127.0.0.1:0").unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let total = |name| runtime.snapshot().lanes[0].total(name);
    for _ in 0..50 {
        assert!(thread_of(&runtime).is_some());
    }
    assert_eq!((total("receive_calls"), total("commands")), (0, 50));
    for _ in 0..50 {
        echoed_by_all(&client, std::slice::from_ref(&runtime));
    }
    assert_eq!((total("receive_calls"), total("datagrams_in")), (50, 50));
}

#[test]
fn lanes_of_one_runtime_have_different_threads_as_far_as_there_are_cores() {
    let _alone = alone();
    let (small, wide) = (start(config()), start(RuntimeConfig { lanes: cores() + 1, ..config() }));
    let on: Vec<_> = (0..=cores()).map(|lane| thread_of_lane(&wide, LaneIndex(lane as u8))).collect();
    assert_eq!(on.iter().map(|on| format!("{on:?}")).collect::<std::collections::BTreeSet<_>>().len(), cores());
    assert_eq!([on[0], on[cores()]], [thread_of(&small); 2]);
}

/// Says that it was woken.
struct Says(Mutex<Sender<()>>);

impl Wake for Says {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

fn waker() -> (Waker, Receiver<()>) {
    let (says, woken) = channel();
    (Arc::new(Says(Mutex::new(says))).into(), woken)
}

#[test]
fn the_first_caller_is_woken_at_once_and_others_when_all_lanes_of_the_thread_had_their_turns() {
    let _alone = alone();
    let runtimes: Vec<_> = (0..3).map(|_| start(config())).collect();
    let on = thread_of(&runtimes[0]);
    assert!(runtimes.iter().all(|runtime| thread_of(runtime) == on));
    // A lane that wakes by itself at the wrong moment has its turn before the others, and has no messages: then it is asked again.
    let tries = (0..100).find(|_| {
        let ((first, first_woken), (second, second_woken), (third, third_woken)) = (waker(), waker(), waker());
        let (goes_on, gate) = channel::<Box<dyn std::any::Any + Send>>();
        let (says, said) = channel();
        let (tells, told) = channel();
        // While the first has its turn, something comes for each of the others.
        runtimes[0].command(LANE, Tell::Drop(gate, says)).unwrap();
        said.recv_timeout(PATIENCE).expect("it has its turn");
        runtimes[1].command(LANE, Tell::WakeCaller(first)).unwrap();
        runtimes[1].command(LANE, Tell::WakeCaller(second)).unwrap();
        runtimes[2].command(LANE, Tell::Relay(first_woken, tells.clone())).unwrap();
        runtimes[2].command(LANE, Tell::Relay(second_woken, tells)).unwrap();
        runtimes[2].command(LANE, Tell::WakeCaller(third)).unwrap();
        goes_on.send(Box::new(())).unwrap();
        let woken_at_once = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(0), "a lane had something to do still");
        third_woken.recv_timeout(PATIENCE).expect("and then the others are woken");
        woken_at_once == 1
    });
    assert!(tries.is_some(), "the first is woken at once");
}

#[test]
fn an_answered_caller_is_woken_though_the_lane_panics_or_sleeps_on_a_thread_of_its_own() {
    let _alone = alone();
    for share_threads in [true, false] {
        let runtime = start(RuntimeConfig { share_threads, ..config() });
        for panics in [false, true, false] {
            let (waker, woken) = waker();
            // A lane that has just panicked may not be back yet, or go with its command.
            wait_for("the caller to be woken", || {
                let waker = waker.clone();
                let tell = if panics { Tell::WakeAndPanic(waker) } else { Tell::WakeCaller(waker) };
                let _ = runtime.command(LANE, tell);
                woken.recv_timeout(Duration::from_millis(100)).is_ok()
            });
        }
    }
}

#[test]
fn one_that_panics_goes_alone_and_comes_back() {
    let _alone = alone();
    let runtimes: Vec<_> = (0..12).map(|_| start(config())).collect();
    for round in 2..5 {
        for runtime in runtimes.iter().step_by(2) {
            wait_for("a lane", || runtime.is_settled());
            runtime.command(LANE, Tell::Panic).unwrap();
        }
        for runtime in runtimes.iter().step_by(2) {
            wait_for("a restart", || starts(runtime) == round && thread_of(runtime).is_some());
        }
    }
    for runtime in runtimes.iter().skip(1).step_by(2) {
        assert!(thread_of(runtime).is_some());
        assert_eq!(starts(runtime), 1, "it was not its panic");
    }
}

#[test]
fn a_lane_that_shares_a_thread_with_a_hung_one_starts_again_elsewhere() {
    let _alone = alone();
    let watchful = || RuntimeConfig { stall_bound: Duration::from_millis(500), ..config() };
    let runtimes: Vec<_> = (0..3 * cores()).map(|_| start(watchful())).collect();
    let stuck = thread_of(&runtimes[0]).unwrap();
    let beside: Vec<_> = runtimes[1..].iter().filter(|runtime| thread_of(runtime) == Some(stuck)).collect();
    assert!(!beside.is_empty());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (go_on, until) = channel();
    runtimes[0].command(LANE, Tell::WaitAndSend(until, client.local_addr().unwrap())).unwrap();
    for runtime in beside.iter().copied().chain([&runtimes[0]]) {
        wait_for("a start elsewhere", || starts(runtime) >= 2 && thread_of(runtime).is_some_and(|on| on != stuck));
    }
    // New lanes are not put on a thread that hangs.
    let late = start(watchful());
    assert!(thread_of(&late).is_some_and(|on| on != stuck));
    drop(go_on);
    // The thread comes back and finds that all it carried was given up.
    for runtime in beside.iter().copied().chain([&runtimes[0]]) {
        let mut events = Vec::new();
        wait_for("its predecessor to leave", || {
            events.extend(runtime.take_events().into_iter().map(|event| event.what));
            events.iter().any(|what| what.contains("came back and left"))
        });
        assert!(events.iter().any(|what| what.contains("stalled")), "{events:?}");
        assert!(thread_of(runtime).is_some());
    }
    echoed_by_all(&client, &runtimes);
    drop((runtimes, late));
    wait_for("the threads to end", || threads() == (0, 0));
}

#[test]
fn datagrams_that_a_lane_writes_as_it_starts_or_lies_down_come_from_its_own_socket() {
    let _alone = alone();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let here = client.local_addr().unwrap();
    struct Greets(std::net::SocketAddr);
    impl Handler for Greets {
        type Command = u8;
        fn on_start(&mut self, cx: &mut Context) {
            cx.send_datagram(self.0, b"start").unwrap();
        }
        fn on_command(&mut self, cx: &mut Context, n: u8) {
            cx.send_datagram(self.0, &[n]).unwrap();
        }
    }
    let runtimes: Vec<_> = (0..3 * cores()).map(|_| Runtime::start(config(), move |_| Greets(here)).unwrap()).collect();
    let mut greeted: Vec<_> = runtimes
        .iter()
        .map(|_| {
            let (len, from) = client.recv_from(&mut [0; 16]).unwrap();
            assert_eq!(len, 5);
            from
        })
        .collect();
    let mut theirs: Vec<_> = runtimes.iter().map(|runtime| runtime.address().unwrap()).collect();
    greeted.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(greeted, theirs, "each for itself");
    // Many at once, so that commands come while lanes park.
    for _ in 0..200 {
        for (n, runtime) in runtimes.iter().enumerate().chain(runtimes.iter().enumerate().rev()) {
            runtime.command(LANE, n as u8).unwrap();
        }
        for _ in 0..2 * runtimes.len() {
            let mut byte = [0; 16];
            let (len, from) = client.recv_from(&mut byte).unwrap();
            assert_eq!(len, 1);
            assert_eq!(runtimes[usize::from(byte[0])].address(), Some(from), "sent by another's socket");
        }
    }
}

#[test]
fn a_datagram_written_before_a_panic_is_never_sent() {
    let _alone = alone();
    let runtimes: Vec<_> = (0..3 * cores()).map(|_| start(config())).collect();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    for (n, runtime) in runtimes.iter().enumerate() {
        runtime.command(LANE, Tell::SendAndPanic(client.local_addr().unwrap())).unwrap();
        wait_for("a restart", || starts(runtime) == 2 && thread_of(runtime).is_some());
        echoed_by_all(&client, &runtimes[..=n]);
    }
}

#[test]
fn a_datagram_written_by_a_given_up_lane_is_never_sent() {
    let _alone = alone();
    // They are patient, so that they are still there when the thread goes on.
    let mut runtimes: Vec<_> = (0..2 * cores()).map(|_| start(config())).collect();
    runtimes.push(start(RuntimeConfig { stall_bound: Duration::from_millis(100), ..config() }));
    let given_up = runtimes.last().unwrap();
    assert!(runtimes.iter().all(|runtime| thread_of(runtime).is_some()));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (go_on, until) = channel();
    given_up.command(LANE, Tell::WaitAndSend(until, client.local_addr().unwrap())).unwrap();
    wait_for("a start elsewhere", || starts(given_up) >= 2);
    drop(go_on);
    wait_for("its predecessor to leave", || {
        given_up.take_events().iter().any(|event| event.what.contains("came back and left"))
    });
    wait_for("a lane", || thread_of(given_up).is_some());
    echoed_by_all(&client, &runtimes);
    assert!(runtimes[..2 * cores()].iter().all(|runtime| starts(runtime) == 1));
}

/// Panics when it is told to, and again when it is dropped after that.
struct Brittle(bool);

impl Handler for Brittle {
    type Command = Option<Sender<()>>;

    fn on_command(&mut self, _: &mut Context, answer: Option<Sender<()>>) {
        match answer {
            Some(to) => drop(to.send(())),
            None => {
                self.0 = true;
                panic!("a lane was told to panic");
            }
        }
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        assert!(!self.0, "a lane that has panicked panics as it is dropped");
    }
}

#[test]
fn a_lane_that_panics_as_it_is_dropped_comes_back_and_harms_no_other() {
    let _alone = alone();
    let others: Vec<_> = (0..2 * cores()).map(|_| start(config())).collect();
    let brittle = Runtime::start(config(), |_| Brittle(false)).unwrap();
    for round in 2..5 {
        brittle.command(LANE, None).unwrap();
        let (to, from) = channel();
        wait_for("a restart", || {
            brittle.snapshot().lanes[0].total("incarnations") == round
                && brittle.command(LANE, Some(to.clone())).is_ok()
                && from.recv_timeout(PATIENCE).is_ok()
        });
    }
    for runtime in &others {
        assert!(thread_of(runtime).is_some());
        assert_eq!(starts(runtime), 1);
    }
}

#[test]
fn many_turns_of_others_are_no_stall_however_long_they_are_together() {
    let _alone = alone();
    let (pause, bound) = (Duration::from_millis(200), Duration::from_millis(3000));
    let runtimes: Vec<_> = (0..16 * cores()).map(|_| start(RuntimeConfig { stall_bound: bound, ..config() })).collect();
    let answers: Vec<_> = runtimes
        .iter()
        .map(|runtime| {
            let (to, from) = channel();
            runtime.command(LANE, Tell::Pause(pause)).unwrap();
            runtime.command(LANE, Tell::Answer(to)).unwrap();
            from
        })
        .collect();
    for (runtime, answer) in runtimes.iter().zip(answers) {
        answer.recv_timeout(PATIENCE).unwrap();
        assert!(thread_of(runtime).is_some());
        let events = runtime.take_events();
        assert_eq!((starts(runtime), events.len()), (1, 0), "{events:?}");
    }
}

#[test]
fn one_that_waits_for_its_disk_is_not_given_up_for_those_it_will_sit_beside() {
    let _alone = alone();
    let folder = std::env::temp_dir().join(format!("tessera-lanes-shared-disk-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    // Reading a pipe waits for a writer, as reading from a disk that hangs waits for the disk.
    let pipe = folder.join("lane-000.0000000001.log");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let bound = |ms| RuntimeConfig { stall_bound: Duration::from_millis(ms), ..config() };
    let hanging = [start(bound(800))];
    assert!(hanging.iter().all(|runtime| thread_of(runtime).is_some()));
    let log = Some((folder.clone(), tessera_lanes::wal::LogConfig::default()));
    let at_the_disk = start(RuntimeConfig { log, ..bound(300) });
    let go_on: Vec<_> = hanging
        .iter()
        .map(|runtime| {
            let (go_on, until) = channel();
            runtime.command(LANE, Tell::Wait(until)).unwrap();
            go_on
        })
        .collect();
    // They are more patient than the one that waits for its disk: by then it was judged, too.
    for runtime in &hanging {
        wait_for("a start elsewhere", || starts(runtime) >= 2);
    }
    drop(go_on);
    for runtime in &hanging {
        wait_for("its predecessor to leave", || {
            runtime.take_events().iter().any(|event| event.what.contains("came back and left"))
        });
    }
    let mut events = at_the_disk.take_events();
    drop(std::fs::File::options().write(true).open(&pipe).unwrap());
    wait_for("a start", || starts(&at_the_disk) == 1 && thread_of(&at_the_disk).is_some());
    events.extend(at_the_disk.take_events());
    assert!(!events.iter().any(|event| event.what.contains("stalled")), "two must not open one log: {events:?}");
    drop(at_the_disk);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn one_that_is_given_up_as_it_lies_down_is_not_heard_again() {
    let _alone = alone();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_nonblocking(true).unwrap();
    let here = client.local_addr().unwrap();
    /// A datagram makes it give itself a command, which it finds as it parks if it is quick; with that it hangs.
    struct Late(Itself, Hangs, std::net::SocketAddr);
    type Itself = Arc<OnceLock<Weak<Runtime<Receiver<()>>>>>;
    type Hangs = Arc<Mutex<Option<Receiver<()>>>>;
    impl Handler for Late {
        type Command = Receiver<()>;
        fn on_datagram(&mut self, _: &mut Context, _: Datagram<'_>) {
            if let Some(until) = self.1.lock().unwrap().take() {
                self.0.get().unwrap().upgrade().unwrap().command(LANE, until).unwrap();
            }
        }
        fn on_command(&mut self, cx: &mut Context, until: Receiver<()>) {
            let _ = until.recv();
            cx.send_datagram(self.2, b"ghost").unwrap();
        }
    }
    let (itself, hangs) = (Itself::default(), Hangs::default());
    let (own, until) = (itself.clone(), hangs.clone());
    // However often it fails, it is back at once.
    let restart = RestartPolicy { delay_max: Duration::from_millis(1), ..config().restart };
    let watchful = RuntimeConfig { stall_bound: Duration::from_millis(50), restart, ..config() };
    let runtime = Arc::new(Runtime::start(watchful, move |_| Late(own.clone(), until.clone(), here)).unwrap());
    itself.set(Arc::downgrade(&runtime)).unwrap();
    let starts = || runtime.snapshot().lanes[0].total("incarnations");
    for _ in 0..30 {
        wait_for("a lane", || runtime.is_settled());
        let before = starts();
        let (go_on, until) = channel();
        *hangs.lock().unwrap() = Some(until);
        wait_for("a stall", || {
            let _ = client.send_to(b"x", runtime.address().unwrap());
            std::thread::sleep(Duration::from_millis(2));
            starts() > before
        });
        drop(go_on);
        wait_for("its predecessor to leave", || {
            runtime.take_events().iter().any(|event| event.what.contains("came back and left"))
        });
        assert!(client.recv(&mut [0; 16]).is_err(), "a lane that was given up is heard");
    }
}

#[test]
fn a_runtime_dropped_by_a_lane_that_shares_its_thread_is_left_behind_and_does_no_more() {
    let _alone = alone();
    let runtimes: Vec<_> = (0..cores()).map(|_| start(config())).collect();
    let on: Vec<_> = runtimes.iter().map(|runtime| thread_of(runtime).unwrap()).collect();
    let dropped = start(config());
    let beside = on.iter().position(|on| thread_of(&dropped) == Some(*on)).unwrap();
    let ((give, what), (says, said)) = (channel::<Box<dyn std::any::Any + Send>>(), channel());
    runtimes[beside].command(LANE, Tell::Drop(what, says)).unwrap();
    said.recv_timeout(PATIENCE).unwrap();
    // It waits for its turn, behind the one that waits for its end.
    let (to, never) = channel();
    dropped.command(LANE, Tell::Answer(to)).unwrap();
    give.send(Box::new(dropped)).unwrap();
    said.recv_timeout(PATIENCE).unwrap();
    assert!(thread_of(&runtimes[beside]).is_some());
    assert!(never.recv_timeout(PATIENCE).is_err(), "the thread that dropped it relies on its end");
}
