//! The fleet backend: load, ask the decision, store what it says, and decide again after a lost race.
//!
//! There is no protocol here. What is here is how a decision is made durable on etcd: which keys a transaction compares
//! and writes, what a lost race or a lost answer means, and how to do it in one round trip. The view of a shard that the
//! last own write left behind is kept, so that the next operation needs no read: its transaction compares the
//! revisions it was decided on, and its failure branch brings the hot part it should have been decided on instead. The next
//! try is decided on that and on what is remembered of the rest, and proves the rest as well.
//!
//! Two rules make the kept view safe. A *grant* may be decided on it, because the transaction proves it current. A
//! *refusal* may not: before anything is refused, the store is asked.
//!
//! An answer that was lost is resolved by looking: if the record is what was to be written, it was written.

mod acquire;
#[cfg(test)]
mod broken_change;
mod cache;
mod call;
mod claim;
mod commit;
mod families;
mod hints;
mod layouts;
mod listing;
mod present;
mod register;
mod renew;
mod reported;
mod retire;
mod runs;
mod split;
mod stale;
mod standings;
mod stored;
mod tallies;
mod traits;

use core::fmt;
use core::time::Duration;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tessera_contracts::{FenceEpoch, LogicalTime, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
use tessera_coordination::error::InfraError;

use self::cache::Cache;
use self::claim::Claims;
use self::hints::Hints;
use self::present::{Abstentions, Creation};
use self::standings::Standings;
use self::tallies::Tallies;
use crate::batch::{BatchLimits, Batcher};
use crate::client::EtcdClient;
use crate::codec::CodecError;
use crate::config::{ConfigError, EtcdConfig};
use crate::counters::STRIPES;
use crate::keyspace::Keyspace;
use crate::kv::{Kv, KvError, Moment};
use crate::retry::{RetryPolicy, Retrying};
use crate::session::Sessions;

/// The coordinator on etcd, for callers with a runtime. Cheap to clone; clones share sessions, connections and batches.
pub struct AsyncEtcdCoordinator<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    kv: Retrying<K>,
    batcher: Batcher<Retrying<K>>,
    /// For operations that write much.
    batcher_of_large: Batcher<Retrying<K>>,
    sessions: Sessions<Retrying<K>>,
    space: Keyspace,
    config: EtcdConfig,
    cache: Mutex<Cache>,
    tallies: Mutex<Tallies>,
    claims: Mutex<Claims>,
    /// Held while a claim looks for candidates, so that claims that come together look once.
    looking: tokio::sync::Mutex<()>,
    /// Splits under way: as many as there are stripes to count them on.
    split_turns: tokio::sync::Semaphore,
    hints: Mutex<Hints>,
    standings: Mutex<Standings>,
    abstentions: Mutex<Abstentions>,
    /// Set once the namespace was seen to hold no runs of another layout.
    layout_is_alone: AtomicBool,
}

impl AsyncEtcdCoordinator<EtcdClient> {
    /// A coordinator on a real cluster. Must be called within a tokio runtime, which will run its heartbeats until the last
    /// clone is dropped.
    ///
    /// # Errors
    /// If the configuration is not valid; the error names the field. A cluster that is away is no error here.
    pub fn connect(config: EtcdConfig) -> Result<Self, ConfigError> {
        let coordinator = Self::over(EtcdClient::new(&config)?, config)?;
        let heart = Arc::downgrade(&coordinator.inner);
        tokio::spawn(async move {
            while let Some(wait) = heart.upgrade().map(|inner| inner.sessions.look_again_in()) {
                tokio::time::sleep(wait).await;
                let Some(inner) = heart.upgrade() else { return };
                inner.sessions.beat_if_due().await;
            }
        });
        Ok(coordinator)
    }
}

impl<K: Kv + Clone> AsyncEtcdCoordinator<K> {
    /// A coordinator over any store: the simulated one, or one of your own. A caller that builds it this way also runs its
    /// heartbeats: call [`Self::heartbeat`] at least three times per session TTL.
    ///
    /// # Errors
    /// If the configuration is not valid; the error names the field.
    pub fn over(kv: K, config: EtcdConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let kv = Retrying::new(kv, RetryPolicy::from(&config));
        let space = Keyspace::new(&config.namespace);
        Ok(Self {
            inner: Arc::new(Inner {
                batcher: Batcher::new(kv.clone(), BatchLimits::from(&config)),
                batcher_of_large: Batcher::new(kv.clone(), BatchLimits::of_large(&config)),
                sessions: Sessions::new(kv.clone(), config.session_ttl_min, config.session_ttl, config.attempt_timeout),
                cache: Mutex::new(Cache::default()),
                tallies: Mutex::new(Tallies::new(&space, &config)),
                claims: Mutex::default(),
                looking: tokio::sync::Mutex::default(),
                split_turns: tokio::sync::Semaphore::new(STRIPES),
                hints: Mutex::default(),
                standings: Mutex::default(),
                abstentions: Mutex::default(),
                layout_is_alone: AtomicBool::default(),
                space,
                config,
                kv,
            }),
        })
    }

    /// Sends a heartbeat for every session.
    pub async fn heartbeat(&self) {
        self.inner.sessions.beat().await;
    }

    /// Until when the worker may believe in its leases, on the store's clock: past it, all its work must stop at once.
    /// `None` while it holds nothing.
    #[must_use]
    pub fn session_good_until(&self, worker: WorkerId) -> Option<Moment> {
        self.inner.sessions.good_until(worker)
    }

    /// The store's clock, on which [`Self::session_good_until`] is told.
    #[must_use]
    pub fn store_now(&self) -> Moment {
        self.inner.kv.now()
    }

    /// Makes the worker known to the tenant, before it has met a run: a shard that others cannot reach is then left to it. Lasts as
    /// long as the worker's session; call it again now and then, which costs a request only where the session is new.
    ///
    /// # Errors
    /// If the store could not be told.
    pub async fn join(&self, tenant: TenantId, worker: WorkerId) -> Result<(), InfraError> {
        self.inner.join(tenant, worker).await
    }

    /// Says that the worker cannot serve this creation of a run, so that no shard of it is left to the worker. Lasts as long as
    /// the worker's sessions, or until [`Self::take_part`]; call it again while it is true.
    ///
    /// # Errors
    /// If the store could not be told.
    pub async fn abstain(
        &self,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        worker: WorkerId,
    ) -> Result<(), InfraError> {
        self.inner.abstain(Creation { tenant, run, incarnation }, worker).await
    }

    /// Takes back what [`Self::abstain`] said.
    ///
    /// # Errors
    /// If the store could not be told.
    pub async fn take_part(
        &self,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        worker: WorkerId,
    ) -> Result<(), InfraError> {
        self.inner.take_part(Creation { tenant, run, incarnation }, worker).await
    }

    /// Up to `limit` shards of a run that workers hold, each with the fence epoch of its owner. One request, however many shards the
    /// run has.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn held(
        &self,
        tenant: TenantId,
        run: RunId,
        limit: u32,
    ) -> Result<Vec<(ShardId, FenceEpoch)>, InfraError> {
        self.inner.held(tenant, run, limit).await
    }

    /// Ends the worker's session, so that whatever it still holds is free at once: the last step of a planned stop.
    ///
    /// # Errors
    /// If the store could not be told; the worker's leases have ended on this side all the same.
    pub async fn end_session(&self, worker: WorkerId) -> Result<(), InfraError> {
        let deadline = self.inner.deadline();
        self.inner.sessions.close(worker, deadline).await.map_err(|error| failed("end_session", &error))
    }
}

impl<K: Kv> Inner<K> {
    /// By when an operation that begins now has ended.
    fn deadline(&self) -> Moment {
        self.kv.now().after(self.config.call_timeout)
    }

    fn skew(&self) -> u64 {
        millis(self.config.skew_tolerance)
    }

    fn lease_duration_default(&self) -> u64 {
        millis(self.config.lease_duration_default)
    }

    /// Waits a little after a lost race, so that two who race do not meet again.
    async fn breathe(&self, attempt: u32) {
        if attempt > 1 {
            let policy = RetryPolicy::from(&self.config);
            self.kv.pause(policy.delay(attempt - 1, self.kv.random())).await;
        }
    }
}

impl<K> Clone for AsyncEtcdCoordinator<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: fmt::Debug> fmt::Debug for AsyncEtcdCoordinator<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEtcdCoordinator")
            .field("store", &self.inner.kv)
            .field("namespace", &self.inner.config.namespace)
            .finish_non_exhaustive()
    }
}

/// A store's failure as the protocol's callers know it.
fn failed(operation: &'static str, error: &KvError) -> InfraError {
    if error.needs_operator() {
        InfraError::refused(operation, error.to_string())
    } else {
        InfraError::transient(operation, error.to_string())
    }
}

fn unreadable(operation: &'static str, error: &CodecError) -> InfraError {
    InfraError::corruption(operation, error.to_string())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The span of `length` on a clock that counts milliseconds.
const fn span(length: u64) -> Duration {
    Duration::from_millis(length)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind our locks is a cache or a count: whatever state a panic left is one that could have been read.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a deadline of another has passed for a claimant that allows for skew.
fn is_past(deadline: LogicalTime, now: LogicalTime, skew: u64) -> bool {
    now >= deadline.saturating_add(skew)
}
