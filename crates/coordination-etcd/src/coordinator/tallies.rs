//! The shard counters as this coordinator last saw them.

use core::array::from_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

use tessera_contracts::TenantId;
use tessera_coordination::error::InfraError;
use tessera_coordination::shard_limits::{LimitScope, ShardCensus, ShardLimitViolation, ShardLimits};

use super::{Inner, failed, lock, unreadable};
use crate::config::EtcdConfig;
use crate::counters::{Counter, CounterChange, KEYS, STRIPES};
use crate::keyspace::Keyspace;
use crate::kv::{Kv, Moment, OpResponse, Revision, Txn};

/// How many tenants' counters are remembered.
const TENANTS_MAX: usize = 1_024;

/// Counters as last seen, and which of their stripes are being written.
pub(super) struct Tallies {
    space: Keyspace,
    limits: ShardLimits,
    all: Counter,
    tenants: HashMap<TenantId, Counter>,
    stripes: Arc<Stripes>,
}

/// How many operations under way write each stripe, and which was taken last.
#[derive(Debug, Default)]
struct Stripes {
    writers: [AtomicUsize; STRIPES],
    last: AtomicUsize,
}

/// The stripe that an operation writes. Dropping it, for whatever reason, frees the stripe.
#[derive(Debug)]
struct StripeTaken {
    stripes: Arc<Stripes>,
    stripe: usize,
}

impl StripeTaken {
    /// Takes a stripe that the fewest are writing: two operations of one coordinator that run side by side would
    /// otherwise collide. Called under the lock of the tallies.
    fn new(stripes: &Arc<Stripes>) -> Self {
        let last = stripes.last.load(Ordering::Relaxed);
        let in_turn = (1..=STRIPES).map(|step| (last + step) % STRIPES);
        let stripe = in_turn.min_by_key(|stripe| stripes.writers[*stripe].load(Ordering::Relaxed)).unwrap_or(0);
        stripes.last.store(stripe, Ordering::Relaxed);
        stripes.writers[stripe].fetch_add(1, Ordering::Relaxed);
        Self { stripes: Arc::clone(stripes), stripe }
    }
}

impl Drop for StripeTaken {
    fn drop(&mut self) {
        self.stripes.writers[self.stripe].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Both counters that bind a tenant, at one point in time.
#[derive(Debug)]
pub(super) struct Tally {
    all: Counter,
    of_tenant: Counter,
    limits: ShardLimits,
    taken: StripeTaken,
}

/// A change of both counters.
#[derive(Clone, Debug, Default)]
pub(super) struct TallyChange {
    pub(super) all: CounterChange,
    pub(super) of_tenant: CounterChange,
}

impl Tallies {
    pub(super) fn new(space: &Keyspace, config: &EtcdConfig) -> Self {
        let limits = ShardLimits { per_tenant_max: config.shards_per_tenant_max, total_max: config.shards_total_max };
        let paths = from_fn(|key| space.count_all(stripe_of(key)).into());
        Self {
            space: space.clone(),
            limits,
            all: Counter::unseen(LimitScope::Coordinator, limits.total_max, paths),
            tenants: HashMap::new(),
            stripes: Arc::default(),
        }
    }

    /// The tally as last seen; `None` if this tenant's was never seen.
    fn remembered(&self, tenant: TenantId) -> Option<Tally> {
        let of_tenant = self.tenants.get(&tenant)?.clone();
        let taken = StripeTaken::new(&self.stripes);
        Some(Tally { all: self.all.clone(), of_tenant, limits: self.limits, taken })
    }

    fn unseen(&self, tenant: TenantId, taken: StripeTaken) -> Tally {
        let paths = from_fn(|key| self.space.count_of(tenant, stripe_of(key)).into());
        Tally {
            all: self.all.clone(),
            of_tenant: Counter::unseen(LimitScope::Tenant, self.limits.per_tenant_max, paths),
            limits: self.limits,
            taken,
        }
    }

    /// Remembers what was read at `revision`, and completes it with what is known to have been written since.
    fn remember(&mut self, tenant: TenantId, tally: &mut Tally, revision: Revision) {
        if self.tenants.len() >= TENANTS_MAX && !self.tenants.contains_key(&tenant) {
            self.tenants.clear();
        }
        let of_tenant = self.tenants.entry(tenant).or_insert_with(|| tally.of_tenant.clone());
        for (known, read) in [(&mut self.all, &mut tally.all), (of_tenant, &mut tally.of_tenant)] {
            known.learn(read, revision);
            read.clone_from(known);
        }
    }

    fn changed(&mut self, tenant: TenantId, change: &TallyChange, revision: Revision) {
        self.all.changed(&change.all, revision);
        if let Some(of_tenant) = self.tenants.get_mut(&tenant) {
            of_tenant.changed(&change.of_tenant, revision);
        }
    }
}

/// Which stripe a counter's key is of; its last is its guard.
fn stripe_of(key: usize) -> Option<usize> {
    (key < STRIPES).then_some(key)
}

impl Tally {
    /// What decisions about growth see.
    pub(super) fn census(&self) -> ShardCensus {
        ShardCensus { limits: self.limits, of_tenant: self.of_tenant.count(), total: self.all.count() }
    }

    pub(super) fn add(&self, added: u64) -> Result<TallyChange, ShardLimitViolation> {
        let stripe = self.taken.stripe;
        let of_tenant = self.of_tenant.add(added, stripe)?;
        Ok(TallyChange { all: self.all.add(added, stripe)?, of_tenant })
    }

    pub(super) fn subtract(&self, removed: u64) -> TallyChange {
        TallyChange { all: self.all.subtract(removed), of_tenant: self.of_tenant.subtract(removed) }
    }
}

impl<K: Kv> Inner<K> {
    /// The tally as last seen, or as read if it never was.
    pub(super) async fn tally(
        &self,
        operation: &'static str,
        tenant: TenantId,
        deadline: Moment,
    ) -> Result<Tally, InfraError> {
        let remembered = lock(&self.tallies).remembered(tenant);
        match remembered {
            Some(tally) => Ok(tally),
            None => self.fresh_tally(operation, tenant, deadline).await,
        }
    }

    /// The tally as the store has it now.
    pub(super) async fn fresh_tally(
        &self,
        operation: &'static str,
        tenant: TenantId,
        deadline: Moment,
    ) -> Result<Tally, InfraError> {
        let taken = StripeTaken::new(&lock(&self.tallies).stripes);
        self.read_tally(operation, tenant, taken, deadline).await
    }

    /// The same, for an operation that has lost a race: it keeps its stripe, since each other one may be taken.
    pub(super) async fn refreshed_tally(
        &self,
        operation: &'static str,
        tenant: TenantId,
        stale: Tally,
        deadline: Moment,
    ) -> Result<Tally, InfraError> {
        self.read_tally(operation, tenant, stale.taken, deadline).await
    }

    async fn read_tally(
        &self,
        operation: &'static str,
        tenant: TenantId,
        taken: StripeTaken,
        deadline: Moment,
    ) -> Result<Tally, InfraError> {
        let mut tally = lock(&self.tallies).unseen(tenant, taken);
        let known = tally.all.newest();
        let mut reads = tally.all.reads();
        reads.extend(tally.of_tenant.reads());
        let answer = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
        let mut ranges = answer.responses.iter().filter_map(|response| match response {
            OpResponse::Range(range) => Some(range),
            OpResponse::Put | OpResponse::Delete { .. } | OpResponse::Txn(_) => None,
        });
        tally.all.see(ranges.by_ref().take(KEYS)).map_err(|error| unreadable(operation, &error))?;
        tally.of_tenant.see(ranges).map_err(|error| unreadable(operation, &error))?;
        // A store that is older than what was known before it was asked has been put back, and nothing older counts.
        let revision = if answer.revision < known { Revision(i64::MAX) } else { answer.revision };
        lock(&self.tallies).remember(tenant, &mut tally, revision);
        Ok(tally)
    }

    /// Remembers that a change of the tally was stored.
    pub(super) fn tally_changed(&self, tenant: TenantId, change: &TallyChange, revision: Revision) {
        lock(&self.tallies).changed(tenant, change, revision);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::AsyncEtcdCoordinator;
    use crate::sim_kv::{SimKv, block_on};

    #[test]
    fn operations_side_by_side_write_different_stripes_whatever_the_order_in_which_they_end() {
        let stripes = Arc::default();
        let mut under_way: Vec<StripeTaken> = (0..STRIPES).map(|_| StripeTaken::new(&stripes)).collect();
        for ended in [5, 2, 7, 0, 0, 3, 6, 1] {
            let freed = under_way.remove(ended).stripe;
            let next = StripeTaken::new(&stripes);
            assert_eq!(next.stripe, freed, "the only one that is free");
            under_way.push(next);
        }
        drop(under_way);
        let in_turn: Vec<usize> = (0..STRIPES).map(|_| StripeTaken::new(&stripes).stripe).collect();
        assert!((0..STRIPES).all(|stripe| in_turn.contains(&stripe)), "and all are used: {in_turn:?}");
    }

    #[test]
    fn who_reads_the_counters_again_keeps_its_stripe() {
        let kv = SimKv::new(1);
        let coordinator = AsyncEtcdCoordinator::over(kv, EtcdConfig::default()).expect("valid");
        let (inner, tenant, far) =
            (&coordinator.inner, TenantId::from_bytes([1; 32]), Moment(Duration::from_secs(1_000)));
        let mut all: Vec<Tally> =
            (0..STRIPES).map(|_| block_on(inner.fresh_tally("test", tenant, far)).expect("read")).collect();
        let stale = all.remove(3);
        let stripe = stale.taken.stripe;
        let refreshed = block_on(inner.refreshed_tally("test", tenant, stale, far)).expect("read");
        assert_eq!(refreshed.taken.stripe, stripe);
        assert!(all.iter().all(|other| other.taken.stripe != stripe), "each of the others has its own");
    }
}
