//! What a session knows, and how each answer changes it.

use tessera_contracts::cursor::CursorViolation;
use tessera_contracts::ids::{ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::restored_state::RestoredShardState;
use tessera_contracts::split::SplitResidualPlan;
use tessera_contracts::{CursorUpdate, ShardSpecRef};

use crate::decide::renew::RenewResult;
use crate::record::lease::Lease;
use crate::record::orders::Orders;
use crate::record::snapshot::{AcquireResultView, CapacityHint, ShardSnapshot};

/// What a worker knows of the shard it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionState {
    lease: Lease,
    snapshot: ShardSnapshot,
    capacity: CapacityHint,
    orders: Orders,
}

impl SessionState {
    /// A session that begins with this grant.
    pub fn begin(acquired: &AcquireResultView<'_>) -> Self {
        Self {
            lease: acquired.lease,
            snapshot: acquired.snapshot.to_owned(),
            capacity: acquired.capacity,
            orders: Orders::default(),
        }
    }

    /// The lease, with the deadline of the last renewal.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The shard as it was when it was acquired. Checkpoints leave it; a residual split narrows its range and adds the new
    /// child.
    pub const fn snapshot(&self) -> &ShardSnapshot {
        &self.snapshot
    }

    /// How much of the run was waiting at the last acquire or renewal.
    pub const fn capacity(&self) -> CapacityHint {
        self.capacity
    }

    /// What the last renewal asked for and is not answered yet.
    pub const fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Range and metadata.
    pub fn spec(&self) -> ShardSpecRef<'_> {
        self.snapshot.spec.view()
    }

    /// Progress at acquisition.
    pub fn cursor(&self) -> CursorUpdate<'_> {
        self.snapshot.cursor.as_update()
    }

    /// Whose shard it is.
    pub const fn tenant(&self) -> TenantId {
        self.lease.tenant()
    }

    /// Who holds it.
    pub const fn worker(&self) -> WorkerId {
        self.lease.owner()
    }

    /// Which shard it is.
    pub const fn shard_key(&self) -> ShardKey {
        self.lease.key()
    }

    /// Range and cursor as the runtime that does the work wants them; refused only if the store gave a cursor outside of its
    /// shard.
    pub fn restored(&self) -> Result<RestoredShardState, CursorViolation> {
        RestoredShardState::new(self.spec(), self.cursor(), self.snapshot.cursor_semantics)
    }

    /// A renewal was answered.
    pub fn renewed(&mut self, answer: &RenewResult) {
        self.lease = self.lease.extended_to(answer.new_deadline);
        self.capacity = answer.capacity;
        self.orders = answer.orders;
    }

    /// A residual split took effect, now or before: a lost answer that is replayed narrows the session like the first one
    /// would have. An older split that is replayed after a newer one does not widen it again.
    pub fn narrowed(&mut self, plan: &SplitResidualPlan, residual: ShardId) {
        if self.spec().range().contains_range(plan.kept().range()) {
            self.snapshot.spec = plan.kept().clone();
        }
        if !self.snapshot.spawned.contains(&residual) {
            self.snapshot.spawned = self.snapshot.spawned.iter().copied().chain([residual]).collect();
        }
        self.orders.standing.split_requested = None;
    }
}
