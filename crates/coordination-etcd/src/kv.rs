//! The small part of etcd this backend leans on, as a trait.
//!
//! Two things implement it: the real client ([`crate::client::EtcdClient`]) and the deterministic model
//! (`sim_kv::SimKv`), so the code that ships is the code that is simulated. The trait is narrow on purpose:
//! reads, transactions (nested ones too) and etcd leases. Watches are absent: every answer a worker needs rides on a
//! call it makes anyway.
//!
//! Time belongs to the store: [`Kv::now`], [`Kv::pause`] and [`Kv::until`] are the only clock the backend has, so a simulated
//! store can run hours of back-off in no time. Every call carries the [`Moment`] by which it must have ended.

pub mod error;
pub mod lease;
pub mod range;
pub mod txn;

use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

pub use error::{Fate, KvError, KvErrorKind};
pub use lease::{EtcdLeaseId, GrantedLease, LeaseTimeToLive};
pub use range::{Consistency, KeyValue, Keys, RangeRequest, RangeResponse};
pub use txn::{Compare, CompareOp, CompareTarget, Op, OpResponse, Txn, TxnResponse};

/// A store revision: grows by one with each transaction that changed something. Zero means "no such key".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);

/// A point on the store's own monotonic clock. Only differences and order mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Duration);

impl Moment {
    /// The moment `delay` later; saturates rather than wrapping round to the past.
    #[must_use]
    pub const fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }

    /// How long until `later`; zero if it has passed.
    #[must_use]
    pub const fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

/// A key-value store with etcd's transactions and leases.
///
/// An error says by its [`Fate`] whether the store may have acted on the request. A call ends by its deadline.
pub trait Kv: Send + Sync {
    /// Reads a key or a range of keys.
    fn range(
        &self,
        request: RangeRequest,
        deadline: Moment,
    ) -> impl Future<Output = Result<RangeResponse, KvError>> + Send;

    /// Compares, then runs one of two branches, atomically.
    fn txn(&self, request: Txn, deadline: Moment) -> impl Future<Output = Result<TxnResponse, KvError>> + Send;

    /// Creates an etcd lease. The caller names it, so that a grant whose answer was lost can be asked about.
    fn lease_grant(
        &self,
        id: EtcdLeaseId,
        ttl: Duration,
        deadline: Moment,
    ) -> impl Future<Output = Result<GrantedLease, KvError>> + Send;

    /// Ends an etcd lease and deletes every key attached to it, in one revision.
    fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> impl Future<Output = Result<(), KvError>> + Send;

    /// Extends an etcd lease to its full length again. `None`: the lease is gone.
    fn lease_keep_alive(
        &self,
        id: EtcdLeaseId,
        deadline: Moment,
    ) -> impl Future<Output = Result<Option<Duration>, KvError>> + Send;

    /// Asks how long an etcd lease has left. `None`: the lease is gone.
    fn lease_time_to_live(
        &self,
        id: EtcdLeaseId,
        deadline: Moment,
    ) -> impl Future<Output = Result<Option<LeaseTimeToLive>, KvError>> + Send;

    /// The store's monotonic clock.
    fn now(&self) -> Moment;

    /// Waits on the store's clock.
    fn pause(&self, delay: Duration) -> impl Future<Output = ()> + Send;

    /// Ends at a moment of the store's clock, for those who wait for something else meanwhile.
    fn until(&self, moment: Moment) -> impl Future<Output = ()> + Send;

    /// A random number for jitter and for naming leases; deterministic in a simulation.
    fn random(&self) -> u64;
}

/// A shared store is a store.
impl<K: Kv> Kv for std::sync::Arc<K> {
    fn range(
        &self,
        request: RangeRequest,
        deadline: Moment,
    ) -> impl Future<Output = Result<RangeResponse, KvError>> + Send {
        (**self).range(request, deadline)
    }

    fn txn(&self, request: Txn, deadline: Moment) -> impl Future<Output = Result<TxnResponse, KvError>> + Send {
        (**self).txn(request, deadline)
    }

    fn lease_grant(
        &self,
        id: EtcdLeaseId,
        ttl: Duration,
        deadline: Moment,
    ) -> impl Future<Output = Result<GrantedLease, KvError>> + Send {
        (**self).lease_grant(id, ttl, deadline)
    }

    fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> impl Future<Output = Result<(), KvError>> + Send {
        (**self).lease_revoke(id, deadline)
    }

    fn lease_keep_alive(
        &self,
        id: EtcdLeaseId,
        deadline: Moment,
    ) -> impl Future<Output = Result<Option<Duration>, KvError>> + Send {
        (**self).lease_keep_alive(id, deadline)
    }

    fn lease_time_to_live(
        &self,
        id: EtcdLeaseId,
        deadline: Moment,
    ) -> impl Future<Output = Result<Option<LeaseTimeToLive>, KvError>> + Send {
        (**self).lease_time_to_live(id, deadline)
    }

    fn now(&self) -> Moment {
        (**self).now()
    }

    fn pause(&self, delay: Duration) -> impl Future<Output = ()> + Send {
        (**self).pause(delay)
    }

    fn until(&self, moment: Moment) -> impl Future<Output = ()> + Send {
        (**self).until(moment)
    }

    fn random(&self) -> u64 {
        (**self).random()
    }
}

/// What `future` comes to, unless `deadline` comes first.
pub(crate) async fn by_deadline<F: Future>(kv: &impl Kv, deadline: Moment, future: F) -> Option<F::Output> {
    let (mut future, mut late) = (pin!(future), pin!(kv.until(deadline)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => late.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_saturates_instead_of_wrapping_into_the_past() {
        let end = Moment(Duration::MAX);
        assert_eq!(end.after(Duration::from_secs(1)), end);
        assert_eq!(end.until(Moment::default()), Duration::ZERO);
    }
}
