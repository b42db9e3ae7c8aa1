//! Counters of lanes, and figures from them without making a lane wait.
//!
//! Only a lane writes its counters; readers take relaxed loads whenever they like. Rates, percentiles,
//! rankings and alarms are the reader's work.

pub mod alarms;
pub mod counters;
pub mod histogram;
pub mod prometheus;
pub mod snapshot;
pub mod trace;
pub mod trace_file;
