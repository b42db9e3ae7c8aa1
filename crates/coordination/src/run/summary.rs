//! Listings: which shards to show, and the little that is shown of each.

use tessera_contracts::ids::{FenceEpoch, LogicalTime, RunId, RunIncarnation, ShardEpoch, ShardId};
use tessera_contracts::redact::RedactedKey;

use super::record::RunRecord;
use super::status::RunStatus;
use crate::record::lease::LeaseHolder;
use crate::record::orders::StandingOrders;
use crate::record::park::ParkInfo;
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;

/// Which shards a listing shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ShardFilter {
    /// Only shards in this state.
    pub status: Option<ShardStatus>,
    /// Only shards that could be claimed now.
    pub available_only: bool,
    /// Only shards the run was registered with.
    pub root_only: bool,
}

impl ShardFilter {
    /// Every shard.
    pub const fn all() -> Self {
        Self { status: None, available_only: false, root_only: false }
    }

    /// Open shards, held or not.
    pub const fn active() -> Self {
        Self { status: Some(ShardStatus::Active), ..Self::all() }
    }

    /// Shards that could be claimed now.
    pub const fn available() -> Self {
        Self { available_only: true, ..Self::active() }
    }

    /// Parked shards.
    pub const fn parked() -> Self {
        Self { status: Some(ShardStatus::Parked), ..Self::all() }
    }

    /// The same, but roots only.
    #[must_use]
    pub const fn roots(self) -> Self {
        Self { root_only: true, ..self }
    }

    /// Whether the listing shows this shard; `claimable` is whether it could be claimed now.
    pub fn admits<const LOG: usize>(&self, view: &ShardView<'_, LOG>, claimable: bool) -> bool {
        self.status.is_none_or(|status| view.state.head.status == status)
            && (claimable || !self.available_only)
            && (view.state.parent.is_none() || !self.root_only)
    }
}

/// Where a listing goes on and how much it shows at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShardPage {
    /// Show shards with ids above this one; `None` begins at the first.
    pub after: Option<ShardId>,
    /// Show at most so many.
    pub limit: usize,
}

/// Most shards one page may show.
pub const SHARD_PAGE_LIMIT_MAX: usize = 1_000;

impl ShardPage {
    /// The first page.
    pub const fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// The page after the one that ended with `last`.
    pub const fn after(last: ShardId, limit: usize) -> Self {
        Self { after: Some(last), limit }
    }

    /// The limit that holds: at least one, at most [`SHARD_PAGE_LIMIT_MAX`].
    pub fn effective_limit(&self) -> usize {
        self.limit.clamp(1, SHARD_PAGE_LIMIT_MAX)
    }
}

/// One line about a shard. Small: keys are copied at their own length, and metadata and tokens are not here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardSummary {
    /// Which shard.
    pub shard: ShardId,
    /// Which creation of the run it belongs to.
    pub incarnation: RunIncarnation,
    /// Where it stands.
    pub status: ShardStatus,
    /// Its fence epoch.
    pub fence: FenceEpoch,
    /// Holder and deadline in the record, live or not.
    pub lease: Option<LeaseHolder>,
    /// Why it is parked and when to look again.
    pub park: Option<ParkInfo>,
    /// What its holder is asked to do.
    pub orders: StandingOrders,
    /// How often it was acquired, by any worker.
    pub acquire_count: u64,
    /// Acquisitions since progress was last recorded.
    pub stalled_acquisitions: u32,
    /// First key.
    pub start: RedactedKey,
    /// First key above.
    pub end: RedactedKey,
    /// How far it was processed.
    pub last_key: RedactedKey,
    /// The shard it was split from.
    pub parent: Option<ShardId>,
    /// How many were split from it.
    pub spawned_count: u32,
    /// How many workers reported that they cannot reach it.
    pub unreachable_reports: u32,
}

impl ShardSummary {
    /// The summary of a shard.
    pub fn of<const LOG: usize>(view: &ShardView<'_, LOG>) -> Self {
        let head = &view.state.head;
        Self {
            shard: view.key.shard,
            incarnation: view.incarnation,
            status: head.status,
            fence: head.fence,
            lease: head.lease,
            park: head.park,
            orders: head.orders,
            acquire_count: head.acquire_count(),
            stalled_acquisitions: head.stalled_acquisitions,
            start: RedactedKey::new(Some(view.spec.start())),
            end: RedactedKey::new(Some(view.spec.end())),
            last_key: RedactedKey::new(view.cursor.last_key()),
            parent: view.state.parent,
            spawned_count: u32::try_from(view.spawned.len()).unwrap_or(u32::MAX),
            unreachable_reports: u32::try_from(view.unreachable.len()).unwrap_or(u32::MAX),
        }
    }

    /// The ownership the shard is at: what a request about it names.
    pub const fn epoch(&self) -> ShardEpoch {
        ShardEpoch::new(self.incarnation, self.fence)
    }

    /// When its lease ends, if it is held.
    pub fn lease_deadline(&self) -> Option<LogicalTime> {
        self.lease.map(|holder| holder.deadline)
    }
}

/// One line about a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunSummary {
    /// Which run.
    pub run: RunId,
    /// Which creation of it.
    pub incarnation: RunIncarnation,
    /// Where it stands.
    pub status: RunStatus,
    /// When it was created.
    pub created_at: LogicalTime,
    /// When it settled.
    pub completed_at: Option<LogicalTime>,
}

impl RunSummary {
    /// The summary of a run.
    pub const fn of(record: &RunRecord) -> Self {
        let RunRecord { run, incarnation, status, created_at, completed_at, .. } = record;
        Self {
            run: *run,
            incarnation: *incarnation,
            status: *status,
            created_at: *created_at,
            completed_at: *completed_at,
        }
    }
}

const _: () = assert!(size_of::<ShardSummary>() <= 256, "a listing of 10,000 shards stays in a few megabytes");
