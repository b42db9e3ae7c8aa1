//! What the conformance suite asks of a backend, as settings of the etcd backend.

#![allow(unreachable_pub)]

use std::time::Duration;

use tessera_conformance::{BackendConfig, Need};
use tessera_coordination_etcd::EtcdConfig;

pub fn config(wanted: &BackendConfig, base: EtcdConfig) -> EtcdConfig {
    EtcdConfig {
        lease_duration_default: Duration::from_millis(wanted.default_lease_duration),
        shards_per_tenant_max: wanted.shard_limits.per_tenant_max,
        shards_total_max: wanted.shard_limits.total_max,
        claim_cooldown: Duration::from_millis(wanted.claim_cooldown_interval),
        skew_tolerance: Duration::from_millis(wanted.clock_skew_allowance),
        // Stories say what a hint must be, so none may be old.
        hint_age_max: Duration::ZERO,
        ..base
    }
}

/// etcd bounds runs and bytes by its own quota, not by ours, and what can be claimed of a large run is an estimate.
pub const fn offers(need: Need) -> bool {
    match need {
        Need::Cooldown | Need::ClockSkew | Need::LostSessions => true,
        Need::ByteLimit | Need::RunLimit | Need::NoSessions | Need::ExactHints => false,
    }
}
