//! The DHT as a pure state machine: bytes and an instant in, bytes, timers and effects out.

#![no_std]
#![forbid(unsafe_code)]

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
pub mod rng;
pub mod routing;
pub mod seal;
pub mod store;
pub mod time;
pub mod wire;
