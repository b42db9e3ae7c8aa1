#![forbid(unsafe_code)]
//! The coordination protocol on etcd, for fleets.

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
pub mod sim_kv;
#[cfg(feature = "test-support")]
pub mod test_support;
