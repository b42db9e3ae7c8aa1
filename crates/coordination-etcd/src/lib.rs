//! The coordination protocol on etcd, for fleets.
//!
//! What the protocol decides is decided in `tessera-coordination`; here it is made durable. From the outside in:
//!
//! * [`sync::connect`] and [`coordinator::AsyncEtcdCoordinator`] are the backend, with all of the protocol's traits;
//! * [`session`] ties a worker's shards to one etcd lease, [`batch`] packs many shards' operations into one request,
//!   [`counters`] holds the shard limits, [`retry`] repeats what surely did not happen, with pauses drawn by [`random`];
//! * [`config`] is what an operator may set; [`keyspace`] says where everything lies and [`codec`] how it is written;
//! * [`kv`] is the little of etcd that all of this needs; [`client`] is the real one. With the feature `simulation`, `sim_kv`
//!   is a deterministic twin, which answers as a real server does and is checked against one. With the feature
//!   `test-support`, `test_support` starts real servers for tests.
//!
//! Deliberately absent: any protocol rule, watches, counting keys, and generated code.

#![forbid(unsafe_code)]

pub mod batch;
pub mod client;
pub mod codec;
pub mod config;
pub mod coordinator;
pub mod counters;
pub mod keyspace;
pub mod kv;
pub mod random;
pub mod retry;
pub mod session;
#[cfg(feature = "simulation")]
pub mod sim_kv;
pub mod sync;
#[cfg(feature = "test-support")]
pub mod test_support;

pub use config::EtcdConfig;
pub use coordinator::AsyncEtcdCoordinator;
pub use sync::EtcdCoordinator;
