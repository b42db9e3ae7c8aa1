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
    /// Caps on what one lane may send as Coordination and as Hints; Control has none, since it is never dropped.
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

impl Default for LaneConfig {
    fn default() -> Self {
        Self {
            rings: RingSizes::default(),
            coordination_cap: None,
            hints_cap: None,
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
