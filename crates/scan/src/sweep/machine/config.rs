//! What a worker is told.

use std::time::Duration;

use tessera_contracts::source_family::PageLimits;
use tessera_contracts::{RunId, TenantId, WorkerId};

/// What a worker is told.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Whose run it is.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
    /// Who it is. Threads of one process may be one worker: leases are of shards.
    pub worker: WorkerId,
    /// Where it begins to look for an owner to ask, so that idle ones ask different owners.
    pub place: u64,
    /// Longest time between safe points, in milliseconds.
    pub safe_point_interval: u64,
    /// Time between renewals, in milliseconds; well below a third of a lease.
    pub renew_interval: u64,
    /// Longest pause between two looks for work.
    pub idle_wait_max: Duration,
    /// How long it waits in a run that has no work for it; `None` for as long as the run goes on. With none at all it only claims:
    /// its caller finds out how the run stands, asks owners to share, and says when to look again.
    pub patience: Option<Duration>,
    /// Most items and bytes of a page.
    pub page: PageLimits,
    /// Errors of a source, one after the other, after which its shard is parked.
    pub source_errors_max: u32,
    /// When and how work is shared.
    pub sharing: Sharing,
    /// Whether there may be workers on other machines, which can read what this one cannot.
    pub is_one_of_many: bool,
}

/// When and how work is shared with those who have none. Costs are bytes, with a little for each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Whether an idle worker asks others to share.
    pub asks: bool,
    /// How long before the same owner is asked again, in milliseconds.
    pub ask_interval: u64,
    /// What is left must cost this much to be worth sharing.
    pub split_cost_min: u64,
    /// A share that costs this much is cut into several when it is claimed, since others most likely wait too.
    pub replace_cost_min: u64,
    /// Into how many.
    pub replace_children: usize,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { asks: true, ask_interval: 500, split_cost_min: 2 << 20, replace_cost_min: 32 << 20, replace_children: 8 }
    }
}

impl WorkerConfig {
    /// Defaults for a worker beside its coordinator.
    pub fn new(tenant: TenantId, run: RunId, worker: WorkerId) -> Self {
        Self {
            tenant,
            run,
            worker,
            place: worker.get(),
            safe_point_interval: 200,
            renew_interval: 200,
            idle_wait_max: Duration::from_millis(200),
            patience: None,
            page: PageLimits::default(),
            source_errors_max: 3,
            sharing: Sharing::default(),
            is_one_of_many: false,
        }
    }

    /// For a coordinator that many share: asks less often, and leaves a run that has no work for it.
    pub fn in_a_fleet(self, lease_duration: u64) -> Self {
        let interval = (lease_duration / 6).clamp(100, 2_000);
        Self {
            safe_point_interval: interval,
            renew_interval: interval,
            idle_wait_max: Duration::from_secs(1),
            patience: Some(Duration::ZERO),
            is_one_of_many: true,
            ..self
        }
    }
}
