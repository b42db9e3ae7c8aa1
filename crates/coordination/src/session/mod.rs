//! A worker's hold on one shard: the lease, what it covers, and what is asked of its holder.
//!
//! A session threads tenant and lease through every call, so that they cannot be mixed up. Calls that end the hold
//! (complete, park, split_replace, release) consume the session; using it again does not compile. If such a call fails
//! while the hold stands, the session comes back inside the error, to be tried again with the same op id. Nothing renews by
//! itself: the worker calls [`WorkerSession::renew`], and answers the orders that come with it where everything up to its cursor
//! is done.
//!
//! What a session knows is in [`SessionState`] and changes only there; [`WorkerSession`] and [`AsyncWorkerSession`] differ
//! in how they wait, not in what they do.

mod failure;
mod state;
mod worker;

pub use failure::SessionFailure;
pub use state::SessionState;
pub use worker::{AsyncWorkerSession, WorkerSession};
