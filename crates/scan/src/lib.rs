//! Sweeps directory trees and git histories for secrets.

#![forbid(unsafe_code)]

pub mod distinct;
pub mod filter;
pub mod finding;
pub mod item;
pub mod key;
pub mod local;
pub mod locked;
pub mod occurrence;
pub mod plan;
pub mod read;
pub mod receipt;
pub mod report;
pub mod run;
pub mod sink;
pub mod source;
pub mod suppress;
pub mod tally;
pub mod target;
#[cfg(test)]
mod testing;
mod wire;
pub mod worker;
