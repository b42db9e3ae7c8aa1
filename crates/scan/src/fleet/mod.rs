//! One scan on many machines.
//!
//! The submitter plans a run, writes what is looked for into the run's folder ([`crate::run::job`]), registers the shards and
//! follows ([`follow()`]). Workers anywhere find the run through the coordinator, read its job, and sweep shards as they do on one
//! machine ([`serve()`]). What they find goes to files of their own in the run's folder, which all machines reach under the same
//! path, as they do what is scanned. Nobody waits for anybody: workers come and go, and so may the submitter.
//!
//! A coordinator that cannot be reached is tried again for a while ([`patience`], [`patient`]); then the program ends with a
//! message. One that denies access ends it at once. Nothing is lost by that: what was checkpointed stands, the rest is done
//! again.

pub mod collect;
pub mod follow;
pub mod open;
pub mod patience;
pub mod patient;
pub mod retire;
mod run_look;
mod run_turns;
pub mod serve;
pub mod sites;
#[cfg(test)]
mod submitters;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_contracts::{TenantId, WorkerId};
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{CoordinationFacade, RunManagement as _};

use crate::clock::wall_clock;
use crate::run::label::RunKey;
use crate::run::locked::Locked;
use crate::sweep::Held;

pub use follow::{Following, follow};
pub use open::OpenFleet;
pub use patience::Patience;
pub use patient::Patient;
pub use retire::{Retiring, retire};
pub use serve::{Serving, serve, serve_sites};
pub use sites::{LocalSites, OpenSites, Sites};

/// The environment variable with the coordinator's password. Programs that this one starts have no use for it.
pub const PASSWORD_VARIABLE: &str = "TESSERA_COORDINATOR_PASSWORD";

/// Shards that are looked at to find one to share.
pub const HELD_MAX: usize = 100;

/// How to reach the coordinator.
pub trait Connect {
    /// A handle for one worker.
    type Backend: CoordinationFacade;

    /// A new handle.
    fn connect(&self) -> Result<Self::Backend, String>;

    /// A worker is there, also while no run has work for it: what others cannot reach is left to it. Called at each look for
    /// runs. A coordinator that knows no sessions has no use for it; for others a failure is made up for by the next call.
    fn join(&self, backend: &mut Self::Backend, tenant: TenantId, worker: WorkerId) {
        let _ = (backend, tenant, worker);
    }

    /// A worker cannot serve a run that is open, so nothing of the run must be left to it. Called at each look while that is true.
    fn abstain(&self, backend: &mut Self::Backend, tenant: TenantId, run: RunKey, worker: WorkerId) {
        let _ = (backend, tenant, run, worker);
    }

    /// A worker begins to serve a run, perhaps after it could not.
    fn take_part(&self, backend: &mut Self::Backend, tenant: TenantId, run: RunKey, worker: WorkerId) {
        let _ = (backend, tenant, run, worker);
    }

    /// Up to [`HELD_MAX`] shards of a run that workers hold. A coordinator that can tell this without a look at all shards does so
    /// here. For one that fails there are none: they are wanted to ask their owners for a share.
    fn held(&self, backend: &mut Self::Backend, tenant: TenantId, run: RunKey) -> Vec<Held> {
        let (now, mut shards) = (wall_clock(), Vec::new());
        let (filter, page) = (ShardFilter::active(), ShardPage::first(HELD_MAX));
        match backend.list_shards_into(now, tenant, run.run, &filter, page, &mut shards) {
            Ok(_) => shards
                .iter()
                .filter(|shard| {
                    shard.incarnation == run.incarnation && shard.lease_deadline().is_some_and(|at| at > now)
                })
                .map(|shard| Held { shard: shard.shard, epoch: shard.epoch() })
                .collect(),
            Err(_) => Vec::new(),
        }
    }

    /// A worker is gone for good: whatever the coordinator keeps for it can be forgotten. A wish; it would expire anyway.
    fn leave(&self, backend: &mut Self::Backend, worker: WorkerId) {
        let _ = (backend, worker);
    }
}

/// Workers of one process take turns.
impl<B> Connect for Locked<B>
where
    Self: CoordinationFacade,
{
    type Backend = Self;

    fn connect(&self) -> Result<Self, String> {
        Ok(self.clone())
    }
}

/// Sleeps, but not on after `stop` is set.
fn pause(length: Duration, stop: &AtomicBool) {
    let until = Instant::now() + length;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
