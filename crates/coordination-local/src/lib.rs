//! Coordination in one durable file.
//!
//! The backend of a single machine: nothing to install, nothing lost in a crash. It contains no protocol. Every operation
//! is decided by the in-memory coordinator, and the records it changed are written to the file before a caller gets the
//! answer; the operation's own events tell the changes. After a restart the coordinator is filled from the file.
//!
//! **Group commit.** Making a write of any size durable takes long. [`LocalCoordinator`] is a handle that every worker
//! thread clones; operations that arrive while one write is under way share the next one.
//!
//! **The file** has three parts: a header, a log, and tables. A batch of changes is appended to the log and synced: one write
//! over room that is there already, which is the least that a disk can be asked for. When the log is full (4 MB), at a clean
//! close and at the first start after a crash, its rows are folded into the tables by one commit, which also says up to which
//! entry they contain the log. Hence a crash at any point leaves either the entry or the fold, and a fold that is done again
//! changes nothing. A batch that is longer than the log goes to the tables at once. A caller that finds the log full waits for the
//! fold, some milliseconds. The log bounds what a start after a crash has to do beside reading the tables: folding 4 MB. Between
//! folds nothing of it is kept in memory.
//!
//! The tables are a [redb](https://docs.rs/redb) database: a copy-on-write tree, in safe Rust, with one writer at a time, which
//! is all that is needed here. It is one file, so that it can be moved, copied and removed when no process has it open; until
//! the log has been full once, much of the file is a hole that takes no room on the disk.
//!
//! **If a write fails**, the state in memory is ahead of the file. It is thrown away and read again, and every caller that
//! waited for that write gets a transient error: none of their changes were kept, and no caller saw them. If the file cannot be read
//! again either, nothing is answered any more until a restart, which may find that the last write did reach the disk.
//!
//! **Damage.** An entry being written when the power failed is told by its checksum and left out. An entry that was whole once
//! and is not now is refused, and so is a record that breaks an invariant; a refused file stays as it is. Taken for granted is
//! that a sector which is written again keeps the bytes that did not change, as every disk promises.
//!
//! ```
//! use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
//! use tessera_contracts::manifest::InitialShardInput;
//! use tessera_coordination::run::config::RunConfig;
//! use tessera_coordination::{AcquireScratch, CoordinatorRuntimeConfig, RunManagement, ShardClaiming};
//! use tessera_coordination_local::LocalCoordinator;
//!
//! let folder = std::env::temp_dir().join(format!("tessera-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&folder)?;
//! let path = folder.join("runs.redb");
//! let (tenant, run, now) = (TenantId::from_name("demo"), RunId::new(1), LogicalTime::new(1));
//! let incarnation = RunIncarnation::new(0x5eed); // Drawn at random: it tells this run from any other of the same id.
//! {
//!     let mut runs = LocalCoordinator::open(&path, CoordinatorRuntimeConfig::default())?;
//!     let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"z")];
//!     runs.create_run_with_shards(now, tenant, run, incarnation, RunConfig::default(), &shards, OpId::new(1))?;
//! }
//! // The process may end here, in any way it likes.
//! let mut runs = LocalCoordinator::open(&path, CoordinatorRuntimeConfig::default())?;
//! let mut scratch = AcquireScratch::default();
//! let claimed = runs.claim_next_available(now, tenant, run, WorkerId::new(1), &mut scratch)?;
//! assert_eq!(claimed.lease.shard(), ShardId::new(1));
//! # drop(runs);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(test)]
mod broken_change;
mod changes;
mod coordinator;
mod error;
mod file;
mod layout;
mod log;
mod rows;
mod store;
mod tables;

pub use coordinator::LocalCoordinator;
pub use error::OpenError;
