//! A lane that stays busy is relieved without being asked for, and takes its slots back when it has time again.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::handler::Message;
use tessera_lanes::runtime::{ReliefPolicy, Runtime, RuntimeConfig};
use tessera_lanes::{Class, Context, Envelope, Handler, Kind};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);
const AGAIN: Kind = Kind::new(1);

/// Tells itself something again and again, as long as it is to be busy.
struct Busy {
    is_hot: Arc<AtomicBool>,
}

impl Handler for Busy {
    type Command = ();

    fn on_command(&mut self, cx: &mut Context, (): ()) {
        assert!(cx.send(Envelope::to_lane(cx.lane(), Class::Coordination, AGAIN), &[]).is_accepted());
    }

    fn on_message(&mut self, cx: &mut Context, _: Message<'_>) {
        if self.is_hot.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(100)); // It takes the lane's time, and leaves the core to the others.
            self.on_command(cx, ());
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_lane_that_stays_busy_lends_half_of_its_slots_and_takes_them_back_when_it_has_time() {
    let is_hot = Arc::new(AtomicBool::new(true));
    let policy = ReliefPolicy { hot_percent: 60, cool_percent: 40, sustained: Duration::from_millis(400) };
    let config = RuntimeConfig {
        lanes: 2,
        spin: Duration::ZERO,
        relief: Some(policy),
        // A busy test machine is not to be taken for a lane that hangs.
        stall_bound: PATIENCE,
        ..RuntimeConfig::default()
    };
    let hot = is_hot.clone();
    let runtime = Runtime::start(config, move |_| Busy { is_hot: hot.clone() }).unwrap();
    let slots = || (0..=u8::MAX).map(Slot).filter(|slot| runtime.map().lane_of_slot(*slot) == LaneIndex(0)).count();
    let before = runtime.map();
    assert_eq!(slots(), 128);
    runtime.command(LaneIndex(0), ()).unwrap();
    until("it is relieved", || slots() < 128 && runtime.is_settled());
    is_hot.store(false, Ordering::Relaxed);
    until("it has its slots back", || runtime.map().loans().count() == 0 && runtime.is_settled());
    assert_eq!(runtime.map().table(), before.table());
    assert_eq!(runtime.resize(3), Ok(()), "an operator's change does not collide with it");
    let told: Vec<String> = runtime.take_events().into_iter().map(|event| event.what).collect();
    for word in ["serves half of its slots", "take their slots back"] {
        assert!(told.iter().any(|what| what.contains(word)), "{told:?}");
    }
}
