//! Attacks on the protocols, in worlds where time, faults and chance are under control.
//!
//! [`explore`] visits every state of a small world, stepping it with the decisions that ship.
#![forbid(unsafe_code)]

pub mod coordination;
pub mod dht;
pub mod explore;
