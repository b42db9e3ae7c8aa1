//! Every bound of a runtime, with its default.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::class::RingSizes;

/// A cap on the messages a lane may send in one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateCap {
    /// Messages a second in the long run.
    pub per_second: u32,
    /// Messages at once.
    pub burst: u32,
}

/// The bounds of one lane.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Sizes of the rings between lanes.
    pub rings: RingSizes,
    /// Caps on what one lane may send as Coordination and as Hints; Control has none, since it is never dropped. By default a lane may fill the
    /// rings of sixteen others at once, and send as much a second as a lane can take besides its other work.
    pub coordination_cap: Option<RateCap>,
    /// See `coordination_cap`.
    pub hints_cap: Option<RateCap>,
    /// Timers a lane may have at once.
    pub timers_max: u32,
    /// The longest datagram sent or received.
    pub datagram_bytes_max: usize,
    /// Datagrams one turn may write before the lane sends them.
    pub send_queue_max: usize,
    /// Bytes of the arena that is emptied before every call of the handler.
    pub arena_bytes_max: u32,
    /// Buffers in the lane's pool.
    pub pool_buffers: usize,
    /// Where in a datagram its slot byte stands, if datagrams are to be steered by it.
    pub steer_offset: Option<u16>,
    /// Of how many events one is traced; zero traces only drops.
    pub trace_every: u32,
    /// How long an acknowledgement is waited for before the message is sent again.
    pub ack_timeout: Duration,
}

/// See [`LaneConfig::coordination_cap`].
const MESSAGES_CAP: RateCap = RateCap { per_second: 500_000, burst: 16 * 1024 };

impl Default for LaneConfig {
    fn default() -> Self {
        Self {
            rings: RingSizes::default(),
            coordination_cap: Some(MESSAGES_CAP),
            hints_cap: Some(MESSAGES_CAP),
            timers_max: 1 << 16,
            datagram_bytes_max: 1500,
            send_queue_max: 256,
            arena_bytes_max: 64 * 1024,
            pool_buffers: 64,
            steer_offset: None,
            trace_every: 0,
            ack_timeout: Duration::from_millis(20),
        }
    }
}

pub(crate) const MICROS_PER_SECOND: NonZeroU32 = NonZeroU32::new(1_000_000).expect("a million is not zero");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_classes_are_capped_unless_told_otherwise() {
        let LaneConfig { coordination_cap, hints_cap, rings, .. } = LaneConfig::default();
        for cap in [coordination_cap, hints_cap] {
            let cap = cap.expect("a cap is the default");
            // A cap below what a ring takes at once would make the ring's size a lie.
            assert!(cap.burst as usize >= rings.classes[2].messages_max && cap.per_second > cap.burst);
        }
    }
}
