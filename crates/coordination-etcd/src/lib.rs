#![forbid(unsafe_code)]
//! The coordination protocol on etcd, for fleets.

pub mod client;
pub mod config;
pub mod kv;
pub mod random;
pub mod sim_kv;
#[cfg(feature = "test-support")]
pub mod test_support;
