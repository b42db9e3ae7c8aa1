//! Lanes with real keys on a network in memory. One program, because each would compile the lane anew.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod net;

mod admission;
mod durable;
mod joining;
mod lookups;
mod providing;
mod splits;
mod together;
mod writes;
