//! Helpers shared by test programs of several crates; nothing ships with it.
//!
//! - [`skipped`]: a test that cannot run on this machine
#![forbid(unsafe_code)]

mod skipped;

pub use skipped::skipped;
