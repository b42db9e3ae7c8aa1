//! The write-ahead log of one lane: the records from which it restarts.
//!
//! A lane appends records and goes on; a writer thread puts them on disk in groups and says how far it has come. The state
//! that records add up to is written as a snapshot now and then, so that the log stays short. Every record carries a checksum
//! and, for telling a torn tail from damage, how much of the file was known to be on disk when it was written.
//!
//! Files of lane 7, in generation 12: `lane-007.0000000012.log` and, if it begins with a snapshot, `lane-007.0000000012.snap`.

pub mod faulty;
mod files;
pub mod log;
pub(crate) mod queue;
pub mod record;
mod recovery;
pub mod storage;
pub(crate) mod writer;

use std::time::Duration;

pub use queue::{Importance, LogRefused};

/// The longest payload of a record.
pub const RECORD_PAYLOAD_BYTES_MAX: usize = 64 * 1024 - 1024;

/// The number of a record in the life of a lane, from 1. Zero is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// When a record counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the kernel has it: survives the process, not the machine. Synced at this interval.
    Async {
        /// The most that a power failure can take back.
        interval: Duration,
    },
    /// When it is on disk; syncs are this far apart, and all records gathered meanwhile go with one.
    Group {
        /// How long a record may wait for others.
        delay: Duration,
    },
    /// When it is on disk, as soon as possible. Records that arrive during a sync go with the next one.
    Strict,
}

/// How a lane keeps its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// When a record counts as durable.
    pub durability: Durability,
    /// Bytes on the way to the writer.
    pub queue_bytes_max: usize,
    /// A log this long, and twice as long as the last snapshot, is compacted.
    pub compact_bytes_min: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            durability: Durability::Group { delay: Duration::from_millis(2) },
            queue_bytes_max: 4 << 20,
            compact_bytes_min: 16 << 20,
        }
    }
}
