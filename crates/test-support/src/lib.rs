//! Helpers shared by test programs of several crates; nothing ships with it.
//!
//! - [`skipped`]: a test that cannot run on this machine
//! - [`Repository`]: a git repository made up for one test
#![forbid(unsafe_code)]

mod repository;
mod skipped;

pub use repository::Repository;
pub use skipped::skipped;
