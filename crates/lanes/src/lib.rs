//! Lanes: a shared-nothing runtime. A *lane* is one pinned thread with one event loop that owns its socket, timers, log and
//! state; lanes share no lock and talk by bounded messages. (Texts on sharded servers often call this a shard or a core.)
#![deny(unsafe_code)]

pub mod class;
pub mod drain;
pub mod envelope;
mod ring;
pub mod time;
