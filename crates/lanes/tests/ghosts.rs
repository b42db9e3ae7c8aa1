//! A lane that stalled and was replaced comes back in the middle of a call: nothing it does from then on reaches a peer or a lane.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::config::LaneConfig;
use tessera_lanes::handler::{Datagram, Message};
use tessera_lanes::runtime::{RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::{Class, Context, Enqueue, Envelope, Handler, Kind};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);

/// State shared by the ghost and the test.
#[derive(Default)]
struct Meeting {
    released: Mutex<bool>,
    changed: Condvar,
    /// How often a lane got a message from the ghost.
    heard: AtomicU32,
    /// Whether the ghost's sends were refused.
    refused: AtomicBool,
}

/// Answers datagrams. The one that says "stall" holds its lane until it is released; then the lane does all it can.
struct Staller(Arc<Meeting>);

impl Handler for Staller {
    type Command = ();

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        if datagram.bytes.ends_with(b"stall") {
            drop(self.0.changed.wait_while(self.0.released.lock().unwrap(), |released| !*released).unwrap());
            let other = (0..=255).map(Slot).find(|slot| cx.owner(*slot) == LaneIndex(0)).unwrap();
            let told = [
                cx.send(Envelope::to_lane(LaneIndex(0), Class::Control, Kind::new(1)), b"boo"),
                cx.send(Envelope::to_lane(cx.lane(), Class::Control, Kind::new(1)), b"boo"),
                cx.forward_datagram(other, datagram.from, b"boo", 0),
            ];
            let refused = told.iter().all(|told| matches!(told, Enqueue::Dropped(_)));
            self.0.refused.store(refused, Ordering::Relaxed);
        }
        let _ = cx.send_datagram(datagram.from, datagram.bytes);
    }

    fn on_message(&mut self, _: &mut Context, _: Message<'_>) {
        self.0.heard.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn nothing_a_ghost_does_reaches_a_peer_or_lane() {
    let meeting = Arc::new(Meeting::default());
    let config = RuntimeConfig {
        lanes: 2,
        lane: LaneConfig { steer_offset: Some(0), ..LaneConfig::default() },
        bind: Some("127.0.0.1:0".parse().unwrap()),
        spin: Duration::ZERO,
        stall_bound: Duration::from_millis(200),
        restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
        ..RuntimeConfig::default()
    };
    let makers = meeting.clone();
    let runtime = Runtime::start(config, move |_| Staller(makers.clone())).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let map = runtime.map();
    let [others, slot] =
        [0, 1].map(|lane| (0..=255).find(|slot| map.lane_of_slot(Slot(*slot)) == LaneIndex(lane)).unwrap());
    let mut stall = vec![slot];
    stall.extend_from_slice(b"stall");
    client.send_to(&stall, runtime.address().unwrap()).unwrap();
    let wait_for = |what: &str, happened: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !happened() {
            assert!(Instant::now() < deadline, "waited in vain for: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for("its replacement", &mut || runtime.counters()[1].incarnations.get() == 2);
    let mut answer = [0; 64];
    client.send_to(&[slot, 7], runtime.address().unwrap()).unwrap();
    assert_eq!(client.recv(&mut answer).unwrap(), 2, "the replacement answers");
    *meeting.released.lock().unwrap() = true;
    meeting.changed.notify_all();
    let mut events = Vec::new();
    wait_for("the ghost's return", &mut || {
        events.extend(runtime.take_events());
        events.iter().any(|event| event.what.contains("came back and left"))
    });
    assert!(meeting.refused.load(Ordering::Relaxed), "it is told so");
    // A datagram on loopback is there when its sender goes on, and both lanes turn once more before they answer.
    for slot in [slot, others] {
        client.send_to(&[slot, 8], runtime.address().unwrap()).unwrap();
        assert_eq!((client.recv(&mut answer).unwrap(), answer[1]), (2, 8), "and not the answer of the ghost");
    }
    client.set_nonblocking(true).unwrap();
    assert_eq!(client.recv(&mut answer).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(meeting.heard.load(Ordering::Relaxed), 0);
}
