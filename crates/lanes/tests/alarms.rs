//! The three alarms of a running runtime: a lane that is told more than it can take raises each of them.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::handler::Message;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::telemetry::alarms::Alarm;
use tessera_lanes::{Class, Context, Envelope, Handler, Kind};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);
const SLOW: LaneIndex = LaneIndex(1);
const WORD: Kind = Kind::new(1);

/// One lane tells the other things as fast as it can, which takes a millisecond over each.
struct Told {
    is_told: Arc<AtomicBool>,
    words: u64,
}

impl Handler for Told {
    type Command = ();

    fn on_command(&mut self, cx: &mut Context, (): ()) {
        for class in [Class::Control, Class::Coordination] {
            for _ in 0..64 {
                self.words += 1;
                let word = Envelope::to_lane(SLOW, class, WORD);
                let _ = cx.send(Envelope { correlation_id: self.words, key_prefix: self.words, ..word }, &[]);
            }
        }
        if self.is_told.load(Ordering::Relaxed) {
            cx.set_timer(Duration::from_millis(1), 0).unwrap();
        }
    }

    fn on_timer(&mut self, cx: &mut Context, _: u64) {
        self.on_command(cx, ());
    }

    fn on_message(&mut self, _: &mut Context, _: Message<'_>) {
        std::thread::sleep(Duration::from_millis(1));
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
fn a_lane_that_is_told_more_than_it_can_take_raises_every_alarm_of_the_bus() {
    let is_told = Arc::new(AtomicBool::new(true));
    let config = RuntimeConfig {
        lanes: 2,
        spin: Duration::ZERO,
        stall_bound: PATIENCE,
        relief: None,
        ..RuntimeConfig::default()
    };
    let tells = is_told.clone();
    let runtime = Runtime::start(config, move |_| Told { is_told: tells.clone(), words: 0 }).unwrap();
    let stands = |is_it: fn(&Alarm) -> bool| runtime.alarms().iter().any(is_it);
    let is_congested: fn(&Alarm) -> bool = |alarm| matches!(alarm, Alarm::ControlCongested { lane: SLOW });
    assert_eq!(runtime.alarms(), []);
    runtime.command(LaneIndex(0), ()).unwrap();
    until("coordination messages are dropped", || stands(|alarm| matches!(alarm, Alarm::CoordinationDropping { .. })));
    until("control messages are dropped", || stands(|alarm| matches!(alarm, Alarm::ControlDropped { .. })));
    until("its control ring stays more than half full", || stands(is_congested));
    is_told.store(false, Ordering::Relaxed);
    until("its control ring is empty again", || !stands(is_congested));
}
