//! What test programs of several crates share; nothing ships with it.
//!
//! - [`skipped`]: a test that cannot run on this machine
#![forbid(unsafe_code)]

mod skipped;

pub use skipped::skipped;
