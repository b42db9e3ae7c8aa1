//! Who may work on what: shards of a keyspace, leased to workers, checkpointed, split, and never lost.
//!
//! The protocol is written once, as pure functions in [`decide`], and every backend runs it: the
//! [`InMemoryCoordinator`] here, a file or etcd elsewhere, a simulator in tests. Time comes in as an argument; nothing here
//! names a clock, a socket, a thread or a randomly ordered map.
//!
//! # For workers
//!
//! [`session::WorkerSession`] holds one shard: claim, checkpoint, renew, complete. [`CoordinationBackend`],
//! [`RunManagement`] and [`ShardClaiming`] are what it is built on.
//!
//! ```
//! use tessera_coordination::prelude::*;
//!
//! let (tenant, run, now) = (TenantId::from_name("acme"), RunId::new(1), LogicalTime::new(1));
//! let incarnation = RunIncarnation::new(0x5eed); // Drawn at random: it tells this run from any other of the same id.
//! let mut coordinator = InMemoryCoordinator::default();
//! let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"z")];
//! coordinator.create_run_with_shards(now, tenant, run, incarnation, RunConfig::default(), &shards, OpId::new(1))?;
//!
//! let mut session = WorkerSession::claim(&mut coordinator, now, tenant, run, WorkerId::new(7))?;
//! session.checkpoint(now, CursorUpdate::at_key(b"k")?, OpId::new(2))?;
//! session.complete(now, CursorUpdate::at_key(b"y")?, OpId::new(3))?;
//! coordinator.complete_run(now, tenant, run, OpId::new(4))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # For authors of a backend
//!
//! A backend stores [`ShardRecord`](record::shard_record::ShardRecord)s and [`RunRecord`](run::record::RunRecord)s, in
//! whatever shape, and contains no rule of the protocol. Checkpoint, complete, park, release, unpark and orders are values,
//! each a [`ShardOperation`](operation::ShardOperation), and [`carry_out`](store::carry_out) runs them over a
//! [`Store`](store::Store): it loads, decides, commits, decides again on what others wrote, and tells observers. A backend
//! that is atomic by itself, as [`memory`] is, makes one pass of that. Neither has code for each of them; it says how a shard
//! is loaded and how a change is committed:
//!
//! 1. *Load.* Find the shard under the tenant, if it is there, and lend a [`ShardView`](record::view::ShardView) of it:
//!    its [`ShardState`](record::state::ShardState), borrowed bytes, the run's [`RunGate`](run::status::RunGate), and whether the
//!    store still hears from the holder ([`OwnerSignal`](record::view::OwnerSignal)).
//! 2. *Commit.* A [`Change`](record::state::Change) says what the record becomes: carry it out with
//!    [`ShardRecord::apply`](record::shard_record::ShardRecord::apply) (or, for a store with its own layout of bytes,
//!    [`ShardState::apply`](record::state::ShardState::apply) and the byte fields) and commit on the condition that nobody
//!    wrote in between and that the operation's [`Guard`](operation::Guard) holds. If another write came first, give back what is there now.
//!
//! Acquire, renew, splits and registrations are still carried out by each backend in these steps: *present* the lease
//! ([`Lease::presented_by`] checks the tenant before anything is looked up), *load*, *ask* the operation's function in [`decide`],
//! *store*, and *tell* ([`EventKind::of_split`](events::EventKind::of_split), or the event the decision carries). A
//! [`Verdict::Replay`](decide::Verdict::Replay) is the answer, with nothing to store. Children of a split, and the shards of a registration,
//! are stored in the same step as their parent, or staged so that readers see all or none.
//!
//! An acquire may change the record and still refuse (a shard that used up its retries is parked): store its change either
//! way, then give its outcome. A renewal in a settled run has nothing to store. A store error is an
//! [`InfraError`](error::InfraError), transient or not; after an ambiguous one, the op-log tells on the next attempt whether
//! the operation took effect. [`memory`] is the shortest example; the conformance suite tells whether a backend is right.
//!
//! # Map
//!
//! [`backend`] has the traits and [`session`] a worker's side of them. [`record`] is what is kept of a shard, [`run`] of a run, and
//! [`stored`] has both as bytes. [`validation`] has the checks in their order, [`payload`] the fingerprints that recognise a retry,
//! [`shard_limits`] the ceilings. [`error`] says who should act, [`events`] what happened.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod backend;
pub mod decide;
pub mod error;
pub mod events;
pub mod memory;
pub mod operation;
pub mod payload;
pub mod prelude;
pub mod record;
pub mod run;
pub mod session;
pub mod shard_limits;
pub mod store;
pub mod stored;
pub mod validation;

pub use backend::{
    AsyncCoordinationBackend, AsyncRunManagement, AsyncShardClaiming, CoordinationBackend, CoordinationFacade,
    RunManagement, ShardClaiming,
};
pub use error::IdempotentOutcome;
pub use memory::{CoordinatorRuntimeConfig, DEFAULT_MAX_AUTO_SLAB_CAPACITY, InMemoryCoordinator};
pub use record::lease::Lease;
pub use record::snapshot::AcquireScratch;
pub use run::progress::{RunProgress, RunTerminalEvaluation, evaluate_run_terminal};
pub use run::summary::{ShardFilter, ShardSummary};
pub use session::{AsyncWorkerSession, WorkerSession};
pub use shard_limits::{DEFAULT_MAX_SHARDS_PER_TENANT, DEFAULT_MAX_TOTAL_SHARDS};
pub use tessera_contracts::split::validate_residual_split_bounds;
pub use tessera_contracts::{ShardArena, ShardSpecHandle};

/// The page for users of this crate: its code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/COORDINATION.md")]
struct Page;
