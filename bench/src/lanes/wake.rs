//! Waking a lane that sleeps.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};

use super::message::{Flood, Order};
use crate::harness::Pair;

/// A command to a sleeping lane and its answer, beside two channels of the standard library.
pub(super) fn figure() -> Pair {
    let config = RuntimeConfig { lanes: 1, spin: Duration::ZERO, pin: false, ..RuntimeConfig::default() };
    let runtime = Runtime::start(config, |_| Flood::default()).expect("a lane starts");
    let (ask, asked) = sync_channel::<SyncSender<()>>(1);
    std::thread::spawn(move || {
        asked.iter().for_each(|to| {
            // No thread waits any more once the figure is done.
            let _ = to.send(());
        })
    });
    Pair::new(
        move |times| {
            let (to, answer) = sync_channel(1);
            for _ in 0..times {
                assert!(runtime.command(LaneIndex(0), Order::Answer(to.clone())).is_ok());
                answer.recv().expect("the lane answers");
            }
        },
        move |times| {
            let (to, answer) = sync_channel(1);
            for _ in 0..times {
                ask.send(to.clone()).expect("the thread lives");
                answer.recv().expect("the thread answers");
            }
        },
    )
}
