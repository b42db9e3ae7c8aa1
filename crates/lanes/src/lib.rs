//! Lanes: a shared-nothing runtime. A *lane* is one pinned thread with one event loop that owns its socket, timers, log and
//! state; lanes share no lock and talk by bounded messages. (Texts on sharded servers often call this a shard or a core.)
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
mod ring;
pub mod runtime;
pub mod simulated;
pub mod telemetry;
pub mod time;
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
