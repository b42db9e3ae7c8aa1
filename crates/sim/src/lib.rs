//! Attacks on the protocols, in worlds where time, faults and chance are under control.
//!
//! [`coordination`] has workers, a network and stores that fail around the backends that ship; [`dht`] has nodes by the thousand
//! in a virtual network; [`node`] has a few of them as they ship, with their lanes and logs; [`explore`] visits every state of a small world, stepping it with the decisions that ship;
//! [`sweep`] has workers that scan on machines and disks that fail.
#![forbid(unsafe_code)]

pub mod coordination;
pub mod dht;
pub mod explore;
pub mod node;
pub mod sweep;
