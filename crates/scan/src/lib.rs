//! Sweeps directory trees and git histories for secrets.

#![forbid(unsafe_code)]

pub mod filter;
pub mod item;
pub mod key;
pub mod source;
pub mod target;
mod wire;
