//! Sweeps directory trees and git histories for secrets.

#![forbid(unsafe_code)]

pub mod filter;
pub mod item;
pub mod key;
pub mod locked;
pub mod occurrence;
pub mod plan;
pub mod read;
pub mod receipt;
pub mod sink;
pub mod source;
pub mod tally;
pub mod target;
mod wire;
pub mod worker;
