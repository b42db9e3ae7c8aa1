//! The DHT as a pure state machine: bytes and an instant in, bytes, timers and effects out.
//!
//! There is no clock, socket, thread or system randomness in here; `no_std` proves it. A [`node::LaneNode`] is one lane of a
//! node (a *lane* is a pinned event loop that owns its state). It runs unchanged under a runtime with sockets and in a
//! simulator with ten thousand of its kind.
//!
//! From the outside in:
//!
//! - [`node`]: a lane: serving, asking, looking up, publishing, upkeep, the log
//! - [`lookup`]: one iterative lookup
//! - [`routing`]: a lane's contacts; [`store`]: records it holds for others; [`abuse`]: limits and scores
//! - [`record`] and [`chunk`]: storable values, and when they are valid
//! - [`seal`]: sealed datagrams, cookies and tokens
//! - [`wire`]: layouts, as drawn in `docs/WIRE.md`
//! - [`identity`], [`contact`], [`addr`]: names and addresses; [`time`] and [`rng`]: clocks and randomness as arguments
//! - [`keyed_lru`]: the bounded map for keys that strangers choose
//!
//! Deliberately absent: sockets, steering filters and files, which belong to the node's shell; and congestion control beyond
//! pacing, since no exchange here is longer than a few datagrams.

#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)] // Of eighty: see clippy.toml.

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod abuse;
pub mod addr;
pub mod chunk;
pub mod contact;
pub mod identity;
pub mod keyed_lru;
pub mod lookup;
pub mod node;
pub mod record;
pub mod retry;
pub mod rng;
pub mod routing;
pub mod seal;
pub mod store;
pub mod time;
pub mod wire;
