//! Lanes: a shared-nothing runtime. A *lane* is one event loop that owns its socket, timers, log and state; lanes share no lock
//! and talk by bounded messages. (Texts on sharded servers often call this a shard or a core.) A lane has a pinned thread of
//! its own, unless its runtime says that it [takes turns with others](runtime::RuntimeConfig::share_threads).
//!
//! A user writes a [`Handler`] and gives it to a [`Runtime`](runtime::Runtime), or to a
//! [`VirtualNode`](simulated::VirtualNode) that runs the same handler in virtual time. `examples/echo_counter.rs` is the
//! whole of it in a page. The parts, from the inside out:
//!
//! * [`envelope`], [`class`], [`drain`]: a message, its fate when there is no room, and the order of service;
//! * `ring`: the types that cross lanes. Sharing shows in the imports: nothing else in here is touched by two lanes;
//! * `lane`: one lane without its thread, with `ack` (messages sent until they are acknowledged), `orders` (the supervisor's) and `handoff` (slots that move);
//!   [`handler`] is the user's part, [`context`] its view of the world, [`arena`] its memory, [`time`] its clock;
//! * [`net`]: a socket a lane, datagrams in batches, steering;
//! * [`wal`]: the log a lane is restarted from;
//! * [`runtime`]: threads, supervision and waking (`wakes`) around it; [`simulated`]: none of these; [`config`]: every bound;
//! * [`telemetry`]: counters that lanes write and others read.
//!
//! Deliberately absent: a global limiter, a shared table, a lock between lanes, an async executor, and any knowledge of the
//! messages' meaning.
//!
//! Unsafe code is confined to `net::sys` and `ring::inbox`. Receiving and sending datagrams in batches without allocating, and
//! attaching a packet filter to a group of sockets, have no safe binding. And no safe queue without a lock lets another thread
//! take the items that wait for a thread that hangs.
#![deny(unsafe_code)]

mod ack;
pub mod arena;
pub mod class;
pub mod config;
pub mod context;
pub mod drain;
pub mod envelope;
pub mod handler;
mod handoff;
mod lane;
pub mod net;
mod orders;
mod ring;
pub mod runtime;
pub mod simulated;
pub mod telemetry;
pub mod time;
mod wakes;
pub mod wal;

pub use class::{Class, DropReason, Enqueue};
pub use context::Context;
pub use envelope::{Envelope, Kind};
pub use handler::Handler;
pub use net::send_queue::SendRefused;
pub use time::LaneTime;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: alloc_counter::CountingAllocator = alloc_counter::CountingAllocator;
