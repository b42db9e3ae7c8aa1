//! The lease: what a worker shows to be let in, and what the record remembers of it.
//!
//! A [`Lease`] is a capability. Only an acquire decision makes one, its fields are private, and every lease-gated
//! operation demands it. A worker that was taken over still holds an old one; the fence epoch tells it apart.

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};

use super::view::ShardView;
use crate::error::AccessRefused;
use crate::operation::Address;

/// The right to work on one shard, as handed to a worker.
///
/// A worker reads it and shows it. It cannot change one, and cannot make one:
///
/// ```
/// # use tessera_coordination::Lease;
/// fn token(lease: Lease) -> u64 {
///     lease.fence().get()
/// }
/// ```
///
/// ```compile_fail,E0616
/// # use tessera_coordination::Lease;
/// fn token(mut lease: Lease) -> u64 {
///     lease.fence = lease.fence().next().unwrap();
///     lease.fence().get()
/// }
/// ```
///
/// ```compile_fail,E0451
/// # use tessera_coordination::Lease;
/// fn forged(lease: Lease) -> Lease {
///     Lease { deadline: tessera_contracts::LogicalTime::new(u64::MAX), ..lease }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    tenant: TenantId,
    key: ShardKey,
    owner: WorkerId,
    epoch: ShardEpoch,
    deadline: LogicalTime,
}

impl Lease {
    pub(crate) const fn new(
        tenant: TenantId,
        key: ShardKey,
        owner: WorkerId,
        epoch: ShardEpoch,
        deadline: LogicalTime,
    ) -> Self {
        Self { tenant, key, owner, epoch, deadline }
    }

    /// The lease of the shard's present holder. For a backend that did not hear whether its acquire took effect: if the
    /// holder is the one it asked for, at the fence it asked for, it did.
    pub fn of_holder<const LOG: usize>(view: &ShardView<'_, LOG>) -> Option<Self> {
        let head = &view.state.head;
        head.lease.map(|holder| Self::new(view.tenant, view.key, holder.owner, view.epoch(), holder.deadline))
    }

    /// The tenant the shard belongs to.
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The run the shard belongs to.
    pub const fn run(&self) -> RunId {
        self.key.run
    }

    /// The shard.
    pub const fn shard(&self) -> ShardId {
        self.key.shard
    }

    /// Run and shard together.
    pub const fn key(&self) -> ShardKey {
        self.key
    }

    /// The worker it was granted to.
    pub const fn owner(&self) -> WorkerId {
        self.owner
    }

    /// The fencing token: whatever this worker writes elsewhere should carry it, so that the sink can refuse an older one.
    pub const fn fence(&self) -> FenceEpoch {
        self.epoch.fence
    }

    /// Which creation of the run it was granted in. What the worker writes elsewhere should carry this too: fence epochs
    /// start anew when a run id is used again.
    pub const fn incarnation(&self) -> RunIncarnation {
        self.epoch.incarnation
    }

    /// Incarnation and fence epoch together: this ownership and no other.
    pub const fn epoch(&self) -> ShardEpoch {
        self.epoch
    }

    /// From this time on the lease opens nothing, as far as its holder knows.
    pub const fn deadline(&self) -> LogicalTime {
        self.deadline
    }

    /// The same lease with the deadline a renewal gave it.
    #[must_use]
    pub const fn extended_to(self, deadline: LogicalTime) -> Self {
        Self { deadline, ..self }
    }

    /// Presents this lease in the name of `tenant`. This is the first check of every lease-gated operation, and it comes
    /// before the shard is looked up: a caller with another tenant's lease learns nothing of what is stored.
    pub fn presented_by(&self, tenant: TenantId) -> Result<Presented<'_>, AccessRefused> {
        if self.tenant == tenant {
            Ok(Presented(self))
        } else {
            Err(AccessRefused::TenantMismatch { expected: tenant })
        }
    }
}

/// A lease whose tenant was checked; decisions accept no other.
#[derive(Clone, Copy, Debug)]
pub struct Presented<'l>(&'l Lease);

impl<'l> Presented<'l> {
    /// The lease itself.
    pub const fn lease(self) -> &'l Lease {
        self.0
    }

    /// The shard it opens.
    pub const fn address(self) -> Address {
        Address { tenant: self.0.tenant, key: self.0.key }
    }
}

/// Owner and deadline as the record stores them: both or neither.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseHolder {
    /// Who holds the shard.
    pub owner: WorkerId,
    /// When the hold ends; at this very time it has ended.
    pub deadline: LogicalTime,
}

impl LeaseHolder {
    /// Whether the deadline has come.
    pub fn is_past(&self, now: LogicalTime) -> bool {
        now >= self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{OTHER, Shard};

    #[test]
    fn a_backend_that_did_not_hear_the_answer_to_its_acquire_reads_the_lease_from_the_record() {
        let (mut shard, lease) = Shard::<16>::leased();
        assert_eq!(Lease::of_holder(&shard.view()), Some(lease));
        let next = shard.acquire(OTHER, 1100);
        assert_eq!(Lease::of_holder(&shard.view()), Some(next), "the present holder's");
        assert_eq!(Lease::of_holder(&Shard::<16>::new().view()), None);
    }
}
