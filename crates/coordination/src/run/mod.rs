//! Runs: their record, what they bind their shards to, and how they are shown.

pub mod config;
pub mod explain;
pub mod progress;
pub mod record;
pub mod status;
pub mod straggler;
pub mod summary;
